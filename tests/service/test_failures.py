"""A real service loses a process: open streams end with an error, the command with a non-zero code.

Also how it ends when it is told to: exit code 0, nothing left behind (conftest looks).
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserve.client import Client
from specserve.errors import SpecserveError


class Launched:
    """`specserve launch` as a user starts it, its output collected."""

    def __init__(self, *flags: str) -> None:
        words = [sys.executable, "-m", "specserve", "launch", "--target", "tiny"]
        words += ["--port", "0", *flags]
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # gRPC's core repeats what strangers sent, whatever it is
        )
        self.lines: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            if "listening on" in line:
                self._listening.set()
        self._listening.set()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def address(self) -> str:
        assert self._listening.wait(120)
        match = re.search(r"listening on (\S+)", self.output)
        assert match, self.output
        return match[1]

    def children(self, module: str) -> dict[int, str]:
        """pid -> command line of the children that run `module`."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == self.process.pid and f"-m {module} " in command:
                found[int(folder.name)] = command
        return found

    def exit_code(self, timeout_s: float = 60) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(10)
        return code


@pytest.fixture
def launch() -> Iterator[type[Launched]]:
    started: list[Launched] = []

    def start(*flags: str) -> Launched:
        started.append(Launched(*flags))
        return started[-1]

    yield start
    for launched in started:
        if launched.process.poll() is None:
            launched.process.kill()
        launched.process.wait()
        launched.process.stdout.close()


def read(
    address: str, max_tokens: int, outcome: dict[str, object], started: threading.Event
) -> None:
    """Stream to the end; notes what the end was."""
    with Client(address) as client:
        stream = client.stream("import", max_tokens=max_tokens, ignore_eos=True, temperature=0)
        try:
            for _ in stream:
                started.set()
            outcome["finished"] = stream.finished
        except SpecserveError as error:
            outcome["error"] = error


def streaming(address: str, max_tokens: int = 1900) -> tuple[threading.Thread, dict[str, object]]:
    """A stream that has begun, and where its end will be noted."""
    outcome: dict[str, object] = {}
    started = threading.Event()
    thread = threading.Thread(target=read, args=(address, max_tokens, outcome, started))
    thread.start()
    assert started.wait(60)
    return thread, outcome


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_service_and_every_stream_with_an_error(launch, rank: int):
    service = launch("--topology", "2+0", "--oversubscribe")
    thread, outcome = streaming(service.address())
    ranks = service.children("target_node")
    (victim,) = [pid for pid, command in ranks.items() if f"--rank {rank} " in command]
    killed_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    thread.join(30)
    assert not thread.is_alive()
    assert getattr(outcome.get("error"), "code", None) == "UNAVAILABLE", outcome
    assert f"target rank {rank}" in str(outcome["error"])
    assert service.exit_code() == 1
    assert time.monotonic() - killed_s < 15
    assert f"target rank {rank}" in service.output.splitlines()[-1]
    assert "Traceback" not in service.output


@pytest.mark.slow
def test_a_hung_rank_ends_the_service_within_its_timeout(launch):
    service = launch("--topology", "2+0", "--oversubscribe", "--set", "engine.hang_timeout_s=6")
    thread, outcome = streaming(service.address())
    (victim,) = [p for p, c in service.children("target_node").items() if "--rank 1 " in c]
    os.kill(victim, signal.SIGSTOP)
    assert service.exit_code(60) == 1
    thread.join(30)
    assert getattr(outcome.get("error"), "code", None) == "UNAVAILABLE", outcome
    assert "specserve: target rank 1 stopped by a signal: " in service.output.splitlines()[-1]


@pytest.mark.slow
def test_a_hung_target_ends_the_service_within_its_timeout(launch):
    service = launch("--set", "engine.hang_timeout_s=3")
    thread, outcome = streaming(service.address())
    (victim,) = service.children("target_node")
    os.kill(victim, signal.SIGSTOP)
    assert service.exit_code(30) == 1
    thread.join(30)
    assert getattr(outcome.get("error"), "code", None) == "UNAVAILABLE", outcome
    silence = "silent for 3 s (engine.hang_timeout_s)"
    expected = f"specserve: target rank 0 stopped by a signal: the target was {silence}"
    assert service.output.splitlines()[-1] == f"{expected}; the service has stopped"
    assert service.output.count("target lost") == 1
    assert "API process" not in service.output


@pytest.mark.slow
def test_a_service_that_was_paused_as_a_whole_goes_on(launch):
    service = launch("--set", "engine.hang_timeout_s=3")
    address = service.address()
    pids = [*service.children("target_node"), *service.children("specserve.api")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4)
    for pid in pids[::-1]:  # the API process first
        os.kill(pid, signal.SIGCONT)
    with Client(address) as client:
        assert client.generate("def", max_tokens=4, ignore_eos=True).usage.num_generated_tokens == 4
    service.process.send_signal(signal.SIGTERM)
    assert service.exit_code() == 0


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_lets_running_requests_finish_and_exits_with_0(launch, signum: int):
    service = launch()
    address = service.address()
    thread, outcome = streaming(address, max_tokens=200)
    service.process.send_signal(signum)
    thread.join(60)
    assert service.exit_code() == 0, service.output
    assert outcome.get("finished") is not None, outcome


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_stop_signal_cuts_running_requests_and_says_so(launch, signum: int, code: int):
    service = launch()
    thread, outcome = streaming(service.address())
    service.process.send_signal(signum)
    time.sleep(0.8)  # at once, it would be the same stop
    service.process.send_signal(signum)
    assert service.exit_code() == code, service.output
    thread.join(30)
    assert getattr(outcome.get("error"), "code", None) == "UNAVAILABLE", outcome


@pytest.mark.slow
def test_a_port_in_use_is_one_clear_line(launch, service: str):
    port = service.rpartition(":")[2]
    second = subprocess.run(
        [sys.executable, "-m", "specserve", "launch", "--target", "tiny", "--port", port],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert second.returncode == 2
    (line,) = (second.stdout + second.stderr).splitlines()
    assert port in line
