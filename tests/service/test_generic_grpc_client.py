"""A gRPC client that knows nothing of us but an address: reflection, streaming, cancelling."""

import time

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

pytestmark = pytest.mark.slow  # a service of its own

SERVICES = {
    "specserve.v1.Generation",
    "specserve.v1.Control",
    "specserve.v1.Admin",
    "specserve.v1.SpecInfo",
    "grpc.health.v1.Health",
}


@pytest.fixture
def channel(service: str):
    with grpc.insecure_channel(service) as channel:
        yield channel


class Discovered:
    """Methods and messages found through reflection alone."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.database = ProtoReflectionDescriptorDatabase(channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def call(self, service: str, method: str, **fields):
        descriptor = self.pool.FindServiceByName(service).FindMethodByName(method)
        request = message_factory.GetMessageClass(descriptor.input_type)(**fields)
        response = message_factory.GetMessageClass(descriptor.output_type)
        kind = "unary_stream" if descriptor.server_streaming else "unary_unary"
        stub = getattr(self.channel, kind)(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return stub(request, timeout=60)


def test_reflection_lists_every_service_and_health_serves(channel: grpc.Channel):
    assert set(ProtoReflectionDescriptorDatabase(channel).get_services()) >= SERVICES
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", "specserve.v1.Generation"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_discovered_stream_carries_text_and_ends_once(channel: grpc.Channel):
    found = Discovered(channel)
    sampling = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
    events = list(
        found.call("specserve.v1.Generation", "GenerateStream", text="def main(", sampling=sampling)
    )
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "prompt"
    assert kinds.count("finished") == 1
    assert kinds[-1] == "finished"
    tokens = [t for e in events if e.HasField("token_delta") for t in e.token_delta.token_ids]
    assert len(tokens) == 24
    assert "".join(e.token_delta.text for e in events if e.HasField("token_delta")).strip()
    assert events[-1].finished.usage.num_generated_tokens == 24
    unary = found.call("specserve.v1.Generation", "Generate", text="def main(", sampling=sampling)
    assert list(unary.samples[0].token_ids) == tokens


def test_a_cancelled_stream_frees_its_blocks_and_rows_at_once(channel: grpc.Channel):
    found = Discovered(channel)
    sampling = {"max_tokens": 1500, "ignore_eos": True}
    stream = found.call("specserve.v1.Generation", "GenerateStream", text="x", sampling=sampling)
    for event in stream:
        if event.HasField("token_delta"):
            break
    stream.cancel()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        load = found.call("specserve.v1.Control", "GetLoad")
        if load.num_running == 0 and load.num_free_blocks == load.num_blocks:
            return
        time.sleep(0.05)
    pytest.fail(f"still held five seconds after the cancel: {load}")


def test_bad_input_is_refused_by_name_and_nothing_else_is_disturbed(channel: grpc.Channel):
    found = Discovered(channel)
    running = found.call(
        "specserve.v1.Generation",
        "GenerateStream",
        text="import os",
        sampling={"max_tokens": 200, "ignore_eos": True, "temperature": 0.0},
    )
    for sampling, name in [
        ({"temperature": float("nan")}, "temperature"),
        ({"n": 10**6}, "n"),
        ({"logprobs": 10**9}, "logprobs"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
    ]:
        with pytest.raises(grpc.RpcError) as refused:
            found.call("specserve.v1.Generation", "Generate", text="a", sampling=sampling)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith(name), refused.value.details()
    for fields, name in [
        ({"text": ""}, "prompt"),
        ({"token_ids": {"ids": [1] * 5000}}, "token_ids"),
    ]:
        with pytest.raises(grpc.RpcError) as refused:
            found.call("specserve.v1.Generation", "Generate", **fields)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert name in refused.value.details()
    tokens = [t for e in running if e.HasField("token_delta") for t in e.token_delta.token_ids]
    assert len(tokens) == 200
