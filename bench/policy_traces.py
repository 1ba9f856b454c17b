# pyright: strict
"""Verification policies over stated traces: tokens a second over plain decoding, without a model.

    python -m bench.policy_traces
    python -m bench.policy_traces --quick
    python -m bench.policy_traces --traces alternating --tables buckets line --rounds 20000

A trace states how likely drafted tokens are to stand, round by round; whether they do is drawn by
that. A table states what forwards take. Every policy that is shipped then says how much of the same
rounds it verifies, and the table how long that takes. Drafting takes no time here, as where draft
processes are done in time. Definitions are in bench/README.md.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from bench.bootstrap import Interval, Rate, ratio
from bench.command_line import progress_bar
from bench.machine import Machine, describe_machine
from bench.stated_traces import (
    ADVERSE,
    COST_TABLES,
    GAMMA,
    STATIONARY,
    TRACES,
    Trace,
    steps_of,
)
from bench.tables import Table, with_spread
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.drafters.usual_acceptance import UsualAcceptance
from specserve.errors import InvalidField, SpecserveError
from specserve.sampling.verification.admission import (
    Allocator,
    PlanningSnapshot,
    RoundFacts,
    StepCosts,
)
from target_node.planning.acceptance import survival_of
from target_node.planning.policies import policy_named
from target_node.planning.step_table import FrozenSteps

_NAME = "bench.policy_traces"
POLICIES = ("fixed", "price", "causal", "barrier", "global")
GOAL = 0.99  # of plain decoding, for the barrier over stationary traces
_ROUNDS, _QUICK_ROUNDS = 4000, 400
_STRETCH = 40  # rounds that are drawn again together for an interval
_LEAST_ROUNDS = 2 * _STRETCH

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


# --- playing a trace -------------------------------------------------------------------------


class Rounds(NamedTuple):
    """A trace as it was drawn, the same for every policy and table."""

    survivals: Floats  # [T, rows, GAMMA]
    num_standing: Counts  # [T, rows]: tokens that stand, if as many are verified


def drawn(trace: Trace, num_rounds: int, seed: int) -> Rounds:
    """So many rounds of it; tokens stand by the confidences that policies are told."""
    rng = np.random.default_rng(seed)
    confidences = np.array([trace.draw(rng, t, trace.num_rows) for t in range(num_rounds)])
    stands = rng.random(confidences.shape) < confidences
    return Rounds(confidences.cumprod(axis=2), stands.cumprod(axis=2).sum(axis=2))


class Played(NamedTuple):
    """What one policy made of a trace, round by round."""

    tokens: list[float]
    seconds: list[float]
    num_verified: int  # drafted tokens

    @property
    def rate(self) -> Rate:
        """Tokens a second, in stretches that are drawn again together."""
        table = np.array([self.tokens, self.seconds])
        starts = range(0, len(self.tokens) - len(self.tokens) % _STRETCH, _STRETCH)
        return Rate.of([tuple(table[:, t : t + _STRETCH].sum(axis=1)) for t in starts])


def play(rounds: Rounds, steps: FrozenSteps, policy: Allocator | None) -> Played:
    """`policy`: None: plain decoding, nothing is drafted.

    All rows are coupled, so that `global` searches. `price` is told the speed of the rounds so far,
    times what a token adds on the line through the table; a service measures both.
    """
    num_rows = rounds.survivals.shape[1]
    line, costs = steps.line(num_rows), steps.at(num_rows, 0)
    prior = tuple(survival_of(UsualAcceptance().of("coupled", GAMMA)))
    played, before = Played([], [], 0), [[prior] * num_rows] * 2
    num_tokens, seconds, num_verified = num_rows, _seconds(costs, num_rows), 0  # plainly, so far
    for now, standing in zip(rounds.survivals.tolist(), rounds.num_standing, strict=True):
        verify_lens = [0] * num_rows
        if policy is not None:
            price = 0.0 if line is None else line.token_s * num_tokens / seconds
            snapshot = PlanningSnapshot(price, costs)
            facts = RoundFacts(snapshot, num_rows, before[0])
            verify_lens = policy.allocate(now, num_rows * GAMMA, facts)
        before = [before[1], now]
        played.tokens.append(num_rows + int(np.minimum(standing, verify_lens).sum()))
        played.seconds.append(_seconds(costs, num_rows + sum(verify_lens)))
        num_tokens, seconds = num_tokens + played.tokens[-1], seconds + played.seconds[-1]
        num_verified += sum(verify_lens)
    return played._replace(num_verified=num_verified)


def _seconds(costs: StepCosts, num_tokens: int) -> float:
    return float(costs.seconds(np.array([num_tokens]))[0])


# --- results ---------------------------------------------------------------------------------


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over one trace and table."""

    trace: str
    table: str
    policy: str
    over_plain: Interval  # tokens a second; `num_prompts` are stretches of rounds
    verify_len: float  # drafted tokens verified, a row and round


