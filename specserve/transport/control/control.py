# pyright: strict
"""The control plane: typed frames between the API process and the target leader.

Knows sockets, framing and loss; knows nothing of requests, models or scheduling.

Two PUSH -> PULL pairs over ipc sockets in a folder that only this user can enter. Each side binds
the socket it reads and connects the one it writes, so start order does not matter: frames wait in
the sender's queue until the other side binds.

Loss is bounded and visible. The target must never wait for a reader, so `TargetControl.send`
drops a frame when `HIGH_WATER_FRAMES` are queued; every frame has a sequence number, so the
API sees the gap (`Received.lost`) and fails its open streams instead of showing text with a hole.
The API's own `send` refuses when its queue is full, and the caller tells its client.

Frame: CRC32 of the rest, epoch (drawn anew by every sender), sequence number, msgpack of one
tagged message. A frame of the wrong size, checksum, tag or field types is counted, logged and
dropped; nothing that arrives can raise, and nothing is ever unpickled.
"""

import logging
import os
import secrets
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio
import zmq.utils.monitor

from specserve.errors import Unavailable
from specserve.telemetry import one_line
from specserve.types import FromTarget, Hello, Load, Ready, ToTarget

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 * 1024 * 1024  # prompt logprobs of a 128k-token prompt fit
HIGH_WATER_FRAMES = 8192  # a frame is one round, so a reader may stall for this many rounds
_BODY = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _CRC.size + _BODY.size

_MessageT = TypeVar("_MessageT")


class Received(msgspec.Struct, Generic[_MessageT], frozen=True):
    """One decoded message; `lost` says that frames between the previous one and it are gone."""

    message: _MessageT
    lost: bool


class FrameWriter:
    """Numbers and seals the frames of one sender."""

    def __init__(self) -> None:
        self._epoch = secrets.randbits(64)
        self._sequence = 0
        self._encoder = msgspec.msgpack.Encoder()

    def seal(self, message: ToTarget | FromTarget) -> bytes:
        """The next frame; numbered even if the caller then drops it, so that the gap shows."""
        body = _BODY.pack(self._epoch, self._sequence) + self._encoder.encode(message)
        self._sequence += 1
        return _CRC.pack(zlib.crc32(body)) + body


