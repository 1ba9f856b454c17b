# pyright: strict
"""Steps a second over (rows, tokens, context): what a forward of any size takes.

DSpark's scheduler (section 3.2.2) divides by such a table. This one is measured at start
(`step_profile`), kept on disk (`step_files`) and refreshed by every round. Tokens are kept as they
were timed, size by size: graph buckets and tiles make stairs of them, which no line may smooth.
What rows and keys add is a straight line each, which the profile alone knows: in rounds their
numbers rise and fall together. What else changes the machine's pace, such as other work on it,
changes all sizes alike.

Receives counts and times, never tokens. What planning reads is a `FrozenSteps`.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specserve.models.attention import AttentionBatch
from specserve.sampling.verification.admission import Counts, Seconds
from specserve.settings.step_files import StepCell, StepRecord
from specserve.telemetry import Tally
from specserve.types import STEP_TIME_EDGES
from target_node.planning.token_times import MOST

_A_ROW = 8  # tokens of one: a block and what stands before it
_LEAST_WEIGHT = 0.05  # of the newest round in the mean of its size
_PACE_WEIGHT = 0.1  # ... and in the pace of all
_PACE_RANGE = 0.25, 4.0
_MOST_ADDED = 0.9  # of a forward, by its rows and keys
_MOST_RECALLED = 16  # rounds that a size of an earlier service counts as
_NUM_ERRORS = 512  # latest rounds whose predictions are remembered


class StepSize(NamedTuple):
    """What the time of a forward depends on."""

    num_rows: int
    num_tokens: int  # new ones, of all rows, and those that pad them
    num_keys: int  # that they attend to, new ones included: the rows' contexts, summed

    @classmethod
    def of(cls, batch: AttentionBatch, num_computed: int) -> "StepSize":
        """Of a forward that computed so many tokens for `batch`."""
        return cls(len(batch.num_tokens), num_computed, int(batch.context_lens.sum()))


class Line(NamedTuple):
    """Seconds of a forward of n tokens: fixed_s + n * token_s, from a load's plain rounds on."""

    fixed_s: float
    token_s: float

    def seconds(self, num_tokens: float) -> float:
        return self.fixed_s + num_tokens * self.token_s

    @property
    def turning_point(self) -> float:
        """Tokens that take as long as what every forward takes; infinite where they are free."""
        return max(0.0, self.fixed_s / self.token_s) if self.token_s else np.inf


class Cell(NamedTuple):
    """Forwards of one number of tokens."""

    seconds: float  # without what rows and keys add, at the usual pace
    num_takes: int


class Slopes(NamedTuple):
    """Seconds that a row and a key add."""

    row_s: float = 0.0
    key_s: float = 0.0

    def seconds(self, num_rows: int, num_keys: int) -> float:
        return num_rows * self.row_s + num_keys * self.key_s


class StepTable:
    """Of one target; knows nothing until it was profiled, or a round has run."""

    def __init__(self, edges: Sequence[int] = ()) -> None:
        """`edges`: numbers of tokens at which steps end, where the backend pads to such."""
        self.edges = tuple(edges)
        self.slopes = Slopes()
        self.cells: dict[int, Cell] = {}
        self._pace = 1.0
        self._num_predicted = 0
        self._num_rounds = 0  # that refreshed it, those of earlier services included
        self._errors: deque[float] = deque(maxlen=_NUM_ERRORS)
        self.ratios = Tally(STEP_TIME_EDGES)  # predicted over measured; for people alone
        self._frozen: FrozenSteps | None = None

    def learn(self, cells: Mapping[int, Cell], slopes: Slopes) -> None:
        """What was profiled, now or by an earlier service."""
        self.cells, self.slopes, self._frozen = dict(cells), slopes, None

    def recall(self, record: StepRecord) -> None:
        """What an earlier service knew; its rounds weigh little against this one's."""
        cells = {
            c.num_tokens: Cell(c.seconds, min(c.num_takes, _MOST_RECALLED)) for c in record.cells
        }
        self.learn(cells, Slopes(record.row_s, record.key_s))
        self._num_rounds = record.num_rounds

    def as_record(self, made_for: dict[str, str]) -> StepRecord:
        """What the next service is to know, of forwards `made_for` these settings and machine."""
        return StepRecord(
            made_for=made_for,
            cells=[
                StepCell(n, cell.seconds, cell.num_takes) for n, cell in sorted(self.cells.items())
            ],
            row_s=self.slopes.row_s,
            key_s=self.slopes.key_s,
            num_rounds=self._num_rounds,
            median_error=self.median_error,
        )

    def keep_pace(self, size: StepSize, seconds: float) -> None:
        """All sizes take as much longer, or shorter, than was known as this forward just did."""
        usual_s = float(
            self.freeze().at(size.num_rows, size.num_keys).seconds(np.array([size.num_tokens]))[0]
        )
        self._pace = min(max(self._pace * seconds / usual_s, _PACE_RANGE[0]), _PACE_RANGE[1])
        self._frozen = None

    @property
    def num_predicted(self) -> int:
        """Rounds of this service whose time was predicted and measured."""
        return self._num_predicted

    def observe(self, size: StepSize, seconds: float) -> None:
        """One round's forward, and the verification of what it computed.

        One that ran without padding where others are padded (with a piece of a prompt, mostly) says
        nothing of those, and is left out.
        """
        end = int(ends_of_steps(np.array(self.edges), np.array([size.num_tokens]))[0])
        if end != size.num_tokens:
            return
        steps, added_s = self.freeze(), self.slopes.seconds(size.num_rows, size.num_keys)
        self._num_rounds += 1
        if self.cells:
            self._num_predicted += 1
            counts = np.array([size.num_tokens])
            expected_s = float(steps.at(size.num_rows, size.num_keys).seconds(counts)[0])
            self._errors.append(abs(expected_s / seconds - 1))
            self.ratios.add(expected_s / seconds)
            seconds = min(seconds, MOST * expected_s)  # others may have had the core
            own_s = _own_s(seconds / self._pace, added_s)
            self._pace += _PACE_WEIGHT * (seconds / (expected_s / self._pace) - self._pace)
            self._pace = min(max(self._pace, _PACE_RANGE[0]), _PACE_RANGE[1])
        else:
            own_s = _own_s(seconds, added_s)
        known = self.cells.get(end)
        if known is None and self.cells:  # what lies between its neighbours counts as one take
            known = Cell(float(steps.own_s(np.array([end]))[0]), 1)
        known = known or Cell(own_s, 0)
        weight = max(_LEAST_WEIGHT, 1 / (known.num_takes + 1))
        mean_s = known.seconds + weight * (own_s - known.seconds)
        self.cells[end] = Cell(mean_s, known.num_takes + 1)
        self._frozen = None

    @property
    def median_error(self) -> float | None:
        """How far predictions of the latest rounds were off, as a share; None before any."""
        return statistics.median(self._errors) if self._errors else None

    def freeze(self) -> "FrozenSteps":
        """As it is now: nothing that is measured later changes it."""
        if self._frozen is None:
            cells = sorted((tokens, cell.seconds) for tokens, cell in self.cells.items())
            self._frozen = FrozenSteps(cells, self.slopes, self._pace, self.edges)
        return self._frozen


