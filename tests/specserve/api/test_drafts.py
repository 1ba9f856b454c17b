"""What the service says of its draft processes: health, load, statistics, configuration."""

from collections.abc import Callable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.api.health import DRAFT
from specserve.client import Client
from specserve.types import Load
from tests.specserve.api.conftest import Rig

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
ATTACHED = Load(
    num_draft_processes=2, num_drafts_attached=2, speculation_regime="async", num_lookups=10,
    num_hits=9, bytes_sent=1000, bytes_received=2000,
)  # fmt: skip
DEGRADED = Load(num_draft_processes=2, num_drafts_attached=1, speculation_regime="sync")


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A service with two draft processes."""
    return make_rig(num_drafts=2)


@pytest.fixture
def channel(rig: Rig) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(rig.address) as channel:
        yield channel


def status(channel: grpc.Channel, name: str) -> int:
    checks = health_pb2_grpc.HealthStub(channel)
    return checks.Check(health_pb2.HealthCheckRequest(service=name)).status


@pytest.mark.slow
def test_draft_health_follows_the_drafts_and_no_other_does(rig, channel):
    assert status(channel, DRAFT) == NOT_SERVING
    for load, expected in ((ATTACHED, SERVING), (DEGRADED, NOT_SERVING), (ATTACHED, SERVING)):
        rig.target.load = load
        rig.until(lambda expected=expected: status(channel, DRAFT) == expected)
        assert status(channel, "") == SERVING
        assert status(channel, "specserve.v1.Generation") == SERVING
        with Client(rig.address) as client:
            assert client.server_info().state == ("ready" if expected == SERVING else "degraded")


@pytest.mark.slow
def test_a_watcher_of_draft_health_is_told_of_changes_alone(rig, channel):
    rig.target.load = ATTACHED
    rig.until(lambda: status(channel, DRAFT) == SERVING)
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=DRAFT))
    assert next(watch).status == SERVING
    rig.target.load = DEGRADED
    assert next(watch).status == NOT_SERVING
    rig.target.load = ATTACHED
    assert next(watch).status == SERVING
    watch.cancel()


def test_draft_health_ends_with_the_target(rig, channel):
    rig.target.load = ATTACHED
    rig.until(lambda: status(channel, DRAFT) == SERVING)
    rig.lose_target("socket closed")
    rig.until(lambda: status(channel, DRAFT) == NOT_SERVING)
    rig.until(lambda: status(channel, "") == NOT_SERVING)


def test_without_draft_processes_there_is_no_draft_health(make_rig):
    rig = make_rig()
    with grpc.insecure_channel(rig.address) as channel, pytest.raises(grpc.RpcError) as caught:
        status(channel, DRAFT)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_load_and_statistics_tell_what_the_target_reports(rig, channel):
    rig.target.load = ATTACHED
    with Client(rig.address) as client:
        rig.until(lambda: client.load().num_drafts_attached == 2)
        load = client.load()
    assert (load.num_draft_processes, load.speculation_regime) == (2, "async")
    watch = stubs.SpecInfoStub(channel).WatchSpecStats(pb.WatchSpecStatsRequest())
    stats = next(watch)
    watch.cancel()
    assert (stats.num_lookups, stats.num_hits) == (10, 9)
    assert (stats.bytes_sent, stats.bytes_received) == (1000, 2000)
    assert (stats.num_draft_processes, stats.num_drafts_attached) == (2, 2)
    assert stats.speculation_regime == "async"


@pytest.mark.slow
def test_the_configuration_of_draft_processes_is_shown_where_there_are_any(channel, make_rig):
    config = stubs.SpecInfoStub(channel).GetSpecConfig(pb.GetSpecConfigRequest())
    assert config.num_draft_processes == 2
    assert (config.fan_out, config.miss_policy) == (32, "auto")
    with grpc.insecure_channel(make_rig().address) as other:
        config = stubs.SpecInfoStub(other).GetSpecConfig(pb.GetSpecConfigRequest())
    assert (config.num_draft_processes, config.fan_out, config.miss_policy) == (0, 0, "")
