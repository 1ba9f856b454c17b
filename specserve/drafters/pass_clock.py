"""When a chain has to end: a shorter block in time is worth more than a longer one too late."""

import time

import numpy as np

from specserve.backends.cpu import compiled

LEAST_PASSES = 2  # the last token of a block is never verified, so one alone is of no use
_SMOOTHING = 0.2  # weight of the newest pass
_KEPT = 0.99  # a call, of what a further pass takes
_MOST = 2.0  # times the usual is the most that a pass counts: others may have had the core

# Of a clock's state, float64, in seconds: what a pass takes and one after the first, what passes
# from the last look to the end of a call, when blocks are wanted, the last look; passes so far.
USUAL, FURTHER, AFTER, DUE, LOOKED, NUM_PASSES = range(6)


@compiled.shared
def _smoothed(usual_s: float, took_s: float) -> float:
    usual_s = took_s if usual_s == 0.0 else usual_s
    return usual_s + _SMOOTHING * (min(took_s, _MOST * usual_s) - usual_s)


@compiled.shared
def look(state: np.ndarray, now_s: float) -> bool:
    """`PassClock.goes_on`, at `now_s`."""
    took_s = now_s - state[LOOKED]
    state[LOOKED] = now_s
    state[NUM_PASSES] += 1
    state[USUAL] = _smoothed(state[USUAL], took_s)
    if state[NUM_PASSES] > 1:
        state[FURTHER] = _smoothed(state[FURTHER], took_s)
    # The first pass takes longer: tokens in flight enter with it.
    pass_s = state[FURTHER] if state[FURTHER] != 0.0 else state[USUAL]
    return state[NUM_PASSES] < LEAST_PASSES or now_s + pass_s + state[AFTER] <= state[DUE]


class PassClock:
    """Looked at after every pass of a drafter's chains.

    Reads clocks, never tokens. On an accelerator that runs behind its host, passes look short and
    nothing is cut.
    """

    def __init__(self) -> None:
        self.state = np.zeros(6)  # also for compiled chains, which look for themselves
        self._further_s: dict[int, float] = {}  # by blocks, in powers of two
        self._load = 0

    @property
    def further_s(self) -> float:
        """What a pass after the first takes, for as many blocks; 0 where that is not known.

        Fades while no call has a second one: what was slow once would else never be tried again.
        """
        return float(self.state[FURTHER])

    def begin(self, due_s: float, num_blocks: int = 1) -> None:
        """A draft call; its blocks are wanted at `due_s`, in seconds of `time.perf_counter`."""
        state = self.state
        self._further_s[self._load] = self.further_s
        self._load = num_blocks.bit_length()
        state[FURTHER] = _KEPT * self._further_s.get(self._load, 0.0)
        state[DUE], state[LOOKED], state[NUM_PASSES] = due_s, time.perf_counter(), 0

    def goes_on(self) -> bool:
        """After a pass, before its token is drawn: whether another is to follow.

        It is if it is likely to end in time, or is one of those that every block has. Asked before
        the draw, so that what was drawn cannot decide whether it will be verified.
        """
        return bool(look(self.state, time.perf_counter()))

    def end(self) -> None:
        """The token of the last pass is drawn, too."""
        state = self.state
        state[AFTER] = _smoothed(state[AFTER], time.perf_counter() - state[LOOKED])