class Results(msgspec.Struct, kw_only=True):
    """What is written to results.json."""

    cells: list[Cell]
    num_rounds: int
    seed: int
    machine: Machine
    command: str

    def barrier(self, traces: Sequence[str]) -> list[Cell]:
        """Its cells over these, the slowest first."""
        found = [c for c in self.cells if c.policy == "barrier" and c.trace in traces]
        return sorted(found, key=lambda cell: cell.over_plain.value)


class Asked(NamedTuple):
    """What the command line asks for."""

    traces: list[str]
    tables: list[str]
    num_rounds: int
    seed: int


def measure(asked: Asked, command: str) -> Results:
    """Every policy over every trace and table that was asked for."""
    cells: list[Cell] = []
    console = Console(stderr=True)
    with progress_bar(len(asked.traces) * len(asked.tables), console) as advance:
        for trace in asked.traces:
            rounds = drawn(TRACES[trace], asked.num_rounds, asked.seed)
            for table in asked.tables:
                advance(f"{trace}, {table}")
                cells += _cells(rounds, trace, table)
    return Results(
        cells=cells,
        num_rounds=asked.num_rounds,
        seed=asked.seed,
        machine=describe_machine(),
        command=command,
    )


def _cells(rounds: Rounds, trace: str, table: str) -> list[Cell]:
    steps = steps_of(COST_TABLES[table])
    plain = play(rounds, steps, None).rate
    found: list[Cell] = []
    for name in POLICIES:
        played = play(rounds, steps, policy_named(name))
        found.append(
            Cell(
                trace=trace,
                table=table,
                policy=name,
                over_plain=ratio(played.rate, plain),
                verify_len=played.num_verified / rounds.num_standing.size,
            )
        )
    return found


# --- report ----------------------------------------------------------------------------------


def tables(results: Results) -> list[Table]:
    """One of traces that are stationary, one of those that are adverse, one of lengths."""
    header = ("trace", "table", "rows", *POLICIES)
    return [
        Table(
            "Stationary traces: tokens a second over plain", header, _speeds(results, STATIONARY)
        ),
        Table(
            "Adverse traces: the same",
            header,
            _speeds(results, ADVERSE),
            note="Two rounds before says the contrary of now, or nothing of a row of which hardly "
            "a draft pays; the latter is stationary, too. The goal is not of these.",
        ),
        Table("Drafted tokens verified, a row and round", header, _lengths(results)),
    ]


def _speeds(results: Results, traces: dict[str, Trace]) -> list[list[object]]:
    cells = [cell for cell in results.cells if cell.trace in traces]
    return _by_policy(cells, lambda cell: with_spread(cell.over_plain))


def _lengths(results: Results) -> list[list[object]]:
    return _by_policy(results.cells, lambda cell: f"{cell.verify_len:.1f}")


