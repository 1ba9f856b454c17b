# pyright: strict
"""Signals as bytes on a socket, so that one selector sees everything. Decides nothing.

Each byte is the number of a signal. A full socket takes no more, and has a byte to wake up by.
"""

import signal
import socket
from types import FrameType, TracebackType
from typing import Self

from specserve.processes.stop_signals import heard_stops


class SignalPipe:
    """While entered, STOP_SIGNALS and SIGCHLD arrive at `reader`. Main thread only."""

    def __enter__(self) -> Self:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous = {
            signum: signal.signal(signum, _ignore) for signum in (*heard_stops(), signal.SIGCHLD)
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_fd)
        self.reader.close()
        self._writer.close()


def _ignore(signum: int, frame: FrameType | None) -> None:
    """The byte on the wake-up socket is the message."""
