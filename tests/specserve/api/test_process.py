"""The API process as the launcher starts it: ready line, signals, stdin, a port in use."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from specserve.api.__main__ import _unless
from specserve.client import Client
from specserve.errors import Unavailable
from specserve.settings.config import (
    ModelConfig,
    Placement,
    ResolvedConfig,
    ServerConfig,
    write_resolved,
)
from tests.specserve.api.scripted_target import ScriptedTarget, ready


def until(condition) -> None:
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s, "condition not reached in time"
        time.sleep(0.005)


class Process:
    def __init__(self, folder: Path, model_folder: Path, port: int = 0) -> None:
        config = ResolvedConfig(
            model=ModelConfig(target=str(model_folder)),
            server=ServerConfig(grpc_port=port, drain_timeout_s=10.0),
            placements=(Placement(role="api", rank=0, device="cpu"),),
        )
        write_resolved(config, folder / "config.json")
        read_end, write_end = os.pipe()
        words = ["--config", folder / "config.json", "--control-dir", folder]
        words += ["--ready-fd", write_end, "--parent-pid", os.getpid()]
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "specserve.api", *map(str, words)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(write_end,),
        )
        os.close(write_end)
        self._ready = os.fdopen(read_end)

    def report(self) -> dict:
        with self._ready:
            return json.loads(self._ready.readline())

    def end(self) -> int:
        self._ready.close()
        _, errors = self.popen.communicate(timeout=20)
        self.errors = errors.decode()
        return self.popen.returncode


@pytest.fixture
def target(tmp_path):
    target = ScriptedTarget(tmp_path, ready(400), lambda request, index: [70] * 100 + [0])
    target.round_s = 0.005
    yield target
    target.close()


@pytest.fixture
def process(tmp_path, model_folder, target):
    process = Process(tmp_path, model_folder)
    yield process
    if process.popen.poll() is None:
        process.popen.kill()
        process.end()


@pytest.mark.slow
def test_sigterm_finishes_running_requests_and_exits_with_0(process, target):
    report = process.report()
    assert report["ready"] is True
    results = []
    with Client(report["address"]) as client:
        reader = threading.Thread(target=lambda: results.append(client.generate("fox")))
        reader.start()
        until(lambda: target.num_live)
        process.popen.send_signal(signal.SIGTERM)
        reader.join(10)
    assert len(results[0].samples[0].token_ids) == 101
    assert process.end() == 0


@pytest.mark.slow
def test_a_second_signal_ends_running_requests_with_an_error(process, target):
    address = process.report()["address"]
    target.round_s = 0.2
    with Client(address) as client:
        stream = iter(client.stream("fox"))
        next(stream)
        process.popen.send_signal(signal.SIGTERM)
        until(lambda: client.server_info().state == "draining")
        process.popen.send_signal(signal.SIGTERM)
        with pytest.raises(Unavailable):
            list(stream)
    assert process.end() == 3  # by which the supervisor knows that something was cut


@pytest.mark.slow
def test_the_launchers_word_that_the_target_is_lost_ends_streams(process, target):
    address = process.report()["address"]
    with Client(address) as client:
        stream = iter(client.stream("fox"))
        next(stream)
        process.popen.stdin.write(b'nonsense\n{"event": "target_lost", "detail": "rank 1 died"}\n')
        process.popen.stdin.flush()
        with pytest.raises(Unavailable, match="target lost: rank 1 died"):
            list(stream)
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == 0


def test_a_port_in_use_is_reported_before_the_target_is_loaded(tmp_path, model_folder):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        process = Process(tmp_path, model_folder, port)
        report = process.report()
        assert process.end() == 1
    assert report["ready"] is False
    assert report["code"] == "FAILED_PRECONDITION"
    assert f"127.0.0.1:{port}" in report["error"]
    assert "server.grpc_port" in report["error"]


@pytest.mark.slow
def test_a_signal_while_loading_stops_at_once(tmp_path, model_folder):
    process = Process(tmp_path, model_folder)  # no target: loading for ever
    until((tmp_path / "from_target").exists)
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == 0


async def at_once() -> None:
    return


def test_a_signal_in_the_turn_in_which_the_work_is_done_counts():
    assert asyncio.run(_unless(asyncio.Event().wait(), at_once()))
    assert not asyncio.run(_unless(at_once(), asyncio.Event().wait()))
    assert not asyncio.run(_unless(at_once(), at_once()))
