# pyright: strict
"""What a service loses while its draft process is away: throughput over plain decoding meanwhile.

    python -m bench.outage
    python -m bench.outage --quick
    python -m bench.outage --ballast 100M --prompts 20 --out results/outage

Real services continue the same prompts in turn: a plain one, an asynchronous one as by default,
which may draft beside the target, and one that cannot. Right before a prompt of an asynchronous one
its draft process is killed, or stopped so that it hangs; the next prompt waits until it is back,
and how long that took is told as well.
"""

import argparse
import asyncio
import os
import shlex
import signal
import statistics
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.console import Console

from bench.bootstrap import Interval, Rate, against, ratio
from bench.domains import draw_prompts
from bench.drafter_choice import LANGUAGE_MODEL, parse_choice
from bench.figures import panels, spreads
from bench.machine import Machine, describe_machine
from bench.progress import progress_bar
from bench.regimes.arms import ASYNC, OFF, Service
from bench.regimes.plan import LEAST_TOKENS
from bench.regimes.records import Job, Trace
from bench.regimes.service import Running, running
from bench.tables import Table, with_spread
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.errors import InvalidField, SpecserveError
from specserve.sizes import parse_count
from specserve.target_source import locate_target

_NAME = "bench.outage"
_FAULTS = {"killed": signal.SIGKILL, "hung": signal.SIGSTOP}
GOAL = 0.95  # of plain decoding
_DOMAIN = "code"
_LEAST = {"prompts": 1, "tokens": LEAST_TOKENS}
_PROMPTS, _QUICK_PROMPTS = 12, 2
RETURN_GOAL_S = 10.0
_PLOT = "outage.png"


class Results(msgspec.Struct, kw_only=True):
    """What is written to results.json."""

    summary: dict[str, Interval | None]  # by fault and service: tokens a second over plain
    back_s: dict[str, list[float]]  # the same: from the fault until a draft serves, every outage
    num_returned: int  # prompts of which only the beginning counts: a draft was back before the end
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
    add("--quick", action="store_true", help=f"{_QUICK_PROMPTS} prompts: a minute or two")
    add("--out", type=Path, default=Path("results/outage"), metavar="DIR")
    add("--target", metavar="FOLDER|HUB_ID", help="default: the embedded model")
    add("--ballast", default="30M", metavar="PARAMS", help="size to pad the target to")
    add("--prompts", type=int, metavar="N", help=f"default: {_PROMPTS}")
    add("--tokens", type=int, default=64, metavar="N", help="new tokens per prompt")
    add("--unpinned", action="store_true", help="share cores with whoever runs: a trial")
    return parser


class Outcome(msgspec.Struct, frozen=True):
    """Of one prompt without a draft."""

    trace: Trace
    plain: Trace
    back_s: float  # from the fault until a draft serves

    @property
    def was_away(self) -> bool:
        """Until the prompt had ended."""
        return _ends_s(self.trace)[-1] <= self.back_s

    @property
    def meanwhile(self) -> tuple[int, float, float]:
        """Tokens decoded while the draft was away, how long they took, and plainly."""
        ends_s, plain_ends_s = _ends_s(self.trace), _ends_s(self.plain)
        last = max(sum(end_s <= self.back_s for end_s in ends_s) - 1, 0)
        return last, ends_s[last] - ends_s[0], plain_ends_s[last] - plain_ends_s[0]


def _ends_s(trace: Trace) -> list[float]:
    """When each token of the only row was there; decoding begins at the first."""
    (row,) = trace.rows
    return [delta.at_s for delta in row.deltas for _ in range(delta.num_tokens)]


