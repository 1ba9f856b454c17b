# pyright: strict
"""The control plane between the target leader and its draft processes: everything but the rounds.

Attaching, context for a draft to catch up with, requests' own sampling parameters, and letting
streams go. Knows sockets and framing; what a stream is, or why its context is wanted, is the nodes'
affair.

As in `control` beside this, each side binds the socket it reads and connects those it writes, in
the same folder. Unlike there, nothing waits for an absent reader and nothing is promised: a frame
for a full or missing peer is dropped, and so is one that is malformed. What a draft holds is
derived state, so it asks again: for its epoch until it is `Attached`, for a range until it has it.
A `Free` that is lost leaves a draft with streams nobody reports on; it forgets the oldest itself.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import zmq
from msgspec import Meta

from specserve.transport.control.control import FrameReader, FrameWriter, context_on
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import Floats, Tokens
from specserve.types import DraftTime, Grammar, SamplingParams, Seconds

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 16 * 1024 * 1024  # context comes in pieces
HIGH_WATER_FRAMES = 64  # a draft that stalls holds up to this many of them in memory
MAX_PROBLEM_CHARS = 4096  # of a refusal
_RECONNECT_MS = 20  # a restarted draft has bound its socket anew; zmq would look every 100 ms

_MessageT = TypeVar("_MessageT")

Count = Annotated[int, Meta(ge=0, lt=2**31)]
Identity = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Epoch = Annotated[int, Meta(ge=1, lt=2**32)]
Agreed = Annotated[  # what both sides have to have the same of, by its name, in words
    dict[Annotated[str, Meta(pattern=r"^[\w.]{1,64}\Z")], Annotated[str, Meta(max_length=256)]],
    Meta(max_length=32),
]


# --- draft -> target leader ------------------------------------------------------------------


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    """A draft process is there and holds nothing; repeated until it is answered by `Attached`."""

    draft: Count
    pid: Count
    drafter: Annotated[str, Meta(max_length=64)]
    gamma: Count  # tokens of its blocks
    feature_size: Count  # of the context features it reads; 0: token ids alone
    times: Annotated[tuple[DraftTime, ...], Meta(max_length=64)] = ()  # of its draft batches, ...
    enter_s: Seconds = 0.0  # ... and of what was verified, until it is in a context
    repetition: Count = 0  # how often this life has said so before
    agreed: Agreed = {}  # where no launch of the target has started it


class Wanted(msgspec.Struct, frozen=True, kw_only=True, tag="wanted"):
    """Send the context of `stream` from position `start` on, as `Context`."""

    draft: Count
    epoch: Epoch
    stream: Identity
    start: Count


FromDraft = Attach | Wanted


# --- target leader -> draft ------------------------------------------------------------------


class Attached(msgspec.Struct, frozen=True, kw_only=True, tag="attached"):
    """The epoch of all that follows. The draft drops what its ring holds and starts clean."""

    epoch: Epoch
    vocab_size: Count
    max_positions: Count
    max_rows: Count
    max_kept: Count


class Context(msgspec.Struct, frozen=True, kw_only=True, tag="context"):
    """Verified tokens of a stream from position `start` on, and the features at them."""

    epoch: Epoch
    stream: Identity
    start: Count
    token_ids: list[Count]  # [n]
    features: bytes  # little-endian float32 [n, H]; empty for drafters that read token ids alone


class SamplingParameters(msgspec.Struct, frozen=True, kw_only=True, tag="sampling"):
    """How the request of a stream samples, where that changes what is worth drafting for it."""

    epoch: Epoch
    stream: Identity
    num_prompt: Count
    end_token_ids: tuple[Count, ...]  # what `min_tokens` holds back
    sampling: SamplingParams
    grammar: Grammar | None = None


class Free(msgspec.Struct, frozen=True, kw_only=True, tag="free"):
    """These streams have ended; nobody will report on them again."""

    epoch: Epoch
    streams: list[Identity]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The draft may not attach: `problem` begins with the name of what it is refused for."""

    problem: Annotated[str, Meta(max_length=MAX_PROBLEM_CHARS)]
    may_pass: bool = False  # nothing is wrong with the draft: another one has its place


class Detached(msgspec.Struct, frozen=True, tag="detached"):
    """The draft is unknown here, whatever it was told before: it has to attach anew."""


ToDraft = Attached | Context | SamplingParameters | Free | Refused | Detached


def feature_bytes(features: Floats) -> bytes:
    """float32 [n, H] as a `Context` carries them."""
    return np.ascontiguousarray(features, "<f4").tobytes()


def context_arrays(context: Context, limits: LinkLimits) -> tuple[Tokens, Floats] | None:
    """int32 [n] and float32 [n, H], the caller's own; None if they do not fit each other or limits.

    Features are not checked for being finite, as in `specserve.transport.link.frames`.
    """
    num_tokens = len(context.token_ids)
    if context.start + num_tokens > limits.max_positions:
        return None
    if num_tokens and max(context.token_ids) >= limits.vocab_size:
        return None
    if len(context.features) != num_tokens * limits.feature_size * 4:
        return None
    features = np.frombuffer(context.features, "<f4").astype(np.float32)
    return (
        np.array(context.token_ids, np.int32),
        features.reshape(num_tokens, limits.feature_size),
    )


