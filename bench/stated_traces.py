# pyright: strict
"""Traces of confidences and tables of forwards, as `bench.policy_traces` states them.

A trace says how likely each drafted token of a round is to stand if those before it do; a table
what forwards of so many tokens take. Nothing here was measured: they are what policies are to cope
with, from blocks like DSpark's to stairs of CUDA graphs and to what lies about the future.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from target_node.planning.step_table import FrozenSteps, Slopes

GAMMA = 7  # drafted tokens of a block

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]


class Trace(NamedTuple):
    """Where confidences come from: how likely a token is to stand if those before it do."""

    words: str  # for the report
    num_rows: int
    draw: Draw  # (generator, number of the round, rows) -> [rows, GAMMA]


def _beta(a: float, b: float) -> Draw:
    return lambda rng, number, num_rows: rng.beta(a, b, (num_rows, GAMMA))


def _decaying(rng: np.random.Generator, number: int, num_rows: int) -> Floats:
    return rng.beta(8, 2, (num_rows, 1)) * 0.93 ** np.arange(GAMMA)


def _two_kinds(rng: np.random.Generator, number: int, num_rows: int) -> Floats:
    sure, doubtful = (_beta(*shape)(rng, number, num_rows) for shape in ((18, 2), (2, 6)))
    return np.where(np.arange(num_rows)[:, None] % 2, doubtful, sure)


def _alternating(rng: np.random.Generator, number: int, num_rows: int) -> Floats:
    """Two good rounds, two bad ones, ...: two rounds before it was always the other way."""
    return _beta(18, 2)(rng, number, num_rows) if number % 4 < 2 else _beta(1, 9)(rng, 0, num_rows)


ALTERNATING = "alternating"
STATIONARY = {
    "one row": Trace("each of Beta(2, 1)", 1, _beta(2, 1)),
    "decaying": Trace("the first of Beta(8, 2), each .93 of the one before", 8, _decaying),
    "uneven": Trace("each of Beta(2, 1)", 8, _beta(2, 1)),
    "two kinds": Trace("every other row Beta(18, 2), the others Beta(2, 6)", 8, _two_kinds),
    "doubtful": Trace("each of Beta(1, 4)", 8, _beta(1, 4)),
    "many rows": Trace("as decaying", 64, _decaying),
}
# What two rounds before says nothing of now, or the contrary.
ADVERSE = {
    ALTERNATING: Trace("two rounds of Beta(18, 2), two of Beta(1, 9), and so on", 8, _alternating),
    "one doubtful row": Trace("each of Beta(1, 4)", 1, _beta(1, 4)),
}
TRACES = STATIONARY | ADVERSE

_SIZES = [1, 2, 4, *range(8, 520, 8)]  # tokens; those of CUDA graphs, as they are usually captured


class CostTable(NamedTuple):
    """What forwards take, by tokens."""

    words: str
    cells_ms: dict[int, float]
    is_padded: bool = False  # to the next size


COST_TABLES = {
    "line": CostTable("8 ms, .25 a token", {n: 8 + 0.25 * n for n in _SIZES}),
    "steep": CostTable("2 ms, 1 a token", {n: 2.0 + n for n in _SIZES}),
    "buckets": CostTable(
        "as line, padded to 1, 2, 4, 8, 16, 24, 32 and so on",
        {n: 8 + 0.25 * n for n in _SIZES},
        is_padded=True,
    ),
    "jagged": CostTable(
        "9 ms up to 8 tokens, 9.2 to 16, 12 to 32, 16.5 to 48, 17 to 64, 29 to 96, 30 to 128, "
        "62 to 256, 130 to 512",
        {8: 9, 16: 9.2, 32: 12, 48: 16.5, 64: 17, 96: 29, 128: 30, 256: 62, 512: 130},
        is_padded=True,
    ),
}


def steps_of(table: CostTable) -> FrozenSteps:
    """As the planner has it."""
    cells = sorted((tokens, ms / 1000) for tokens, ms in table.cells_ms.items())
    edges = [tokens for tokens, _ in cells] if table.is_padded else ()
    return FrozenSteps(cells, Slopes(), 1.0, edges)
