"""When a chain has to end: a shorter block in time is worth more than a longer one too late."""

import time

LEAST_PASSES = 2  # the last token of a block is never verified, so one alone is of no use
_SMOOTHING = 0.2  # weight of the newest pass
_KEPT = 0.99  # a call, of what a further pass takes
_MOST = 2.0  # times the usual is the most that a pass counts: others may have had the core


class StepTimer:
    """Looked at after every pass of a drafter's chains.

    Reads clocks, never tokens. On an accelerator that runs behind its host, passes look short and
    nothing is cut.
    """

    def __init__(self) -> None:
        # What a pass after the first takes, for as many blocks as in this call; 0 where that is not
        # known. Fades while no call has a second one: what was slow once would else never be tried
        # again.
        self.further_s = 0.0
        self._usual_s = 0.0  # that a pass takes, the first included
        self._after_s = 0.0  # from the last look to the end of a call
        self._due_s = self._looked_s = 0.0
        self._num_passes = 0
        self._further_by_load: dict[int, float] = {}  # by blocks, in powers of two
        self._load = 0

    def begin(self, due_s: float, num_blocks: int = 1) -> None:
        """A draft call; its blocks are wanted at `due_s`, in seconds of `time.perf_counter`."""
        self._further_by_load[self._load] = self.further_s
        self._load = num_blocks.bit_length()
        self.further_s = _KEPT * self._further_by_load.get(self._load, 0.0)
        self._due_s, self._looked_s, self._num_passes = due_s, time.perf_counter(), 0

    def goes_on(self) -> bool:
        """After a pass, before its token is drawn: whether another is to follow.

        It is if it is likely to end in time, or is one of those that every block has. Asked before
        the draw, so that what was drawn cannot decide whether it will be verified.
        """
        now_s = time.perf_counter()
        took_s, self._looked_s = now_s - self._looked_s, now_s
        self._num_passes += 1
        self._usual_s = _smoothed(self._usual_s, took_s)
        if self._num_passes > 1:
            self.further_s = _smoothed(self.further_s, took_s)
        # The first pass takes longer: pending tokens enter with it.
        pass_s = self.further_s or self._usual_s
        return self._num_passes < LEAST_PASSES or now_s + pass_s + self._after_s <= self._due_s

    def end(self) -> None:
        """The token of the last pass is drawn, too."""
        self._after_s = _smoothed(self._after_s, time.perf_counter() - self._looked_s)


def _smoothed(usual_s: float, took_s: float) -> float:
    usual_s = took_s if usual_s == 0.0 else usual_s
    return usual_s + _SMOOTHING * (min(took_s, _MOST * usual_s) - usual_s)
