# pyright: strict
"""A client's run as a text file: what it was, what was typed, what it printed."""

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.clients.setting import Command, KnownClient

_TIMEOUT_S = 900
_WIDTH = "160"  # columns of tables


@dataclass(frozen=True)
class Ran:
    """One command of a client. `output`: what is kept of stdout and stderr together."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    output: list[str]
    num_dropped: int
    seconds: float
    code: int


def version_in(venv: Path, package: str) -> str | None:
    """Of a distribution in an environment; None where it, or the environment, is missing."""
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    words = [str(venv / "bin" / "python"), "-c", code, package]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def run(client: KnownClient, command: Command, venv: Path) -> Ran:
    """To its end; a client that does not end is ended. Raises OSError where it cannot start."""
    words = [str(venv / "bin" / command.words[0]), *command.words[1:]]
    start_s = time.monotonic()
    try:
        done = subprocess.run(
            words,
            env={**os.environ, "COLUMNS": _WIDTH, "NO_COLOR": "1", **command.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        text, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired:
        text, code = f"not done after {_TIMEOUT_S} s", 124
    lines = [line.rstrip() for line in text.splitlines()]
    kept = [line for line in lines if not client.drops(line)]
    return Ran(
        words=command.words,
        variables=command.variables,
        output=kept,
        num_dropped=len(lines) - len(kept),
        seconds=time.monotonic() - start_s,
        code=code,
    )


def is_success(client: KnownClient, runs: Sequence[Ran]) -> bool:
    """Every command ended well and printed what it is run for."""
    return all(ran.code == 0 and client.expects in "\n".join(ran.output) for ran in runs)


def text_of(heading: Sequence[str], runs: Sequence[Ran], names: Mapping[str, str]) -> str:
    """The file. `names`: what stands there instead of paths of this machine."""
    parts = list(heading)
    for ran in runs:
        set_first = [f"{name}={value}" for name, value in ran.variables.items()]
        dropped = f", {ran.num_dropped} lines of its own log left out" if ran.num_dropped else ""
        parts += [
            "",
            f"$ {' '.join([*set_first, shlex.join(ran.words)])}",
            *_without_gaps(ran.output),
            f"[exit code {ran.code} after {ran.seconds:.1f} s{dropped}]",
        ]
    text = "\n".join(parts) + "\n"
    for path, name in names.items():
        text = text.replace(path, name)
    return text


def _without_gaps(lines: Sequence[str]) -> list[str]:
    """Several empty lines become one."""
    return [line for before, line in zip(["", *lines], lines, strict=False) if line or before]
