# pyright: strict
"""What a service loses while its draft process is away: throughput over plain decoding meanwhile.

    python -m bench.outage
    python -m bench.outage --quick
    python -m bench.outage --target tiny --ballast 100M --num-prompts 20

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
from bench.command_line import TARGET_HELP, default_ballasts, num_params, progress_bar
from bench.conversations import Questions, prepare_questions
from bench.drafter_choice import LANGUAGE_MODEL, parse_choice
from bench.figures import panels, spreads
from bench.machine import Machine, describe_machine
from bench.prompt_choice import LEAST_TOKENS, MAX_TOKENS, add_prompt_options, read_prompts
from bench.services.records import Job, Trace
from bench.services.running import Running, kv_memory_flags, running
from bench.services.service import ASYNC, OFF, Service
from bench.tables import Table, with_spread
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.client import Prompt
from specserve.errors import InvalidField, SpecserveError
from specserve.settings.drafter_source import NGRAM
from specserve.settings.target_source import EMBEDDED_TARGET, locate_target

_NAME = "bench.outage"
_FAULTS = {"killed": signal.SIGKILL, "hung": signal.SIGSTOP}
GOAL = 0.95  # of plain decoding
_TINY_BALLAST = "30M"
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
    prompts: str  # what was asked, in words
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
    add("--target", metavar="MODEL", help=TARGET_HELP)
    add("--ballast", metavar="PARAMS", help=f"pad the target (default: tiny to {_TINY_BALLAST})")
    add("--drafter", metavar="DRAFTER", help=f"default: {NGRAM}; of tiny {LANGUAGE_MODEL}")
    add_prompt_options(parser, str(MAX_TOKENS))
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

    def ask(self, fault: str, prompt: Prompt, seed: int) -> Outcome:
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

    def _job(self, prompt: Prompt, seed: int) -> Job:
        return Job(prompts=[prompt], num_tokens=self._num_tokens, temperature=1.0, seeds=[seed])


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for."""

    target: Path
    ballast: str
    drafter: str
    questions: Questions
    is_pinned: bool

    @property
    def flags(self) -> list[str]:
        """Of every service."""
        flags = ["--generation-config", "none", "--target", str(self.target), "--device", "cpu"]
        flags += ["--dtype", "float32"]
        ballast = num_params(self.ballast)
        flags += ["--ballast", str(ballast)] if ballast else []
        flags += [] if self.is_pinned else ["--oversubscribe"]
        longest = max(len(question.token_ids) for question in self.questions.asked)
        return flags + kv_memory_flags(self.target, ballast, longest + self.questions.max_tokens)


def read(arguments: argparse.Namespace) -> Asked:
    """The prompts included, of which the first turns are answered here. Raises InvalidField."""
    num_tokens = MAX_TOKENS if arguments.max_tokens is None else arguments.max_tokens
    if num_tokens < LEAST_TOKENS:
        raise InvalidField("--max-tokens", f"{num_tokens} is less than {LEAST_TOKENS}")
    target = locate_target(arguments.target)
    ballast = arguments.ballast or default_ballasts(target, (_TINY_BALLAST,))[0]
    num_params(ballast)  # a size that is none fails before anything is started
    is_tiny = target == EMBEDDED_TARGET
    drafter = arguments.drafter or (LANGUAGE_MODEL if is_tiny else NGRAM)
    parse_choice(drafter).located(target)
    chosen = read_prompts(arguments, _QUICK_PROMPTS if arguments.quick else _PROMPTS)
    make_results_folder(arguments.out)
    return Asked(
        target=target,
        ballast=ballast,
        drafter=drafter,
        questions=prepare_questions(chosen, target, num_tokens),
        is_pinned=not arguments.unpinned,
    )


def drafted_services(drafter: str) -> dict[str, Service]:
    """Asynchronous ones; the first may draft beside the target when its draft process is away."""
    choice = parse_choice(drafter)
    head = () if choice.local_head is None else ("--local-head", choice.local_head)
    flags = ("--speculation", ASYNC, "--topology", "1+1", "--drafter", choice.drafter, *head)
    further = {
        "by default": ("--colocated-drafter", choice.drafter),
        "skip": ("--miss-policy", "skip"),
    }
    return {
        name: Service(name=name, mode=ASYNC, flags=(*flags, *own), num_drafts=1)
        for name, own in further.items()
    }


def measure(asked: Asked, runner: asyncio.Runner, command: str) -> Results:
    """Raises SpecserveError, also if an outage changed a text."""
    plain = Service(name="plain", mode=OFF, flags=("--speculation", OFF))
    drafted = drafted_services(asked.drafter)
    services = (plain, *drafted.values())
    num_tokens = asked.questions.max_tokens
    machine, console = describe_machine(), Console(stderr=True)
    cases = [
        (number, question.prompt, fault, name)
        for number, question in enumerate(asked.questions.asked)
        for fault in _FAULTS
        for name in drafted
    ]
    found: dict[str, list[Outcome]] = {f"{case[2]}, {case[3]}": [] for case in cases}
    with (
        running(services, asked.flags, runner) as started,
        progress_bar(len(cases), console) as advance,
    ):
        for number, prompt, fault, name in cases:
            advance(f"{fault}, {name}, prompt {number + 1}")
            outage = Outage(name, started[plain], started[drafted[name]], num_tokens)
            said = prompt if isinstance(prompt, str) else list(prompt)
            found[f"{fault}, {name}"].append(outage.ask(fault, said, number))
    return Results(
        summary={name: ratio_to_plain(outcomes) for name, outcomes in found.items()},
        back_s={name: [each.back_s for each in outcomes] for name, outcomes in found.items()},
        num_returned=sum(not each.was_away for outcomes in found.values() for each in outcomes),
        ballast=asked.ballast,
        num_tokens=num_tokens,
        prompts=asked.questions.line,
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
    command = shlex.join(["python", "-m", _NAME, *words])
    try:
        asked = read(arguments)
        with asyncio.Runner() as runner:
            results = measure(asked, runner, command)
        heading = [
            "# While the draft process is away",
            f"Ballast: {results.ballast}. {results.prompts}. {results.num_tokens} new tokens at "
            "temperature 1, seeded, equal in all services, end of text ignored. "
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
