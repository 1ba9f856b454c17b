"""One GPU's daemon: used where it works, done without where it does not, and never left behind."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from specserve.errors import Unsupported
from specserve.processes import mps as module
from specserve.processes.launch import plan_children
from specserve.processes.mps import CONTROL, TRIAL, mps
from specserve.settings.config import Config, SpeculationConfig, TopologyConfig
from tests.specserve.processes.mps_stand_in import left, put_on_path
from tests.specserve.settings.resolving import DEVICES, MACHINE, resolved

USED, NOT_USED = ("true",), ("sh", "-c", "echo cuInit returned 805; exit 1")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is not expected to come; a busy machine may take seconds for what is."""
    for name, seconds in {"_START_S": 30.0, "_ANSWER_S": 30.0, "_END_S": 0.3}.items():
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return tmp_path / "bin"


def root(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_clients_find_the_daemon_until_it_is_over(monkeypatch, tmp_path, tools, caplog):
    caplog.set_level(logging.INFO)
    put_on_path(monkeypatch, tools)
    with mps(None, root(tmp_path), USED) as clients:
        assert clients["target"] == {
            "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "run" / "mps"),
            "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "run" / "mps-log"),
        }
        assert clients["draft"] == {**clients["target"], "CUDA_MPS_CLIENT_PRIORITY": "1"}
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
        assert len(left(tools)) == 2  # the daemon and its server
    assert left(tools) == set()
    assert "run side by side, by NVIDIA MPS" in caplog.text


@pytest.mark.parametrize(
    ("manner", "trial", "problem"),
    [
        ("refuses", USED, "-d failed: An instance of this daemon is already running"),
        ("hangs", USED, "-d did not end within 0.3 s"),
        ("dies", USED, f"{CONTROL} does not answer"),
        ("silent", USED, f"{CONTROL} has started no server"),
        ("sound", NOT_USED, "a process that used it failed: cuInit returned 805"),
        ("sound", ("sleep", "60"), "a process that used it did not end within 0.3 s"),
    ],
)
def test_a_daemon_that_does_not_serve_is_done_without(
    monkeypatch, tmp_path, tools, caplog, manner, trial, problem
):
    caplog.set_level(logging.INFO)
    if "0.3 s" in problem:
        monkeypatch.setattr(module, "_START_S" if manner == "hangs" else "_TRIAL_S", 0.3)
    put_on_path(monkeypatch, tools, manner)
    with mps(None, root(tmp_path), trial) as clients:
        assert clients == {}
        assert left(tools) == set()
    assert f"take turns on it, without NVIDIA MPS: {problem}" in caplog.text.replace(
        f"{CONTROL} -d", "-d"
    )


def test_the_trial_says_what_the_driver_lacks(tmp_path):
    """Without a GPU it is the driver."""
    done = subprocess.run(TRIAL, capture_output=True, text=True, check=False)
    if torch.cuda.is_available():
        assert (done.returncode, done.stdout) == (0, "")
    else:
        assert done.returncode == 1
        assert done.stdout in ("there is no CUDA driver\n", "cuInit returned 100\n")


def test_without_a_daemon_on_the_machine_it_is_done_without(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("PATH", str(tmp_path))
    with mps(None, root(tmp_path)) as clients:
        assert clients == {}
    assert f"without NVIDIA MPS: there is no {CONTROL}" in caplog.text


def test_who_insists_on_it_is_refused_with_the_reason(monkeypatch, tmp_path, tools):
    put_on_path(monkeypatch, tools, "refuses")
    message = r"^topology\.mps: nvidia-cuda-mps-control -d failed: An instance .*\(--no-mps\)$"
    with pytest.raises(Unsupported, match=message), mps(True, root(tmp_path), USED):
        pytest.fail("it was used")
    assert left(tools) == set()


def test_who_does_not_want_it_starts_nothing(monkeypatch, tmp_path, tools, caplog):
    caplog.set_level(logging.INFO)
    put_on_path(monkeypatch, tools)
    with mps(False, root(tmp_path), USED) as clients:
        assert clients == {}
        assert left(tools) == set()
    assert list((tmp_path / "run").iterdir()) == []
    assert caplog.text == ""


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["stays", "deaf"])
def test_a_daemon_that_does_not_go_is_killed_with_its_server(monkeypatch, tmp_path, tools, manner):
    monkeypatch.setattr(module, "_ANSWER_S", 0.3)
    put_on_path(monkeypatch, tools, manner)
    with mps(None, root(tmp_path), USED) as clients:
        assert clients
    assert left(tools) == set()


@pytest.mark.slow
def test_whoever_is_started_after_the_daemon_has_ended_finds_none(monkeypatch, tmp_path, tools):
    put_on_path(monkeypatch, tools)
    with mps(None, root(tmp_path), USED) as clients:
        folder = Path(clients["draft"]["CUDA_MPS_PIPE_DIRECTORY"])
        os.kill(int((folder / f"{CONTROL}.pid").read_text()), signal.SIGKILL)
        until(lambda: not folder.exists())
        assert len(left(tools)) == 1  # its server may have clients
    assert left(tools) == set()


def test_an_error_of_the_launch_stops_it(monkeypatch, tmp_path, tools):
    put_on_path(monkeypatch, tools)
    with pytest.raises(KeyError), mps(None, root(tmp_path), USED):
        raise KeyError
    assert left(tools) == set()


_LAUNCH = """
import sys
from pathlib import Path
from specserve.processes.mps import mps
with mps(None, Path(sys.argv[1]), ("true",)) as clients:
    print(len(clients), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_launch_that_is_killed_leaves_no_daemon(monkeypatch, tmp_path, tools):
    put_on_path(monkeypatch, tools)
    words = [sys.executable, "-c", _LAUNCH, str(root(tmp_path))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as launch:
        assert launch.stdout is not None
        assert launch.stdout.readline() == b"2\n"
        assert len(left(tools)) == 2
        launch.send_signal(signal.SIGKILL)
        until(lambda: not left(tmp_path))  # nor its guard


CLIENTS = {"target": {"CUDA_MPS_PIPE_DIRECTORY": "a"}, "draft": {"CUDA_MPS_PIPE_DIRECTORY": "b"}}


def environments(topology: str) -> dict[str, tuple]:
    """Of the processes on two devices."""
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    placed = TopologyConfig(topology=topology, device="cuda", oversubscribe=True)
    wish = Config(topology=placed, speculation=SpeculationConfig(mode="async"))
    commands = plan_children(resolved(wish, machine), CLIENTS)
    return {command.name: command.environment for command in commands}


def test_processes_that_share_a_device_are_clients_and_others_are_not():
    own = {
        name: (("CUDA_MPS_PIPE_DIRECTORY", folder),) for name, folder in (("t", "a"), ("d", "b"))
    }
    assert environments("1+1") == {
        "target rank 0": (), "draft process 0": (), "API process": (),
    }  # fmt: skip
    assert environments("1+2") == {
        "target rank 0": own["t"], "draft process 0": (), "draft process 1": own["d"],
        "API process": (),
    }  # fmt: skip
