# pyright: strict
"""A service of one's own: `with local_service(flags) as address:` starts it, and stops it after.

For commands, demos, benches and tests that need a real service on this machine. It is a
`specserve launch` process like any other; it never outlives its starter, and a starter told to
stop waits until it is gone.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from specserve.errors import from_code
from specserve.processes.process import ReadyReport, decode_report
from specserve.processes.stop_signals import stops_deferred, stops_unwind

_STOP_TIMEOUT_S = 60.0
_OWN_FLAGS = ("--port", "0", "--log-level", "warning")


@contextmanager
def local_service(flags: Sequence[str] = ()) -> Generator[str]:
    """Serve gRPC on a free port while inside; yields host:port. `flags` are those of `launch`.

    Warnings go to stderr. Raises the SpecserveError that kept the service from starting, and
    SystemExit on SIGTERM.
    """
    with local_apis(["--no-http", *flags]) as apis:
        yield apis.address


@contextmanager
def local_apis(
    flags: Sequence[str] = (), on_end: Callable[[], None] | None = None
) -> Generator[ReadyReport]:
    """The same with OpenAI's API, on another free port; yields where both are.

    `on_end` is called, in a thread of its own, if the service ends while inside.
    """
    process, is_left = None, threading.Event()
    with stops_unwind():
        try:
            with stops_deferred():  # between its start and `process` there is nobody to stop it
                process, ready_fd = _start([*_OWN_FLAGS, *flags])
            report = _await_ready(ready_fd)
            if on_end is not None:
                arguments = (process, is_left, on_end)
                threading.Thread(target=_tell_end, args=arguments, daemon=True).start()
            yield report
        finally:
            is_left.set()
            if process is not None:
                _stop(process)


def _start(flags: Sequence[str]) -> tuple["subprocess.Popen[bytes]", int]:
    ready_fd, write_end = os.pipe()
    words = [sys.executable, "-P", "-m", "specserve", "launch", *flags]
    words += ["--ready-fd", str(write_end), "--parent-pid", str(os.getpid())]
    try:
        process = subprocess.Popen(
            words,
            pass_fds=(write_end,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the starter, which then stops the service
        )
    finally:
        os.close(write_end)
    return process, ready_fd


def _await_ready(ready_fd: int) -> ReadyReport:
    with os.fdopen(ready_fd, "rb") as pipe:
        line = pipe.readline()
    if not line:
        line = b'{"ready": false, "error": "the service ended while starting", "code": "INTERNAL"}'
    report = decode_report(line)
    if not report.ready:
        raise from_code(report.code, report.error)
    return report


def _tell_end(
    process: "subprocess.Popen[bytes]", is_left: threading.Event, on_end: Callable[[], None]
) -> None:
    process.wait()
    if not is_left.is_set():
        on_end()


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends it cleanly; a service that does not stop is killed, and its children with it.

    Stop signals are handed on meanwhile: a second one ends its drain.
    """
    with stops_deferred(hand_on=process.terminate):
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
