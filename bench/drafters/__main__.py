"""`python -m bench.drafters`: accept length by drafter, domain, temperature and method.

    python -m bench.drafters                             all embedded drafters and ngram
    python -m bench.drafters --quick                     few prompts: three minutes
    python -m bench.drafters --drafter dspark ngram dflash=./dflash --local-head ./dels
    python -m bench.drafters --drafter mine=./run/dspark --depth-drafters 1=./d1 2=./d2
    python -m bench.drafters --depth-only --depth-drafters 1=./d1 2=./d2 3=./d3

Writes results.json, report.md and plots to --out; definitions are in bench/README.md.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from bench.command_line import TARGET_HELP, progress_bar
from bench.conversations import prepare_questions
from bench.domains import DOMAINS, draw_prompts
from bench.drafter_choice import (
    DrafterChoice,
    add_drafter_options,
    read_choices,
    read_depths,
)
from bench.drafters.calibration import calibration_error
from bench.drafters.measure import Loaded, Measurer
from bench.drafters.plan import FULL, QUICK, Plan, read_budget
from bench.drafters.plots import draw
from bench.drafters.report import TITLE, conditions, tables, verdict
from bench.drafters.results import (
    CalibrationRow,
    Cell,
    DepthInfo,
    DrafterInfo,
    Results,
    Target,
    compare,
    summarise,
)
from bench.machine import describe_machine
from bench.prompt_choice import add_domain_option, add_prompt_options, read_domains, read_prompts
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.backends.choose import choose_backend
from specserve.errors import InvalidField, SpecserveError
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.settings.target_source import locate_target


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.drafters", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: three minutes")
    parser.add_argument("--out", type=Path, default=Path("results/drafters"), metavar="DIR")
    parser.add_argument("--target", metavar="MODEL", help=TARGET_HELP)
    add_drafter_options(parser)
    parser.add_argument(
        "--depth-drafters", nargs="+", default=[], metavar="LAYERS=FOLDER", help="the depth sweep"
    )
    parser.add_argument("--depth-only", action="store_true", help="nothing but the depth sweep")
    add_prompt_options(parser, f"{FULL.num_tokens}, quick {QUICK.num_tokens}")
    add_domain_option(parser, DOMAINS)
    parser.add_argument("--candidates", type=int, metavar="N", help="of --domains, for greedy text")
    parser.add_argument("--temperatures", type=float, nargs="+", metavar="T")
    parser.add_argument("--gammas", type=int, nargs="*", metavar="G", help="of the gamma sweep")
    parser.add_argument("--thresholds", type=float, nargs="*", metavar="S", help="of survival")
    parser.add_argument("--threads", type=int, default=1, metavar="CORES")
    return parser


def read_plan(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises InvalidField."""
    if arguments.depth_only and not arguments.depth_drafters:
        raise InvalidField("--depth-only", "needs --depth-drafters")
    plan = QUICK if arguments.quick else FULL
    given = {
        "num_prompts": arguments.num_prompts,
        "num_candidates": arguments.candidates,
        "num_tokens": arguments.max_tokens,
        "domains": read_domains(arguments),
        "temperatures": arguments.temperatures,
        "gammas": arguments.gammas,
        "thresholds": arguments.thresholds,
    }
    changes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    plan = msgspec.structs.replace(plan, gamma=arguments.gamma, **changes)
    if arguments.candidates is None:
        most = max(plan.num_candidates, plan.num_prompts)
        plan = msgspec.structs.replace(plan, num_candidates=most)
    if arguments.depth_only:  # sweeps are made under the first sampling
        first = plan.temperatures[:1]
        plan = msgspec.structs.replace(plan, temperatures=first, gammas=(), thresholds=())
    plan.check()
    return plan


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed (a missed goal is a result, not a failure)."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    progress = Console(stderr=True)
    try:
        results = _run(arguments, shlex.join(["python", "-m", "bench.drafters", *words]), progress)
        write_results(results, arguments.out)
    except (SpecserveError, OSError) as error:
        show_failure("bench.drafters", error)
        return 1
    draw(results, arguments.out)
    found = tables(results)
    write_tables([TITLE, verdict(results), conditions(results)], found, arguments.out)
    show_tables(found, verdict(results))
    return 0


