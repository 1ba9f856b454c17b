"""Calls of methods that there are not, whatever their names are made of."""

import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.specserve.api.http2_frames import PREFACE, SETTINGS, call_of, frame

UNIMPLEMENTED = b"\x0bgrpc-status\x0212"  # as HPACK has it, without Huffman's code


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
