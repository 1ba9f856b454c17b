"""No method of the gRPC API without a key but those of health, however it is asked for."""

import itertools

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2

from specserve.api import health
from specserve.api.gateway import offer
from specserve.api.grpc import SERVICES as OWN_SERVICES
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from tests.reliability.figures import keep
from tests.specserve.api.key_rig import ADMIN, ALICE, bearer, keyed, rig_of_all

__all__ = ["keyed", "rig_of_all"]

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
SERVICES = (*OWN_SERVICES, offer.NAME)
METHODS = [
    f"/{service.full_name}/{method.name}"
    for file in (pb.DESCRIPTOR, vllm_engine_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
] + [f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"]

# What is no key, or not sent as one.
BAD_METADATA = {
    "none": (),
    "empty": (("authorization", ""),),
    "no key": (("authorization", "Bearer"),),
    "an empty key": (("authorization", "Bearer "),),
    "a key without a scheme": (("authorization", ALICE),),
    "another scheme": (("authorization", f"Basic {ALICE}"),),
    "the beginning of a key": bearer(ALICE[:-1]),
    "more than a key": bearer(ALICE + "0"),
    "a key in other letters": bearer(ALICE.upper()),
    "a key twice": bearer(f"{ALICE}, Bearer {ALICE}"),
    "a name": bearer("alice"),
    "a name and a key": bearer(f"alice {ALICE}"),
    "two keys": (*bearer(ALICE), *bearer(ALICE)),
    "a good one behind a bad one": (*bearer("0" * 24), *bearer(ALICE)),
    "another header": (("x-api-key", ALICE), ("api-key", ALICE)),
    "a proxy's header": (("proxy-authorization", f"Bearer {ALICE}"),),
    "bytes": (("authorization-bin", f"Bearer {ALICE}".encode()),),
}


def disguises(path: str) -> list[str]:
    """Paths that some server might take for `path`, or for one of health."""
    service, method = path[1:].split("/")
    return [
        f"/{path}",
        f"{path}/",
        f"{path}?x=1",
        f"{path}#x",
        path[1:],
        path.upper(),
        path.lower(),
        f"/%{ord(service[0]):x}{service[1:]}/{method}",
        f"/{service}%2f{method}",
        f"/{service}//{method}",
        f"/./{service}/{method}",
        f"/{health.NAME}/..{path}",
        f"/{health.NAME}/Check/..{path}",
        f"/{health.NAME}{path}",
        f"/{health.NAME}/{method}",
        f"/{health.NAME}/Check?{path}",
        f"/ {service}/{method}",
    ]


def status_of(channel: grpc.Channel, path: str, metadata=(), *, streams: bool = False):
    """How a call with an empty message ends; OK as soon as anything comes back."""
    make = channel.stream_stream if streams else channel.unary_stream
    request = iter([b""]) if streams else b""
    call = make(path)(request, metadata=metadata, timeout=10)
    try:
        next(call)
    except StopIteration:
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()
    finally:
        call.cancel()
    return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def channel(keyed):
    with grpc.insecure_channel(keyed.address) as channel:
        yield channel


def test_every_method_that_the_server_has_is_asked_for(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest
    asked = iter([ask(list_services=""), *(ask(file_containing_symbol=each) for each in SERVICES)])
    first, *files = stub.ServerReflectionInfo(asked, metadata=bearer(ALICE), timeout=10)
    names = {each.name for each in first.list_services_response.service}
    assert names == {*SERVICES, health.NAME, reflection.SERVICE_NAME}
    found = {
        f"/{file.package}.{service.name}/{method.name}"
        for answer in files
        for content in answer.file_descriptor_response.file_descriptor_proto
        for file in [FileDescriptorProto.FromString(content)]
        for service in file.service
        for method in service.method
    }
    assert found == set(METHODS[:-1])


@pytest.mark.parametrize("wrong", BAD_METADATA)
def test_no_method_answers_without_a_key(channel, wrong):
    streamed = METHODS[-1]
    found = {
        path: status_of(channel, path, BAD_METADATA[wrong], streams=path == streamed)
        for path in METHODS
    }
    assert found == dict.fromkeys(METHODS, UNAUTHENTICATED)


def test_no_path_in_disguise_answers_without_a_key(channel):
    asked = [(path, each) for path in METHODS for each in disguises(path)]
    bypassed = []
    for (path, disguise), streams in itertools.product(asked, (False, True)):
        code = status_of(channel, disguise, streams=streams)
        if code is not UNAUTHENTICATED:
            bypassed.append((path, disguise, code))
    requests = 2 * len(asked) + len(METHODS) * len(BAD_METADATA)
    keep(26, "gRPC", requests=requests, bypasses=len(bypassed))
    assert bypassed == []


def test_every_method_takes_a_key(channel):
    found = {
        path: status_of(channel, path, bearer(ADMIN), streams=path == METHODS[-1])
        for path in METHODS
        if not path.endswith("/Drain")  # which would end the service for the other tests
    }
    assert UNAUTHENTICATED not in found.values()
    assert grpc.StatusCode.PERMISSION_DENIED not in found.values()


def test_the_scheme_may_be_in_any_letters(channel):
    control = stubs.ControlStub(channel)
    for word in ("Bearer", "bearer", "BEARER"):
        metadata = (("authorization", f"{word} {ALICE}"),)
        assert control.GetLoad(pb.GetLoadRequest(), metadata=metadata).num_rounds >= 0


def test_health_needs_no_key(channel):
    checks = health_pb2_grpc.HealthStub(channel)
    answer = checks.Check(health_pb2.HealthCheckRequest(service=SERVICES[0]), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert status_of(channel, f"/{health.NAME}/Watch") is grpc.StatusCode.OK


def test_a_refusal_says_what_to_send_and_nothing_of_the_key(channel):
    for metadata, words in ((), "Authorization: Bearer KEY"), (bearer(ALICE[:-1]), "not known"):
        with pytest.raises(grpc.RpcError) as caught:
            stubs.ControlStub(channel).GetLoad(pb.GetLoadRequest(), metadata=metadata, timeout=10)
        assert words in caught.value.details()
        assert ALICE[:8] not in caught.value.details()


def test_a_message_is_not_read_before_the_key(channel):
    path = "/specserve.v1.Generation/Generate"
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(path)(b"\xff" * 1_000_000, timeout=10)
    assert caught.value.code() is UNAUTHENTICATED
