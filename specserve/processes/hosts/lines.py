# pyright: strict
"""Messages over a stream socket as lines of JSON: one end. Knows no message.

Reading never waits. Writing waits a moment for a reader that lags, and takes one that lags longer
for gone: a supervisor has children to look after.
"""

import logging
import select
import socket
import time
from typing import Generic, TypeVar

import msgspec

from specserve.telemetry import one_line

_MOST_BYTES = 1 << 20  # of a line
_MOST_READS = 64
_SEND_S = 1.0

log = logging.getLogger(__name__)

Message = TypeVar("Message")


class Lines(Generic[Message]):
    """Owns `sock`. What is malformed ends it, like an end of the other side."""

    def __init__(self, sock: socket.socket, decoder: "msgspec.json.Decoder[Message]") -> None:
        sock.setblocking(False)
        self.sock = sock
        self.is_over = False
        self._decoder = decoder
        self._received = b""
        self._encoder = msgspec.json.Encoder()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: msgspec.Struct) -> bool:
        """False: nobody reads any more."""
        data = self._encoder.encode(message) + b"\n"
        deadline_s = time.monotonic() + _SEND_S
        while data and not self.is_over:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not select.select([], [self.sock], [], left_s)[1]:
                    self.is_over = True
            except OSError:
                self.is_over = True
        return not self.is_over

    def receive(self) -> list[Message]:
        """What has arrived, in order; `is_over` says whether more can come."""
        messages: list[Message] = []
        for _ in range(_MOST_READS):  # a flood must not keep a supervisor from its children
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                return messages
            except OSError:
                data = b""
            if not data:
                self.is_over = True
                return messages
            *lines, self._received = (self._received + data).split(b"\n")
            if len(self._received) > _MOST_BYTES:
                lines.append(self._received)
            for line in lines:
                try:
                    messages.append(self._decoder.decode(line))
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    log.warning("a malformed line of %d bytes: %s", len(line), one_line(str(error)))
                    self.is_over = True
                    return messages
        return messages

    def wait(self, timeout_s: float) -> bool:
        """Until something arrives or ends, at most `timeout_s`; whether it did."""
        return bool(select.select([self.sock], [], [], max(0.0, timeout_s))[0])

    def close(self) -> None:
        self.is_over = True
        self.sock.close()
