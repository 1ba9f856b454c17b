"""What a running service says of its draft processes, and where to lay hands on them."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.api.health import DRAFT
from specserve.transport.link.ring import SharedRegion

_SERVING = health_pb2.HealthCheckResponse.SERVING
_LINK_NAME = "/memfd:specserve-link (deleted)"


class DraftWatch:
    """Follows the health of the drafts from now on; `close` it."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._changes: list[tuple[float, bool]] = []  # CLOCK_MONOTONIC s, all drafts at work
        self._changed = threading.Condition()
        checks = health_pb2_grpc.HealthStub(self._channel)
        self._stream = checks.Watch(health_pb2.HealthCheckRequest(service=DRAFT))  # pyright: ignore
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for answer in self._stream:
                with self._changed:
                    self._changes.append((time.monotonic(), answer.status == _SERVING))
                    self._changed.notify_all()
        except grpc.RpcError:
            pass  # closed, here or there

    def close(self) -> None:
        self._stream.cancel()
        self._thread.join(10)
        self._channel.close()

    @property
    def is_serving(self) -> bool:
        """Whether all draft processes work with the target, as far as has been heard."""
        with self._changed:
            return bool(self._changes) and self._changes[-1][1]

    def seconds_until(self, serving: bool, since_s: float, timeout_s: float = 60.0) -> float | None:
        """From `since_s` to the first word that it is so; None: not within `timeout_s`."""
        deadline_s = since_s + timeout_s

        def found() -> float | None:
            times = [at for at, now in self._changes if now is serving and at >= since_s]
            return times[0] - since_s if times else None

        with self._changed:
            self._changed.wait_for(
                lambda: found() is not None, max(0.0, deadline_s - time.monotonic())
            )
            return found()

    def wait_until_serving(self, timeout_s: float = 60.0) -> bool:
        """Wait until all draft processes work with the target."""
        with self._changed:
            return self._changed.wait_for(
                lambda: bool(self._changes) and self._changes[-1][1], timeout_s
            )

    def statistics(self) -> pb.SpecStats:
        """Of the service since its start."""
        watch = stubs.SpecInfoStub(self._channel).WatchSpecStats(
            pb.WatchSpecStatsRequest(interval_s=0.3)
        )
        stats = next(watch)
        watch.cancel()
        return stats


def draft_pids(launcher_pid: int) -> dict[int, int]:
    """Rank to process of the live draft processes of a launch."""
    found: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        is_alive, parent = fields[0] != "Z", int(fields[1])
        if is_alive and parent == launcher_pid and "draft_node" in words:
            rank = int(words[words.index("--rank") + 1]) if "--rank" in words else 0
            found[rank] = int(folder.name)
    return found


def open_link(pid: int) -> SharedRegion:
    """The memory between the target and the draft process `pid`, mapped here as well."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            is_link = os.readlink(entry) == _LINK_NAME
        except OSError:
            continue
        if is_link:
            fd = os.open(entry, os.O_RDWR)
            try:
                return SharedRegion.attach(fd)
            finally:
                os.close(fd)
    raise FileNotFoundError(f"process {pid} has no link")


def eventually(happens: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not happens():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True