class Outage:
    """Takes the draft process away from one service, right before a prompt."""

    def __init__(self, name: str, plain: Running, drafted: Running, num_tokens: int) -> None:
        """`name`: of the service that drafts, for messages."""
        self._name = name
        self._plain = plain
        self._drafted = drafted
        self._num_tokens = num_tokens

    def ask(self, fault: str, prompt: list[int], seed: int) -> Outcome:
        """Raises SpecserveError without a draft or if a text differs, OSError if none returns."""
        job, what = self._job(prompt, seed), f"{self._name}, seed {seed}"
        plain = self._plain.ask(job)
        self._check(self._drafted.ask(job), plain, what)  # nothing has happened yet
        victims = self._drafted.draft_pids()
        if not victims:
            raise SpecserveError(f"{what}: there is no draft process to take away")
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, _FAULTS[fault])
        trace, back_s = self._drafted.ask_without(victims, job)
        self._check(trace, plain, f"{what}, draft {fault}")
        return Outcome(trace=trace, plain=plain, back_s=back_s)

    def _check(self, trace: Trace, plain: Trace, what: str) -> None:
        if trace.texts != plain.texts:
            raise SpecserveError(f"{what}: the text is not that of plain decoding")

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
    flags = [
        "--generation-config",
        "none",
        "--target",
        str(target),
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
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
    found: dict[str, list[Outcome]] = {f"{case[2]}, {case[3]}": [] for case in cases}
    with (
        running(services, flags, runner) as started,
        progress_bar(len(cases), console) as advance,
    ):
        for number, prompt, fault, name in cases:
            advance(f"{fault}, {name}, prompt {number + 1}")
            outage = Outage(name, started[plain], started[drafted[name]], arguments.tokens)
            found[f"{fault}, {name}"].append(outage.ask(fault, prompt, number))
    return Results(
        summary={name: ratio_to_plain(outcomes) for name, outcomes in found.items()},
        back_s={name: [each.back_s for each in outcomes] for name, outcomes in found.items()},
        num_returned=sum(not each.was_away for outcomes in found.values() for each in outcomes),
        ballast=arguments.ballast,
        num_tokens=arguments.tokens,
        machine=machine,
        command=command,
    )


def ratio_to_plain(outcomes: Sequence[Outcome]) -> Interval | None:
    """Speed over plain decoding's of the same tokens, those that came before a draft was back.

    So a slow outage counts for all of the time that it was one. None where nothing came before.
    """
    counted = [each.meanwhile for each in outcomes]
    if not any(num_tokens for num_tokens, _, _ in counted):
        return None
    without = Rate.of([(num_tokens, taken_s) for num_tokens, taken_s, _ in counted])
    return ratio(without, Rate.of([(num_tokens, plain_s) for num_tokens, _, plain_s in counted]))


def table(results: Results) -> Table:
    rows = [
        (
            name,
            with_spread(found),
            0 if found is None else found.num_prompts,
            f"{statistics.median(results.back_s[name]):.1f}",
            f"{max(results.back_s[name]):.1f}",
        )
        for name, found in results.summary.items()
    ]
    header = ("draft, service", "tok/s over plain", "prompts", "back after s", "at the latest")
    plots = [_PLOT] if any(found for found in results.summary.values()) else []
    return Table("Without a draft", header, rows, plots=plots)


def draw(results: Results, out: Path) -> None:
    """Write outage.png: speed by fault and service, beside plain decoding."""
    shown = {name: found for name, found in results.summary.items() if found is not None}
    if not shown:
        return
    with panels(out / _PLOT, [f"{results.ballast} target, draft away"]) as (axes,):
        heights = [found.value for found in shown.values()]
        errors = spreads(list(shown.values()))
        axes.bar(list(shown), heights, yerr=errors, capsize=3, color="#1f6fb2")
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.axhline(GOAL, color="#8a8a8a", linestyle="--", label=f"goal {GOAL:g}")
        axes.set_ylabel("tok/s by that of plain decoding")
        axes.tick_params(axis="x", labelrotation=30, labelsize=8)
        axes.legend(fontsize=8)


def verdict(results: Results) -> str:
    latest_s = max(max(each) for each in results.back_s.values())
    back = f"back after {latest_s:.1f} s at the latest, goal {RETURN_GOAL_S:g}: " + (
        "reached." if latest_s <= RETURN_GOAL_S else "missed."
    )
    speeds = "; ".join(
        f"{name} {with_spread(found)}, {against(GOAL, found.value, found.high)}"
        for name, found in results.summary.items()
        if found is not None
    )
    if not speeds:
        return f"speed not measured: a draft was always back at once. {back}"
    return f"goal {GOAL:g} of plain decoding: {speeds}; {back}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    if arguments.prompts is None:
        arguments.prompts = _QUICK_PROMPTS if arguments.quick else _PROMPTS
    command = shlex.join(["python", "-m", _NAME, *words])
    try:
        make_results_folder(arguments.out)
        with asyncio.Runner() as runner:
            results = measure(arguments, runner, command)
        heading = [
            "# While the draft process is away",
            f"Target padded with ballast to {results.ballast}; {results.num_tokens} new tokens at "
            "temperature 1, seeded, equal in all services. "
            f"{results.machine.line}. `{command}`",
        ]
        write_results(results, arguments.out)
        draw(results, arguments.out)
        write_tables([*heading, verdict(results)], [table(results)], arguments.out)
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    show_tables([table(results)], verdict(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