def _by_policy(cells: Sequence[Cell], shown: Callable[[Cell], str]) -> list[list[object]]:
    found: dict[tuple[str, str], list[object]] = {}
    for cell in cells:
        start: list[object] = [cell.trace, cell.table, TRACES[cell.trace].num_rows]
        found.setdefault((cell.trace, cell.table), start).append(shown(cell))
    return list(found.values())


def verdict(results: Results) -> str:
    """The goal over stationary traces, and what the adverse ones lose."""
    parts: list[str] = []
    if stationary := results.barrier(list(STATIONARY)):
        least = stationary[0]
        reached = "reached" if least.over_plain.value >= GOAL else "missed"
        parts.append(
            f"barrier over plain, stationary traces: at least {with_spread(least.over_plain, 3)} "
            f"({least.trace}, {least.table}); goal {GOAL:g}: {reached}."
        )
    for name in ADVERSE:
        if found := results.barrier([name]):
            losses = ", ".join(f"{_loss(cell)} ({cell.table})" for cell in found)
            parts.append(f"barrier, {name}: {losses}.")
    return " ".join(parts)


def _loss(cell: Cell) -> str:
    share = cell.over_plain.value - 1
    return f"loses {-share:.1%}" if share < 0 else f"gains {share:.1%}"


def _heading(results: Results) -> list[str]:
    num_rounds, stated = results.num_rounds, {cell.table for cell in results.cells}
    named = {cell.trace for cell in results.cells}
    of_traces = "\n".join(f"- *{n}*: {t.words}." for n, t in TRACES.items() if n in named)
    of_tables = "\n".join(f"- *{n}*: {t.words}." for n, t in COST_TABLES.items() if n in stated)
    return [
        "# Verification policies over stated traces",
        f"{num_rounds} rounds of blocks of {GAMMA}, seed {results.seed}; drafting takes no time. "
        f"Intervals: 95 %, over stretches of {_STRETCH} rounds. Nothing here is measured by a "
        f"clock; computed on {results.machine.line}. `{results.command}`",
        f"Confidences, drawn anew in every round:\n\n{of_traces}",
        f"What forwards take:\n\n{of_tables}",
        verdict(results),
    ]


# --- the command -----------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{_QUICK_ROUNDS} rounds: half a minute")
    add("--out", type=Path, default=Path("results/policy_traces"), metavar="DIR")
    add("--traces", nargs="+", choices=list(TRACES), default=list(TRACES), metavar="TRACE",
        help=f"default: all of {', '.join(TRACES)}")  # fmt: skip
    add("--tables", nargs="+", choices=list(COST_TABLES), default=list(COST_TABLES),
        metavar="TABLE", help=f"default: all of {', '.join(COST_TABLES)}")  # fmt: skip
    add("--rounds", type=int, metavar="N", help=f"of every trace (default {_ROUNDS})")
    add("--seed", type=int, default=0, metavar="N", help="of the traces (default 0)")
    return parser


def read(arguments: argparse.Namespace) -> Asked:
    """Raises InvalidField."""
    default = _QUICK_ROUNDS if arguments.quick else _ROUNDS
    num_rounds = default if arguments.rounds is None else arguments.rounds
    if num_rounds < _LEAST_ROUNDS:
        raise InvalidField("--rounds", f"{num_rounds} is less than {_LEAST_ROUNDS}")
    if arguments.seed < 0:
        raise InvalidField("--seed", f"{arguments.seed} is less than 0")
    make_results_folder(arguments.out)
    traces, names = (list(dict.fromkeys(each)) for each in (arguments.traces, arguments.tables))
    return Asked(traces, names, num_rounds, arguments.seed)


def main(argv: Sequence[str] | None = None) -> int:
    """Play and write; 0 unless something failed."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    command = shlex.join(["python", "-m", _NAME, *words])
    try:
        results = measure(read(arguments), command)
        write_results(results, arguments.out)
        write_tables(_heading(results), tables(results), arguments.out)
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    show_tables(tables(results), verdict(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
