# pyright: strict
"""The draft's end of a link to a target on another machine: one connection for everything.

It is made once the target has said where it listens, and again by zmq whenever it ends. Nothing
here blocks but `wait`; nothing raises on input.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import zmq

from specserve.transport.control.control import FrameReader, FrameWriter
from specserve.transport.control.draft_control import Attach, FromDraft, ToDraft
from specserve.transport.link.ends import DraftLinkEnd, Frame
from specserve.transport.link.envelope import Part
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import DeviceArray, Report
from specserve.transport.link.words import OwnWords
from specserve.transport.network_link.wire import (
    CONTROL,
    FRAME,
    HEARTBEAT_MS,
    HEARTBEAT_TIMEOUT_MS,
    WORDS,
    WORDS_PERIOD_S,
    WaitingFrames,
    Words,
    identity_of,
    prepare,
)

# Of what a target has sent: others are served besides, and more is read in the next turn.
MOST_A_LOOK, MOST_BYTES_A_LOOK = 64, 4 << 20
_RECONNECT_MS, _RECONNECT_MOST_MS = 50, 1000


class TargetConnection:
    """A `DraftControl` and a `Channel` at once."""

    def __init__(self, draft: int | bytes, find: Callable[[], str | None]) -> None:
        """`find` says where the target listens, in zmq's words; None: not yet.

        `draft`: its rank in the target's launch, or a name of its own where it belongs to none.
        """
        self._find: Callable[[], str | None] | None = find
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        prepare(self.socket)
        identity = identity_of(draft) if isinstance(draft, int) else draft
        self.socket.setsockopt(zmq.ROUTING_ID, identity)
        if isinstance(draft, bytes):  # no launch ends both: a target may go without a word
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)  # no queue without a target at its end
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MOST_MS)
        self._frames = WaitingFrames()
        self._messages: list[ToDraft] = []
        self._reader = FrameReader(msgspec.msgpack.Decoder(ToDraft))
        self._writer = FrameWriter()
        self.num_dropped = 0
        self._fails_since_s: float | None = None  # nothing could be sent since

    @property
    def lost_s(self) -> float:
        """For how long the target has not been there, or has read nothing."""
        since_s = self._fails_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    # --- control messages -------------------------------------------------------------------

    @property
    def num_malformed(self) -> int:
        return self._reader.num_malformed

    def receive(self) -> list[ToDraft]:
        """What has arrived, in order; empty when nothing has."""
        self._pump()
        messages, self._messages = self._messages, []
        return messages

    @property
    def has_unread(self) -> bool:
        """Of what has been taken off the socket."""
        return bool(self._frames or self._messages)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until something arrives, at most `timeout_s`; True if something did."""
        return self.has_unread or self.socket.poll(max(0, round(timeout_s * 1000))) != 0

    def send(self, message: FromDraft) -> bool:
        """False: dropped, the target is not there, or reads too slowly."""
        if isinstance(message, Attach):
            self._look_for_target()
        sent = self._send(CONTROL, self._writer.seal(message))  # pyright: ignore[reportArgumentType]
        self.num_dropped += not sent
        return sent

    def tell(self, words: Words) -> bool:
        """False: dropped."""
        return self._send(WORDS, words.pack())

    def close(self) -> None:
        """Send what is queued for at most 200 ms, then free the socket."""
        self.socket.close()
        self._context.term()

    # --- frames -----------------------------------------------------------------------------

    def write(self, parts: Sequence[Part], device_part: Sequence[DeviceArray] = ()) -> bool:
        """False when the target is not there, or the network lags."""
        assert not device_part, "a network carries host memory"
        return self._send(FRAME, b"".join(parts))

    def read(self) -> Frame | None:
        return None if self.is_empty() else Frame(bytearray(self._frames.pop()))

    def is_empty(self) -> bool:
        if not self._frames:  # or each frame that is read would let in a look's worth of others
            self._pump()
        return not self._frames

    def drop(self) -> None:
        self._pump()
        self._frames.clear()

    # --- parts ------------------------------------------------------------------------------

    def _look_for_target(self) -> None:
        if self._find is not None and (place := self._find()) is not None:
            self.socket.setsockopt(zmq.IPV6, int("[" in place))
            self.socket.connect(place)
            self._find = None

    def _send(self, kind: bytes, data: bytes) -> bool:
        try:
            self.socket.send_multipart([kind, data], zmq.NOBLOCK)
        except zmq.Again:
            if self._fails_since_s is None:
                self._fails_since_s = time.monotonic()
            return False
        self._fails_since_s = None
        return True

    def _pump(self) -> None:
        num_bytes = 0
        for _ in range(MOST_A_LOOK):
            if num_bytes > MOST_BYTES_A_LOOK or not self._can_read():
                return
            parts = self.socket.recv_multipart(zmq.NOBLOCK)
            num_bytes += sum(map(len, parts))
            if len(parts) != 2:
                continue
            kind, data = parts
            if kind == FRAME:
                self._frames.append(data)
            elif kind == CONTROL and (received := self._reader.open(data)) is not None:
                self._messages.append(received.message)

    def _can_read(self) -> bool:
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)


def wait_for_any(connections: Sequence[TargetConnection], timeout_s: float) -> None:
    """Sleep until something arrives over one of them, at most `timeout_s`."""
    if not any(each.has_unread for each in connections):
        watched = [(each.socket, zmq.POLLIN) for each in connections]
        zmq.zmq_poll(watched, max(0, round(timeout_s * 1000)))


def close_all(connections: Sequence[TargetConnection]) -> None:
    """As `TargetConnection.close` does, of all in the time of one that nobody reads."""
    for each in connections:
        each.socket.close()
    for each in connections:
        each.close()


class ToldWords:
    """`OwnWords` in shared memory, for this machine's supervisor, and told to the target as well.

    A change is told at once, and a sign of life now and then.
    """

    def __init__(self, own: OwnWords, connection: TargetConnection) -> None:
        self._own, self._connection = own, connection
        self._told_s = 0.0

    @property
    def heartbeat_ns(self) -> int:
        return self._own.heartbeat_ns

    @heartbeat_ns.setter
    def heartbeat_ns(self, now_ns: int) -> None:
        self._own.heartbeat_ns = now_ns
        if time.monotonic() >= self._told_s + WORDS_PERIOD_S:
            self._tell()

    @property
    def draft_pid(self) -> int:
        return self._own.draft_pid

    @draft_pid.setter
    def draft_pid(self, pid: int) -> None:
        self._own.draft_pid = pid
        self._tell()

    @property
    def draft_epoch(self) -> int:
        return self._own.draft_epoch

    @draft_epoch.setter
    def draft_epoch(self, epoch: int) -> None:
        self._own.draft_epoch = epoch
        self._tell()

    def _tell(self) -> None:
        self._told_s = time.monotonic()
        self._connection.tell(Words(self._own.draft_pid, self._own.draft_epoch))


class NetworkDraftEnd(DraftLinkEnd):
    """The draft's end of a link to another machine, whose clock says nothing here.

    A report counts from its arrival. What the network takes shows in blocks that are late, to which
    the draft adjusts.
    """

    def __init__(self, connection: TargetConnection, limits: LinkLimits) -> None:
        super().__init__(connection, connection, limits)

    def _open(self, frame: Frame) -> Report | None:
        report = super()._open(frame)
        return None if report is None else replace(report, sent_s=0.0)
