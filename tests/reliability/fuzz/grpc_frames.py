"""HTTP/2 frames and protobuf messages to the gRPC port, over raw sockets and through a channel.

`Admin.Drain` and `Admin.Profile` are left out: they are an operator's, and do what they are asked.
"""

import random
import socket
import struct

import grpc

from specserve.api.grpc_gen import generation_pb2 as pb
from tests.reliability.fuzz.mutations import Mutator
from tests.reliability.fuzz.port import Sent

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, RST, SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = (
    0, 1, 2, 3, 4, 6, 7, 8, 9,
)  # fmt: skip
_END_STREAM, _END_HEADERS = 1, 4
_PATIENCE_S = (0.0, 0.002, 0.002, 0.1)
_CALL_S = (0.005, 0.05, 0.5)  # deadlines of calls
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset

_GENERATE = pb.GenerateRequest(
    request_id="", text="def", seed=1, cache_salt="a", priority=1,
    sampling=pb.SamplingParams(
        temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, stop=["x"], stop_token_ids=[3],
        logit_bias={5: 1.0}, max_tokens=2, n=1, logprobs=1,
    ),
    spec=pb.SpecOptions(mode="off", return_stats=True),
)  # fmt: skip
_GENERATE.ClearField("request_id")
_CHAT = pb.GenerateRequest(
    chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="hello")]),
    sampling=pb.SamplingParams(max_tokens=1),
)
_IDS = pb.GenerateRequest(
    token_ids=pb.TokenIds(ids=[5, 6, 7]), sampling=pb.SamplingParams(max_tokens=1)
)
_HEALTH_REQUEST = b"\x0a\x00"
_MESSAGES: tuple[tuple[str, bytes], ...] = (
    ("/specserve.v1.Generation/Generate", _GENERATE.SerializeToString()),
    ("/specserve.v1.Generation/GenerateStream", _GENERATE.SerializeToString()),
    ("/specserve.v1.Generation/Generate", _CHAT.SerializeToString()),
    ("/specserve.v1.Generation/GenerateStream", _IDS.SerializeToString()),
    ("/specserve.v1.Control/GetServerInfo", b""),
    ("/specserve.v1.Control/GetModelInfo", b""),
    ("/specserve.v1.Control/GetLoad", b""),
    ("/specserve.v1.Control/Abort", pb.AbortRequest(request_id="none").SerializeToString()),
    ("/specserve.v1.SpecInfo/GetSpecConfig", b""),
    (
        "/specserve.v1.SpecInfo/WatchSpecStats",
        pb.WatchSpecStatsRequest(interval_s=1).SerializeToString(),
    ),
    ("/grpc.health.v1.Health/Check", _HEALTH_REQUEST),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"\x3a\x00"),
    ("/none/none", b"\x01"),
)


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def _header(name: bytes, value: bytes) -> bytes:
    """Literal, new name, not indexed, without Huffman's code."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _headers(path: str) -> bytes:
    """What gRPC asks of a call, in HPACK."""
    return (
        b"\x83\x86"  # :method POST, :scheme http
        + _header(b":path", path.encode())
        + _header(b":authority", b"a")
        + _header(b"content-type", b"application/grpc")
        + _header(b"te", b"trailers")
        + _header(b"grpc-timeout", b"1S")
    )


def call_frames(path: str, message: bytes, stream: int) -> list[bytes]:
    """The frames of one call."""
    body = b"\x00" + struct.pack(">I", len(message)) + message
    return [
        http2_frame(_HEADERS, _END_HEADERS, stream, _headers(path)),
        http2_frame(_DATA, _END_STREAM, stream, body),
    ]


def _control(stream: int) -> list[bytes]:
    """Frames that belong to no message."""
    number = struct.pack(">I", 7)
    return [
        http2_frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535)),
        http2_frame(_PING, 0, 0, b"12345678"),
        http2_frame(_WINDOW, 0, stream, number),
        http2_frame(_WINDOW, 0, 0, number),
        http2_frame(_PRIORITY, 0, stream, number + b"\x01"),
        http2_frame(RST, 0, stream, struct.pack(">I", 8)),
        http2_frame(_GOAWAY, 0, 0, number * 2),
        http2_frame(_CONTINUATION, _END_HEADERS, stream, _headers("/none/none")),
    ]


class GrpcFrames:
    """Fuzzes one port: half of the frames HTTP/2's, half of them messages in sound calls."""

    name = "gRPC"

    def __init__(self, port: int, seed: int) -> None:
        self._address = ("127.0.0.1", port)
        self._source = random.Random(seed)
        self._mutator = Mutator(self._source)
        self._contents = [message for _, message in _MESSAGES]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def send(self, count: int) -> Sent:
        """`count` frames."""
        sent = Sent()
        while sent.num_frames < count:
            num_left = count - sent.num_frames
            if sent.num_frames < count // 2:
                sent.num_frames += self._connection(min(num_left, self._source.randint(1, 8)))
            else:
                sent.num_frames += 1
                status = self._message()
                sent.num_answers[status] = sent.num_answers.get(status, 0) + 1
        return sent

    def close(self) -> None:
        self._channel.close()

    def _connection(self, count: int) -> int:
        """One connection with `count` mutated frames among sound ones; how many."""
        sound: list[bytes] = []
        stream = 1
        while len(sound) < count:
            sound += call_frames(*self._source.choice(_MESSAGES), stream)
            sound += self._source.sample(_control(stream), self._source.randint(0, 2))
            stream += 2
        bad = set(self._source.sample(range(len(sound)), count))
        frames = [
            self._mutator.mutated(frame, sound) if number in bad else frame
            for number, frame in enumerate(sound)
        ]
        preface = PREFACE + http2_frame(SETTINGS, 0, 0, b"")
        if self._source.random() < 0.05:
            preface = self._mutator.mutated(preface, sound)
        with socket.create_connection(self._address, timeout=5) as connection:
            try:
                connection.sendall(preface + b"".join(frames))
                if patience_s := self._source.choice(_PATIENCE_S):
                    connection.settimeout(patience_s)
                    connection.recv(4096)
            except OSError:
                pass  # closed on us, or not answered in time
            if self._source.random() < 0.7:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return count

    def _message(self) -> str:
        """A mutated message in a sound call; how it ended."""
        path, message = self._source.choice(_MESSAGES)
        if self._source.random() < 0.2:
            path = self._source.choice(_MESSAGES)[0]
        call = self._channel.unary_unary(path)
        try:
            call(
                self._mutator.mutated(message, self._contents),
                timeout=self._source.choice(_CALL_S),
            )
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)  # noqa: PT017 - what grpc raises is both
            return error.code().name
        return "OK"
