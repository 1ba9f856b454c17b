"""`python -m bench.sweep`: what the service gains at every load, by mode, policy and topology.

    python -m bench.sweep --quick --out DIR              1, 4 and 16 requests: 15 minutes
    python -m bench.sweep --out DIR                      1 to 64 requests, T 0 and 1: hours
    python -m bench.sweep --batch-sizes 1,8 --modes off,sync --policies price,causal,threshold:0.3
    python -m bench.sweep --rates 0.5,1,2 --arrivals poisson,bursty --latency-target-ms 2000 100
    python -m bench.sweep --topologies 1+0,1+1,2+0 --temperature 0 1 --prompts spec_bench.jsonl
    python -m bench.sweep --fresh --repeats 5 --batch-sizes 4,64 --modes off,auto

Real services, asked over gRPC. A stopped sweep goes on with the same command. Writes results.json
and report.md to --out, again after every comparison, and plots in the end; definitions are in
bench/README.md.
"""

import argparse
import asyncio
import hashlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.command_line import (
    TARGET_HELP,
    add_sampling_option,
    default_ballasts,
    num_params,
    progress_bar,
    read_sampling,
)
from bench.conversations import Questions, prepare_questions
from bench.drafter_choice import parse_choice
from bench.machine import describe_machine
from bench.prompt_choice import ChosenPrompts, add_prompt_options, read_prompts
from bench.services.launch_flags import check_service, split_flags
from bench.sweep.arms import Drafting, NamedArm, arms_of
from bench.sweep.arrivals import KINDS
from bench.sweep.kept import Kept, Measured
from bench.sweep.plan import (
    FULL,
    MODES,
    POLICIES,
    QUICK,
    Plan,
    Targets,
    read_arrivals,
    read_names,
    read_numbers,
    read_policies,
    read_topologies,
)
from bench.sweep.plots import draw
from bench.sweep.report import TITLE, conditions, tables, verdict
from bench.sweep.results import Collector, Results
from bench.sweep.run import Options, Run, missing, num_steps
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.errors import SpecserveError
from specserve.settings.target_source import locate_target

_NAME = "bench.sweep"
_TINY_BALLAST = "30M"
_QUICK_PROMPTS = 26  # two of each category of ours
_DEFAULT = "as of specserve launch"


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    told = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}",
        description=told[0],
        epilog=f"examples:\n{told[1]}\n\n{told[2]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="three loads at T 1: at most 15 minutes")
    add("--out", type=Path, default=Path("results/sweep"), metavar="DIR")
    add("--target", metavar="MODEL", help=TARGET_HELP)
    add("--ballast", metavar="PARAMS", help=f"pad the target (default: tiny to {_TINY_BALLAST})")
    add("--drafter", metavar="DRAFTER[+HEAD]", help=f"here and there (default: {_DEFAULT})")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="of targets and drafts")
    add("--flags", default="", metavar='"FLAGS"', help="of specserve launch, for all services")
    add("--batch-sizes", nargs="+", metavar="N,...",
        help="requests always in flight (default: 1 to 64; with --rates none)")  # fmt: skip
    add("--rates", nargs="+", default=[], metavar="R,...", help="requests a second, open loop")
    add("--arrivals", nargs="+", default=[KINDS[0]], metavar="KIND,...",
        help=f"of --rates: {', '.join(KINDS)} (default: {KINDS[0]})")  # fmt: skip
    add("--modes", nargs="+", metavar="MODE,...", help=f"{', '.join(MODES)} (default: all)")
    add("--policies", nargs="+", metavar="POLICY,...",
        help=f"{', '.join(POLICIES)}, :CHANCE (default: {','.join(FULL.policies)})")  # fmt: skip
    add("--topologies", nargs="+", metavar="T+D,...",
        help=f"target ranks + draft processes (default: {','.join(FULL.topologies)})")  # fmt: skip
    add("--threads", type=int, metavar="CORES", help="of a target rank (default: 1)")
    add("--temperature", nargs="+", metavar="T", help="one or several (default: 0 1, quick 1)")
    add_sampling_option(parser)
    add("--requests", type=int, metavar="N",
        help="of a turn, at least: twice as many as are in flight are asked")  # fmt: skip
    add("--repeats", type=int, metavar="N", help="turns of every arm under a load (default: 3)")
    add("--fresh", action="store_true",
        help="start all services anew for every repeat: figures do not depend on how fast a single "
        "one happens to be")  # fmt: skip
    add("--warm-up", type=float, metavar="S", help="of every load, for async and auto")
    add("--latency-target-ms", type=float, nargs=2, metavar=("TTFT", "TPOT"),
        help="what goodput counts (default: 2000 100)")  # fmt: skip
    add("--budget", type=float, metavar="S",
        help="after so many seconds as little as possible of what is left (default: none, quick "
        f"{QUICK.budget_s:.0f})")  # fmt: skip
    add("--texts-may-differ", action="store_true",
        help="compare no texts: a GPU's services are then as launch starts them, by default "
        "deterministic")  # fmt: skip
    add("--interactivity", type=float, metavar="TOK/S", help="for each user (default: 10)")
    add("--unpinned", action="store_true", help="share cores with whoever runs: no times, a trial")
    add_prompt_options(parser, str(FULL.max_tokens))
    return parser


