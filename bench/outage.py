# pyright: strict
"""What a service loses while its draft process is away: throughput over plain decoding meanwhile.

    python -m bench.outage
    python -m bench.outage --ballast 100M --prompts 20 --out results/outage

Two real services, plain and asynchronous, continue the same prompts in turn. Before each prompt of
the asynchronous one its draft process is killed, or stopped so that it hangs. The prompt follows at
once, so what it takes to notice counts, and ends long before another draft is back.
"""

import argparse
import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.bootstrap import Interval
from bench.domains import draw_prompts
from bench.drafter_choice import LANGUAGE_MODEL, parse_choice
from bench.machine import Machine, describe_machine
from bench.processes import pids_of
from bench.progress import progress_bar
from bench.regimes import rates
from bench.regimes.arms import ASYNC, OFF, Contest, Service
from bench.regimes.records import Job, Trace
from bench.regimes.service import Running, running
from bench.tables import Table, with_spread
from bench.writing import show_tables, write_results, write_tables
from specserve.errors import SpecserveError
from specserve.sizes import parse_count
from specserve.target_source import locate_target

_NAME = "bench.outage"
_FAULTS = {"killed": signal.SIGKILL, "hung": signal.SIGSTOP}
GOAL = 0.95  # of plain decoding
_DOMAIN = "code"
_RETURN_TIMEOUT_S = 60.0


class Results(msgspec.Struct, kw_only=True):
    """What is written to results.json."""

    summary: dict[str, Interval | None]  # by fault: tokens a second over plain decoding
    num_returned: int  # prompts left out: a draft was back before they ended
    ballast: str
    num_tokens: int
    machine: Machine
    command: str


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("results/outage"), metavar="DIR")
    add("--target", metavar="FOLDER|HUB_ID", help="default: the embedded model")
    add("--ballast", default="30M", metavar="PARAMS", help="size to pad the target to")
    add("--prompts", type=int, default=12, metavar="N")
    add("--tokens", type=int, default=64, metavar="N", help="new tokens per prompt")
    add("--unpinned", action="store_true", help="share cores with whoever runs: a trial")
    return parser


class Outages:
    """Asks the two services in turn."""

    def __init__(self, plain: Running, drafted: Running, num_tokens: int) -> None:
        self.num_returned = 0
        self._plain = plain
        self._drafted = drafted
        self._num_tokens = num_tokens

    def warm_up(self, prompts: Sequence[list[int]]) -> None:
        for number, prompt in enumerate(prompts):
            self._plain.ask(self._job(prompt, number))
            self._drafted.ask(self._job(prompt, number))

    def pair(self, fault: str, prompt: list[int], seed: int) -> tuple[Trace, Trace] | None:
        """Without a draft, and plain; None if another draft was there before the end."""
        plain = self._plain.ask(self._job(prompt, seed))
        victims = pids_of("draft")
        for pid in victims:
            os.kill(pid, _FAULTS[fault])
        trace = self._drafted.ask(self._job(prompt, seed))
        if plain.texts != trace.texts:
            raise SpecserveError(f"the text changed when the draft was {fault}")
        has_returned = self._has_returned(victims)
        self.num_returned += has_returned
        self._await_return(victims)
        return None if has_returned else (trace, plain)

    def _has_returned(self, victims: set[int]) -> bool:
        """A process that hangs counts as attached until that is noticed."""
        return not victims & pids_of("draft") and self._drafted.has_draft()

    def _await_return(self, victims: set[int]) -> None:
        deadline_s = time.monotonic() + _RETURN_TIMEOUT_S
        while not self._has_returned(victims):
            if time.monotonic() > deadline_s:
                raise SpecserveError(f"no draft came back within {_RETURN_TIMEOUT_S:g} s")
            time.sleep(0.1)

    def _job(self, prompt: list[int], seed: int) -> Job:
        return Job(prompts=[prompt], num_tokens=self._num_tokens, temperature=1.0, seeds=[seed])


def measure(arguments: argparse.Namespace, runner: asyncio.Runner, command: str) -> Results:
    """Raises SpecserveError, also if an outage changed a text."""
    target = locate_target(arguments.target)
    choice = parse_choice(LANGUAGE_MODEL)
    services = (
        Service(regime=OFF),
        Service(regime=ASYNC, drafter=choice, colocated=choice),
    )
    contest = Contest(name="outage", services=services, batch_sizes=(1,), num_prompts=1)
    flags = ["--target", str(target), "--device", "cpu", "--dtype", "float32"]
    flags += ["--ballast", str(parse_count(arguments.ballast, "--ballast"))]
    if arguments.unpinned:
        flags += ["--set", "topology.pin=false", "--oversubscribe"]
    prompts = draw_prompts(_DOMAIN, target, arguments.prompts)
    machine, console = describe_machine(), Console(stderr=True)
    found: dict[str, list[tuple[Trace, Trace]]] = {fault: [] for fault in _FAULTS}
    with (
        running(contest, flags, runner) as started,
        progress_bar(len(prompts) * len(_FAULTS), console) as advance,
    ):
        outages = Outages(started[services[0]], started[services[1]], arguments.tokens)
        outages.warm_up(prompts[:4])
        for number, prompt in enumerate(prompts):
            for fault, pairs in found.items():
                advance(f"{fault}, prompt {number + 1}")
                pair = outages.pair(fault, prompt, number)
                pairs += [] if pair is None else [pair]
    return Results(
        summary={fault: _ratio(pairs) for fault, pairs in found.items()},
        num_returned=outages.num_returned,
        ballast=arguments.ballast,
        num_tokens=arguments.tokens,
        machine=machine,
        command=command,
    )


def _ratio(pairs: Sequence[tuple[Trace, Trace]]) -> Interval | None:
    if not pairs:
        return None
    traces, plains = zip(*pairs, strict=True)
    return rates.spread_ratio(traces, plains, rates.tokens_per_s)


def table(results: Results) -> Table:
    rows = [
        (fault, with_spread(found), 0 if found is None else found.num_prompts)
        for fault, found in results.summary.items()
    ]
    return Table("Without a draft", ("draft", "tok/s over plain", "prompts"), rows)


def verdict(results: Results) -> str:
    reached = [found is not None and found.value >= GOAL for found in results.summary.values()]
    return f"goal {GOAL:g} of plain decoding: {'reached' if all(reached) else 'missed'}."


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    command = shlex.join(["python", "-m", _NAME, *words])
    try:
        with asyncio.Runner() as runner:
            results = measure(arguments, runner, command)
    except (SpecserveError, OSError) as error:
        Console(stderr=True).print(f"{_NAME}: {error}", style="red", markup=False)
        return 1
    heading = [
        "# While the draft process is away",
        f"Target padded with ballast to {results.ballast}; {results.num_tokens} new tokens at "
        f"temperature 1, seeded, equal in both services. {results.machine.line}. `{command}`",
    ]
    write_results(results, arguments.out)
    write_tables([*heading, verdict(results)], [table(results)], arguments.out)
    show_tables([table(results)], verdict(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
