"""The plan of a launch, and the supervisor's policies with real processes and scripted children."""

import errno
import json
import os
import signal
import socket
import time

import pytest

from specserve.errors import InvalidField
from specserve.processes import launch as module
from specserve.processes.launch import plan_children, require_free_ports
from specserve.settings.config import Placement, ResolvedConfig, ServerConfig

# Where who lingers is the API process, which is spawned whatever nodes are.
FORKED = pytest.mark.parametrize("supervise", ["forked"], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_ends_every_process_with_exit_code_0(supervise, signum):
    supervised = supervise().await_ready()
    supervised.process.send_signal(signum)
    assert supervised.finish() == (0, "")
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_stop_signal_while_starting_ends_every_process_with_exit_code_0(supervise):
    supervised = supervise(target1="hang_starting")
    supervised.pid("target1")
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.finish() == (0, "")
    assert supervised.alive() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("supervise", "first", "second", "code"),
    [
        ("spawned", signal.SIGINT, signal.SIGINT, 130),
        ("forked", signal.SIGTERM, signal.SIGTERM, 143),
        ("spawned", signal.SIGTERM, signal.SIGINT, 130),
        ("spawned", signal.SIGINT, signal.SIGHUP, 129),
    ],
    indirect=["supervise"],
)
def test_a_second_signal_leaves_little_time_and_is_no_clean_stop(supervise, first, second, code):
    supervised = supervise(api="ignore_sigterm").await_ready()
    supervised.process.send_signal(first)
    supervised.await_file("api.told")  # a busy machine may take its time
    time.sleep(0.8)
    assert "api" in supervised.alive()
    began = time.monotonic()
    supervised.process.send_signal(second)
    returncode, stderr = supervised.finish()
    assert time.monotonic() - began < 4
    assert returncode == code
    assert "a second signal: running requests are cut" in stderr
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_second_signal_after_every_request_has_ended_is_a_clean_stop(supervise):
    """What is left are nodes, which take their time and have nothing to do."""
    supervised = supervise(target1="linger").await_ready()
    supervised.process.send_signal(signal.SIGTERM)
    supervised.await_file("target1.leaving")
    time.sleep(0.6)  # sooner, it would be the same stop
    assert "api" not in supervised.alive()
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.finish()[0] == 0
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_second_signal_that_cuts_nothing_is_a_clean_stop(supervise):
    """By the exit status of the API process, which knows whether a request ran."""
    supervised = supervise(api="linger").await_ready()
    supervised.process.send_signal(signal.SIGTERM)
    supervised.await_file("api.leaving")
    time.sleep(0.6)
    supervised.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    (supervised.folder / "leave").touch()
    assert supervised.finish()[0] == 0
    assert supervised.alive() == []


@pytest.mark.slow
@FORKED
def test_a_third_signal_kills_at_once(supervise):
    supervised = supervise(api="ignore_sigterm").await_ready()
    for _ in range(2):
        supervised.process.send_signal(signal.SIGTERM)
        time.sleep(0.7)
    assert "api" in supervised.alive()
    began = time.monotonic()
    supervised.process.send_signal(signal.SIGTERM)
    assert supervised.finish()[0] == 143
    assert time.monotonic() - began < 1.0
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_stop_that_arrives_twice_at_once_still_drains(supervise):
    supervised = supervise(api="linger").await_ready()
    supervised.process.send_signal(signal.SIGTERM)
    supervised.await_file("api.leaving")
    supervised.process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert "api" in supervised.alive()
    (supervised.folder / "leave").touch()
    assert supervised.finish() == (0, "")
    assert supervised.alive() == []


@pytest.mark.slow
@FORKED
def test_an_api_process_that_outlives_its_drain_time_is_killed(supervise):
    supervised = supervise(api="ignore_sigterm").await_ready()
    supervised.process.send_signal(signal.SIGTERM)
    returncode, stderr = supervised.finish()
    assert returncode == 0
    assert "API process did not stop within" in stderr
    assert supervised.alive() == []


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_killed_api_process_ends_the_service(supervise):
    supervised = supervise().await_ready()
    os.kill(supervised.pid("api"), signal.SIGKILL)
    returncode, stderr = supervised.finish()
    assert returncode == 1
    line = "specserve: API process was killed by SIGKILL; the service has stopped"
    assert stderr.splitlines()[-1] == line
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_orphan(supervise):
    supervised = supervise(api="ignore_sigterm", target0="ignore_sigterm").await_ready()
    assert sorted(supervised.alive()) == sorted(supervised.names)
    supervised.process.kill()
    deadline = time.monotonic() + 5
    while supervised.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_child_that_refuses_to_start_gives_its_own_line_and_exit_code_2(supervise):
    supervised = supervise(target1="refuse", target0="hang_starting")
    assert supervised.finish() == (2, "specserve: model.target: target1 refuses\n")
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_child_that_dies_while_starting_is_named(supervise):
    supervised = supervise(target1="crash_starting", target0="hang_starting")
    expected = "specserve: target rank 1 was killed by SIGKILL while starting\n"
    assert supervised.finish() == (1, expected)
    assert supervised.alive() == []


@pytest.mark.slow
def test_every_placement_becomes_a_child_that_knows_how_many_of_its_kind_there_are():
    nodes = [("target", 0), ("target", 1), ("draft", 0), ("api", 0)]
    config = ResolvedConfig(
        placements=tuple(Placement(role=role, rank=rank, device="cpu") for role, rank in nodes)
    )
    assert [(c.module, c.rank, c.world_size) for c in plan_children(config)] == [
        ("target_node", 0, 2),
        ("target_node", 1, 2),
        ("draft_node", 0, 1),
        ("specserve.api", 0, 1),
    ]


@pytest.mark.parametrize(
    ("devices", "forked"),
    [
        (("target cpu", "draft cpu"), ["target cpu", "draft cpu"]),
        (("target cpu", "target cpu"), ["target cpu", "target cpu"]),
        (("target cuda:0", "draft cuda:1"), []),
        (("target cuda:0", "draft cpu"), ["draft cpu"]),
        (("target cpu",), []),
    ],
)
def test_nodes_on_cpus_are_forked_where_that_saves_imports(devices, forked):
    nodes = [words.split() for words in devices] + [["api", "cpu"]]
    placements = [
        Placement(role=role, rank=rank, device=device) for rank, (role, device) in enumerate(nodes)
    ]
    commands = plan_children(ResolvedConfig(placements=tuple(placements)))
    assert [
        f"{command.role} {placement.device}"
        for command, placement in zip(commands, placements, strict=True)
        if command.preload
    ] == forked
    assert {c.preload for c in commands} <= {"", "target_node.start", "draft_node.start"}


def test_a_port_in_use_is_refused_by_name():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        problem = rf"server\.grpc_port: 127\.0\.0\.1:{port} is in use"
        with pytest.raises(InvalidField, match=problem):
            require_free_ports(ServerConfig(grpc_port=port, http=False))


def test_a_machine_without_loopback_says_so(monkeypatch):
    class NoSuchAddress(socket.socket):
        def bind(self, address):
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(module.socket, "socket", NoSuchAddress)
    problem = r"server\.host: 127\.0\.0\.1 is no address of this machine"
    with pytest.raises(InvalidField, match=problem):
        require_free_ports(ServerConfig())
