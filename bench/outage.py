# pyright: strict
"""What a service loses while its draft process is away: throughput over plain decoding meanwhile.

    python -m bench.outage
    python -m bench.outage --ballast 100M --prompts 20 --out results/outage

Real services continue the same prompts in turn: a plain one, an asynchronous one as by default,
which may draft beside the target, and one that cannot. Right before a prompt of an asynchronous one
its draft process is killed, or stopped so that it hangs; the next prompt waits until it is back.
"""

import argparse
import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.console import Console

from bench.bootstrap import Interval
from bench.domains import draw_prompts
from bench.drafter_choice import LANGUAGE_MODEL, parse_choice
from bench.machine import Machine, describe_machine
from bench.progress import progress_bar
from bench.regimes import rates
from bench.regimes.arms import ASYNC, OFF, Contest, Service
from bench.regimes.plan import LEAST_TOKENS
from bench.regimes.records import Job, Trace
from bench.regimes.service import Running, running
from bench.tables import Table, with_spread
from bench.writing import show_tables, write_results, write_tables
from specserve.errors import InvalidField, SpecserveError
from specserve.sizes import parse_count
from specserve.target_source import locate_target

_NAME = "bench.outage"
_FAULTS = {"killed": signal.SIGKILL, "hung": signal.SIGSTOP}
GOAL = 0.95  # of plain decoding
_DOMAIN = "code"
_LEAST = {"prompts": 1, "tokens": LEAST_TOKENS}
_RETURN_TIMEOUT_S = 60.0


class Results(msgspec.Struct, kw_only=True):
    """What is written to results.json."""

    summary: dict[str, Interval | None]  # by fault and service: tokens a second over plain
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


class Outage:
    """Takes the draft process away from one service, right before a prompt."""

    def __init__(self, name: str, plain: Running, drafted: Running, num_tokens: int) -> None:
        """`name`: of the service that drafts, for messages."""
        self._name = name
        self._plain = plain
        self._drafted = drafted
        self._num_tokens = num_tokens

    def ask(self, fault: str, prompt: list[int], seed: int) -> tuple[Trace, Trace] | None:
        """Without a draft, and plain; None if another draft was there before the end."""
        job, what = self._job(prompt, seed), f"{self._name}, seed {seed}"
        plain = self._plain.ask(job)
        self._check(self._drafted.ask(job), plain, what)  # nothing has happened yet
        victims = self._drafted.draft_pids()
        if not victims:
            raise SpecserveError(f"{what}: there is no draft process to take away")
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, _FAULTS[fault])
        trace = self._drafted.ask(job)
        self._check(trace, plain, f"{what}, draft {fault}")
        was_away = not self._is_back(victims)
        self._await_return(victims)
        return (trace, plain) if was_away else None

    def _check(self, trace: Trace, plain: Trace, what: str) -> None:
        if trace.texts != plain.texts:
            raise SpecserveError(f"{what}: the text is not that of plain decoding")

    def _await_return(self, victims: set[int]) -> None:
        deadline_s = time.monotonic() + _RETURN_TIMEOUT_S
        while not self._is_back(victims):
            if time.monotonic() > deadline_s:
                raise SpecserveError(f"no draft came back within {_RETURN_TIMEOUT_S:g} s")
            time.sleep(0.1)

    def _is_back(self, victims: set[int]) -> bool:
        """A killed draft counts as attached until the target has noticed."""
        pids = self._drafted.draft_pids()
        return bool(pids) and not pids & victims and self._drafted.has_draft()

    def _job(self, prompt: list[int], seed: int) -> Job:
        return Job(prompts=[prompt], num_tokens=self._num_tokens, temperature=1.0, seeds=[seed])


def measure(arguments: argparse.Namespace, runner: asyncio.Runner, command: str) -> Results:
    """Raises SpecserveError, also if an outage changed a text."""
    for field in ("prompts", "tokens"):
        value, least = getattr(arguments, field), _LEAST[field]
        if value < least:
            raise InvalidField(f"--{field}", f"{value} is less than {least}")
    target = locate_target(arguments.target)
    choice = parse_choice(LANGUAGE_MODEL)
    plain = Service(regime=OFF)
    drafted = {
        "by default": Service(regime=ASYNC, drafter=choice, colocated=choice),
        "skip": Service(regime=ASYNC, drafter=choice, miss_policy="skip"),
    }
    services = (plain, *drafted.values())
    contest = Contest(name="outage", services=services, batch_sizes=(1,), num_prompts=1)
    flags = ["--target", str(target), "--device", "cpu", "--dtype", "float32"]
    flags += ["--ballast", str(parse_count(arguments.ballast, "--ballast"))]
    if arguments.unpinned:
        flags += ["--set", "topology.pin=false", "--oversubscribe"]
    prompts = draw_prompts(_DOMAIN, target, arguments.prompts)
    machine, console = describe_machine(), Console(stderr=True)
    cases = [
        (number, prompt, fault, name)
        for number, prompt in enumerate(prompts)
        for fault in _FAULTS
        for name in drafted
    ]
    found: dict[str, list[tuple[Trace, Trace]]] = {f"{case[2]}, {case[3]}": [] for case in cases}
    num_returned = 0
    with (
        running(contest, flags, runner) as started,
        progress_bar(len(cases), console) as advance,
    ):
        for number, prompt, fault, name in cases:
            advance(f"{fault}, {name}, prompt {number + 1}")
            outage = Outage(name, started[plain], started[drafted[name]], arguments.tokens)
            pair = outage.ask(fault, prompt, number)
            num_returned += pair is None
            if pair is not None:
                found[f"{fault}, {name}"].append(pair)
    return Results(
        summary={name: _ratio(pairs) for name, pairs in found.items()},
        num_returned=num_returned,
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
    return Table("Without a draft", ("draft, service", "tok/s over plain", "prompts"), rows)


def verdict(results: Results) -> str:
    values = [found.value for found in results.summary.values() if found is not None]
    if not values:
        return "not measured: a draft was always back too soon; try more prompts or fewer tokens."
    return f"goal {GOAL:g} of plain decoding: {'reached' if min(values) >= GOAL else 'missed'}."


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    command = shlex.join(["python", "-m", _NAME, *words])
    try:
        with asyncio.Runner() as runner:
            results = measure(arguments, runner, command)
        heading = [
            "# While the draft process is away",
            f"Target padded with ballast to {results.ballast}; {results.num_tokens} new tokens at "
            "temperature 1, seeded, equal in all services. "
            f"{results.machine.line}. `{command}`",
        ]
        write_results(results, arguments.out)
        write_tables([*heading, verdict(results)], [table(results)], arguments.out)
    except (SpecserveError, OSError) as error:
        Console(stderr=True).print(f"{_NAME}: {error}", style="red", markup=False)
        return 1
    show_tables([table(results)], verdict(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
