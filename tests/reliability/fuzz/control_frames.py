# pyright: strict
"""Frames to the ipc sockets of a run folder: through zmq, and past it to the socket itself.

None of them is sealed soundly: what is, has been written by whoever owns the folder, and is
believed where its types are right. `Lies` below are such; `Drain` and `Profile` are not among
them, since they do what they are asked.
"""

import random
import socket
import struct
import time
import zlib
from pathlib import Path

import msgspec
import zmq

from specserve.transport.control.draft_control import Attach, Attached, Context, Free, Wanted
from specserve.types import (
    Abort,
    Hello,
    Load,
    PromptLogprobs,
    Request,
    RequestEnd,
    RequestStats,
    RoundEvents,
    SampleDelta,
    SamplingParams,
    StopSample,
    Submit,
    Terminal,
    TokenOrigin,
)
from tests.reliability.fuzz.mutations import Mutator, wild_value
from tests.reliability.fuzz.port import Sent

_SHARE_OF_RAW = 0.02  # of frames that go to the socket without zmq
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
_READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
_MOST_WAITS = 5000  # of a millisecond, for a socket that takes no more

_SAMPLING = SamplingParams(max_tokens=2, stop=("x",), logit_bias={5: 1.5}, logprobs=1)
SEEDS: dict[str, tuple[object, ...]] = {
    "to_target": (
        Submit(Request(request_id="lie", prompt_token_ids=[5, 6, 7], sampling=_SAMPLING, seed=1)),
        Abort("lie"),
        StopSample("lie", 0),
        Hello(),
    ),
    "from_target": (
        RoundEvents(7, [SampleDelta("lie", 0, [1], [TokenOrigin.PLAIN])]),
        PromptLogprobs("lie", []),
        RequestEnd("lie", Terminal.FINISHED, RequestStats()),
        Load(num_running=1, num_accepted_per_position=[1, 2]),
    ),
    "from_drafts": (
        Attach(draft=0, pid=1, drafter="lm", gamma=4, feature_size=0),
        Wanted(draft=0, epoch=1, stream=1, start=0),
    ),
    "to_draft_0": (
        Attached(epoch=1, vocab_size=10, max_positions=10, max_rows=1, max_kept=1),
        Context(epoch=1, stream=1, start=0, token_ids=[1], features=b""),
        Free(epoch=1, streams=[1]),
    ),
}


def sealed(payload: bytes, epoch: int, sequence: int) -> bytes:
    """As `specserve.transport.control.control` does."""
    body = struct.pack("<QQ", epoch, sequence) + payload
    return struct.pack("<I", zlib.crc32(body)) + body


class ControlFrames:
    """Fuzzes one socket of a run folder."""

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        self.name = name
        self._path = folder / name
        self._source = random.Random(seed)
        self._mutator = Mutator(self._source)
        self._payloads = [msgspec.msgpack.encode(message) for message in SEEDS[name]]
        self._valid = [sealed(payload, 1, index) for index, payload in enumerate(self._payloads)]
        self._raw = [_GREETING + _READY + _zmtp(frame) for frame in self._valid]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.connect(f"ipc://{self._path}")

    def send(self, count: int) -> Sent:
        """`count` frames."""
        for _ in range(count):
            if self._source.random() < _SHARE_OF_RAW:
                self._send_raw()
            else:
                parts = [self._frame() for _ in range(self._source.choice((1, 1, 1, 1, 3)))]
                self._push(parts)
        return Sent(count)

    def lie(self, count: int) -> Sent:
        """`count` frames that are sealed soundly over a mutated message."""
        for index in range(count):
            payload = self._source.choice(self._payloads)
            if self._source.random() < 0.5:
                payload = self._mutator.mutated(payload, self._payloads)
            else:
                payload = self._with_a_wild_field()
            self._push([sealed(payload, self._source.choice((1, index)), index)])
        return Sent(count)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _frame(self) -> bytes:
        """One whose checksum is wrong, as good as always: 32 bits say so."""
        frame = self._source.choice(self._valid)
        mutated = self._mutator.mutated(frame, self._valid)
        return mutated if mutated not in self._valid else mutated[:-1]

    def _with_a_wild_field(self) -> bytes:
        message = self._source.choice(SEEDS[self.name])
        fields = msgspec.to_builtins(message)
        holder = fields.get("request", fields) if self._source.random() < 0.8 else fields
        holder[self._source.choice(list(holder))] = wild_value(self._source)
        try:
            return msgspec.msgpack.encode(fields)
        except (OverflowError, UnicodeEncodeError):  # what msgpack cannot say
            return self._mutator.mutated(self._payloads[0], self._payloads)

    def _push(self, parts: list[bytes]) -> None:
        for _ in range(_MOST_WAITS):
            try:
                self._socket.send_multipart(parts, zmq.NOBLOCK)
                return
            except zmq.Again:
                time.sleep(0.001)
        raise TimeoutError(f"{self.name}: nobody reads")

    def _send_raw(self) -> None:
        frame = self._mutator.mutated(self._source.choice(self._raw), self._raw)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            try:
                connection.connect(str(self._path))
                connection.sendall(frame)
            except OSError:
                pass  # closed on us


def _zmtp(frame: bytes) -> bytes:
    return b"\x02" + struct.pack(">Q", len(frame)) + frame
