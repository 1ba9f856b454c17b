"""A child that cannot be started leaves nothing behind."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from specserve.processes import child
from specserve.processes.child import Child, ChildCommand, environment
from specserve.processes.forkserver.handle import Forkserver
from specserve.processes.process import command_line, descriptor_words, parse_child_arguments

COMMAND = ChildCommand(role="draft", rank=1, module="draft_node", world_size=2)


def test_a_child_reads_what_its_command_line_says(tmp_path):
    words = [*COMMAND.words(tmp_path / "config.json", tmp_path), *descriptor_words(7, (11, 12))]
    assert command_line("draft_node", words)[:4] == [sys.executable, "-P", "-m", "draft_node"]
    arguments = parse_child_arguments(words)
    assert (arguments.rank, arguments.world_size) == (1, 2)
    assert (arguments.ready_fd, arguments.link_fds) == (7, (11, 12))
    assert arguments.config == tmp_path / "config.json"
    plain = [*COMMAND.words(tmp_path / "config.json", tmp_path), *descriptor_words(7)]
    assert parse_child_arguments(plain).link_fds == ()


def test_a_child_has_the_environment_of_its_command_besides_that_of_all(tmp_path):
    own = (("CUDA_MPS_PIPE_DIRECTORY", "/of/this/launch"),)
    started = Child(msgspec.structs.replace(COMMAND, environment=own), tmp_path, tmp_path)
    try:
        found = Path(f"/proc/{started.pid}/environ").read_bytes().split(b"\0")
    finally:
        started.kill()
        started.close()
    assert b"CUDA_MPS_PIPE_DIRECTORY=/of/this/launch" in found
    assert {f"{name}={value}".encode() for name, value in environment().items()} < set(found)


def refuse(*_, **__):
    raise BlockingIOError("no more processes")


def test_a_child_that_cannot_be_started_leaves_no_descriptor_open(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "_SpawnedProcess", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        Child(COMMAND, tmp_path, tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_child_whose_forkserver_is_gone_leaves_no_descriptor_open(tmp_path):
    forkserver = Forkserver([], log_level="info", environment=dict(os.environ))
    try:
        forkserver.kill()
        before = os.listdir("/proc/self/fd")
        with pytest.raises(BrokenPipeError):
            Child(COMMAND, tmp_path, tmp_path, forkserver=forkserver)
        assert len(os.listdir("/proc/self/fd")) == len(before)
    finally:
        forkserver.close()


def test_a_forkserver_that_cannot_be_started_leaves_no_descriptor_open(monkeypatch):
    monkeypatch.setattr("specserve.processes.forkserver.handle.subprocess.Popen", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        Forkserver([], log_level="info", environment=dict(os.environ))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_threads_that_wait_between_forwards_do_not_spin_for_long(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert int(environment()["GOMP_SPINCOUNT"]) <= 1000
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert environment()["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert "GOMP_SPINCOUNT" not in environment()
