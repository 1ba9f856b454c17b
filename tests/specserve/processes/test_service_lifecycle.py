"""The real service from start to end: what a stop, a death and a bad start leave behind.

What clients see of failures is in `tests/service/test_failures.py`.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specserve.client import Client
from specserve.errors import SpecserveError

FLAGS = ("--target", "tiny", "--port", "0", "--oversubscribe")


class Launched:
    """One `specserve launch` and its children."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specserve", "launch", *FLAGS, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = ""
        self.children: dict[str, int] = {}

    def await_ready(self) -> "Launched":
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.address = line.split()[-1]
                self.children = _children(self.process.pid)
                return self
        raise AssertionError(f"never listened: {self.finish()}")

    def finish(self) -> tuple[int, list[str]]:
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr.splitlines()

    def living(self) -> list[str]:
        return [name for name, pid in self.children.items() if _is_alive(pid)]

    def control_dir(self) -> Path:
        command = Path(f"/proc/{self.children['api']}/cmdline").read_text().split("\0")
        return Path(command[command.index("--control-dir") + 1])


def _children(pid: int) -> dict[str, int]:
    """Process ids by name: "api", "target0", "draft0" and so on."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        node = re.search(r"(target|draft)_node .*--rank (\d+)", command)
        if node or " -m specserve.api " in command:  # not the forkserver, which comes and goes
            found["".join(node.groups()) if node else "api"] = int(child)
    return found


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # not yet reaped is dead


@pytest.fixture
def launch() -> Iterator[Callable[..., Launched]]:
    launched: list[Launched] = []

    def start(*flags: str) -> Launched:
        launched.append(Launched(*flags))
        return launched[-1]

    yield start
    for one in launched:
        one.process.kill()
        one.process.communicate()


@pytest.mark.slow
def test_a_stop_signal_leaves_no_process_and_no_file(launch):
    service = launch().await_ready()
    folder = service.control_dir()
    assert sorted(service.children) == ["api", "target0"]
    assert folder.stat().st_mode & 0o777 == 0o700
    service.process.send_signal(signal.SIGINT)
    exit_code, stderr = service.finish()
    assert exit_code == 0
    assert not any("Traceback" in line for line in stderr)
    assert service.living() == []
    assert not folder.exists()


@pytest.mark.slow
def test_a_killed_target_ends_open_streams_with_an_error_and_the_service_with_code_1(launch):
    service = launch().await_ready()
    with Client(service.address) as client:
        stream = iter(client.stream("def main():", max_tokens=1500, ignore_eos=True))
        next(stream)
        os.kill(service.children["target0"], signal.SIGKILL)
        with pytest.raises(SpecserveError) as caught:
            for _ in stream:
                pass
    assert caught.value.code == "UNAVAILABLE"
    exit_code, stderr = service.finish()
    assert exit_code == 1
    expected = "specserve: target rank 0 was killed by SIGKILL; the service has stopped"
    assert stderr[-1] == expected
    assert service.living() == []


@pytest.mark.slow
def test_two_ranks_stop_cleanly(launch):
    service = launch("--topology", "2+0", "--oversubscribe").await_ready()
    service.process.send_signal(signal.SIGTERM)
    exit_code, stderr = service.finish()
    assert exit_code == 0
    assert not any("Traceback" in line or "did not stop" in line for line in stderr)
    assert service.living() == []


@pytest.mark.slow
def test_a_killed_launch_leaves_no_orphan_and_the_next_one_tidies_up(launch):
    service = launch().await_ready()
    folder = service.control_dir()
    service.process.kill()
    deadline = time.monotonic() + 5
    while service.living() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert service.living() == []
    assert folder.exists()
    following = launch().await_ready()
    assert not folder.exists()
    following.process.send_signal(signal.SIGINT)
    assert following.finish()[0] == 0


@pytest.mark.slow
def test_a_killed_draft_comes_back_while_the_service_goes_on(launch):
    flags = ("--topology", "1+2", "--oversubscribe", "--speculation", "async")
    service = launch(*flags, "--drafter", "ngram").await_ready()
    first = dict(service.children)
    assert sorted(first) == ["api", "draft0", "draft1", "target0"]
    os.kill(first["draft1"], signal.SIGKILL)
    with Client(service.address) as client:
        while service.children.get("draft1") in (first["draft1"], None):
            client.generate("1, 2, 1, 2,", temperature=0, max_tokens=8)
            service.children = _children(service.process.pid)
    assert first | {"draft1": service.children["draft1"]} == service.children
    service.process.send_signal(signal.SIGTERM)
    exit_code, stderr = service.finish()
    assert exit_code == 0
    assert not any("Traceback" in line for line in stderr)
    assert any("draft process 1 was killed by SIGKILL" in line for line in stderr)
    assert service.living() == []


@pytest.mark.slow
def test_a_model_without_weights_is_refused_with_one_line(launch, embedded_target, tmp_path):
    for file in embedded_target.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    exit_code, stderr = launch("--target", str(tmp_path), "--log-level", "warning").finish()
    assert exit_code == 2
    (line,) = stderr
    assert line.startswith("specserve: ")
    assert str(tmp_path) in line


@pytest.mark.slow
def test_an_error_of_a_bad_start_stands_last_and_alone(embedded_target, tmp_path):
    for file in embedded_target.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())

    def lines(*flags: str) -> list[str]:
        words = [sys.executable, "-m", "specserve", "launch", *FLAGS, "--target", str(tmp_path)]
        kept = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ended = subprocess.run([*words, *flags], timeout=60, check=False, **kept)
        assert ended.returncode == 2
        return ended.stdout.splitlines()

    for flags, num_lines in (((), (10, 20)), (("--show-config",), (35, 80))):
        *told, blank, error = lines("--log-level", "warning", *flags)
        assert num_lines[0] < len(told) < num_lines[1]
        assert blank.strip() == ""
        assert error.startswith("specserve: ")
