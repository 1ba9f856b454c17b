# pyright: strict
"""The target's end of links to draft processes on other machines, all of them over one socket.

Each draft has a lane: a `Channel` for frames, a way for control messages, and its words. A draft
that connects anew takes the place of its former connection. Nothing here blocks, and nothing that
arrives can raise.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import zmq

from specserve.transport.control.control import FrameReader, FrameWriter, context_on
from specserve.transport.control.draft_control import Attach, FromDraft, ToDraft
from specserve.transport.link.ends import Frame
from specserve.transport.link.envelope import Part
from specserve.transport.link.messages import DeviceArray
from specserve.transport.network_link.wire import (
    CONTROL,
    FRAME,
    MOST_A_LOOK,
    MOST_BYTES_A_LOOK,
    MOST_CONTROL_TO_TARGET,
    MOST_TO_TARGET,
    QUEUED,
    WORDS,
    WaitingFrames,
    Words,
    identity_of,
    place_of,
    prepare,
)

_MOST_KEPT = 4 * QUEUED  # control messages of a lane; the oldest go first
# Introductions of a lane that are heard at once, and a second: each may be an epoch and two lines
# of the log. Drafts say it again after a quarter of a second.
_ATTACHES, _ATTACHES_PER_S = 4, 5


def reader_of_drafts() -> FrameReader[FromDraft]:
    """Of what one draft has to say."""
    return FrameReader(msgspec.msgpack.Decoder(FromDraft), MOST_CONTROL_TO_TARGET)


class Lane:
    """One draft process on another machine, as the target reads and tells it."""

    def __init__(self, hub: "DraftHub", draft: int, identity: bytes) -> None:
        """`identity`: whose it is, as the socket knows its connection; empty: nobody's."""
        self._hub, self._draft = hub, draft
        self.identity = identity
        self._frames = WaitingFrames()
        self._messages = deque[FromDraft](maxlen=_MOST_KEPT)
        self._reader = reader_of_drafts()
        self._writer = FrameWriter()
        self._words, self._heard_ns = Words(0, 0), 0
        self._attaches_left, self._attach_s = float(_ATTACHES), time.monotonic()
        self.num_dropped = 0

    # --- words ------------------------------------------------------------------------------

    @property
    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC of this machine when the draft was heard last; 0: never."""
        self._hub.pump()
        return self._heard_ns

    @property
    def draft_pid(self) -> int:
        """On its own machine; 0: it is leaving."""
        return self._words.pid

    @property
    def draft_epoch(self) -> int:
        return self._words.epoch

    # --- frames -----------------------------------------------------------------------------

    def write(self, parts: Sequence[Part], device_part: Sequence[DeviceArray] = ()) -> bool:
        """False when the draft is not there, or its network lags."""
        assert not device_part, "a network carries host memory"
        return self._hub.send(self.identity, FRAME, b"".join(parts))

    def read(self) -> Frame | None:
        return None if self.is_empty() else Frame(bytearray(self._frames.pop()))

    def is_empty(self) -> bool:
        if not self._frames:  # or each frame that is read would let in a look's worth of others
            self._hub.pump()
        return not self._frames

    def drop(self) -> None:
        self._hub.pump()
        self._frames.clear()

    # --- control messages -------------------------------------------------------------------

    @property
    def num_malformed(self) -> int:
        return self._reader.num_malformed

    def send(self, message: ToDraft) -> bool:
        """False: dropped."""
        frame = self._writer.seal(message)  # pyright: ignore[reportArgumentType]
        if self._hub.send(self.identity, CONTROL, frame):
            return True
        self.num_dropped += 1
        return False

    def receive(self) -> list[FromDraft]:
        """What has arrived, in order."""
        self._hub.pump()
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def close(self) -> None:
        """Of all lanes at once."""
        self._hub.close()

    # --- as the hub has it ------------------------------------------------------------------

    def take(self, kind: bytes, data: bytes) -> None:
        if kind == FRAME:
            self._frames.append(data)
        elif kind == CONTROL and (received := self._reader.open(data)) is not None:
            message = self._as_ours(received.message)
            if isinstance(message, Attach) and not self._hear_introduction(message):
                return
            self._messages.append(message)
        elif kind == WORDS and (words := Words.unpack(data)) is not None:
            self._words, self._heard_ns = words, time.monotonic_ns()

    def _hear_introduction(self, attach: Attach) -> bool:
        """It is a word, too: those before it may have been dropped. False: they come too often."""
        before_s, self._attach_s = self._attach_s, time.monotonic()
        more = _ATTACHES_PER_S * (self._attach_s - before_s)
        self._attaches_left = min(_ATTACHES, self._attaches_left + more)
        if self._attaches_left < 1:
            return False
        self._attaches_left -= 1
        self._words, self._heard_ns = Words(attach.pid, 0), time.monotonic_ns()
        return True

    def _as_ours(self, message: FromDraft) -> FromDraft:
        """As the target takes it."""
        return message


class DraftHub:
    """Listens on one address, at a port of the system's choice if it is 0."""

    def __init__(
        self, address: str, drafts: Sequence[int], cores: Sequence[int] = (), *, port: int = 0
    ) -> None:
        """`drafts`: ranks of those on other machines. See `context_on` for `cores`.

        Raises zmq.ZMQError, an OSError of sorts, where it cannot listen.
        """
        self._context = context_on(cores)
        self._socket = self._context.socket(zmq.ROUTER)
        prepare(self._socket)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_TO_TARGET)  # who sends more is cut off
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # who is not there is told of
        self._socket.setsockopt(zmq.IPV6, int(":" in address))
        self._add_options(self._socket)
        self._socket.bind(place_of(address, port))
        self.place = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.lanes = self._make_lanes(drafts)
        self._by_identity = {lane.identity: lane for lane in self.lanes.values() if lane.identity}

    def _make_lanes(self, drafts: Sequence[int]) -> Mapping[int, Lane]:
        return {draft: Lane(self, draft, identity_of(draft)) for draft in drafts}

    def _add_options(self, socket: "zmq.Socket[bytes]") -> None:
        """Before it listens."""

    def pump(self) -> bool:
        """Hand what has arrived to its lanes; False: more than a look takes is there."""
        num_bytes = 0
        for _ in range(MOST_A_LOOK):
            if num_bytes > MOST_BYTES_A_LOOK:
                return False
            if self._socket.closed or not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                return True
            parts = self._socket.recv_multipart(zmq.NOBLOCK)
            num_bytes += sum(map(len, parts))
            # What a former connection has left has another identity by then.
            lane = self._by_identity.get(parts[0])
            if len(parts) != 3:
                continue
            if lane is None:
                self._hear_stranger(*parts)
            else:
                lane.take(parts[1], parts[2])
        return False

    def _hear_stranger(self, identity: bytes, kind: bytes, data: bytes) -> None:
        """Of whom no lane is."""

    def send(self, identity: bytes, kind: bytes, data: bytes) -> bool:
        if self._socket.closed:
            return False
        try:
            self._socket.send_multipart([identity, kind, data], zmq.NOBLOCK)
        except zmq.ZMQError:  # nobody there, or the network lags
            return False
        return True

    def close(self) -> None:
        """Send what is queued for at most 200 ms, then free the socket."""
        if not self._socket.closed:
            self._socket.close()
            self._context.term()
