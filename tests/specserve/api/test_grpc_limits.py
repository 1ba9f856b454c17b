"""Connections and calls to the gRPC API that are too large, too quiet, or ask often if we live."""

import socket
import time

import grpc
import pytest

from specserve.api import server
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from tests.reliability.scale import is_long
from tests.specserve.api.http.wire import seconds_to_end

# As clients behind balancers have them, which end connections that nothing is sent on.
ANXIOUS = [
    ("grpc.keepalive_timeout_ms", 4000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


def keepalive(every_ms: int) -> list[tuple[str, int]]:
    return [("grpc.keepalive_time_ms", every_ms), *ANXIOUS]


@pytest.mark.slow
@pytest.mark.parametrize(  # the fifth time it asks is once too often to a server that minds
    ("every_ms", "seconds"),
    [(1000, 6.0), *([(5000, 27.0)] if is_long() else [])],
)
def test_a_client_that_often_asks_whether_we_live_gets_its_answer(rig, every_ms, seconds):
    rig.script("fox " * 30)
    num_tokens = len(rig.script_ids)
    rig.target.round_s = seconds / num_tokens / 2  # which it waits twice in a round
    request = pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(max_tokens=num_tokens))
    with grpc.insecure_channel(rig.address, options=keepalive(every_ms)) as channel:
        stub = stubs.GenerationStub(channel)
        began_s = time.monotonic()
        answer = stub.Generate(request, timeout=4 * seconds + 20)
        assert time.monotonic() - began_s >= seconds * 0.9
        assert len(answer.samples[0].token_ids) == num_tokens
        assert stubs.ControlStub(channel).GetLoad(pb.GetLoadRequest()).num_rounds > 0


def test_a_message_beyond_the_limit_is_refused(rig):
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(pb.GenerateRequest(text="x" * 17 * 2**20), timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_metadata_beyond_the_limit_is_refused(rig):
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        for metadata in (
            [("x", "y" * 10_000_000)],
            [(f"x{index}", "y" * 100) for index in range(10_000)],
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Generate(pb.GenerateRequest(text="x"), metadata=metadata, timeout=20)
            assert caught.value.code() in (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.INTERNAL,  # the client's own, of a stream that was reset
                grpc.StatusCode.UNAVAILABLE,
            )
        assert stub.Generate(pb.GenerateRequest(text="fox"), timeout=20).samples[0].text == rig.text


def test_a_connection_that_says_nothing_is_ended(make_rig, monkeypatch):
    monkeypatch.setattr(server, "_HANDSHAKE_MS", 300)
    rig = make_rig()
    host, _, port = rig.address.rpartition(":")
    for said in (b"", b"PRI * HTTP/2.0\r\n"):
        with socket.create_connection((host, int(port)), timeout=20) as place:
            place.sendall(said)
            seconds, _ = seconds_to_end(place)
        assert seconds < 3
