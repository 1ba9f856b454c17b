"""The other processes of a training: started beside the first one, by the same command.

They end with it, and it ends with an error if one of them does: a step waits for all of them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from draft_node.training.device import is_cpu
from draft_node.training.ranks import Ranks, meet, part_ways
from specserve.errors import InvalidField

MODULE = "draft_node.training"
_END_S = 30.0  # that they have to end, behind the first one


@contextmanager
def companions_of(arguments: argparse.Namespace) -> Generator[Ranks]:
    """What --processes asks for; of the first one, with the others running meanwhile.

    Raises InvalidField where a step has too few rows for so many.
    """
    count: int = arguments.processes
    if count == 1:
        yield Ranks()
        return
    if arguments.process is not None:
        yield from _met(arguments, arguments.process, arguments.meeting)
        return
    refuse_crowd(arguments)
    with tempfile.TemporaryDirectory(prefix="specserve-train-") as folder:
        others = [_start(arguments, rank, folder) for rank in range(1, count)]
        try:
            yield from _met(arguments, 0, Path(folder))
        finally:
            for other in others:
                _end(other)


def refuse_crowd(arguments: argparse.Namespace, row: int = 256) -> None:
    """Raise InvalidField unless every process has a row of every step."""
    rows = arguments.tokens_per_step // row
    if arguments.processes > rows:
        problem = f"a step of {arguments.tokens_per_step} tokens has {rows} rows; --tokens-per-step"
        raise InvalidField("--processes", f"{arguments.processes}: {problem} makes it larger")


def _met(arguments: argparse.Namespace, rank: int, folder: Path) -> Generator[Ranks]:
    if not is_cpu(arguments.device):
        arguments.device = f"{arguments.device.partition(':')[0]}:{rank}"
    try:
        yield meet(folder, rank, arguments.processes, arguments.device)
    finally:
        part_ways()


def _start(arguments: argparse.Namespace, rank: int, folder: str) -> subprocess.Popen[bytes]:
    words = [*arguments.words, "--process", str(rank), "--meeting", folder]
    command = [sys.executable, "-P", "-m", MODULE, arguments.kind, *words]
    parent = ["--parent-pid", str(os.getpid())]
    # A session of its own: Ctrl-C reaches the first one, which tells the others.
    return subprocess.Popen([*command, *parent], start_new_session=True, stdin=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S if sys.exception() is None else 0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
