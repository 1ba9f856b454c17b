"""What the server says about itself: reflection, health, information, profile, ports."""

import time
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.api.server import GrpcServer
from specserve.api.service import Service
from specserve.errors import Unsupported
from specserve.types import Abort, Profile


@pytest.fixture
def channel(rig):
    with grpc.insecure_channel(rig.address) as channel:
        yield channel


class StrangersClient:
    """Knows grpc and an address; learns the rest by reflection."""

    def __init__(self, channel):
        self.channel = channel
        self.database = ProtoReflectionDescriptorDatabase(channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def message(self, name, **fields):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))(**fields)

    def call(self, service, method, request):
        found = self.pool.FindServiceByName(service).FindMethodByName(method)
        kind = message_factory.GetMessageClass(found.output_type)
        make = self.channel.unary_stream if found.server_streaming else self.channel.unary_unary
        serialize = type(request).SerializeToString
        return make(f"/{service}/{method}", serialize, kind.FromString)(request)


def test_a_client_that_knows_nothing_of_us_lists_streams_and_cancels(rig, channel):
    stranger = StrangersClient(channel)
    services = set(stranger.database.get_services())
    ours = {f"specserve.v1.{name}" for name in ("Generation", "Control", "Admin", "SpecInfo")}
    assert ours | {"grpc.health.v1.Health"} <= services

    request = stranger.message("specserve.v1.GenerateRequest", text="fox")
    events = list(stranger.call("specserve.v1.Generation", "GenerateStream", request))
    assert "".join(event.token_delta.text for event in events) == rig.text
    assert events[-1].finished.samples[0].finish_reason == "stop"

    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.005
    request.sampling.max_tokens = 400
    stream = stranger.call("specserve.v1.Generation", "GenerateStream", request)
    next(stream)
    stream.cancel()
    rig.until(lambda: rig.target.received(Abort))


def test_health_is_serving_by_name_and_unknown_names_are_not_found(rig, channel):
    checks = health_pb2_grpc.HealthStub(channel)
    for name in ("", "specserve.v1.Generation", "specserve.v1.Control"):
        status = checks.Check(health_pb2.HealthCheckRequest(service=name)).status
        assert status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        checks.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_information_is_that_of_target_and_configuration(rig, channel):
    control = stubs.ControlStub(channel)
    model = control.GetModelInfo(pb.GetModelInfoRequest())
    assert (model.model, model.vocab_size, model.max_model_len) == ("scripted", 400, 512)
    assert model.has_chat_template
    assert (model.dtype, model.kv_dtype) == ("float32", "bfloat16")
    info = control.GetServerInfo(pb.GetServerInfoRequest())
    assert (info.topology, info.state, info.limits.max_samples) == ("1+0", "ready", 64)
    rig.until(lambda: control.GetLoad(pb.GetLoadRequest()).num_rounds > 0)
    assert not control.GetLoad(pb.GetLoadRequest()).draining


def test_speculation_is_off_and_its_counters_are_zero(rig, channel):
    spec = stubs.SpecInfoStub(channel)
    assert spec.GetSpecConfig(pb.GetSpecConfigRequest()).mode == "off"
    watch = spec.WatchSpecStats(pb.WatchSpecStatsRequest(interval_s=0.1))
    first, second = next(watch), next(watch)
    watch.cancel()
    assert (first.num_drafts, second.num_accepted_tokens) == (0, 0)
    assert second.num_rounds >= first.num_rounds


@pytest.mark.parametrize("interval_s", [0.0, float("nan"), 1e9])
def test_a_bad_interval_is_named(rig, channel, interval_s):
    watch = stubs.SpecInfoStub(channel).WatchSpecStats(
        pb.WatchSpecStatsRequest(interval_s=interval_s)
    )
    with pytest.raises(grpc.RpcError) as caught:
        next(watch)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith("interval_s")


def test_the_server_chooses_where_a_profile_is_written(rig, channel):
    admin = stubs.AdminStub(channel)
    answer = admin.Profile(pb.ProfileRequest(num_rounds=3))
    (asked,) = rig.target.received(Profile)
    assert (asked.num_rounds, asked.path) == (3, answer.path)
    with pytest.raises(grpc.RpcError) as caught:
        admin.Profile(pb.ProfileRequest(num_rounds=10**6))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_profile_that_waits_for_rounds_in_vain_says_so_before_its_deadline(rig, channel):
    rig.target.is_idle = True
    with pytest.raises(grpc.RpcError) as caught:
        stubs.AdminStub(channel).Profile(pb.ProfileRequest(num_rounds=3), timeout=0.25)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details().startswith("profile: fewer than 3 rounds ran before the deadline")
    rig.until(lambda: len(rig.target.received(Profile)) == 2)
    asked, given_up = rig.target.received(Profile)
    assert (given_up.num_rounds, given_up.path) == (0, asked.path)
    assert not Path(asked.path).parent.exists()


def test_a_port_in_use_is_an_error_that_names_it(rig, tmp_path):
    port = rig.server.port

    async def bind_again():
        import msgspec

        server = msgspec.structs.replace(rig.service.config.server, grpc_port=port)
        config = msgspec.structs.replace(rig.service.config, server=server)
        service = Service(config, tmp_path, rig.tokenizer)
        try:
            with pytest.raises(Unsupported, match=rf"server\.grpc_port: .*127\.0\.0\.1:{port}"):
                GrpcServer(service)
        finally:
            service.hub.close()

    rig.call(bind_again())


def test_a_long_tokenisation_does_not_hold_up_other_calls(make_rig):
    rig = make_rig(max_model_len=100_000)
    with grpc.insecure_channel(rig.address) as channel:
        generation, control = stubs.GenerationStub(channel), stubs.ControlStub(channel)
        control.GetLoad(pb.GetLoadRequest())
        long = generation.Generate.future(pb.GenerateRequest(text="the fox " * 300_000))
        slowest_s = 0.0
        while not long.done():
            start_s = time.monotonic()
            control.GetLoad(pb.GetLoadRequest())
            slowest_s = max(slowest_s, time.monotonic() - start_s)
        assert long.exception().code() is grpc.StatusCode.INVALID_ARGUMENT
    assert slowest_s < 0.2