class _Inbox(Generic[_MessageT]):
    """A bound socket and what can be read from it without waiting."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        path: Path,
        decoder: "msgspec.msgpack.Decoder[_MessageT]",
    ) -> None:
        self._socket = context.socket(zmq.PULL)
        _prepare(self._socket)
        self._socket.bind(f"ipc://{path}")  # over what a process that was killed has left there
        self._reader = FrameReader(decoder)

    @property
    def num_malformed(self) -> int:
        return self._reader.num_malformed

    def receive(self) -> list[_MessageT]:
        messages: list[_MessageT] = []
        for _ in range(HIGH_WATER_FRAMES):  # a flood must not keep the loop from its rounds
            # Mostly nothing has come, and an exception that says so takes three times as long.
            if not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                break
            frame = self._socket.recv(zmq.NOBLOCK)
            received = self._reader.open(frame)
            if received is not None:
                messages.append(received.message)
        return messages

    def wait(self, timeout_s: float) -> bool:
        return self._socket.poll(max(0, round(timeout_s * 1000))) != 0

    def close(self) -> None:
        self._socket.close()


class _Outbox:
    """A connected socket that sends now or not at all."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", path: Path) -> None:
        self._socket = context.socket(zmq.PUSH)
        _prepare(self._socket)
        # Without a reader at the other end there is no queue: what a dead draft did not read is
        # of no use to the next one.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.connect(f"ipc://{path}")
        self._writer = FrameWriter()
        self.num_dropped = 0

    def send(self, message: ToDraft | FromDraft) -> bool:
        if self._socket.poll(0, zmq.POLLOUT):  # before the work of sealing
            frame = self._writer.seal(message)  # pyright: ignore[reportArgumentType]
            try:
                if len(frame) <= MAX_FRAME_BYTES:
                    self._socket.send(frame, zmq.NOBLOCK)
                    return True
                log.error("dropped a draft control frame of %d bytes", len(frame))
            except zmq.Again:
                pass  # counted below
        self.num_dropped += 1
        return False

    def close(self) -> None:
        self._socket.close()


def _prepare(socket: "zmq.Socket[bytes]") -> None:
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.LINGER, 200)  # ms: the last word goes out, a dead peer holds nobody


class FarDraft(Protocol):
    """The leader's way to one draft that these sockets do not reach."""

    @property
    def num_malformed(self) -> int: ...

    num_dropped: int

    def send(self, message: ToDraft) -> bool: ...
    def receive(self) -> list[FromDraft]: ...
    def close(self) -> None: ...


class DraftControl(Protocol):
    """One draft's end, wherever the target is."""

    def receive(self) -> list[ToDraft]: ...
    def wait(self, timeout_s: float) -> bool: ...
    def send(self, message: FromDraft) -> bool: ...
    def close(self) -> None: ...


class DraftControlTarget:
    """The leader's end, for all drafts. Nothing blocks; nothing raises on input."""

    def __init__(
        self,
        control_dir: Path,
        num_drafts: int,
        cores: Sequence[int] = (),
        far: Mapping[int, FarDraft] | None = None,
    ) -> None:
        """See `context_on` for `cores`. `far`: by draft, those on other machines."""
        self._context = context_on(cores)
        decoder = msgspec.msgpack.Decoder(FromDraft)
        self._inbox = _Inbox(self._context, control_dir / "from_drafts", decoder)
        self._far = far or {}
        self._outboxes = {
            draft: _Outbox(self._context, control_dir / f"to_draft_{draft}")
            for draft in range(num_drafts)
            if draft not in self._far
        }
        self._num_strangers = 0

    @property
    def num_malformed(self) -> int:
        """Frames dropped because of what was in them."""
        far = sum(each.num_malformed for each in self._far.values())
        return self._inbox.num_malformed + self._num_strangers + far

    @property
    def num_dropped(self) -> int:
        """Messages not sent."""
        ways = [*self._outboxes.values(), *self._far.values()]
        return sum(way.num_dropped for way in ways)

    def receive(self) -> list[FromDraft]:
        """What has arrived from drafts that exist, in order; empty when nothing has."""
        messages = self._inbox.receive()
        known = [message for message in messages if message.draft in self._outboxes]
        for draft, way in self._far.items():
            told = way.receive()
            messages += told
            known += [message for message in told if message.draft == draft]
        self._num_strangers += len(messages) - len(known)
        return known

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a draft of this machine says something, at most `timeout_s`; if it did."""
        return self._inbox.wait(timeout_s)

    def send(self, draft: int, message: ToDraft) -> bool:
        """False: dropped, the draft is not there, or reads too slowly."""
        way = self._outboxes.get(draft) or self._far[draft]
        return way.send(message)

    def close(self) -> None:
        """Send what is queued for at most 200 ms, then free the sockets."""
        for socket in (self._inbox, *self._outboxes.values(), *self._far.values()):
            socket.close()
        self._context.term()


class DraftControlDraft:
    """One draft's end. No method but `wait` ever blocks; none raises on input."""

    def __init__(self, control_dir: Path, draft: int) -> None:
        self._context = zmq.Context()
        decoder = msgspec.msgpack.Decoder(ToDraft)
        self._inbox = _Inbox(self._context, control_dir / f"to_draft_{draft}", decoder)
        self._outbox = _Outbox(self._context, control_dir / "from_drafts")

    @property
    def num_malformed(self) -> int:
        """Frames dropped because of what was in them."""
        return self._inbox.num_malformed

    @property
    def num_dropped(self) -> int:
        """Messages not sent."""
        return self._outbox.num_dropped

    def receive(self) -> list[ToDraft]:
        """What has arrived, in order; empty when nothing has."""
        return self._inbox.receive()

    def wait(self, timeout_s: float) -> bool:
        """Sleep until something arrives, at most `timeout_s`; True if something did."""
        return self._inbox.wait(timeout_s)

    def send(self, message: FromDraft) -> bool:
        """False: dropped, the target is not there, or reads too slowly."""
        return self._outbox.send(message)

    def close(self) -> None:
        """Send what is queued for at most 200 ms, then free the sockets."""
        self._inbox.close()
        self._outbox.close()
        self._context.term()