def _run(arguments: argparse.Namespace, command: str, console: Console) -> Results:
    plan, depths = read_plan(arguments), read_depths(arguments)
    folder = locate_target(arguments.target)
    choices = [] if arguments.depth_only else read_choices(arguments, folder)
    chosen = None if plan.domains else read_prompts(arguments, plan.num_prompts)
    for choice in (*choices, *depths):
        choice.located(folder)  # a name that is none fails before anything is measured
    make_results_folder(arguments.out)
    machine = describe_machine()
    if chosen is None:
        candidates = {d: draw_prompts(d, folder, plan.num_candidates) for d in plan.domains}
        said = f"Held-out code and prose that no training saw, or sums: {', '.join(plan.domains)}"
    else:
        console.print("answering the first turns of conversations", style="dim")
        questions = prepare_questions(chosen, folder, plan.num_tokens)
        candidates, said = {questions.name: questions.prompts}, questions.line
        changes = {"num_prompts": len(questions.asked), "ignore_eos": not questions.is_chat}
        plan = msgspec.structs.replace(plan, **changes)
    torch.set_num_threads(arguments.threads)
    model = load_model(
        folder,
        dtype=torch.float32,
        backend=choose_backend(torch.device("cpu")),
        parallel=TensorParallel(),
        deterministic=True,
    )
    collected = _Collected()
    with progress_bar(_num_measurements(plan, choices, depths), console) as advance:
        measurer = Measurer(model, folder, candidates, plan, advance)
        measurer.check_greedy()
        for choice in choices:
            collected.add(measurer, measurer.load(choice))
            advance(f"{choice.label}, calibration")
            row = calibration_error(model, folder, choice, measurer.prompts, plan)
            collected.calibration += [row] if row is not None else []
        for choice in depths:
            collected.add_depth(measurer, measurer.load(choice))
    ratios = compare(collected.cells)
    return Results(
        summary=summarise(collected.cells, collected.calibration, plan),
        drafters=collected.drafters,
        cells=collected.cells,
        ratios=ratios,
        gamma_sweep=collected.gamma_sweep,
        depth_drafters=collected.depth_drafters,
        depth_sweep=collected.depth_sweep,
        depth_ratios=compare(collected.depth_sweep),
        threshold_sweep=collected.threshold_sweep,
        calibration=collected.calibration,
        loops=measurer.loops,
        greedy=list(measurer.greedy.values()),
        prompts=said,
        plan=plan,
        target=Target(folder=folder.name, num_params=model.num_params),
        machine=machine,
        command=command,
    )


class _Collected:
    """What has been measured so far."""

    def __init__(self) -> None:
        self.drafters: list[DrafterInfo] = []
        self.cells: list[Cell] = []
        self.gamma_sweep: list[Cell] = []
        self.depth_drafters: list[DepthInfo] = []
        self.depth_sweep: list[Cell] = []
        self.threshold_sweep: list[Cell] = []
        self.calibration: list[CalibrationRow] = []

    def add(self, measurer: Measurer, loaded: Loaded) -> None:
        """Everything about one drafter but its calibration."""
        kind = type(loaded.drafter).__name__
        self.drafters.append(DrafterInfo(choice=loaded.choice, kind=kind, gamma=loaded.gamma))
        cells = measurer.cells(loaded)
        self.cells += cells
        self.gamma_sweep += measurer.gamma_sweep(loaded, cells)
        if loaded.gives_confidences:
            self.threshold_sweep += measurer.threshold_sweep(loaded, cells)

    def add_depth(self, measurer: Measurer, loaded: Loaded) -> None:
        """One drafter of the depth sweep."""
        budget = read_budget(Path(loaded.choice.drafter))
        self.depth_drafters.append(DepthInfo(layers=loaded.choice.label, training=budget))
        self.depth_sweep += measurer.cells(loaded, first_only=True)


def _num_measurements(
    plan: Plan, choices: Sequence[DrafterChoice], depths: Sequence[DrafterChoice]
) -> int:
    """Steps of the progress bar at most."""
    samplings = sum(len(plan.methods) if temperature else 1 for temperature in plan.temperatures)
    sweeps = samplings + len(plan.gammas) + len(plan.thresholds)
    num_domains = max(1, len(plan.domains))
    per_drafter = sweeps * num_domains + 1
    return num_domains * (1 + len(depths)) + len(choices) * per_drafter


if __name__ == "__main__":
    sys.exit(main())
