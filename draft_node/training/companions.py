"""The other processes of a training: started beside the first one, by the same command.

They end with it, and it ends with an error that tells what they said if one of them does: a step
waits for all of them. What they say besides is what the first one says.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import torch

from draft_node.training.device import is_cpu
from draft_node.training.ranks import Ranks, meet, part_ways
from specserve.errors import Failed, InvalidField

MODULE = "draft_node.training"
_END_S = 30.0  # that they have to end, behind the first one
_NOTICE_S = 2.0  # from the end of one to an error of what the first one does with it, usually
_DONE = (0, 130)  # trained, or stopped with the first one
_TOLD = 2000  # characters of what one said


@contextmanager
def companions_of(arguments: argparse.Namespace) -> Generator[Ranks]:
    """What --processes asks for; of the first one, with the others running meanwhile.

    Raises InvalidField where a step has too few rows for so many, or there are too few GPUs; Failed
    where another has failed.
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
        others = list[_Companion]()
        try:
            for rank in range(1, count):
                others.append(_Companion(arguments, rank, Path(folder)))
            yield from _met(arguments, 0, Path(folder), others)
        finally:
            for other in others:
                other.end()


def refuse_crowd(arguments: argparse.Namespace, row: int = 256) -> None:
    """Raise InvalidField unless every process has a row of every step, and a GPU if it is to."""
    count: int = arguments.processes
    rows = arguments.tokens_per_step // row
    if count > rows:
        problem = f"a step of {arguments.tokens_per_step} tokens has {rows} rows; --tokens-per-step"
        raise InvalidField("--processes", f"{count}: {problem} makes it larger")
    if is_cpu(arguments.device):
        return
    kind, _, index = arguments.device.partition(":")
    if index:
        problem = f"{count} processes have a GPU each, from the first on; type --device {kind}"
        raise InvalidField("--device", f"{arguments.device}: {problem}")
    if count > (there := torch.cuda.device_count()):
        raise InvalidField("--processes", f"{count}: have a GPU each, and there are {there}")


def _met(
    arguments: argparse.Namespace, rank: int, folder: Path, others: "Sequence[_Companion]" = ()
) -> Generator[Ranks]:
    if not is_cpu(arguments.device):
        arguments.device = f"{arguments.device}:{rank}"

    def release() -> None:
        for other in others:
            other.is_over.set()

    try:
        ranks = meet(folder, rank, arguments.processes, arguments.device)
        yield replace(ranks, parting=release)
    except RuntimeError as error:  # of torch's, whose other end may be gone
        for other in others:
            if (problem := other.failure(_NOTICE_S)) is not None:
                raise Failed(problem) from error
        raise
    finally:
        release()
        part_ways()


class _Companion:
    """One of the others, seen from the first one.

    Who waits for one that is gone may wait for ever: where they meet, or on a GPU. So the first one
    is ended then.
    """

    def __init__(self, arguments: argparse.Namespace, rank: int, folder: Path) -> None:
        self.is_over = Event()  # what it was needed for
        self._rank, self._folder = rank, folder
        self._said = folder / f"process-{rank}.txt"
        words = [*arguments.words, "--process", str(rank), "--meeting", str(folder)]
        command = [sys.executable, "-P", "-m", MODULE, arguments.kind, *words]
        with self._said.open("wb") as said:
            # A session of its own: Ctrl-C reaches the first one, which tells the others.
            self._process = subprocess.Popen(
                [*command, "--parent-pid", str(os.getpid())],
                start_new_session=True, stdin=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
        Thread(target=self._watch, daemon=True).start()

    def failure(self, timeout_s: float) -> str | None:
        """How it failed, if it did within so many seconds."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        if code in _DONE:
            return None
        said = self._said.read_text(errors="replace").strip()[-_TOLD:]
        return f"process {self._rank} of the training ended with code {code}\n{said}".rstrip()

    def end(self) -> None:
        """It has half a minute behind a training, and next to nothing behind an error."""
        try:
            self._process.wait(_END_S if sys.exception() is None else 0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _watch(self) -> None:
        self._process.wait()
        # Where the first one hears of it by itself, it says more, and tidies up.
        if self._process.returncode in _DONE or self.is_over.wait(_NOTICE_S):
            return
        sys.stderr.write(f"specserve: {self.failure(0.0)}\n")
        sys.stderr.flush()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)
