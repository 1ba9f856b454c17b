# pyright: strict
"""What a process does when it is told to stop, where it does not watch a `SignalPipe`.

Imports nothing slow: a process may be told to stop before it has imported anything else.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AT_ONCE_S = 0.5  # between two that are one; whoever means a second one takes longer
_SIGNAL_EXIT = 128  # shells add the number of the signal that ended a command

_Handler = Callable[[int, FrameType | None], object]


def signal_exit(signum: int) -> int:
    """The exit code of a command that a signal ended, as shells report it: 130 for SIGINT."""
    return _SIGNAL_EXIT + signum


def heard_stops() -> list[signal.Signals]:
    """STOP_SIGNALS, less SIGHUP under nohup."""
    return [s for s in STOP_SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]


def exit_when_stopped(exit_code: int) -> None:
    """From now on a stop signal ends this process, closing what is open, with `exit_code`."""

    def leave(signum: int, frame: FrameType | None) -> NoReturn:
        sys.exit(exit_code)

    for signum in heard_stops():
        signal.signal(signum, leave)


@contextmanager
def ends_at_once(signums: Iterable[signal.Signals], exit_code: int) -> Generator[None]:
    """Inside, where nothing is open, these end the process there and then.

    For imports: an exception in the middle of one leaves modules half made, and one of those
    crashed the interpreter's own end.
    """

    def leave(signum: int, frame: FrameType | None) -> NoReturn:
        os._exit(exit_code)

    with _handled(signums, leave):
        yield


def ignore_stops() -> None:
    """For the last steps of a process, which ends anyway; the interpreter's own end included."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextmanager
def stops_unwind() -> Generator[None]:
    """Inside, SIGTERM and SIGHUP close what is open, like Ctrl-C; the exit code is the shell's.

    A second signal changes nothing, as `timeout` may send it twice at once. Signals that somebody
    else handles stay theirs, and so do all of them outside the main thread.
    """
    is_unwinding = False

    def leave(signum: int, frame: FrameType | None) -> None:
        nonlocal is_unwinding
        if not is_unwinding:
            is_unwinding = True
            sys.exit(signal_exit(signum))

    theirs = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) == signal.SIG_DFL]
    with _handled(theirs, leave):
        yield


@contextmanager
def interrupts_merged() -> Generator[None]:
    """Inside, Ctrl-C twice at once is one: a second would interrupt what cleans up after the first.

    gRPC's channels do not stand that: one whose end was interrupted waits for it without end.
    """
    interrupted_s = -math.inf

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted_s
        before_s, interrupted_s = interrupted_s, time.monotonic()
        if interrupted_s - before_s > _AT_ONCE_S:
            raise KeyboardInterrupt

    is_theirs = signal.getsignal(signal.SIGINT) != signal.default_int_handler
    with _handled([] if is_theirs else [signal.SIGINT], interrupt):
        yield


@contextmanager
def stops_deferred(hand_on: Callable[[], None] | None = None) -> Generator[None]:
    """Inside, a stop signal interrupts nothing: it takes effect at the end.

    Until then every one calls `hand_on`.
    """
    arrived: list[int] = []

    def remember(signum: int, frame: FrameType | None) -> None:
        arrived.append(signum)
        if hand_on is not None:
            hand_on()

    with _handled(heard_stops(), remember):
        yield
    if arrived:
        signal.raise_signal(arrived[0])


@contextmanager
def _handled(signums: Iterable[signal.Signals], handler: _Handler) -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # which Python lets handle no signals
        return
    previous = {signum: signal.signal(signum, handler) for signum in signums}
    try:
        yield
    finally:
        for signum, handled in previous.items():
            signal.signal(signum, handled)
