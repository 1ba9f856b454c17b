# pyright: strict
"""What both ends of a link over a network have in common: kinds of messages, limits, options.

zmq carries whole messages in a thread of its own: sending happens now or not at all, and what a
peer that is gone did not read is dropped.
"""

import struct
from typing import NamedTuple

import zmq

from specserve.transport.control.draft_control import MAX_FRAME_BYTES

FRAME, CONTROL, WORDS = b"f", b"c", b"w"  # kinds, the first part of every message
QUEUED = 64  # messages that wait for the network
UNREAD = 1024  # those that wait for their reader: in a long round, signs of life for 20 s
WORDS_PERIOD_S = 0.02  # between two of an idle draft's
# zmq's own, of drafts that belong to no launch: a machine that is gone ends no connection.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 500, 3000
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


def identity_of(draft: int) -> bytes:
    """By which the target's socket knows the connection."""
    return f"draft {draft}".encode()


def prepare(sock: "zmq.Socket[bytes]") -> None:
    """Options of both ends."""
    for option, value in (
        (zmq.SNDHWM, QUEUED),
        (zmq.RCVHWM, UNREAD),
        (zmq.MAXMSGSIZE, MAX_FRAME_BYTES),
        (zmq.LINGER, 200),  # ms: the last word goes out, a dead peer holds nobody
    ):
        sock.setsockopt(option, value)


def place_of(address: str, port: int) -> str:
    """As zmq has it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"