def read_plan(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises InvalidField."""
    rates = read_numbers("--rates", arguments.rates, float, "0.5,1") if arguments.rates else ()
    given = {
        "batch_sizes": () if rates else None,
        "rates": rates,
        "arrivals": read_arrivals(arguments.arrivals),
        "modes": arguments.modes and read_names("--modes", arguments.modes, MODES),
        "policies": arguments.policies and read_policies(arguments.policies),
        "topologies": arguments.topologies and read_topologies(arguments.topologies),
        "threads": arguments.threads,
        "sampling": read_sampling(arguments.sampling),
        "max_tokens": arguments.max_tokens,
        "requests": arguments.requests,
        "repeats": arguments.repeats,
        "fresh": arguments.fresh,
        "warm_up_s": arguments.warm_up,
        "budget_s": arguments.budget,
    }
    if arguments.batch_sizes:
        sizes = read_numbers("--batch-sizes", arguments.batch_sizes, int, "1,4,16")
        given["batch_sizes"] = sizes
    if arguments.temperature:
        temperatures = read_numbers("--temperature", arguments.temperature, float, "0 1")
        given["temperatures"] = temperatures
    changes = {name: value for name, value in given.items() if value is not None}
    plan = msgspec.structs.replace(QUICK if arguments.quick else FULL, **changes)
    plan.check()
    return plan


def read_targets(arguments: argparse.Namespace) -> Targets:
    """Raises InvalidField."""
    targets = Targets()
    if arguments.latency_target_ms:
        ttft_ms, tpot_ms = arguments.latency_target_ms
        targets = msgspec.structs.replace(targets, ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    if arguments.interactivity is not None:
        targets = msgspec.structs.replace(targets, interactivity=arguments.interactivity)
    targets.check()
    return targets


def read_arms(arguments: argparse.Namespace, plan: Plan) -> list[NamedArm]:
    """Raises InvalidField, also for a topology without cores enough."""
    drafting = Drafting()
    if arguments.drafter:
        choice = parse_choice(arguments.drafter)
        drafting = Drafting(drafter=choice.drafter, local_head=choice.local_head)
    is_bound = arguments.device == "cpu" and not arguments.unpinned
    num_cores = len(os.sched_getaffinity(0)) if is_bound else None
    return arms_of(plan, drafting, device=arguments.device, num_cores=num_cores)


class Wanted:
    """All that the command line says, read and checked before anything is measured."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Raises InvalidField, or what a launch of one of the services would raise."""
        self.plan, self.targets = read_plan(arguments), read_targets(arguments)
        self.target = locate_target(arguments.target)
        self.ballast = arguments.ballast or default_ballasts(self.target, (_TINY_BALLAST,))[0]
        self.chosen = read_prompts(arguments, _QUICK_PROMPTS if arguments.quick else None)
        self.arms = read_arms(arguments, self.plan)
        self.is_pinned = not arguments.unpinned
        self.device: str = arguments.device
        self.drafter: str = arguments.drafter or _DEFAULT
        self.said: str = arguments.flags
        self.flags = ["--device", self.device, *split_flags("--flags", arguments.flags)]
        is_gpu = self.device == "cuda"
        self.texts_may_differ: bool = arguments.texts_may_differ
        # Else batches may change texts there.
        self.flags += ["--deterministic"] if is_gpu and not self.texts_may_differ else []
        # One GPU may have to do for both.
        self.flags += ["--oversubscribe"] if is_gpu or not self.is_pinned else []
        ballast = num_params(self.ballast)
        own = ["--target", str(self.target), *(["--ballast", str(ballast)] if ballast else [])]
        for arm in self.arms:
            check_service("--flags", arm.service, [*own, *self.flags])

    def options(self, questions: Questions) -> Options:
        return Options(
            target=self.target,
            ballast=num_params(self.ballast),
            arms=tuple(self.arms),
            plan=self.plan,
            questions=questions,
            flags=tuple(self.flags),
            is_pinned=self.is_pinned,
            texts_may_differ=self.texts_may_differ,
        )

    @property
    def measured(self) -> Measured:
        return Measured(
            plan=self.plan,
            target=self.target.name,
            ballast=self.ballast,
            drafter=self.drafter,
            device=self.device,
            flags=self.said,
            prompts=_digest(self.chosen),
            is_pinned=self.is_pinned,
            texts_may_differ=self.texts_may_differ,
        )


def _digest(chosen: ChosenPrompts) -> str:
    """Of what is asked, but for answers to first turns, which follow from it."""
    said = msgspec.json.encode(chosen.records)
    return f"{chosen.name}, {len(chosen.records)}, {hashlib.sha256(said).hexdigest()[:12]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed (a missed goal is a result, not a failure)."""
    began_s = time.monotonic()
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    console = Console(stderr=True)
    try:
        wanted = Wanted(arguments)
        make_results_folder(arguments.out)
        kept = Kept(arguments.out, wanted.measured)
        console.print("answering the first turns of conversations", style="dim")
        questions = prepare_questions(wanted.chosen, wanted.target, wanted.plan.max_tokens)
        collector = Collector(
            wanted.measured,
            wanted.targets,
            wanted.arms,
            prompts=questions.line,
            command=shlex.join(["python", "-m", _NAME, *words]),
        )
        results = _measure(wanted.options(questions), kept, collector, arguments.out, began_s)
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    show_tables(tables(results), verdict(results))
    return 0 if results.is_complete else 130


def _measure(
    options: Options, kept: Kept, collector: Collector, out: Path, began_s: float
) -> Results:
    """All that is missing, or what there was when somebody pressed Ctrl-C."""
    console, before_s = Console(stderr=True), kept.elapsed_s
    left = missing(options.arms, options.plan, kept.cells)
    try:
        if left:
            kept.begin(describe_machine())
            with (
                progress_bar(num_steps(left, options.plan), console) as advance,
                asyncio.Runner() as runner,
            ):
                Run(
                    options,
                    kept,
                    elapsed_s=lambda: before_s + time.monotonic() - began_s,
                    advance=advance,
                    summarise=lambda: _write(collector.results(kept, is_complete=False), out),
                ).measure(runner)
    except KeyboardInterrupt:
        console.print("stopped; what was measured is kept", style="yellow")
    left = missing(options.arms, options.plan, kept.cells)
    results = collector.results(kept, is_complete=not left)
    _write(results, out, [path.name for path in draw(results.rows, results.targets, out)])
    return results


def _write(results: Results, out: Path, plots: Sequence[str] = ()) -> None:
    write_results(results, out)
    write_tables([TITLE, verdict(results), conditions(results)], tables(results, plots), out)


if __name__ == "__main__":
    sys.exit(main())
