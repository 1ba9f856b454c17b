"""`python -m bench.peers`: specserve against llama.cpp, vLLM and transformers on the same file.

    python -m bench.peers --install llama.cpp            once each: llama.cpp, vllm, transformers
    python -m bench.peers                                everything: two hours
    python -m bench.peers --quick
    python -m bench.peers --peers specserve vllm --modes plain --threads 1

Peers that are not installed are reported as absent. Writes results.json and report.md to --out;
definitions are in bench/README.md.
"""

import argparse
import asyncio
import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.command_line import progress_bar
from bench.conversations import prepare_questions
from bench.machine import describe_machine
from bench.peers.arms import MODES, PEERS, arms
from bench.peers.environments import DEFAULT_FOLDER, INSTALLABLE, Environment
from bench.peers.measure import Run
from bench.peers.plan import FULL, QUICK, Plan
from bench.peers.report import TITLE, conditions, tables, verdict
from bench.peers.starting import Setup, preloaded_with_vllm
from bench.peers.summary import Results, goals_of, rows_of, summary_of
from bench.peers.weights import BFLOAT16, FLOAT16, Weights
from bench.prompt_choice import add_prompt_options, read_prompts
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.errors import SpecserveError, Unsupported
from specserve.models.config import ModelSpec, read_spec
from specserve.processes.stop_signals import stops_unwind
from specserve.settings.target_source import EMBEDDED_TARGET, SMOLLM2, locate_model

_NAME = "bench.peers"
_CONTEXT_STEP = 256  # engines like round numbers of tokens
_NGRAM = "ngram"


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few and short answers")
    parser.add_argument("--out", type=Path, default=Path("bench-peers"), metavar="DIR")
    parser.add_argument(
        "--install", nargs="+", choices=INSTALLABLE, metavar="NAME", default=[],
        help=f"make the environment of a peer, and measure nothing: {', '.join(INSTALLABLE)}",
    )  # fmt: skip
    parser.add_argument("--envs", type=Path, default=DEFAULT_FOLDER, metavar="DIR",
        help="where environments and copies of the weights are (default: %(default)s)")  # fmt: skip
    parser.add_argument("--target", default=SMOLLM2, metavar="MODEL",
        help="GGUF file, folder or name (default: %(default)s)")  # fmt: skip
    parser.add_argument("--drafter", metavar="DRAFTER",
        help="of specserve (default: ngram, or what comes with the target)")  # fmt: skip
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="NAME", help=", ".join(PEERS))
    parser.add_argument("--modes", nargs="+", choices=MODES, metavar="MODE", help=", ".join(MODES))
    parser.add_argument("--threads", nargs="+", type=int, metavar="N", help="cores of a server")
    parser.add_argument("--requests", nargs="+", type=int, metavar="N", help="side by side")
    parser.add_argument("--passes", type=int, metavar="N")
    add_prompt_options(parser, f"exactly {FULL.num_tokens}, quick {QUICK.num_tokens}")
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """QUICK or FULL, with what the command line says instead."""
    wishes = {
        "threads": arguments.threads,
        "num_requests": arguments.requests,
        "num_passes": arguments.passes,
        "num_tokens": arguments.max_tokens,
        "peers": arguments.peers,
        "modes": arguments.modes,
    }
    given = {
        name: tuple(wish) if isinstance(wish, list) else wish
        for name, wish in wishes.items()
        if wish is not None
    }
    return msgspec.structs.replace(QUICK if arguments.quick else FULL, **given)


