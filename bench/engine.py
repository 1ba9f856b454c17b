"""`python -m bench.engine`: the served engine against transformers and against its own bare model.

    python -m bench.engine                        60M ballast target, batch 1, 4, 16
    python -m bench.engine --quick                the same in less than two minutes
    python -m bench.engine --ballast none         the embedded model as it is
    python -m bench.engine --device cuda --dtype bfloat16 --target ./Qwen3-0.6B --ballast none

Writes results.json, report.md and plots to --out; definitions are in bench/README.md.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.command_line import TARGET_HELP, default_ballasts, num_params, progress_bar
from bench.comparison import Comparison, Measurements, Plan
from bench.conversations import prepare_questions
from bench.machine import describe_machine
from bench.pinned_child import ChildFailed, PinnedChild
from bench.prompt_choice import MAX_TOKENS, add_prompt_options, read_prompts
from bench.records import (
    BatchTrace,
    ForwardJob,
    ForwardTimes,
    GenerateJob,
    RoundJob,
    RoundTimes,
    Setup,
)
from bench.report import write_report
from bench.served import Served, serve
from bench.summary import Results, Target, summarise
from bench.workload import Workload
from bench.writing import make_results_folder, show_failure
from specserve.errors import InvalidField, SpecserveError, Unavailable
from specserve.models.config import DTYPES
from specserve.settings.config import BLOCK_SIZE, EngineConfig
from specserve.settings.target_source import locate_target

_LOAD_TIMEOUT_S = 10.0
_CUDA_POOL = "4GiB"
_TINY_BALLAST = "60M"

FULL = Plan(
    batch_sizes=(1, 4, 16),
    num_tokens=MAX_TOKENS,
    num_repetitions=9,
    num_sampled_repetitions=3,
    prefill_lens=(256, 512, 1024),
    num_prefill_repetitions=5,
)
QUICK = msgspec.structs.replace(
    FULL,
    num_tokens=16,
    num_repetitions=3,
    num_sampled_repetitions=1,
    prefill_lens=(256,),
    num_prefill_repetitions=2,
    max_prompt_len=48,
    budget_s=45.0,
)


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.engine", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: two minutes")
    parser.add_argument("--out", type=Path, default=Path("results/engine"), metavar="DIR")
    parser.add_argument("--target", metavar="MODEL", help=TARGET_HELP)
    parser.add_argument(
        "--ballast",
        metavar="PARAMS",
        help=f'pad the target; "none" (default: tiny {_TINY_BALLAST})',
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of all arms")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of all arms")
    parser.add_argument("--threads", type=int, default=1, metavar="CORES")
    parser.add_argument("--batch-sizes", type=int, nargs="+", metavar="B")
    parser.add_argument("--repetitions", type=int, metavar="N", help="greedy ones, per batch size")
    add_prompt_options(parser, f"exactly {FULL.num_tokens}, quick {QUICK.num_tokens}")
    parser.add_argument("--prefill", type=int, nargs="*", metavar="TOKENS", help="prompt lengths")
    return parser


def read_plan(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises InvalidField."""
    plan = QUICK if arguments.quick else FULL
    if arguments.batch_sizes is not None:
        plan = msgspec.structs.replace(plan, batch_sizes=tuple(sorted(set(arguments.batch_sizes))))
    if arguments.max_tokens is not None:
        plan = msgspec.structs.replace(plan, num_tokens=arguments.max_tokens)
    if arguments.repetitions is not None:
        plan = msgspec.structs.replace(plan, num_repetitions=arguments.repetitions)
    if arguments.prefill is not None:
        plan = msgspec.structs.replace(plan, prefill_lens=tuple(arguments.prefill))
    for field, value, least in (
        ("--batch-sizes", min(plan.batch_sizes), 1),
        ("--max-tokens", plan.num_tokens, 4),
        ("--repetitions", plan.num_repetitions, 1),
        ("--threads", arguments.threads, 1),
    ):
        if value < least:
            raise InvalidField(field, f"{value} is less than {least}")
    return plan


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed (a missed goal is a result, not a failure)."""
    arguments = build_parser().parse_args(argv)
    console = Console(stderr=True)
    try:
        plan = read_plan(arguments)
        read_prompts(arguments, None)  # what is none fails before anything is started
        make_results_folder(arguments.out)
        results = _run(arguments, plan, console)
    except (SpecserveError, ChildFailed, OSError) as error:
        show_failure("bench.engine", error)
        return 1
    report = write_report(results, arguments.out)
    sys.stdout.write(report.read_text(encoding="utf-8"))
    return 0


def _run(arguments: argparse.Namespace, plan: Plan, console: Console) -> Results:
    folder = locate_target(arguments.target)
    ballast = num_params(arguments.ballast or default_ballasts(folder, (_TINY_BALLAST,))[0])
    cores = tuple(sorted(os.sched_getaffinity(0)))
    if len(cores) < arguments.threads:
        raise InvalidField("--threads", f"{arguments.threads} exceeds the {len(cores)} cores here")
    target_cores, client_cores = cores[: arguments.threads], cores[arguments.threads :] or cores
    flags = [
        "--generation-config",
        "none",
        "--target",
        str(folder),
        "--threads",
        str(arguments.threads),
    ]
    flags += ["--dtype", arguments.dtype]
    flags += ["--device", arguments.device, "--speculation", "off"]
    # Three processes share a GPU, each with a pool, and a service by itself would take it all.
    flags += ["--kv-memory", _CUDA_POOL] if arguments.device == "cuda" else []
    flags += ["--ballast", str(ballast)] if ballast else []
    machine = describe_machine()
    questions = prepare_questions(read_prompts(arguments, None), folder, plan.num_tokens)
    with serve(flags) as served:
        setup = Setup(
            folder=str(folder),
            parent_pid=os.getpid(),
            cores=target_cores,
            threads=arguments.threads,
            ballast=ballast,
            device=arguments.device,
            dtype=arguments.dtype,
            kv_dtype=served.model.kv_dtype,
            deterministic=served.model.deterministic,
            cuda_graphs=served.model.cuda_graphs,
            block_size=BLOCK_SIZE,
            num_blocks=_num_blocks(served),
            max_batch_tokens=EngineConfig().max_batch_tokens,
        )
        workload = Workload(questions.prompts)
        os.sched_setaffinity(0, client_cores)
        try:
            found = _measure(served, setup, workload, plan, console)
        finally:
            os.sched_setaffinity(0, cores)
        target = Target(
            name=served.model.model,
            num_params=served.model.num_params + served.model.ballast_params,
            ballast_params=served.model.ballast_params,
            num_layers=served.model.num_layers,
            device=served.model.device,
            dtype=served.model.dtype,
            deterministic=served.model.deterministic,
            threads=arguments.threads,
            target_cores=target_cores,
            client_cores=client_cores,
            oversubscribed=served.server.oversubscribed,
            allocator=" ".join(served.allocator.values()) or "default",
        )
    return summarise(found, plan, target, machine, questions.line)


def _num_blocks(served: Served) -> int:
    """The size of the service's pool, so that the bare model's cache is as large."""
    deadline_s = time.monotonic() + _LOAD_TIMEOUT_S
    while (num_blocks := served.load().num_blocks) == 0:  # its first load report is under way
        if time.monotonic() > deadline_s:
            raise Unavailable("the service does not report its load")
        time.sleep(0.05)
    return num_blocks


def _measure(
    served: Served, setup: Setup, workload: Workload, plan: Plan, console: Console
) -> Measurements:
    # Huge pages make a forward cheaper: whoever is compared with the service has them too.
    allocator = served.allocator
    transformers = PinnedChild[GenerateJob, BatchTrace](
        "bench.reference", setup, BatchTrace, allocator
    )
    bare = PinnedChild[ForwardJob | RoundJob, ForwardTimes | RoundTimes](
        "bench.bare", setup, ForwardTimes | RoundTimes, allocator
    )
    with transformers, bare, progress_bar(plan.num_measurements, console) as advance:
        transformers.wait_until_loaded()
        bare.wait_until_loaded()
        return Comparison(
            served=served,
            transformers=transformers,
            bare=bare,
            reported_round_s=lambda: served.load().round_s,
            workload=workload,
            advance=advance,
        ).run(plan)


if __name__ == "__main__":
    sys.exit(main())