def _own_s(seconds: float, added_s: float) -> float:
    """Without what rows and keys add, which is no more than most of it: a profile may be wrong."""
    return max((1 - _MOST_ADDED) * seconds, seconds - added_s)


class FrozenSteps:
    """A `StepTable` at one moment."""

    def __init__(
        self,
        cells: Iterable[tuple[int, float]],
        slopes: Slopes,
        pace: float,
        edges: Sequence[int],
    ) -> None:
        """`cells`: tokens and seconds, ascending."""
        known = list(cells)
        self._ends = np.array([end for end, _ in known], np.int64)
        seconds = np.array([seconds for _, seconds in known], np.float64)
        # What seems to take longer than a forward of more tokens was held up.
        self._seconds = np.minimum.accumulate(seconds[::-1])[::-1]
        self.sizes: tuple[int, ...] = tuple(end for end, _ in known)  # tokens, ascending
        self.slopes = slopes
        self._pace = pace
        self._edges = np.array(edges, np.int64)

    def at(self, num_rows: int, num_keys: int) -> "Steps":
        """Forwards of so many rows, which attend to so many keys in all."""
        return Steps(self, self.slopes.seconds(num_rows, num_keys), self._pace)

    def line(self, num_rows: int) -> Line | None:
        """Through rounds of so many rows, with up to a block each; None where too few are known."""
        most = _A_ROW * num_rows
        sizes: list[int] = [end for end in self._ends.tolist() if num_rows <= end <= most]
        if len(sizes) < 2:
            return None
        seconds: list[float] = self.at(num_rows, 0).seconds(np.array(sizes)).tolist()
        fitted: list[float] = np.polyfit(sizes, seconds, 1).tolist()
        token_s, fixed_s = fitted
        if fixed_s < 0:  # a bend upwards; a plain round takes what it took all the same
            fixed_s = seconds[0] - token_s * sizes[0]
        return Line(fixed_s, max(0.0, token_s))

    def own_s(self, num_tokens: Counts) -> Seconds:
        """Seconds of so many tokens each, without what rows and keys add, at the usual pace.

        Between two known sizes on the line through them, beyond the last on that through it and
        the last of half its size. One second where nothing is known: all forwards take the same.
        """
        if not len(self._ends):
            return np.ones(len(num_tokens))
        ends = ends_of_steps(self._edges, num_tokens)
        found = np.interp(ends, self._ends, self._seconds)
        if len(self._ends) > 1:
            other = max(0, np.count_nonzero(2 * self._ends <= self._ends[-1]) - 1)
            rise = self._seconds[-1] - self._seconds[other]
            token_s = rise / (self._ends[-1] - self._ends[other])
            found += token_s * np.maximum(0, ends - self._ends[-1])
        return found


class Steps(NamedTuple):
    """`StepCosts` of one round."""

    table: FrozenSteps
    added_s: float  # by its rows and keys
    pace: float

    def seconds(self, num_tokens: Counts) -> Seconds:
        """Of its forward with so many tokens each, anchors and prompt tokens included."""
        return self.pace * (self.table.own_s(num_tokens) + self.added_s)


def ends_of_steps(edges: Counts, num_tokens: Counts) -> Counts:
    """The numbers of tokens that so many are padded to; beyond the last edge nothing is."""
    if not len(edges):
        return num_tokens
    places = np.searchsorted(edges, num_tokens)
    return np.where(places < len(edges), edges[np.minimum(places, len(edges) - 1)], num_tokens)
