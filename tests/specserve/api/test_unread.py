"""Clients of gRPC that ask for a stream and take nothing of it."""

import socket
import struct

import grpc
import pytest

from specserve.api import grpc_calls
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from tests.specserve.api.http2_frames import PREFACE, SETTINGS, call_of, frame

pytestmark = pytest.mark.slow

NO_WINDOW = frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))  # answers may have 0 bytes


@pytest.mark.parametrize("max_tokens", [3, 400])
def test_who_takes_nothing_loses_its_stream_and_its_place(make_rig, monkeypatch, max_tokens):
    monkeypatch.setattr(grpc_calls, "_UNREAD_S", 0.5)
    rig = make_rig(max_queued_requests=1)
    rig.script("the lazy dog " * 40)
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        ask = pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(max_tokens=max_tokens))
        host, _, port = rig.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            call = call_of(b"/specserve.v1.Generation/GenerateStream", ask.SerializeToString())
            client.sendall(PREFACE + NO_WINDOW + call)
            rig.until(lambda: rig.service.hub.num_in_flight == 1)
            rig.until(lambda: rig.service.hub.num_in_flight == 0)
            stub.Generate(ask, timeout=20)
    rig.until(lambda: rig.target.num_live == 0)
    counted = rig.service.metrics.text().decode()
    assert 'request_failure_total{code="RESOURCE_EXHAUSTED",model_name="scripted"} 1.0' in counted
    assert 'code="CANCELLED"' not in counted


def test_who_reads_slowly_is_read_to_the_end(rig, monkeypatch):
    monkeypatch.setattr(grpc_calls, "_UNREAD_S", 0.5)
    rig.target.round_s = 0.1
    request = pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(max_tokens=8))
    with grpc.insecure_channel(rig.address) as channel:
        events = list(stubs.GenerationStub(channel).GenerateStream(request, timeout=20))
    assert events[-1].finished.usage.num_generated_tokens == 8


def test_who_reads_on_too_late_hears_that_its_stream_has_ended(make_rig, monkeypatch):
    monkeypatch.setattr(grpc_calls, "_UNREAD_S", 0.5)
    rig = make_rig(max_model_len=100_000, buffer_rounds=100_000)
    rig.script("the lazy dog " * 2000)
    rig.target.per_round = 100
    sampling = pb.SamplingParams(max_tokens=20_000, logprobs=2)
    options = [("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(rig.address, options=options) as channel:
        call = stubs.GenerationStub(channel).GenerateStream(
            pb.GenerateRequest(text="fox", sampling=sampling), timeout=10
        )
        next(call)
        rig.until(lambda: rig.service.hub.num_in_flight == 1)
        rig.until(lambda: rig.service.hub.num_in_flight == 0)
        with pytest.raises(grpc.RpcError) as caught:
            for _ in call:
                pass
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "nothing of it was taken for 0.5 s" in caught.value.details()
