# pyright: strict
"""Clients that others have written, unchanged, on a service; their transcripts are kept.

    python -m bench.clients --out DIR
    python -m bench.clients --only aiperf --venv aiperf=DIR/of/its/venv

A client without an environment (`--venv`) is looked for in this one; which is not there is absent.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.clients.libraries import LANGCHAIN, OPENAI, REFLECTION, RESPONSES, TOOLS
from bench.clients.load_generators import AIPERF, GUIDELLM, VLLM_BENCH
from bench.clients.setting import KnownClient, Setting
from bench.clients.transcript import is_success, run, text_of, version_in
from bench.machine import describe_machine
from bench.peers.weights import write_tokenizer
from bench.prompt_files import STANDARD_PROMPTS, read_prompt_file
from bench.writing import make_results_folder, show_failure
from specserve.client import Client
from specserve.errors import InvalidField, SpecserveError
from specserve.processes.local_service import local_apis
from specserve.settings.target_source import SMOLLM2, locate_model

_NAME = "bench.clients"
_ROOT = Path(__file__).parents[2]
_OWN_VENV = Path(sys.prefix)
CLIENTS = {
    each.name: each
    for each in (
        OPENAI,
        RESPONSES,
        TOOLS,
        LANGCHAIN,
        AIPERF,
        GUIDELLM,
        VLLM_BENCH,
        REFLECTION,
    )
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {_NAME}", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("bench-clients"), metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=CLIENTS, metavar="NAME", default=[*CLIENTS],
        help=f"of {', '.join(CLIENTS)}")  # fmt: skip
    parser.add_argument("--venv", action="append", default=[], metavar="NAME=DIR",
        help="the virtual environment that a client is installed in")  # fmt: skip
    parser.add_argument("--target", default=SMOLLM2, metavar="MODEL",
        help="GGUF file, folder or name (default: %(default)s)")  # fmt: skip
    parser.add_argument("--flags", default="--speculation sync", metavar="FLAGS",
        help="of `specserve launch`, as one word (default: %(default)r)")  # fmt: skip
    parser.add_argument("--requests", type=int, default=8, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    return parser


def venvs_of(words: Sequence[str]) -> dict[str, Path]:
    """Environments by client. Raises InvalidField for a client that nobody knows."""
    venvs = dict.fromkeys(CLIENTS, _OWN_VENV)
    for word in words:
        name, _, folder = word.partition("=")
        if name not in CLIENTS or not folder:
            known = ", ".join(CLIENTS)
            raise InvalidField("--venv", f"{word!r} has to be NAME=DIR, NAME one of {known}")
        venvs[name] = Path(folder).absolute()
    return venvs


class Bench:
    """All clients that were asked for, one after the other, on one service."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self._arguments, self._scratch = arguments, scratch
        self._venvs = venvs_of(arguments.venv)
        self._machine = describe_machine()
        self.failed: list[str] = []
        self.absent: list[str] = []

    def run(self, console: Console) -> None:
        """Start the service, ask it, write a transcript for each client."""
        arguments = self._arguments
        target = locate_model(arguments.target, "--target")
        tokenizer = target
        if target.is_file():
            tokenizer = self._scratch / "tokenizer"
            tokenizer.mkdir()
            write_tokenizer(target, tokenizer)
        with local_apis(["--target", str(target), *shlex.split(arguments.flags)]) as apis:
            with Client(apis.address) as client:
                model = client.model_info().model
            setting = Setting(
                url=apis.http_url,
                address=apis.address,
                model=model,
                tokenizer=tokenizer,
                scratch=self._scratch,
                prompts=tuple(each.turns[0] for each in read_prompt_file(STANDARD_PROMPTS).records),
                num_requests=arguments.requests,
                num_tokens=arguments.max_tokens,
            )
            for name in arguments.only:
                self._ask(CLIENTS[name], setting, console)

    def _ask(self, client: KnownClient, setting: Setting, console: Console) -> None:
        venv = self._venvs[client.name]
        version = version_in(venv, client.package)
        if version is None:
            self.absent.append(client.name)
            console.print(f"{client.name}: not installed; {client.install}")
            return
        runs = [run(client, command, venv) for command in client.commands(setting)]
        works = is_success(client, runs)
        if not works:
            self.failed.append(client.name)
        heading = [
            f"{client.package} {version}, unchanged, on specserve: {'works' if works else 'FAILS'}",
            self._machine.line,
            f"service: specserve launch --target {self._arguments.target} {self._arguments.flags}",
            f"again: python -m {_NAME} --only {client.name} --venv {client.name}=VENV",
            f"VENV: {client.install}",
        ]
        names = {
            str(setting.tokenizer): "TOKENIZER",
            str(setting.scratch): "SCRATCH",
            str(venv): "VENV",
            f"{_ROOT}/": "",
        }
        path = self._arguments.out / f"{client.name}.txt"
        path.write_text(text_of(heading, runs, names), encoding="utf-8")
        console.print(f"{client.name} {version}: {'works' if works else 'fails'}; {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """0 where all that are installed work, else 1."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        make_results_folder(arguments.out)
        with tempfile.TemporaryDirectory(prefix="specserve-clients-") as scratch:
            bench = Bench(arguments, Path(scratch))
            bench.run(console)
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
