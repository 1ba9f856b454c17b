# pyright: strict
"""What every child of the supervisor does first: arguments, dying with its parent, pinning, ready.

The contract, seen from the child: read `--config` (a ResolvedConfig as JSON), put sockets and
rendezvous files under `--control-dir`, and answer once on `--ready-fd`; a second line there says
why a child that was ready gives up. SIGTERM means stop cleanly. Knows nothing of what the child
does.
"""

import argparse
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from specserve.errors import SpecserveError
from specserve.settings.config import Placement

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK, _PR_SET_CHILD_SUBREAPER = 1, 29, 36
_SLACK_NS = 1000
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1


class ChildArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of one child."""

    config: Path
    control_dir: Path
    ready_fd: int
    parent_pid: int
    rank: int = 0
    world_size: int = 1  # processes of this role
    # Shared memory of the links to draft processes: all of them for target rank 0, in order of the
    # draft's rank; its own for a draft process; none for anybody else.
    link_fds: tuple[int, ...] = ()


class ReadyReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that a child writes to `--ready-fd`: whether it can serve, or why it no longer can."""

    ready: bool
    error: str = ""  # one line, when not ready
    code: str = ""  # its gRPC status name
    is_consequence: bool = False  # `error` began in another process: that one is to blame
    address: str = ""  # host:port of gRPC, from the API process
    http_url: str = ""  # of the OpenAI-compatible API; empty without


def parse_child_arguments(argv: Sequence[str] | None = None) -> ChildArguments:
    """The supervisor's flags; `argv` None means this process's own."""
    parser = argparse.ArgumentParser(description="A child of `specserve launch`; not for hands.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--control-dir", type=Path, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--link-fd", type=int, action="append", default=[], dest="link_fds")
    given = parser.parse_args(argv)
    given.link_fds = tuple(given.link_fds)
    return ChildArguments(**vars(given))


def descriptor_words(ready_fd: int, link_fds: Sequence[int] = ()) -> list[str]:
    """Those of a child's arguments that name open files."""
    words = ["--ready-fd", str(ready_fd)]
    for fd in link_fds:
        words += ["--link-fd", str(fd)]
    return words


def command_line(module: str, words: Sequence[str]) -> list[str]:
    """Of a child that runs `module` with the arguments `words`."""
    # -P: the working folder of a launch must not shadow any module of the service.
    return [sys.executable, "-P", "-m", module, *words]


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> None:
    """Ask the kernel for `signum` when the parent dies. Call it before any slow import.

    Ends this process at once if the parent is already gone (the kernel only reports later deaths).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit(1)


@contextmanager
def slow_imports() -> Generator[None]:
    """What takes seconds to import takes a quarter less inside, and as much less in the end.

    Nothing that is imported is garbage: it is not looked through meanwhile, nor ever after, and
    pages of it that a forked process shares stay shared. torch has a million objects.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own has ended. See `reap_strays`."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_strays(known: Callable[[], Collection[int]]) -> None:
    """Collect dead children of this process, up to the first of the `known` ones.

    That one's own signal is on the way, and brings us here again. Asked anew for each.
    """
    with suppress(ChildProcessError):  # there are no children at all
        while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if dead.si_pid in known():
                return
            os.waitpid(dead.si_pid, 0)


def sleep_exactly() -> None:
    """Let short sleeps of this thread be short: Linux adds 50 us, to wake for several at once."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)


def keep_freed_memory() -> bool:
    """Make glibc keep large freed blocks instead of returning them to the system.

    Verification makes tensors of several megabytes a round and training gigabytes a step; to have
    each of their pages mapped and erased anew takes up to ten times as long as what is computed.
    What was freed before (while a model was loaded) has gone back, so call this behind it.
    """
    return _set_allocator(_M_MMAP_MAX, 0) and _set_allocator(_M_TRIM_THRESHOLD, _NEVER)


def share_heap() -> bool:
    """Make glibc's threads take memory from one heap: call before there are any.

    By default each thread of gRPC's gets one, and what requests leave in shreds of each is memory
    that stays; the API process waits for its loop far more than for a heap.
    """
    return _set_allocator(_M_ARENA_MAX, 1)


def _set_allocator(parameter: int, value: int) -> bool:
    """False without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))


def pin(placement: Placement) -> None:
    """Tie this process, and every thread it starts from now on, to the planned cores."""
    if placement.cores:
        os.sched_setaffinity(0, placement.cores)


def report_ready(ready_fd: int, *, address: str = "", http_url: str = "") -> None:
    """Tell the supervisor that this child serves. The pipe stays open for `report_failure`."""
    _report(ready_fd, ReadyReport(ready=True, address=address, http_url=http_url))


def report_failure(
    ready_fd: int, error: Exception | str, code: str = "", *, is_consequence: bool = False
) -> None:
    """Tell the supervisor in one line why this process cannot start, or ends while it serves.

    `code` defaults to the error's own, INTERNAL for errors that are not for users.
    `is_consequence`: another process has ended or hangs, and this one only suffers from it.
    """
    if isinstance(error, SpecserveError):
        text, code = str(error), code or error.code
    else:
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    code = code or "INTERNAL"
    report = ReadyReport(ready=False, error=line, code=code, is_consequence=is_consequence)
    with suppress(BrokenPipeError):  # nobody listens any more, and the exit code tells it, too
        _report(ready_fd, report)


def _report(ready_fd: int, report: ReadyReport) -> None:
    line: bytes = msgspec.json.encode(report) + b"\n"
    while line:
        line = line[os.write(ready_fd, line) :]


def decode_report(line: bytes) -> ReadyReport:
    """The supervisor's side; a line that is none becomes a failure report."""
    try:
        fields: dict[str, Any] = msgspec.json.decode(line)
        return msgspec.convert(fields, ReadyReport)
    except msgspec.MsgspecError as error:
        return ReadyReport(ready=False, error=f"malformed ready report: {error}", code="INTERNAL")