def measure(arguments: argparse.Namespace, plan: Plan, command: str, console: Console) -> Results:
    """Everything that the arguments ask for; what there was when somebody pressed Ctrl-C."""
    target = locate_model(arguments.target, "--target")
    envs = arguments.envs.expanduser()
    weights = Weights(target, envs / "weights")
    questions = prepare_questions(read_prompts(arguments, None), target, plan.num_tokens)
    num_prompts = max(plan.num_requests) * (plan.num_passes + 1)
    # They come again when they run out: nobody has a prefix cache here.
    prompts = list(itertools.islice(itertools.cycle(questions.prompts), num_prompts))
    longest = max(map(len, prompts)) + plan.num_tokens
    spec = read_spec(target)
    quantised = spec.quantised[0] if spec.quantised else None
    drafter = arguments.drafter
    if drafter is None and target != EMBEDDED_TARGET:
        drafter = _NGRAM
    machine, is_complete = describe_machine(), True
    with asyncio.Runner() as runner, progress_bar(_num_steps(plan, quantised), console) as advance:
        setup = Setup(
            weights=weights,
            envs=envs,
            drafter=drafter,
            most_requests=max(plan.num_requests),
            context=-(-longest // _CONTEXT_STEP) * _CONTEXT_STEP,
            logs=arguments.out / "logs",
            runner=runner,
        )
        run = Run(plan, setup, prompts, quantised, advance)
        try:
            run.measure()
        except KeyboardInterrupt:
            is_complete = False
    rows = rows_of(run.found.measurements)
    goals = goals_of(rows)
    return Results(
        summary=summary_of(goals),
        goals=goals,
        rows=rows,
        absent=run.found.absent,
        model=target.name,
        prompts=questions.line,
        precisions=_precisions(target, spec),
        versions=_versions(envs),
        drafter=drafter or "what comes with the target",
        plan=plan,
        command=command,
        machine=machine,
        is_complete=is_complete,
        measurements=[
            msgspec.structs.replace(one, call=one.call.without_texts())
            for one in run.found.measurements
        ],
    )


def _num_steps(plan: Plan, quantised: str | None) -> int:
    """As many as `Run` announces, where nobody is absent."""
    per_threads = sum(len(arms(plan, threads, quantised)) for threads in plan.threads)
    sizes = len(plan.num_requests)
    return per_threads * (1 + sizes) + len(plan.threads) * sizes * plan.num_passes


def _precisions(target: Path, spec: ModelSpec) -> dict[str, str]:
    """How many bits of a weight are read, by what rows call its kind."""
    found = {BFLOAT16: "16 bits"}
    if spec.quantised:
        bits = 8 * target.stat().st_size / spec.num_params
        kinds = " and ".join(spec.quantised)
        found |= {FLOAT16: "16 bits", spec.quantised[0]: f"{kinds} of the file, {bits:.1f} bits"}
    return found


def _versions(envs: Path) -> dict[str, dict[str, str]]:
    """Of peers that are installed; vLLM's with the libraries that were preloaded."""
    found: dict[str, dict[str, str]] = {}
    for name in INSTALLABLE:
        environment = Environment(name, envs)
        try:
            found[name] = environment.versions()
        except Unsupported:
            continue
    if "vllm" in found:
        libraries = [Path(path).name for path in preloaded_with_vllm(Environment("vllm", envs))]
        found["vllm"]["preloaded"] = " ".join(libraries) or "nothing"
    return found


def install(names: Sequence[str], envs: Path, console: Console) -> None:
    """One after the other; raises InstallFailed at the first that fails."""
    for name in names:
        environment = Environment(name, envs)
        environment.install(lambda line: console.print(line, style="dim", soft_wrap=True))
        console.print(f"{name}: {environment.versions()} in {environment.folder}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write, or install; 0 unless something failed."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    console = Console(stderr=True)
    plan = plan_of(arguments)
    command = shlex.join(["python", "-m", _NAME, *words])
    try:
        if arguments.install:
            install(arguments.install, arguments.envs, console)
            return 0
        plan.check(len(os.sched_getaffinity(0)))
        make_results_folder(arguments.out)
        with stops_unwind():
            results = measure(arguments, plan, command, console)
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    write_results(results, arguments.out)
    write_tables([TITLE, verdict(results), conditions(results)], tables(results), arguments.out)
    show_tables(tables(results), verdict(results))
    return 0 if results.is_complete else 130


if __name__ == "__main__":
    sys.exit(main())