class FrameReader(Generic[_MessageT]):
    """Checks and decodes frames of one direction; counts what it had to drop."""

    def __init__(
        self, decoder: "msgspec.msgpack.Decoder[_MessageT]", most_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        """Frames beyond `most_bytes` are not even looked at."""
        self._decoder = decoder
        self._most_bytes = most_bytes
        self._epoch: int | None = None
        self._next_sequence = 0
        self.num_malformed = 0

    def open(self, frame: bytes) -> Received[_MessageT] | None:
        """The message in `frame`, or None if it is malformed."""
        if len(frame) < _HEADER_BYTES:
            return self._reject("shorter than its header")
        if len(frame) > self._most_bytes:
            return self._reject("longer than any that is sent here")
        body = memoryview(frame)[_CRC.size :]
        if zlib.crc32(body) != _CRC.unpack_from(frame)[0]:
            return self._reject("checksum differs")
        epoch, sequence = _BODY.unpack_from(body)
        try:
            message = self._decoder.decode(body[_BODY.size :])
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return self._reject(str(error))
        known_sender = epoch == self._epoch
        lost = self._epoch is not None and not (known_sender and sequence == self._next_sequence)
        self._epoch, self._next_sequence = epoch, sequence + 1
        return Received(message, lost)

    def _reject(self, why: str) -> None:
        self.num_malformed += 1
        # Powers of two only: a flood of garbage must not become a flood of log lines.
        if self.num_malformed & (self.num_malformed - 1) == 0:
            log.warning("dropped malformed control frame %d: %s", self.num_malformed, one_line(why))


def _address(control_dir: Path, name: str) -> str:
    path = control_dir / name
    if len(str(path).encode()) > 100:
        # The kernel's limit is 107 bytes; without this check zmq's message names neither.
        raise Unavailable(f"control-dir: {path} is too long for a unix socket, limit 100 bytes")
    return f"ipc://{path}"


def context_on(cores: Sequence[int]) -> "zmq.Context[zmq.Socket[bytes]]":
    """Its thread runs on `cores` or, if there are none or it may not, where this process does."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores)  # the one way to ask; zmq ends the process if it may not
    except OSError:
        return context
    finally:
        os.sched_setaffinity(0, own)
    for core in cores:
        context.set(zmq.THREAD_AFFINITY_CPU_ADD, core)
    return context


def _prepare(socket: "zmq.Socket[bytes] | zmq.asyncio.Socket") -> None:
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.LINGER, 200)  # ms: the last RequestEnd goes out, a dead peer holds nobody


class TargetControl:
    """The leader's end, for a plain loop. No method but `wait` ever blocks; none raises on input.

    Call `announce` once the model is loaded; every `Hello`, earlier or later, is then answered
    with that `Ready`, so `receive` returns requests only.
    """

    def __init__(self, control_dir: Path, cores: Sequence[int] = ()) -> None:
        """See `context_on` for `cores`."""
        reading, writing = _address(control_dir, "to_target"), _address(control_dir, "from_target")
        self._context = context_on(cores)
        self._pull = self._context.socket(zmq.PULL)
        self._push = self._context.socket(zmq.PUSH)
        for socket in (self._pull, self._push):
            _prepare(socket)
        self._pull.bind(reading)
        self._push.connect(writing)
        self._reader = FrameReader(msgspec.msgpack.Decoder(ToTarget))
        self._writer = FrameWriter()
        self._ready: Ready | None = None
        self.num_dropped = 0

    @property
    def num_malformed(self) -> int:
        return self._reader.num_malformed

    def announce(self, ready: Ready) -> None:
        """Tell the API process what is served, now and whenever it says hello again."""
        self._ready = ready
        self.send(ready)

    def receive(self) -> list[ToTarget]:
        """Everything that has arrived, in order; empty when nothing has."""
        messages: list[ToTarget] = []
        for _ in range(HIGH_WATER_FRAMES):  # a flood must not keep the loop from its rounds
            # Mostly nothing has come, and an exception that says so takes three times as long.
            if not int(self._pull.get(zmq.EVENTS)) & zmq.POLLIN:
                break
            frame = self._pull.recv(zmq.NOBLOCK)
            received = self._reader.open(frame)
            if received is None:
                continue
            if isinstance(received.message, Hello):
                if self._ready is not None:
                    self.send(self._ready)
            else:
                messages.append(received.message)
        return messages

    def wait(self, timeout_s: float, alarm: int | None = None) -> bool:
        """Sleep until something arrives, or `alarm` can be read; at most `timeout_s`.

        True if one of them happened.
        """
        watched: list[tuple[zmq.Socket[bytes] | int, int]] = [(self._pull, zmq.POLLIN)]
        if alarm is not None:
            watched.append((alarm, zmq.POLLIN))
        return bool(zmq.zmq_poll(watched, max(0, round(timeout_s * 1000))))

    def send(self, message: FromTarget) -> bool:
        """Hand `message` to the socket's thread; False if it was dropped because the API stalls."""
        if isinstance(message, Load) and not self._push.poll(0, zmq.POLLOUT):
            return False  # stale by the next one: dropping it before numbering leaves no gap
        frame = self._writer.seal(message)
        try:
            if len(frame) <= MAX_FRAME_BYTES:
                self._push.send(frame, zmq.NOBLOCK)
                return True
            log.error("dropped a control frame of %d bytes", len(frame))
        except zmq.Again:
            pass  # counted below; the API sees the gap and fails the streams it touches
        self.num_dropped += 1
        return False

    def close(self) -> None:
        """Send what is queued for at most 200 ms, then free the sockets."""
        self._pull.close()
        self._push.close()
        self._context.term()


class ApiControl:
    """The API process's end, for asyncio. Create and use it inside a running loop."""

    def __init__(self, control_dir: Path) -> None:
        reading, writing = _address(control_dir, "from_target"), _address(control_dir, "to_target")
        self._context = zmq.asyncio.Context()
        self._pull = self._context.socket(zmq.PULL)
        # A plain socket: an asyncio one may wait, and sending happens now or is refused.
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context(self._context)
        self._push = plain.socket(zmq.PUSH)
        for socket in (self._pull, self._push):
            _prepare(socket)
        self._monitor = self._context.socket(zmq.PAIR)
        self._push.monitor("inproc://target-watch", zmq.EVENT_DISCONNECTED)
        self._monitor.connect("inproc://target-watch")
        self._pull.bind(reading)
        self._push.connect(writing)
        self._reader = FrameReader(msgspec.msgpack.Decoder(FromTarget))
        self._writer = FrameWriter()

    @property
    def num_malformed(self) -> int:
        return self._reader.num_malformed

    def send(self, message: ToTarget) -> None:
        """Queue `message` for the target.

        Raises:
            Unavailable: the target has stopped reading and the queue is full, or the frame is
                larger than `MAX_FRAME_BYTES`.
        """
        frame = self._writer.seal(message)
        if len(frame) > MAX_FRAME_BYTES:
            raise Unavailable(f"control: frame of {len(frame)} bytes, limit {MAX_FRAME_BYTES}")
        try:
            self._push.send(frame, zmq.NOBLOCK)
        except zmq.Again as error:
            raise Unavailable("control: the target does not read its requests") from error

    async def receive(self) -> Received[FromTarget]:
        """The next well-formed message."""
        while True:
            received = self._reader.open(await self._pull.recv())
            if received is not None:
                return received

    async def target_lost(self) -> None:
        """Return once the target's socket has closed, which a killed process does at once."""
        await zmq.utils.monitor.recv_monitor_message(self._monitor)

    def close(self) -> None:
        self._push.disable_monitor()
        self._monitor.close(0)
        self._pull.close()
        self._push.close()
        self._context.term()
