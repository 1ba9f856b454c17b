# pyright: strict
"""`python -m bench.flag_grid`: a service without flags against a grid of flags set by hand.

    python -m bench.flag_grid                      SmolLM2 padded to 1B, drafted for by SmolLM2
    python -m bench.flag_grid --quick
    python -m bench.flag_grid --cells 12 --seed 1 --temperatures 0 --requests 1

Real services on their own cores, one at a time, asked over gRPC. Writes results.json and report.md
to --out, again after every pass; definitions are in bench/README.md.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.command_line import TARGET_HELP, num_params, progress_bar
from bench.conversations import Questions, prepare_questions
from bench.drafter_choice import LANGUAGE_MODEL
from bench.flag_grid.cells import cells_of
from bench.flag_grid.measure import Load, Place, Plan, Run
from bench.flag_grid.report import TITLE, conditions, tables, verdict
from bench.flag_grid.results import Results, against_best, speeds_of
from bench.machine import describe_machine
from bench.prompt_choice import add_prompt_options, read_prompts
from bench.services.launch_flags import check_service
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.errors import InvalidField, SpecserveError
from specserve.settings.target_source import SMOLLM2, find_smollm2, locate_target

_NAME = "bench.flag_grid"
_MAX_TOKENS, _QUICK_MAX_TOKENS = 80, 24
_NUM_PROMPTS, _QUICK_NUM_PROMPTS = 13, 4


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="two cells, few tokens: figures mean little")
    add("--out", type=Path, default=Path("results/flag_grid"), metavar="DIR")
    add("--target", metavar="MODEL", help=TARGET_HELP)
    add("--ballast", metavar="PARAMS", help='pad the target; "none" (default: 1B; tiny 100M)')
    add("--drafter", metavar="DRAFTER", help="of all services (default: smollm2; of tiny lm)")
    add("--cells", type=int, metavar="N", help="of the grid (default: 12, quick 2)")
    add("--seed", type=int, default=0, help="that draws them")
    add("--temperatures", type=float, nargs="+", default=[0.0, 1.0], metavar="T")
    add("--requests", type=int, nargs="+", default=[1, 4], metavar="N", help="at once")
    add("--unpinned", action="store_true", help="share cores with whoever runs: no times, a trial")
    add("--passes", type=int, metavar="N", help="how often every service is started (default: 2)")
    add_prompt_options(parser, f"{_MAX_TOKENS}, quick {_QUICK_MAX_TOKENS}")
    return parser


def read_plan(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises InvalidField."""
    is_quick: bool = arguments.quick

    def chosen(given: int | None, whole: int, quick: int) -> int:
        return (quick if is_quick else whole) if given is None else given

    plan = Plan(
        loads=tuple(Load(t, n) for n in arguments.requests for t in arguments.temperatures),
        num_asked=1 if is_quick else 5,
        num_first=1 if is_quick else 5,
        num_passes=chosen(arguments.passes, 2, 1),
        max_tokens=chosen(arguments.max_tokens, _MAX_TOKENS, _QUICK_MAX_TOKENS),
        num_drawn=chosen(arguments.cells, 12, 2),
        seed=arguments.seed,
    )
    for field, value, least in (
        ("--passes", plan.num_passes, 1),
        ("--max-tokens", plan.max_tokens, 2),
        ("--cells", plan.num_drawn, 0),
        ("--temperatures", min(arguments.temperatures), 0),
        ("--requests", min(arguments.requests), 1),
    ):
        if value < least:
            raise InvalidField(field, f"{value} is less than {least}")
    return plan


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed (a missed goal is a result, not a failure)."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    console = Console(stderr=True)
    try:
        plan = read_plan(arguments)
        default = _QUICK_NUM_PROMPTS if arguments.quick else _NUM_PROMPTS
        chosen = read_prompts(arguments, default)
        target = locate_target(arguments.target)
        is_smollm2 = target == find_smollm2()
        ballast = arguments.ballast or ("1B" if is_smollm2 else "100M")
        place = Place(
            target=target,
            ballast=num_params(ballast),
            is_pinned=not arguments.unpinned,
            drafter=arguments.drafter or (SMOLLM2 if is_smollm2 else LANGUAGE_MODEL),
        )
        for cell in cells_of(plan.num_drawn, plan.seed):
            check_service("--drafter", cell.service, place.flags(plan.max_tokens))
        make_results_folder(arguments.out)
        questions = prepare_questions(chosen, target, plan.max_tokens)
        command = shlex.join(["python", "-m", _NAME, *words])
        writer = _Writer(plan, place, ballast, questions, command, arguments.out)
        results = _measure(writer, console)
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    show_tables(tables(results), verdict(results))
    return 0 if results.is_complete else 130


def _measure(writer: "_Writer", console: Console) -> Results:
    """All passes, or those that there were when somebody pressed Ctrl-C."""
    plan, cells = writer.plan, cells_of(writer.plan.num_drawn, writer.plan.seed)
    with progress_bar(plan.num_passes * len(cells), console) as advance:
        run = Run(plan, writer.place, cells, writer.questions, advance)
        is_complete = False
        try:
            for _ in run.passes():
                writer.write(run, is_complete=False)
            is_complete = True
        except KeyboardInterrupt:
            console.print("stopped; what was measured is kept", style="yellow")
    return writer.write(run, is_complete=is_complete)


class _Writer:
    """Turns a run into results."""

    def __init__(
        self,
        plan: Plan,
        place: Place,
        ballast: str,
        questions: Questions,
        command: str,
        out: Path,
    ) -> None:
        self.plan, self.place, self.questions = plan, place, questions
        self._ballast, self._command, self._out = ballast, command, out
        self._machine = describe_machine()
        self._began_s = time.monotonic()

    def write(self, run: Run, *, is_complete: bool) -> Results:
        """What there is so far."""
        results = Results(
            against=against_best(run.found),
            speeds=speeds_of(run.found),
            measured=run.found,
            flags={
                c.name: shlex.join(c.flags) for c in cells_of(self.plan.num_drawn, self.plan.seed)
            },
            plan=self.plan,
            target=self.place.target.name,
            ballast=self._ballast,
            drafter=self.place.drafter,
            prompts=self.questions.line,
            machine=self._machine,
            command=self._command,
            is_complete=is_complete,
            elapsed_s=time.monotonic() - self._began_s,
        )
        write_results(results, self._out)
        write_tables([TITLE, verdict(results), conditions(results)], tables(results), self._out)
        return results


if __name__ == "__main__":
    sys.exit(main())
