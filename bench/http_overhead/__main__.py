# pyright: strict
"""What OpenAI's API over HTTP costs beside gRPC: one service, the same prompts over both in turn.

python -m bench.http_overhead
python -m bench.http_overhead --quick --target tiny
python -m bench.http_overhead --flags "--dtype bfloat16"
"""

import argparse
import asyncio
import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
from rich.console import Console

from bench.command_line import progress_bar
from bench.conversations import Questions, prepare_questions
from bench.http_overhead.asking import APIS, Asked, Measurement
from bench.http_overhead.report import (
    Results,
    heading,
    is_same_text,
    over_grpc,
    own_over_grpc,
    table,
    verdict_of,
)
from bench.machine import describe_machine
from bench.peers.engines import pinned
from bench.peers.records import Job
from bench.processes import descendants
from bench.prompt_choice import add_prompt_options, read_prompts
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.errors import InvalidField, SpecserveError
from specserve.processes.local_service import local_apis
from specserve.settings.target_source import SMOLLM2, locate_model

_NAME = "bench.http_overhead"
_STREAMS, _PASSES, _QUICK_PASSES = 16, 20, 3
_TOKENS, _QUICK_TOKENS = 64, 16


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {_NAME}", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few passes, short answers")
    parser.add_argument("--out", type=Path, default=Path("bench-http"), metavar="DIR")
    parser.add_argument("--target", default=SMOLLM2, metavar="MODEL",
        help="GGUF file, folder or name (default: %(default)s)")  # fmt: skip
    parser.add_argument("--flags", default="--speculation off", metavar="FLAGS",
        help="of `specserve launch`, as one word (default: %(default)r)")  # fmt: skip
    parser.add_argument("--streams", type=int, default=_STREAMS, metavar="N", help="side by side")
    parser.add_argument("--passes", type=int, metavar="N")
    add_prompt_options(parser, f"exactly {_TOKENS}, quick {_QUICK_TOKENS}")
    return parser


def ask_in_turn(
    arguments: argparse.Namespace, questions: Questions, target: Path, console: Console
) -> list[Measurement]:
    """Both APIs in every pass, the first one changing; one warm-up of each is not counted."""
    default_passes = _QUICK_PASSES if arguments.quick else _PASSES
    num_passes = default_passes if arguments.passes is None else arguments.passes
    prompts = itertools.cycle(questions.prompts)
    jobs = [
        Job(
            prompts=list(itertools.islice(prompts, arguments.streams)),
            num_tokens=questions.max_tokens,
        )
        for _ in range(num_passes + 1)
    ]
    found: list[Measurement] = []
    cores = sorted(os.sched_getaffinity(0))
    flags = ["--target", str(target), *shlex.split(arguments.flags)]
    # The client has the cores that the target does not compute on, where there are any.
    with local_apis(flags) as apis, pinned(cores[1:] or cores), asyncio.Runner() as runner:
        port = int(apis.http_url.rpartition(":")[2])
        asked = Asked(runner, apis.address, port, descendants())
        with closing(asked), progress_bar(len(jobs), console) as advance:
            for number, job in enumerate(jobs):
                advance(f"pass {number}" if number else "warming up")
                turn = number % len(APIS)
                calls = [asked.ask(api, number, job) for api in (*APIS[turn:], *APIS[:turn])]
                found += calls if number else []
    return found


def measure(arguments: argparse.Namespace, command: str, console: Console) -> Results:
    """Everything that the arguments ask for."""
    for field, value in (("--streams", arguments.streams), ("--passes", arguments.passes)):
        if value is not None and value < 1:
            raise InvalidField(field, f"{value} is less than 1")
    target, machine = locate_model(arguments.target, "--target"), describe_machine()
    num_tokens = arguments.max_tokens or (_QUICK_TOKENS if arguments.quick else _TOKENS)
    questions = prepare_questions(read_prompts(arguments, None), target, num_tokens)
    measurements = ask_in_turn(arguments, questions, target, console)
    ratio, own = over_grpc(measurements), own_over_grpc(measurements)
    return Results(
        summary={
            "http_over_grpc": own.value,
            "http_over_grpc_lo": own.low,
            "http_over_grpc_hi": own.high,
        },
        http_over_grpc=ratio,
        http_over_grpc_own=own,
        verdict=verdict_of(ratio, own),
        is_same_text=is_same_text(measurements),
        model=f"{target.name}, {arguments.flags}",
        prompts=questions.line,
        num_streams=arguments.streams,
        num_tokens=num_tokens,
        command=command,
        machine=machine,
        measurements=[
            msgspec.structs.replace(one, call=one.call.without_texts()) for one in measurements
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed or texts differ."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    command = shlex.join(["python", "-m", _NAME, *words])
    try:
        make_results_folder(arguments.out)
        results = measure(arguments, command, Console(stderr=True))
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    write_results(results, arguments.out)
    write_tables(heading(results), [table(results)], arguments.out)
    show_tables([table(results)], results.verdict)
    return 0 if results.is_same_text else 1


if __name__ == "__main__":
    sys.exit(main())
