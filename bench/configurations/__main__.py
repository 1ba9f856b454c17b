"""`python -m bench.configurations`: services with flags given by hand, against each other.

    python -m bench.configurations                       the paper's: SmolLM2 padded to 1B, and
                                                         SmolLM2 itself as standalone drafter
    python -m bench.configurations --quick
    python -m bench.configurations --arm "sync: --speculation sync --gamma 12" \\
        --arm "async: --speculation async --topology 1+1 --gamma 12 --fan-out 8"

Real services on their own cores, one at a time, asked over gRPC. Writes results.json and report.md
to --out, again after every pass; definitions are in bench/README.md.
"""

import argparse
import asyncio
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
    add_renamed_flag,
    add_sampling_option,
    num_params,
    progress_bar,
    read_sampling,
)
from bench.configurations.arms import (
    ARM,
    FULL,
    PAPER_ARMS,
    QUICK,
    Plan,
    check_methods,
    read_arms,
)
from bench.configurations.report import TITLE, conditions, tables, verdict
from bench.configurations.results import Results, arm_rows, summarise
from bench.configurations.rows import loops_in
from bench.configurations.run import Options, Run, num_steps
from bench.conversations import Questions, prepare_questions
from bench.drafter_choice import LANGUAGE_MODEL
from bench.machine import describe_machine
from bench.prompt_choice import ChosenPrompts, add_prompt_options, read_prompts
from bench.services.launch_flags import check_service
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.errors import SpecserveError
from specserve.models.ballast import with_ballast
from specserve.models.config import read_spec
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.target_source import SMOLLM2, find_smollm2, locate_target

_NAME = "bench.configurations"


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="two prompts, once: figures mean little")
    add("--out", type=Path, default=Path("results/configurations"), metavar="DIR")
    add("--target", metavar="MODEL", help=TARGET_HELP)
    add("--ballast", metavar="PARAMS", help='pad the target; "none" (default: 1B; tiny 100M)')
    add("--drafter", metavar="DRAFTER", help="of all arms (default: smollm2; of tiny lm)")
    add("--flags", default="", metavar='"FLAGS"', help="of specserve launch, for all arms")
    add("--arm", action="append", dest="arms", metavar='"NAME: FLAGS"',
        help="of specserve launch; may be repeated (default: the paper's)")  # fmt: skip
    add("--temperatures", type=float, nargs="+", metavar="T", help="default: 0 and 1")
    add(
        "--methods",
        nargs="+",
        choices=[method.value for method in VerificationMethod],
        metavar="METHOD",
    )
    add_renamed_flag(parser, "--rules", "--methods")
    add_sampling_option(parser)
    add("--passes", type=int, metavar="N", help="how often every arm is started")
    add("--warm-up", type=float, metavar="S", help="of every arm that learns, sampling and pass")
    add("--unpinned", action="store_true", help="share cores with whoever runs: no times, a trial")
    add_prompt_options(parser, f"{FULL.max_tokens}, quick {QUICK.max_tokens}")
    return parser


def read_plan(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises InvalidField."""
    given = {
        "max_tokens": arguments.max_tokens,
        "temperatures": arguments.temperatures and tuple(dict.fromkeys(arguments.temperatures)),
        "methods": arguments.methods and tuple(map(VerificationMethod, arguments.methods)),
        "num_passes": arguments.passes,
        "warm_up_s": arguments.warm_up,
        "sampling": read_sampling(arguments.sampling),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    plan = msgspec.structs.replace(QUICK if arguments.quick else FULL, **changes)
    plan.check()
    return plan


def read_options(arguments: argparse.Namespace, plan: Plan, command: str) -> Options:
    """Target, ballast and arms. Raises InvalidField."""
    target = locate_target(arguments.target)
    is_smollm2 = target == find_smollm2()
    ballast = arguments.ballast or ("1B" if is_smollm2 else "100M")
    drafter = arguments.drafter or (SMOLLM2 if is_smollm2 else LANGUAGE_MODEL)
    shared = shlex.split(arguments.flags)
    services = read_arms(arguments.arms or PAPER_ARMS, shared, drafter)
    check_methods(services, plan)
    return Options(
        target=target,
        ballast=ballast,
        ballast_params=num_params(ballast),
        services=tuple(services),
        plan=plan,
        is_pinned=not arguments.unpinned,
        command=command,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed (a missed goal is a result, not a failure)."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    console = Console(stderr=True)
    try:
        plan = read_plan(arguments)
        chosen = read_prompts(arguments, plan.num_prompts)
        plan = msgspec.structs.replace(plan, num_prompts=len(chosen.records))
        options = read_options(arguments, plan, shlex.join(["python", "-m", _NAME, *words]))
        for service in options.services:
            check_service(ARM, service, options.flags)
        make_results_folder(arguments.out)
        results = _measure(options, chosen, arguments.out, console)
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    show_tables(tables(results), verdict(results))
    return 0 if results.is_complete else 130


def _measure(options: Options, chosen: ChosenPrompts, out: Path, console: Console) -> Results:
    """All passes, or those that there were when somebody pressed Ctrl-C."""
    collect = _Collector(options)
    console.print("answering the first turns of conversations", style="dim")
    questions = prepare_questions(chosen, options.target, options.plan.max_tokens)
    with asyncio.Runner() as runner:
        with progress_bar(num_steps(options, questions), console) as advance:
            run = Run(options, questions, runner, advance)
            is_complete = False
            try:
                for _ in run.passes():
                    _write(collect.results(run, questions, is_complete=False), out)
                is_complete = True
            except KeyboardInterrupt:
                console.print("stopped; what was measured is kept", style="yellow")
        results = collect.results(run, questions, is_complete=is_complete)
    _write(results, out)
    return results


class _Collector:
    """Turns a run into results."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._machine = describe_machine()
        self._began_s = time.monotonic()

    def results(self, run: Run, questions: Questions, *, is_complete: bool) -> Results:
        """Of what there is so far."""
        options, found = self._options, run.found
        spec = with_ballast(read_spec(options.target), options.ballast_params)
        return Results(
            summary=summarise(found),
            arms=arm_rows(found),
            loops=loops_in(found),
            questions=questions,
            plan=options.plan,
            target=options.target.name,
            num_params=spec.num_params,
            ballast=options.ballast,
            is_pinned=options.is_pinned,
            num_cores=len(os.sched_getaffinity(0)),
            machine=self._machine,
            command=options.command,
            is_complete=is_complete,
            elapsed_s=time.monotonic() - self._began_s,
        )


def _write(results: Results, out: Path) -> None:
    write_results(results, out)
    write_tables([TITLE, verdict(results), conditions(results)], tables(results), out)


if __name__ == "__main__":
    sys.exit(main())
