"""`python -m bench.sync_speed`: synchronous speculation against plain decoding on one core.

    python -m bench.sync_speed                           30M and 100M targets, batch 1, 4, 16
    python -m bench.sync_speed --quick                   30M, batch 1, code, few prompts
    python -m bench.sync_speed --drafter dspark ngram --ballast 100M --batch-sizes 1

Writes results.json, report.md and a plot to --out; definitions are in bench/README.md.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from bench.domains import (
    CHECKED_TOKENS,
    DOMAINS,
    GreedyCheck,
    check_greedy,
    draw_prompts,
    known_texts,
)
from bench.drafter_choice import DSPARK, DrafterChoice, add_drafter_options, read_choices
from bench.in_process import Engine, EngineSize
from bench.machine import describe_machine
from bench.pinned_child import ChildFailed, PinnedChild
from bench.progress import progress_bar
from bench.records import Setup
from bench.sync_speed.measure import Interleaved, Prompts, Setting
from bench.sync_speed.plan import FULL, QUICK, Plan
from bench.sync_speed.plots import draw
from bench.sync_speed.records import Arm, SpeculateJob, SpeculateTrace
from bench.sync_speed.report import TITLE, conditions, tables, verdict
from bench.sync_speed.results import Results, Row, Target, rows_of, summarise
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.drafter_source import NGRAM, embedded_drafters
from specserve.errors import SpecserveError
from specserve.model.ballast import with_ballast
from specserve.model.config import read_spec
from specserve.model.loader import load_model
from specserve.model.parallel import TensorParallel
from specserve.sizes import parse_count
from specserve.target_source import locate_target

# As the service's ranks are started: weights on huge pages.
_ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_CHECK_BATCH = 16
_NO_BALLAST = "none"


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sync_speed", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: a minute or less")
    parser.add_argument("--out", type=Path, default=Path("results/sync"), metavar="DIR")
    parser.add_argument("--target", metavar="FOLDER|HUB_ID", help="default: the embedded model")
    add_drafter_options(parser)
    parser.add_argument(
        "--ballast", nargs="+", metavar="PARAMS", help='sizes to pad the target to; "none"'
    )
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, metavar="D")
    parser.add_argument("--temperatures", type=float, nargs="+", metavar="T")
    parser.add_argument("--batch-sizes", type=int, nargs="+", metavar="B")
    parser.add_argument("--groups", type=int, metavar="N", help="prompts a domain at batch 1")
    parser.add_argument("--tokens", type=int, metavar="N", help="new tokens per prompt")
    return parser


def read_plan(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises InvalidField."""
    given = {
        "ballasts": arguments.ballast,
        "domains": arguments.domains,
        "temperatures": arguments.temperatures,
        "batch_sizes": arguments.batch_sizes,
        "num_groups": arguments.groups,
        "num_tokens": arguments.tokens,
    }
    changes = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    plan = msgspec.structs.replace(QUICK if arguments.quick else FULL, **changes)
    plan.check(arguments.gamma)
    for ballast in plan.ballasts:
        _num_params(ballast)
    return plan


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed (a missed goal is a result, not a failure)."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    progress = Console(stderr=True)
    command = shlex.join(["python", "-m", "bench.sync_speed", *words])
    try:
        results = _run(arguments, command, progress)
        write_results(results, arguments.out)
    except (SpecserveError, ChildFailed, OSError) as error:
        show_failure("bench.sync_speed", error)
        return 1
    draw(results.rows, arguments.out)
    found = tables(results)
    write_tables([TITLE, verdict(results), conditions(results)], found, arguments.out)
    show_tables(found, verdict(results))
    return 0


def _run(arguments: argparse.Namespace, command: str, console: Console) -> Results:
    plan, folder = read_plan(arguments), locate_target(arguments.target)
    if arguments.drafter is None:
        arguments.drafter = [DSPARK if DSPARK in embedded_drafters() else NGRAM]
    choices = read_choices(arguments)
    for choice in choices:
        choice.located(folder)  # a name that is none fails before anything is measured
    make_results_folder(arguments.out)
    machine = describe_machine()
    prompts = _prompts(folder, plan, console)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    setup = Setup(folder=str(folder), parent_pid=os.getpid(), cores=cores[:1])
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        rows = _measure(setup, _arms(choices, plan), prompts, plan, console)
    finally:
        os.sched_setaffinity(0, cores)
    spec = read_spec(folder)
    sizes = {name: with_ballast(spec, _num_params(name)).num_params for name in plan.ballasts}
    return Results(
        summary=summarise(rows),
        rows=rows,
        greedy=list(prompts.greedy.values()),
        plan=plan,
        target=Target(folder=folder.name, core=cores[:1], num_params=sizes),
        machine=machine,
        command=command,
    )


def _arms(choices: Sequence[DrafterChoice], plan: Plan) -> list[Arm]:
    return [Arm(), *(Arm(drafter=choice, rule=rule) for choice in choices for rule in plan.rules)]


def _prompts(folder: Path, plan: Plan, console: Console) -> Prompts:
    """Drawn, and looked at under greedy decoding by the model without ballast: the same law."""
    by_domain = {d: draw_prompts(d, folder, plan.num_candidates) for d in plan.domains}
    prompts = Prompts(by_domain, {})
    if 0.0 not in plan.temperatures:
        return prompts
    torch.set_num_threads(1)
    model = load_model(
        folder,
        dtype=torch.float32,
        device=torch.device("cpu"),
        parallel=TensorParallel(),
        deterministic=True,
    )
    plain = Engine(model, EngineSize(_CHECK_BATCH, prompts.longest + CHECKED_TOKENS))
    checks: dict[str, GreedyCheck] = {}
    known = known_texts(folder)
    with progress_bar(len(by_domain), console) as advance:
        for domain, candidates in by_domain.items():
            advance(f"greedy text of {domain}")
            checks[domain] = check_greedy(domain, candidates, plain, _CHECK_BATCH, known)
    return Prompts(by_domain, checks)


def _measure(
    setup: Setup, arms: Sequence[Arm], prompts: Prompts, plan: Plan, console: Console
) -> list[Row]:
    """One child after the other, each with a target of its own size."""
    settings = [
        Setting(ballast=ballast, batch_size=size, domain=domain, temperature=temperature)
        for ballast in plan.ballasts
        for size in plan.batch_sizes
        for temperature in plan.temperatures
        for domain in plan.domains
    ]
    total = sum(len(prompts.groups(setting, plan)) for setting in settings)
    rows: list[Row] = []
    with progress_bar(total, console) as advance:
        for ballast in plan.ballasts:
            padded = msgspec.structs.replace(setup, ballast=_num_params(ballast))
            child = PinnedChild[SpeculateJob, SpeculateTrace](
                "bench.sync_speed.arms", padded, SpeculateTrace, _ALLOCATOR
            )
            with child:
                child.wait_until_loaded()
                interleaved = Interleaved(child, arms, prompts, plan, advance)
                for setting in settings:
                    if setting.ballast == ballast:
                        rows += rows_of(setting, interleaved.run(setting))
    return rows


def _num_params(ballast: str) -> int:
    return 0 if ballast == _NO_BALLAST else parse_count(ballast, "--ballast")


if __name__ == "__main__":
    sys.exit(main())
