# pyright: strict
"""What both ends of a link over a network have in common: kinds of messages, limits, options.

zmq carries whole messages in a thread of its own: sending happens now or not at all, and what a
peer that is gone did not read is dropped.
"""

import struct
from collections import deque
from typing import NamedTuple

import zmq

from specserve.transport.control.draft_control import MAX_FRAME_BYTES

FRAME, CONTROL, WORDS = b"f", b"c", b"w"  # kinds, the first part of every message
QUEUED = 64  # messages that wait for the network
UNREAD = 128  # those of a connection that wait for their reader; the network holds up what follows
MOST_A_LOOK = 256  # messages: a flood must not keep a loop from its rounds, ...
MOST_BYTES_A_LOOK = 16 << 20  # ... nor may large ones; the one that goes beyond is read
MOST_TO_TARGET = 8 << 20  # bytes of a message: as much as a ring has room for
MOST_CONTROL_TO_TARGET = 64 << 10  # bytes; an introduction has a few thousand
WORDS_PERIOD_S = 0.02  # between two of an idle draft's
# zmq's own, of drafts that belong to no launch: a machine that is gone ends no connection.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 500, 3000
HANDSHAKE_MS = 10_000  # who has not said by then what it speaks is sent away
_MOST_WAITING, _MOST_WAITING_BYTES = 256, 32 << 20  # of frames that wait for their reader
_WORDS = struct.Struct("<QQ")


class Words(NamedTuple):
    """What a draft says of itself; that it says so is its sign of life."""

    pid: int  # on its machine; 0: it is leaving
    epoch: int

    def pack(self) -> bytes:
        return _WORDS.pack(*self)

    @staticmethod
    def unpack(data: bytes) -> "Words | None":
        """None for what is none."""
        return Words(*_WORDS.unpack(data)) if len(data) == _WORDS.size else None


class WaitingFrames:
    """What one end has read off its socket and not handed out; beyond a limit the oldest go."""

    def __init__(self) -> None:
        self._frames = deque[bytes]()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._num_bytes += len(frame)
        while len(self._frames) > _MOST_WAITING or self._num_bytes > _MOST_WAITING_BYTES:
            self.pop()

    def pop(self) -> bytes:
        """The oldest, of which there has to be one."""
        frame = self._frames.popleft()
        self._num_bytes -= len(frame)
        return frame

    def clear(self) -> None:
        self._frames.clear()
        self._num_bytes = 0


def identity_of(draft: int) -> bytes:
    """By which the target's socket knows the connection."""
    return f"draft {draft}".encode()


def prepare(sock: "zmq.Socket[bytes]") -> None:
    """Options of both ends."""
    for option, value in (
        (zmq.SNDHWM, QUEUED),
        (zmq.RCVHWM, UNREAD),
        (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.LINGER, 200),  # ms: the last word goes out, a dead peer holds nobody
    ):
        sock.setsockopt(option, value)


def place_of(address: str, port: int) -> str:
    """As zmq has it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
