"""What ends one machine of a launch ends the others, with the first cause, but for drafts alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.specserve.processes.supervised import FOLDER, HERE, is_alive

pytestmark = pytest.mark.slow

GONE = "is gone: its launch or the connection to it has ended; the service has stopped"


class Nodes:
    """Two supervisors that are connected, over stand-ins."""

    def __init__(self, folder: Path, roles: str, behaviours: dict[str, str]) -> None:
        self.folder = folder
        script = {"folder": str(folder), "behaviours": behaviours}
        (folder / "script.json").write_text(json.dumps(script))
        paths = [str(HERE), str(ROOT)]
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "supervise_node.py"), str(folder), str(rank), roles],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), FOLDER: str(folder)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]

    def await_file(self, name: str) -> str:
        deadline_s = time.monotonic() + 20
        while not (self.folder / name).exists() or not (self.folder / name).read_text():
            assert time.monotonic() < deadline_s, f"{name} never appeared"
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def await_ready(self) -> "Nodes":
        self.await_file("ready0")
        self.await_file("ready1")
        return self

    def pid(self, name: str) -> int:
        return int(self.await_file(f"{name}.pid"))

    def ends(self) -> list[tuple[int, str]]:
        """Exit code and last line of each; nothing may be left."""
        found = []
        for process in self.processes:
            _, stderr = process.communicate(timeout=20)
            lines = [line for line in stderr.splitlines() if line.startswith("specserve: ")]
            found.append((process.returncode, "".join(lines).removeprefix("specserve: ")))
        assert [file.stem for file in self.folder.glob("*.pid") if is_alive(file)] == []
        return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def start(roles: str = "target/target", **behaviours: str) -> Nodes:
        made.append(Nodes(tmp_path, roles, behaviours))
        return made[-1]

    yield start
    for each in made:
        for process in each.processes:
            process.kill()
            process.communicate()


def test_a_rank_that_dies_elsewhere_is_named_with_its_node(nodes):
    made = nodes(target0="bereft_lingering").await_ready()
    (made.folder / "bereave").touch()  # rank 0 only suffers from it
    os.kill(made.pid("target1"), signal.SIGKILL)
    cause = "target rank 1 was killed by SIGKILL"
    assert made.ends() == [
        (1, f"node 1 (127.0.0.1): {cause}; the service has stopped"),
        (1, f"{cause}; the service has stopped"),
    ]
    assert f"node 1 (127.0.0.1): {cause}" in (made.folder / "api.heard").read_text()


def test_a_rank_that_dies_on_node_0_ends_the_others(nodes):
    made = nodes(target1="bereft_lingering").await_ready()
    (made.folder / "bereave").touch()
    os.kill(made.pid("target0"), signal.SIGKILL)
    cause = "target rank 0 was killed by SIGKILL"
    assert made.ends() == [
        (1, f"{cause}; the service has stopped"),
        (1, f"node 0 (127.0.0.1): {cause}; the service has stopped"),
    ]


@pytest.mark.parametrize("killed", [0, 1])
def test_a_launch_that_is_killed_ends_the_other_and_leaves_nothing(nodes, killed: int):
    made = nodes().await_ready()
    made.processes[killed].kill()
    ended = made.ends()
    assert ended[killed][0] == -signal.SIGKILL
    assert ended[1 - killed] == (1, f"node {killed} (127.0.0.1) {GONE}")


@pytest.mark.parametrize("told", [0, 1])
def test_a_stop_of_one_machine_with_ranks_drains_the_service(nodes, told: int):
    made = nodes("target/target,draft").await_ready()
    made.processes[told].send_signal(signal.SIGTERM)
    assert made.ends() == [(0, ""), (0, "")]


def test_without_a_machine_of_drafts_the_service_goes_on(nodes):
    made = nodes("target/draft").await_ready()
    made.processes[1].kill()
    time.sleep(0.5)
    assert made.processes[0].poll() is None
    made.processes[0].send_signal(signal.SIGTERM)
    assert [code for code, _ in made.ends()] == [0, -signal.SIGKILL]


def test_what_cannot_start_elsewhere_cannot_start_at_all(nodes):
    made = nodes(target1="refuse")
    refusal = "model.target: target1 refuses"
    assert made.ends() == [(2, f"node 1 (127.0.0.1): {refusal}"), (2, refusal)]
    assert not (made.folder / "ready0").exists()


def test_nobody_is_ready_before_all_are(nodes):
    made = nodes(target1="hang_starting")
    made.await_file("api.pid")
    time.sleep(0.5)
    assert not (made.folder / "ready0").exists()
    made.processes[0].send_signal(signal.SIGTERM)
    assert made.ends() == [(0, ""), (0, "")]
