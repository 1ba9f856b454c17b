"""A process of its own for one arm of a measurement: pinned, warmed once, asked many times.

Jobs and replies are JSON lines over pipes. The child dies with the bench.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

from bench.records import Setup
from specserve.processes.process import die_with_parent

JobT = TypeVar("JobT", bound=msgspec.Struct)
ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)

_STOP_TIMEOUT_S = 10.0


class ChildFailed(RuntimeError):
    """A child ended instead of answering; its traceback is on stderr."""


class PinnedChild(Generic[JobT, ReplyT]):
    """The bench's end of `python -m MODULE`; a context manager."""

    def __init__(
        self,
        module: str,
        setup: Setup,
        reply_type: Any,  # noqa: ANN401 - a union
        environment: Mapping[str, str],
    ) -> None:
        """`environment` is added to this process's own."""
        self.module = module
        self._decoder = msgspec.json.Decoder(reply_type)
        # One thread in every library from the start; torch is told again by the child.
        threads = {"OMP_NUM_THREADS": str(setup.threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **threads, **environment},
        )
        self._write(setup)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def wait_until_loaded(self) -> None:
        """Return once the child has its model. Raises ChildFailed."""
        self._read()

    def ask(self, job: JobT) -> ReplyT:
        """One job, one reply; nothing else of the bench should run meanwhile."""
        self._write(job)
        return self._decoder.decode(self._read())

    def _write(self, record: msgspec.Struct) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(record) + b"\n")
        self._process.stdin.flush()

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildFailed(f"{self.module} ended with {self._process.wait()}")
        return line


def answer_jobs(
    job_type: Any,  # noqa: ANN401 - a union
    load: Callable[[Setup], Callable[[Any], msgspec.Struct]],
) -> None:
    """The child's whole life: read `Setup`, pin, `load`, answer jobs until stdin closes."""
    jobs, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not end up among the replies
    setup = msgspec.json.decode(jobs.readline(), type=Setup)
    die_with_parent(setup.parent_pid)
    if setup.cores:
        os.sched_setaffinity(0, setup.cores)
    answer = load(setup)
    replies.write(b"{}\n")
    replies.flush()
    for line in jobs:
        reply = answer(msgspec.json.decode(line, type=job_type))
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()
