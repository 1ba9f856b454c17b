"""Calls of methods that there are not, whatever their names are made of."""

import socket
import struct

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, DATA, SETTINGS = 1, 0, 4
UNIMPLEMENTED = b"\x0bgrpc-status\x0212"  # as HPACK has it, without Huffman's code


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_of(path: bytes) -> bytes:
    """All that a client sends for one call without a message's fields."""
    fields = [(b":path", path), (b":authority", b"a"), (b"te", b"trailers")]
    fields.append((b"content-type", b"application/grpc"))
    headers = b"\x83\x86" + b"".join(header(*field) for field in fields)
    return frame(HEADERS, 4, 1, headers) + frame(DATA, 1, 1, bytes(5))


def answer(address: str, call: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + call)
        received = b""
        while UNIMPLEMENTED not in received:
            part = connection.recv(4096)
            if not part:
                break
            received += part
        return received


@pytest.fixture
def channel(rig):
    with grpc.insecure_channel(rig.address) as channel:
        yield channel


@pytest.mark.parametrize(
    "path",
    [b"/specserve.v1.Control/GetServerI\x80fo", b"\xff", b"", b"/none/none", b"/a/\xed\xa0\x80"],
)
def test_a_path_that_nobody_has_is_unimplemented_and_the_next_call_is_served(
    rig, channel, caplog, path: bytes
):
    assert UNIMPLEMENTED in answer(rig.address, call_of(path))
    health = health_pb2_grpc.HealthStub(channel)
    status = health.Check(health_pb2.HealthCheckRequest(), timeout=10).status
    assert status == health_pb2.HealthCheckResponse.SERVING
    assert caplog.records == []


def test_many_at_once_are_all_refused(rig, channel):
    method = channel.unary_unary("/specserve.v1.Generation/Guess")
    calls = [method.future(b"", timeout=20) for _ in range(200)]
    assert {call.code() for call in calls} == {grpc.StatusCode.UNIMPLEMENTED}
