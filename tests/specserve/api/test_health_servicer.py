"""Watchers of the health service, who need no key and keep nobody waiting."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specserve.api import health_servicer
from tests.specserve.api.http2_frames import PREFACE, SETTINGS, call_of, frame

NO_WINDOW = struct.pack(">HI", 4, 0)  # SETTINGS_INITIAL_WINDOW_SIZE: answers may have 0 bytes
GENERATION = "specserve.v1.Generation"


def named(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


@contextmanager
def a_watcher_who_takes_nothing(address: str, service: str) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    call = call_of(b"/grpc.health.v1.Health/Watch", named(service).SerializeToString())
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0, NO_WINDOW) + call)
        begun = b""
        while b"application/grpc" not in begun:  # headers need no window
            begun += connection.recv(4096)
        yield


def test_a_watcher_who_takes_nothing_keeps_no_drain_from_beginning(make_rig):
    rig = make_rig()
    with (
        a_watcher_who_takes_nothing(rig.address, ""),
        a_watcher_who_takes_nothing(rig.address, GENERATION),
        grpc.insecure_channel(rig.address) as channel,
    ):
        other = health_pb2_grpc.HealthStub(channel).Watch(named(GENERATION), timeout=20)
        assert next(other).status == health_servicer.SERVING
        assert rig.call(asyncio.wait_for(rig.service.drain(1), 5)) == 0
        assert next(other).status == health_servicer.NOT_SERVING
        assert rig.service.hub.draining.is_set()


def test_there_are_no_more_watchers_than_the_limit(rig, monkeypatch):
    monkeypatch.setattr(health_servicer, "MAX_WATCHERS", 2)
    servicer = rig.server._health._servicer
    with grpc.insecure_channel(rig.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watching = [stub.Watch(named(name), timeout=20) for name in ("", "nobody's")]
        known = [next(call).status for call in watching]
        assert known == [health_servicer.SERVING, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN]
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.Watch(named(""), timeout=20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2, which is the limit" in caught.value.details()
        assert stub.Check(named(""), timeout=20).status == health_servicer.SERVING
        for call in watching:
            call.cancel()
        rig.until(lambda: servicer._num_watchers == 0)
        assert next(stub.Watch(named(""), timeout=20)).status == health_servicer.SERVING
    rig.until(lambda: servicer._num_watchers == 0)
