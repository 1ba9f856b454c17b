"""How a worker stands with its gateway: ends, aborts, health, facts, load, tokenizer, absence."""

import hashlib
import io
import json
import zipfile

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as stubs
from tokenizers import Tokenizer

from specserve.api.gateway import offer
from specserve.types import Abort, Load, SamplingParams
from tests.specserve.api.conftest import TEMPLATE
from tests.specserve.api.gateway.conftest import asking, refusal

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def endless(rig):
    """The shared service, whose target goes on and on."""
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.005
    return rig


def named(request_id: str) -> pb.GenerateRequest:
    request = asking(stream=True, max_tokens=500)
    request.request_id = request_id
    return request


def test_requests_are_aborted_by_their_ids(endless, worker):
    streams = [worker.Generate(named(name)) for name in ("one", "two", "three")]
    for stream in streams:
        next(stream)
    worker.Abort(pb.AbortRequest(request_ids=["one", "three", "never seen"]))
    assert [refusal(streams[place]).code() for place in (0, 2)] == [grpc.StatusCode.CANCELLED] * 2
    next(streams[1])
    streams[1].cancel()


def test_a_gateway_that_leaves_is_aborted(endless, worker):
    stream = worker.Generate(named("mine"))
    next(stream)
    stream.cancel()
    endless.until(lambda: len(endless.target.received(Abort)) == 1, timeout_s=1)


def test_an_id_that_runs_is_refused(endless, worker):
    stream = worker.Generate(named("mine"))
    next(stream)
    error = refusal(worker.Generate(named("mine")))
    assert error.details() == "request_id: a running request has this id"
    stream.cancel()


def test_too_many_requests_are_refused_at_once_with_a_time(make_rig):
    rig = make_rig(max_queued_requests=1)
    rig.target.round_s = 0.05
    with grpc.insecure_channel(rig.address) as channel:
        worker = stubs.VllmEngineStub(channel)
        stream = worker.Generate(named("mine"))
        next(stream)
        error = refusal(worker.Generate(asking()))
        stream.cancel()
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "retry-after" in dict(error.trailing_metadata())


def test_a_drain_makes_it_unhealthy_and_refuses(make_rig):
    rig = make_rig()
    with grpc.insecure_channel(rig.address) as channel:
        worker, checks = stubs.VllmEngineStub(channel), health_pb2_grpc.HealthStub(channel)
        ask = health_pb2.HealthCheckRequest(service=offer.NAME)
        assert worker.HealthCheck(pb.HealthCheckRequest()).healthy
        assert checks.Check(ask).status == SERVING
        rig.call(rig.service.drain(5))
        health = worker.HealthCheck(pb.HealthCheckRequest())
        assert (health.healthy, health.message) == (False, "draining")
        assert checks.Check(ask).status == NOT_SERVING
        assert worker.GetServerInfo(pb.GetServerInfoRequest()).is_paused
        error = refusal(worker.Generate(asking()))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().startswith("draining")


def test_a_lost_target_ends_streams_and_health(make_rig):
    rig = make_rig()
    rig.script("the lazy dog " * 400)
    with grpc.insecure_channel(rig.address) as channel:
        worker = stubs.VllmEngineStub(channel)
        stream = worker.Generate(named("mine"))
        next(stream)
        rig.lose_target("launcher's word")
        error = refusal(stream)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details().startswith("target lost")
        health = worker.HealthCheck(pb.HealthCheckRequest())
        assert (health.healthy, health.message) == (False, "target lost")


