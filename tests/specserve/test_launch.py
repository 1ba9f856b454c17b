"""The supervisor's policies, with real processes and scripted children."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class Supervised:
    """One supervisor over stand-in children."""

    def __init__(self, folder: Path, num_ranks: int, behaviours: dict[str, str]) -> None:
        self.folder = folder
        self.names = ["api", *(f"target{rank}" for rank in range(num_ranks))]
        script = {"folder": str(folder), "behaviours": behaviours}
        (folder / "script.json").write_text(json.dumps(script))
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "supervise_stand_ins.py"), str(folder), str(num_ranks)],
            env={**os.environ, "PYTHONPATH": str(HERE)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_file(self, name: str) -> str:
        deadline = time.monotonic() + 20
        while not (self.folder / name).exists() or not (self.folder / name).read_text():
            assert time.monotonic() < deadline, f"{name} never appeared"
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def await_ready(self) -> "Supervised":
        self.await_file("ready")
        return self

    def pid(self, name: str) -> int:
        return int(self.await_file(f"{name}.pid"))

    def finish(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=20)
        return self.process.returncode, stderr

    def alive(self) -> list[str]:
        return [name for name in self.names if is_alive(self.folder / f"{name}.pid")]


def is_alive(pid_file: Path) -> bool:
    """A process that ended but was not yet reaped by init counts as dead."""
    try:
        stat = Path("/proc", pid_file.read_text(), "stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator:
    started: list[Supervised] = []

    def start(num_ranks: int = 2, **behaviours: str) -> Supervised:
        started.append(Supervised(tmp_path, num_ranks, behaviours))
        return started[-1]

    yield start
    for supervised in started:
        supervised.process.kill()
        supervised.process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_ends_every_process_with_exit_code_0(supervise, signum):
    supervised = supervise().await_ready()
    supervised.process.send_signal(signum)
    assert supervised.finish() == (0, "")
    assert supervised.alive() == []


def test_a_stop_signal_while_starting_ends_every_process_with_exit_code_0(supervise):
    supervised = supervise(target1="hang_starting")
    supervised.pid("target1")
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.finish() == (0, "")
    assert supervised.alive() == []


def test_a_second_signal_kills_at_once(supervise):
    supervised = supervise(api="ignore_sigterm").await_ready()
    supervised.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert "api" in supervised.alive()
    began = time.monotonic()
    supervised.process.send_signal(signal.SIGINT)
    returncode, stderr = supervised.finish()
    assert time.monotonic() - began < 2
    assert returncode == 0
    assert "killed by a second signal" in stderr
    assert supervised.alive() == []


@pytest.mark.slow
def test_an_api_process_that_outlives_its_drain_time_is_killed(supervise):
    supervised = supervise(api="ignore_sigterm").await_ready()
    supervised.process.send_signal(signal.SIGTERM)
    returncode, stderr = supervised.finish()
    assert returncode == 0
    assert "API process did not stop within" in stderr
    assert supervised.alive() == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_target_rank_is_told_to_the_api_and_ends_the_service(supervise, rank):
    supervised = supervise().await_ready()
    os.kill(supervised.pid(f"target{rank}"), signal.SIGKILL)
    returncode, stderr = supervised.finish()
    assert returncode == 1
    line = f"specserve: target rank {rank} was killed by SIGKILL; the service has stopped"
    assert stderr.splitlines()[-1] == line
    event = json.loads(supervised.await_file("api.heard"))
    detail = f"target rank {rank} was killed by SIGKILL"
    assert event == {"event": "target_lost", "detail": detail}
    assert supervised.alive() == []


def test_a_killed_api_process_ends_the_service(supervise):
    supervised = supervise().await_ready()
    os.kill(supervised.pid("api"), signal.SIGKILL)
    returncode, stderr = supervised.finish()
    assert returncode == 1
    line = "specserve: API process was killed by SIGKILL; the service has stopped"
    assert stderr.splitlines()[-1] == line
    assert supervised.alive() == []


def test_a_killed_supervisor_leaves_no_orphan(supervise):
    supervised = supervise(api="ignore_sigterm", target0="ignore_sigterm").await_ready()
    assert sorted(supervised.alive()) == sorted(supervised.names)
    supervised.process.kill()
    deadline = time.monotonic() + 5
    while supervised.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert supervised.alive() == []


def test_a_child_that_refuses_to_start_gives_its_own_line_and_exit_code_2(supervise):
    supervised = supervise(target1="refuse", target0="hang_starting")
    assert supervised.finish() == (2, "specserve: model.target: target1 refuses\n")
    assert supervised.alive() == []


def test_a_child_that_dies_while_starting_is_named(supervise):
    supervised = supervise(target1="crash_starting", target0="hang_starting")
    expected = "specserve: target rank 1 was killed by SIGKILL while starting\n"
    assert supervised.finish() == (1, expected)
    assert supervised.alive() == []
