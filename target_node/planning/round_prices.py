# pyright: strict
"""What one more drafted token costs in a round, and what a round's time is worth: both measured.

Apart for each load (decoding rows, in powers of two, alone or beside prompts) what a token adds to
a forward is measured. At the speed at which the service makes tokens now, that is its price in
tokens. To verify what is likelier than that to survive is what makes the speed largest (Dinkelbach:
the best ratio of tokens to time is the one at whose own rate no further token pays). DSpark's
scheduler (Algorithm 1) searches a table of steps a second instead; where the table is straight the
answer is the same. Before a load has had rounds of its own, forwards that were timed at start stand
in for them, and its speed is taken to be that of plain decoding.

Receives counts and times, never tokens: a price says nothing of what was drawn in its round.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from specserve.backends.base import Backend
from specserve.drafters.protocol import StoppingThreshold
from target_node.planning.draft_pace import DraftPace
from target_node.planning.step_table import FrozenSteps, Line, StepTable
from target_node.planning.token_times import MOST, SMOOTHING, TokenTimes

_LEAST_ROUNDS = 4  # before anything is believed
_TIMED_ROUNDS = 8  # of its own, and what was timed beforehand says nothing of speed any more


class RoundPrices:
    """Of one way to draft. Call `begin`, `launch` and `observe` in every round that is to count."""

    def __init__(self, backend: Backend, steps: StepTable | None = None) -> None:
        """`steps`: what forwards take; may be measured later, and is by whoever runs them."""
        self._backend = backend
        self._steps = steps or StepTable()
        self._loads: dict[tuple[int, bool], _BatchTimes] = {}
        self._load = _BatchTimes(backend.turning_point, 1, None)  # before the first round
        self._began_s = self._launched_s = 0.0
        self._num_tokens = self._num_first_calls = 0

    def begin(self, num_decoding: int, *, is_mixed: bool = False) -> None:
        """A round of that many decoding rows begins; nothing is drafted yet.

        Prompts or parts of them are read in a mixed one besides.
        """
        self._load = self._of(num_decoding, is_mixed=is_mixed)
        self._began_s, self._num_first_calls = time.perf_counter(), self._backend.num_first_calls

    def launch(self, num_tokens: int) -> None:
        """The forward of so many tokens begins."""
        self._num_tokens, self._launched_s = num_tokens, time.perf_counter()

    def observe(self, num_emitted: int) -> None:
        """The round is over, and made so many tokens."""
        if self._backend.num_first_calls != self._num_first_calls:
            return  # which took longer than it will again
        now_s = time.perf_counter()
        round_s = now_s - self._began_s
        self._load.add(self._num_tokens, now_s - self._launched_s, round_s, num_emitted)

    def freeze(self) -> "FrozenPrices":
        """As they are now, of every load: nothing that is measured later changes it."""
        known = {key: load.threshold for key, load in self._loads.items()}
        steps = self._steps.freeze()

        def of_new(bits: int, *, is_mixed: bool) -> StoppingThreshold:
            """Of a load that had no round yet: what forwards were known to take, nothing else."""
            return self._new(bits, steps, is_mixed=is_mixed).threshold

        return FrozenPrices(known, of_new, steps)

    def _of(self, num_decoding: int, *, is_mixed: bool) -> "_BatchTimes":
        bits = max(num_decoding, 1).bit_length()
        load = self._loads.get((bits, is_mixed))
        if load is None:
            load = self._loads[bits, is_mixed] = self._new(
                bits, self._steps.freeze(), is_mixed=is_mixed
            )
        return load

    def _new(self, bits: int, steps: FrozenSteps, *, is_mixed: bool) -> "_BatchTimes":
        num_rows = 1 << (bits - 1)
        line = None if is_mixed else steps.line(num_rows)
        return _BatchTimes(self._backend.turning_point, num_rows, line)


class FrozenPrices:
    """`RoundPrices` at one moment."""

    def __init__(
        self,
        known: Mapping[tuple[int, bool], StoppingThreshold],
        of_new: Callable[..., StoppingThreshold],
        steps: FrozenSteps,
    ) -> None:
        self.steps = steps
        self._known = known
        self._of_new = of_new

    def of(self, num_decoding: int, *, is_mixed: bool) -> StoppingThreshold:
        bits = max(num_decoding, 1).bit_length()
        known = self._known.get((bits, is_mixed))
        return self._of_new(bits, is_mixed=is_mixed) if known is None else known


class _BatchTimes:
    """Running means of the rounds of one load."""

    def __init__(self, turning_point: float, num_rows: int, timed: Line | None) -> None:
        """`timed`: forwards of so many rows, beforehand."""
        self._forwards = TokenTimes(turning_point if timed is None else timed.turning_point)
        self._num_rows = num_rows
        self._timed = timed
        self._num_rounds = 0
        self._round_s: float = 0.0  # means
        self._num_emitted: float = 0.0

    def add(self, num_tokens: int, forward_s: float, round_s: float, num_emitted: int) -> None:
        is_first = not self._forwards.num_rounds
        self._forwards.add(num_tokens, forward_s)
        if is_first and self._timed is not None:
            return  # it reads whole contexts, and nobody depends on it
        if self._num_rounds:
            round_s = min(round_s, MOST * self._round_s)
        self._num_rounds += 1
        weight = max(SMOOTHING, 1 / self._num_rounds)
        self._round_s += weight * (round_s - self._round_s)
        self._num_emitted += weight * (num_emitted - self._num_emitted)

    @property
    def threshold(self) -> StoppingThreshold:
        """Nothing costs anything before a few rounds, or forwards beforehand, were measured."""
        if self._timed is not None:
            return self._threshold(self._timed)
        if self._num_rounds < _LEAST_ROUNDS or not self._round_s:
            return StoppingThreshold(0.0, 0.0)
        tokens_per_s = self._num_emitted / self._round_s
        return StoppingThreshold(tokens_per_s, tokens_per_s * self._forwards.slope)

    def _threshold(self, timed: Line) -> StoppingThreshold:
        """The first rounds are few: plain decoding as it was timed makes up what is missing."""
        own, plain = self._num_rounds, max(0, _TIMED_ROUNDS - self._num_rounds)
        seconds = own * self._round_s + plain * timed.seconds(self._num_rows)
        if not seconds:
            return StoppingThreshold(0.0, 0.0)
        tokens_per_s = (own * self._num_emitted + plain * self._num_rows) / seconds
        slope = self._forwards.slope if self._forwards.num_rounds else timed.token_s
        return StoppingThreshold(tokens_per_s, tokens_per_s * slope)


class RoundCosts(NamedTuple):
    """What decides on numbers of rows and tokens."""

    prices: RoundPrices
    drafts: DraftPace | None = None  # what is drafted in a round, before its forward
    may_pause: bool = False  # rows whose drafts bring less than they take are left out
    are_blind: bool = True  # chains end by their number of tokens alone