def test_the_model_is_told_with_what_its_publisher_wishes(rig, worker):
    rig.service.sampling_defaults = SamplingParams(temperature=0.5, top_k=20)
    try:
        info = worker.GetModelInfo(pb.GetModelInfoRequest())
    finally:
        rig.service.sampling_defaults = SamplingParams()
    assert (info.model_path, info.served_model_name) == ("scripted", "scripted")
    assert (info.model_type, list(info.architectures)) == ("qwen3", ["Qwen3ForCausalLM"])
    assert (info.max_context_length, info.max_req_input_len, info.vocab_size) == (512, 511, 400)
    assert (info.is_generation, info.supports_vision) == (True, False)
    assert list(info.eos_token_ids) == [0]
    assert json.loads(info.default_sampling_params_json) == {"temperature": 0.5, "top_k": 20}
    assert worker.GetModelInfo(pb.GetModelInfoRequest()).default_sampling_params_json == ""


def test_the_server_is_told(endless, worker):
    stream = worker.Generate(named("mine"))
    next(stream)
    info = worker.GetServerInfo(pb.GetServerInfoRequest())
    stream.cancel()
    assert (info.active_requests, info.is_paused) == (1, False)
    assert (info.server_type, info.data_parallel_size) == ("vllm-grpc", 1)
    assert (info.model_dtype, info.kv_cache_dtype, info.block_size) == ("float32", "bfloat16", 16)
    assert (info.max_num_seqs, info.constrained_decoding_start) == (64, "first_token")
    assert info.uptime_seconds > 0
    assert info.last_receive_timestamp > 1.7e9


def test_the_load_is_that_of_the_latest_report(make_rig):
    rig = make_rig()
    rig.target.load = Load(num_waiting=3, num_blocks=8, num_free_blocks=6)
    with grpc.insecure_channel(rig.address) as channel:
        worker = stubs.VllmEngineStub(channel)
        rig.until(lambda: rig.service.hub.load.num_waiting == 3)
        (rank,) = worker.GetLoads(pb.GetLoadsRequest(include=["core", "memory"])).loads
        with pytest.raises(grpc.RpcError) as caught:
            worker.GetLoads(pb.GetLoadsRequest(dp_rank=1))
    assert (rank.num_waiting_reqs, rank.num_total_reqs, rank.max_running_requests) == (3, 3, 64)
    assert (rank.num_used_tokens, rank.max_total_num_tokens, rank.token_usage) == (32, 128, 0.25)
    assert caught.value.details() == "dp_rank: 1 is not served here; 0 is the only one"


def test_the_tokenizer_that_is_sent_is_the_one_that_is_served(rig, worker):
    chunks = list(worker.GetTokenizer(common.GetTokenizerRequest()))
    whole = b"".join(each.data for each in chunks)
    assert [each.sha256 for each in chunks][-1] == hashlib.sha256(whole).hexdigest()
    assert not any(each.sha256 for each in chunks[:-1])
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
        config = json.loads(archive.read("tokenizer_config.json"))
    assert tokenizer.encode(rig.text).ids == rig.encode(rig.text)
    assert (config["chat_template"], config["eos_token"]) == (TEMPLATE, "<eos>")


def test_what_ends_is_counted_as_over_other_apis(make_rig):
    rig = make_rig()
    with grpc.insecure_channel(rig.address) as channel:
        list(stubs.VllmEngineStub(channel).Generate(asking(max_tokens=4)))
    counted = rig.service.metrics.text().decode()
    assert 'request_success_total{finished_reason="length",model_name="scripted"} 1.0' in counted


def test_without_the_package_every_method_says_how_to_get_it(make_rig, monkeypatch, caplog):
    monkeypatch.setattr(offer, "PACKAGE", "a_package_that_nobody_has")
    with caplog.at_level("INFO"):
        rig = make_rig()
    advice = "install it with: pip install 'specserve[gateway]'"
    assert advice in caplog.text
    with grpc.insecure_channel(rig.address) as channel:
        for method in pb.DESCRIPTOR.services_by_name["VllmEngine"].methods:
            call = channel.unary_stream(f"/{offer.NAME}/{method.name}")
            error = refusal(call(b""))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            assert error.details().endswith(advice)
        ask = health_pb2.HealthCheckRequest(service=offer.NAME)
        with pytest.raises(grpc.RpcError) as caught:
            health_pb2_grpc.HealthStub(channel).Check(ask)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
