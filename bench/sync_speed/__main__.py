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

from bench.command_line import TARGET_HELP, default_ballasts, num_params, progress_bar
from bench.conversations import prepare_questions
from bench.domains import (
    CHECKED_TOKENS,
    DOMAINS,
    GreedyCheck,
    check_greedy,
    draw_prompts,
    known_texts,
)
from bench.drafter_choice import DrafterChoice, add_drafter_options, default_words, read_choices
from bench.in_process import Engine, EngineSize
from bench.loops import LoopCount, count_loops
from bench.machine import describe_machine
from bench.pinned_child import ChildFailed, PinnedChild
from bench.prompt_choice import add_domain_option, add_prompt_options, read_domains, read_prompts
from bench.records import Setup
from bench.sync_speed.measure import Group, Interleaved, Prompts, Setting
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
from specserve.backends.choose import choose_backend
from specserve.errors import SpecserveError
from specserve.models.ballast import with_ballast
from specserve.models.config import read_spec
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.settings.target_source import locate_target

# As the service's ranks are started: weights on huge pages.
_ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_CHECK_BATCH = 16


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sync_speed", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: a minute or less")
    parser.add_argument("--out", type=Path, default=Path("results/sync"), metavar="DIR")
    parser.add_argument("--target", metavar="MODEL", help=TARGET_HELP)
    add_drafter_options(parser)
    parser.add_argument(
        "--ballast", nargs="+", metavar="PARAMS", help='sizes to pad the target to; "none"'
    )
    parser.add_argument("--temperatures", type=float, nargs="+", metavar="T")
    parser.add_argument("--batch-sizes", type=int, nargs="+", metavar="B")
    add_prompt_options(parser, f"{FULL.num_tokens}, quick {QUICK.num_tokens}")
    add_domain_option(parser, DOMAINS)
    return parser


def read_plan(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises InvalidField."""
    given = {
        "ballasts": arguments.ballast,
        "domains": read_domains(arguments),
        "temperatures": arguments.temperatures,
        "batch_sizes": arguments.batch_sizes,
        "num_groups": arguments.num_prompts,
        "num_tokens": arguments.max_tokens,
    }
    changes = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    plan = msgspec.structs.replace(QUICK if arguments.quick else FULL, **changes)
    plan.check(arguments.gamma)
    for ballast in plan.ballasts:
        num_params(ballast)
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
    if arguments.ballast is None:
        plan = msgspec.structs.replace(plan, ballasts=default_ballasts(folder, plan.ballasts))
    if arguments.drafter is None:
        arguments.drafter = default_words(folder)[:1]
    choices = read_choices(arguments, folder)
    chosen = None if plan.domains else read_prompts(arguments, plan.num_groups)
    for choice in choices:
        choice.located(folder)  # a name that is none fails before anything is measured
    make_results_folder(arguments.out)
    machine = describe_machine()
    if chosen is None:
        prompts, said = _prompts(folder, plan, console), f"Held-out: {', '.join(plan.domains)}"
    else:
        questions = prepare_questions(chosen, folder, plan.num_tokens)
        prompts, said = Prompts({questions.name: questions.prompts}, {}), questions.line
        changes = {"num_groups": len(questions.asked), "ignore_eos": not questions.is_chat}
        plan = msgspec.structs.replace(plan, **changes)
    loops = Loops()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    setup = Setup(folder=str(folder), parent_pid=os.getpid(), cores=cores[:1])
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        rows = _measure(setup, _arms(choices, plan), prompts, plan, loops, console)
    finally:
        os.sched_setaffinity(0, cores)
    spec = read_spec(folder)
    sizes = {name: with_ballast(spec, num_params(name)).num_params for name in plan.ballasts}
    return Results(
        summary=summarise(rows),
        rows=rows,
        loops=loops.count,
        greedy=list(prompts.greedy.values()),
        prompts=said,
        plan=plan,
        target=Target(folder=folder.name, core=cores[:1], num_params=sizes),
        machine=machine,
        command=command,
    )


def _arms(choices: Sequence[DrafterChoice], plan: Plan) -> list[Arm]:
    return [
        Arm(),
        *(Arm(drafter=choice, method=method) for choice in choices for method in plan.methods),
    ]


def _prompts(folder: Path, plan: Plan, console: Console) -> Prompts:
    """Drawn, and looked at under greedy decoding by the model without ballast."""
    by_domain = {d: draw_prompts(d, folder, plan.num_candidates) for d in plan.domains}
    prompts = Prompts(by_domain, {})
    if 0.0 not in plan.temperatures:
        return prompts
    torch.set_num_threads(1)
    model = load_model(
        folder,
        dtype=torch.float32,
        backend=choose_backend(torch.device("cpu")),
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


class Loops:
    """Counts loops among the greedy answers of the first setting of every domain."""

    def __init__(self) -> None:
        self._by_domain: dict[str, list[list[int]]] = {}

    def look(self, setting: Setting, groups: Sequence[Group]) -> None:
        if setting.temperature == 0 and groups and setting.domain not in self._by_domain:
            self._by_domain[setting.domain] = [
                text
                for group in groups
                for arm, trace in group.items()
                if arm.drafter is None
                for text in trace.texts
            ]

    @property
    def count(self) -> LoopCount | None:
        answers = [text for texts in self._by_domain.values() for text in texts]
        return count_loops(answers) if answers else None


def _measure(
    setup: Setup,
    arms: Sequence[Arm],
    prompts: Prompts,
    plan: Plan,
    loops: "Loops",
    console: Console,
) -> list[Row]:
    """One child after the other, each with a target of its own size."""
    settings = [
        Setting(ballast=ballast, batch_size=size, domain=domain, temperature=temperature)
        for ballast in plan.ballasts
        for size in plan.batch_sizes
        for temperature in plan.temperatures
        for domain in prompts.by_domain
    ]
    total = sum(len(prompts.groups(setting, plan)) for setting in settings)
    rows: list[Row] = []
    with progress_bar(total, console) as advance:
        for ballast in plan.ballasts:
            padded = msgspec.structs.replace(setup, ballast=num_params(ballast))
            child = PinnedChild[SpeculateJob, SpeculateTrace](
                "bench.sync_speed.arms", padded, SpeculateTrace, _ALLOCATOR
            )
            with child:
                child.wait_until_loaded()
                interleaved = Interleaved(child, arms, prompts, plan, advance)
                for setting in settings:
                    if setting.ballast == ballast:
                        groups = interleaved.run(setting)
                        loops.look(setting, groups)
                        rows += rows_of(setting, groups)
    return rows


if __name__ == "__main__":
    sys.exit(main())
