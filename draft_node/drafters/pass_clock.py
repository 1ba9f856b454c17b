"""When a chain has to end: a shorter block in time is worth more than a longer one too late."""

import time

LEAST_PASSES = 2  # the last token of a block is never verified, so one alone is of no use
_SMOOTHING = 0.2  # weight of the newest pass
_MOST = 2.0  # times the usual is the most that a pass counts: others may have had the core


class PassClock:
    """Looked at after every pass of a drafter's chains.

    Reads clocks, never tokens. On an accelerator that runs behind its host, passes look short and
    nothing is cut.
    """

    def __init__(self) -> None:
        self._usual_s = 0.0
        self._due_s = self._began_s = 0.0
        self._num_passes = 0

    @property
    def usual_s(self) -> float:
        """What a pass takes."""
        return self._usual_s

    def begin(self, due_s: float) -> None:
        """A draft call; its blocks are wanted at `due_s`, in seconds of `time.perf_counter`."""
        self._due_s, self._began_s, self._num_passes = due_s, time.perf_counter(), 0

    def goes_on(self) -> bool:
        """After a pass, before its token is drawn: whether another is to follow.

        It is if it is likely to end in time, or is one of those that every block has. Asked before
        the draw, so that what was drawn cannot decide whether it will be verified.
        """
        now_s = time.perf_counter()
        took_s, self._began_s = now_s - self._began_s, now_s
        self._num_passes += 1
        if not self._usual_s:
            self._usual_s = took_s
        self._usual_s += _SMOOTHING * (min(took_s, _MOST * self._usual_s) - self._usual_s)
        return self._num_passes < LEAST_PASSES or now_s + self._usual_s <= self._due_s
