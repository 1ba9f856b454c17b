# pyright: strict
"""A gateway that others have written, unchanged, in front of two workers, one of which is killed.

    python -m bench.clients.gateway --venv DIR/of/smg --out DIR

The gateway is a process of the package `smg`; the workers are services as `specserve launch` starts
them. The same requests are asked twice: while both workers live, and with one of them killed by
SIGKILL, all its processes at once, when a third of the answers are there. What was printed is kept.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

from rich.console import Console

from bench.clients.asked import Load, Transcript, ask_samples, ask_under_load
from bench.clients.transcript import version_in
from bench.machine import describe_machine
from bench.processes import descendants
from bench.prompt_files import STANDARD_PROMPTS, read_prompt_file
from bench.writing import make_results_folder, show_failure
from specserve.errors import SpecserveError
from specserve.processes.local_service import local_service
from specserve.settings.target_source import SMOLLM2

_NAME = "bench.clients.gateway"
_PACKAGE = "smg"
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 60.0, 20.0
_LOOK_EVERY_S = 0.2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {_NAME}", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--venv", type=Path, required=True, metavar="DIR",
        help=f"the virtual environment that {_PACKAGE} is installed in")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("bench-clients"), metavar="DIR")
    parser.add_argument("--target", default=SMOLLM2, metavar="MODEL",
        help="GGUF file, folder or name (default: %(default)s)")  # fmt: skip
    parser.add_argument("--flags", default="--speculation sync --threads 1", metavar="FLAGS",
        help="of each `specserve launch`, as one word (default: %(default)r)")  # fmt: skip
    parser.add_argument("--requests", type=int, default=48, metavar="N")
    parser.add_argument("--concurrency", type=int, default=6, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=32, metavar="N")
    return parser


class Worker:
    """A running service, and all its processes."""

    def __init__(self, address: str, pids: set[int]) -> None:
        self.address = address
        self._pids = pids

    def kill(self) -> None:
        """As a machine does that loses power."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def workers(number: int, flags: Sequence[str]) -> Generator[list[Worker]]:
    """So many, started one after the other."""
    with ExitStack() as stack:
        found: list[Worker] = []
        for _ in range(number):
            before = descendants()
            address = stack.enter_context(local_service(flags))
            found.append(Worker(address, descendants() - before))
        yield found


def gateway_words(port: int, metrics_port: int, addresses: Sequence[str]) -> list[str]:
    """What is typed; probes come often, so that a dead worker is known as that soon."""
    return [
        *("smg", "launch", "--host", "127.0.0.1", "--port", str(port), "--backend", "vllm"),
        *("--worker-urls", *(f"grpc://{address}" for address in addresses)),
        *("--policy", "round_robin", "--health-check-interval-secs", "1"),
        *("--health-check-timeout-secs", "1", "--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
    ]


def free_ports(number: int) -> list[int]:
    """Of loopback, which nobody listens on at this moment."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in opened:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in opened]


@contextmanager
def gateway(words: Sequence[str], venv: Path, port: int) -> Generator[str]:
    """A process of it while inside; yields its URL once it is ready. Raises OSError without one."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [str(venv / "bin" / words[0]), *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_ready(process, f"{url}/readiness", output)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(process: "subprocess.Popen[bytes]", url: str, output: IO[bytes]) -> None:
    limit_s = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < limit_s:
        with suppress(URLError, ConnectionError), urlopen(url, timeout=5) as answer:
            if b'"healthy_workers":2' in answer.read():
                return
        time.sleep(_LOOK_EVERY_S)
    output.seek(0)
    said = output.read().decode(errors="replace").splitlines()[-1:]
    raise OSError(f"the gateway has not found both workers: {' '.join(said)}")


def run(arguments: argparse.Namespace, transcript: Transcript) -> Load:
    """Everything, once; the requests that were asked while a worker was killed."""
    flags = ["--target", arguments.target, *shlex.split(arguments.flags)]
    port, metrics_port = free_ports(2)
    prompts = [each.turns[0] for each in read_prompt_file(STANDARD_PROMPTS).records]
    with workers(2, flags) as (kept, killed):
        words = gateway_words(port, metrics_port, [kept.address, killed.address])
        transcript.say(f"$ {shlex.join(words)}")
        with gateway(words, arguments.venv, port) as url:
            ask_samples(url, kept.address, transcript)
            before = Load(prompts, arguments.requests, arguments.max_tokens)
            ask_under_load(url, before, arguments.concurrency)
            transcript.tell_load("both workers live", before)
            after = Load(prompts, arguments.requests, arguments.max_tokens)
            after.at_a_third = killed.kill
            ask_under_load(url, after, arguments.concurrency)
            transcript.tell_load("one worker is killed when a third is answered", after)
            transcript.tell_difference(before, after)
    return after


def main(argv: Sequence[str] | None = None) -> int:
    """0 where every request that was asked after the kill is answered, else 1."""
    arguments = build_parser().parse_args(argv)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        make_results_folder(arguments.out)
        version = version_in(arguments.venv, _PACKAGE)
        if version is None:
            raise OSError(f"{arguments.venv} has no {_PACKAGE}; pip install {_PACKAGE}")
        transcript = Transcript()
        load = run(arguments, transcript)
        verdict = "FAILS" if load.num_failed_later else "works"
        heading = [
            f"{_PACKAGE} {version}, unchanged, in front of two workers of specserve: {verdict}",
            describe_machine().line,
            f"workers: specserve launch --target {arguments.target} {arguments.flags}",
            f"again: python -m {_NAME} --venv VENV",
            f"VENV: pip install {_PACKAGE}; workers need pip install 'specserve[gateway]'",
            "",
        ]
        path = arguments.out / "gateway.txt"
        path.write_text("\n".join([*heading, *transcript.lines]) + "\n", encoding="utf-8")
        console.print(f"{_PACKAGE} {version}: {verdict}; {path}")
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    return 1 if load.num_failed_later else 0


if __name__ == "__main__":
    sys.exit(main())
