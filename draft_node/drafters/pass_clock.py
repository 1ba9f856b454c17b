"""When a chain has to end: a shorter block in time is worth more than a longer one too late."""

import time

LEAST_PASSES = 2  # the last token of a block is never verified, so one alone is of no use
_SMOOTHING = 0.2  # weight of the newest pass
_KEPT = 0.99  # a call, of what a further pass takes
_MOST = 2.0  # times the usual is the most that a pass counts: others may have had the core


class PassClock:
    """Looked at after every pass of a drafter's chains.

    Reads clocks, never tokens. On an accelerator that runs behind its host, passes look short and
    nothing is cut.
    """

    def __init__(self) -> None:
        self._usual_s = 0.0
        self._after_s = 0.0  # from the last look to the end of a call, usually
        self._further_s: dict[int, float] = {}  # by blocks, in powers of two
        self._load = 0
        self._due_s = self._began_s = 0.0
        self._num_passes = 0

    @property
    def further_s(self) -> float:
        """What a pass after the first takes, for as many blocks; 0 where that is not known.

        Fades while no call has a second one: what was slow once would else never be tried again.
        """
        return self._further_s.get(self._load, 0.0)

    def begin(self, due_s: float, num_blocks: int = 1) -> None:
        """A draft call; its blocks are wanted at `due_s`, in seconds of `time.perf_counter`."""
        self._load = num_blocks.bit_length()
        self._further_s[self._load] = _KEPT * self.further_s
        self._due_s, self._began_s, self._num_passes = due_s, time.perf_counter(), 0

    def goes_on(self) -> bool:
        """After a pass, before its token is drawn: whether another is to follow.

        It is if it is likely to end in time, or is one of those that every block has. Asked before
        the draw, so that what was drawn cannot decide whether it will be verified.
        """
        now_s = time.perf_counter()
        took_s, self._began_s = now_s - self._began_s, now_s
        self._num_passes += 1
        self._usual_s = _smoothed(self._usual_s, took_s)
        if self._num_passes > 1:
            self._further_s[self._load] = _smoothed(self.further_s, took_s)
        # The first pass takes longer: tokens in flight enter with it.
        ends_s = now_s + (self.further_s or self._usual_s) + self._after_s
        return self._num_passes < LEAST_PASSES or ends_s <= self._due_s

    def end(self) -> None:
        """The token of the last pass is drawn, too."""
        self._after_s = _smoothed(self._after_s, time.perf_counter() - self._began_s)


def _smoothed(usual_s: float, took_s: float) -> float:
    usual_s = usual_s or took_s
    return usual_s + _SMOOTHING * (min(took_s, _MOST * usual_s) - usual_s)
