"""Commands with a service of their own: whatever stops them, they stop it first."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.client import Client
from specserve.processes import local_service as module
from specserve.processes.local_service import local_service
from specserve.settings.target_source import EMBEDDED_TARGET

pytestmark = pytest.mark.usefixtures("nobody_handles_stops")

UNPINNED = ("--device", "cpu", "--oversubscribe")
COMMANDS = {
    "generate": ("--target", "tiny", "--max-tokens", "1900", "--ignore-eos", "x"),
    "chat": (),
    "audit": ("--quick", "--drafter", "ngram"),
}


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children] + [d for c in children for d in descendants(int(c))]


def is_alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def start(name: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "specserve", name, *COMMANDS[name], *UNPINNED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_processes(command: "subprocess.Popen[str]", num_processes: int) -> list[int]:
    deadline = time.monotonic() + 60
    while len(found := descendants(command.pid)) < num_processes:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_told_to_stop_is_gone_after_its_service(name, signum, code):
    command = start(name)
    found = await_processes(command, 3)  # the launch, its target and its API process
    if name == "generate":
        assert command.stdout.read(1)
    command.send_signal(signum)
    command.send_signal(signum)
    command.wait(30)
    assert [pid for pid in found if is_alive(pid)] == []
    assert command.returncode == code
    assert "Traceback" not in command.communicate()[1]


@pytest.mark.slow
def test_a_command_told_to_stop_while_its_service_starts_leaves_nothing():
    command = start("generate")
    (launch,) = await_processes(command, 1)
    command.terminate()
    command.wait(30)
    assert not is_alive(launch)
    _, stderr = command.communicate()
    assert (command.returncode, stderr) == (143, "")


@pytest.fixture
def ends_at_signal(monkeypatch, tmp_path) -> Callable[[int], None]:
    """`ends_at_signal(2)`: instead of a service, a process that ends at its second SIGTERM."""

    def replace(num_signals: int) -> None:
        path = tmp_path / "launch"
        path.write_text(
            f"#!{sys.executable}\n"
            "import os, signal, sys, time\n"
            "heard = []\n"
            "signal.signal(signal.SIGTERM, lambda *_: heard.append(1))\n"
            "ready = open(int(sys.argv[sys.argv.index('--ready-fd') + 1]), 'w')\n"
            """ready.write('{"ready": true, "address": "here:1"}\\n')\n"""
            "ready.close()\n"
            f"while len(heard) < {num_signals}: time.sleep(0.001)\n"
        )
        path.chmod(0o700)
        monkeypatch.setattr("specserve.processes.local_service.sys.executable", str(path))

    return replace


def test_sigterm_unwinds_only_while_there_is_a_service(ends_at_signal):
    ends_at_signal(1)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, local_service():
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_right_after_the_start_stops_what_was_started(ends_at_signal, monkeypatch):
    """Before anybody knows of the process."""
    ends_at_signal(1)
    started = []
    start_it = module._start

    def start_and_be_stopped(flags):
        result = start_it(flags)
        started.append(result[0])
        signal.raise_signal(signal.SIGTERM)
        return result

    monkeypatch.setattr(module, "_start", start_and_be_stopped)
    with pytest.raises(SystemExit), local_service():
        pytest.fail("it was told to stop")
    (process,) = started
    assert process.returncode in (0, -signal.SIGTERM)  # it may not even hear signals yet


@pytest.mark.slow
def test_a_signal_while_the_service_stops_is_handed_to_it(ends_at_signal):
    ends_at_signal(2)
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), local_service():
        interrupt.start()
    interrupt.join()


@pytest.mark.slow
@pytest.mark.parametrize(("wish", "expected"), [("auto", {"top_k": 7}), ("none", {})])
def test_a_models_own_sampling_is_followed_unless_nobody_wants_it(tmp_path, wish, expected):
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED_TARGET, folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "top_k": 7}))
    words = ["--target", str(folder), "--generation-config", wish, "--speculation", "off"]
    with local_service([*words, *UNPINNED]) as address, Client(address) as client:
        assert client.model_info().default_sampling == expected


def test_an_end_is_told_unless_it_was_wished():
    told: list[str] = []
    is_left = threading.Event()
    with subprocess.Popen(["true"]) as process:
        module._tell_end(process, is_left, lambda: told.append("ended"))
        assert told == ["ended"]
        is_left.set()
        module._tell_end(process, is_left, lambda: told.append("again"))
    assert told == ["ended"]
