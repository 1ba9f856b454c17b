"""Draft processes come and go while the service stays: real processes, scripted children."""

import itertools
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.specserve.processes.supervised import Supervised

# Where nothing depends on how the draft process was made, as those on CPUs are.
FORKED = pytest.mark.parametrize("supervise", ["forked"], indirect=True)


def await_new_pid(supervised: Supervised, name: str, old: int) -> int:
    deadline = time.monotonic() + 20
    while (pid := supervised.pid(name)) == old:
        assert time.monotonic() < deadline, f"{name} was not started again"
        time.sleep(0.01)
    return pid


def lives(supervised: Supervised, name: str) -> list[float]:
    """When each of them began."""
    return [float(line) for line in supervised.await_file(f"{name}.lives").splitlines()]


def others(supervised: Supervised) -> dict[str, int]:
    return {n: supervised.pid(n) for n in supervised.names if not n.startswith("draft")}


@pytest.mark.slow
def test_every_draft_shares_memory_with_target_rank_0_and_with_nobody_else(supervise):
    supervised = supervise(num_ranks=2, num_drafts=2).await_ready()
    assert supervised.await_file("draft0.heard") == "for draft 0"
    assert supervised.await_file("draft1.heard") == "for draft 1"
    assert {n: num_links(supervised.pid(n)) for n in supervised.names} == {
        "target0": 2,
        "draft0": 1,
        "draft1": 1,
        "target1": 0,
        "api": 0,
    }
    assert supervised.stop() == ""


def num_descriptors(supervised: Supervised) -> int:
    """Open files of the supervisor."""
    return len(list(Path(f"/proc/{supervised.process.pid}/fd").iterdir()))


def num_links(pid: int) -> int:
    """Distinct memories of links that a process holds open."""
    open_files = list(Path(f"/proc/{pid}/fd").iterdir())
    links = [path for path in open_files if "memfd:specserve-link" in os.readlink(path)]
    return len({path.stat().st_ino for path in links})


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_draft_that_ends_is_started_again_and_the_service_goes_on(supervise, signum):
    supervised = supervise(num_drafts=2).await_ready()
    pids, first = others(supervised), supervised.pid("draft1")
    os.kill(first, signum)
    second = await_new_pid(supervised, "draft1", first)
    os.kill(second, signum)
    await_new_pid(supervised, "draft1", second)
    assert others(supervised) == pids
    assert len(lives(supervised, "draft0")) == 1
    stderr = supervised.stop()
    assert "draft process 1" in stderr
    assert "starting it again in 0.25 s" in stderr


@pytest.mark.slow
@FORKED
def test_a_draft_that_flaps_is_started_less_and_less_often(supervise):
    supervised = supervise(num_drafts=1, draft0="flap").await_ready()
    num_open = num_descriptors(supervised)
    deadline = time.monotonic() + 20
    while len(lives(supervised, "draft0")) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    began = lives(supervised, "draft0")
    waits = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert waits[0] >= 0.25
    assert waits[1] >= 0.5
    assert waits[2] >= 1.0
    assert {"api", "target0", "target1"} <= set(supervised.alive())
    assert num_descriptors(supervised) <= num_open + 1  # one more while a child is being started
    supervised.stop()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "stalled"])
def test_a_draft_that_hangs_is_killed_and_started_again(supervise, how):
    supervised = supervise(num_drafts=1, draft0="stall" if how == "stalled" else "serve")
    supervised.await_ready()
    pids, first = others(supervised), supervised.pid("draft0")
    if how == "stopped":
        time.sleep(0.1)
        os.kill(first, signal.SIGSTOP)
    second = await_new_pid(supervised, "draft0", first)
    time.sleep(1.0)  # twice its limit: the second life is not taken for a hang
    assert supervised.pid("draft0") == second
    assert others(supervised) == pids
    stderr = supervised.stop()
    assert "draft process 0 hangs and is killed" in stderr
    assert "draft process 0 was killed by SIGKILL" in stderr


@pytest.mark.slow
@FORKED
def test_a_draft_that_leaves_has_time_to_end(supervise):
    supervised = supervise(num_drafts=1, draft0="linger").await_ready()
    first = supervised.pid("draft0")
    time.sleep(0.1)
    os.kill(first, signal.SIGTERM)
    supervised.await_file("draft0.leaving")
    time.sleep(1.0)  # twice the silence that is a hang
    assert supervised.pid("draft0") == first
    (supervised.folder / "leave").write_text("now")
    await_new_pid(supervised, "draft0", first)
    stderr = supervised.stop()
    assert "draft process 0 exited with status 0" in stderr
    assert "hangs" not in stderr


@pytest.mark.slow
@FORKED
def test_a_stop_that_is_continued_in_time_is_no_hang(supervise):
    supervised = supervise(num_drafts=1).await_ready()
    pid = supervised.pid("draft0")
    for _ in range(3):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)
    assert supervised.pid("draft0") == pid
    assert supervised.stop() == ""


@pytest.mark.slow
def test_a_draft_that_says_that_it_cannot_start_ends_the_launch(supervise):
    supervised = supervise(num_drafts=1, draft0="refuse", target0="hang_starting")
    assert supervised.finish() == (2, "specserve: model.target: draft0 refuses\n")
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_draft_that_dies_in_its_first_starts_keeps_nobody_waiting(supervise):
    supervised = supervise(num_drafts=1, draft0="crash_starting").await_ready()
    pids, deadline = others(supervised), time.monotonic() + 20
    while len(lives(supervised, "draft0")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert others(supervised) == pids
    assert "draft process 0 was killed by SIGKILL; starting it again in" in supervised.stop()


@pytest.mark.slow
def test_a_draft_that_cannot_start_again_does_not_end_the_service(supervise):
    supervised = supervise(num_drafts=1, draft0="refuse_again").await_ready()
    pids = others(supervised)
    os.kill(supervised.pid("draft0"), signal.SIGKILL)
    deadline = time.monotonic() + 20
    while len(lives(supervised, "draft0")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert others(supervised) == pids
    assert "cannot start: model.target: draft0 refuses" in supervised.stop()


@pytest.mark.slow
def test_a_draft_that_dies_while_others_still_start_is_started_again(supervise):
    supervised = supervise(num_drafts=1, target1="hang_starting")
    supervised.await_file("draft0.heard")  # it is ready and runs
    first = supervised.pid("draft0")
    os.kill(first, signal.SIGKILL)
    await_new_pid(supervised, "draft0", first)
    assert supervised.stop()


@pytest.mark.slow
def test_a_stopped_draft_does_not_outlive_a_clean_stop(supervise):
    supervised = supervise(num_drafts=2).await_ready()
    os.kill(supervised.pid("draft1"), signal.SIGSTOP)
    supervised.process.send_signal(signal.SIGTERM)
    returncode, stderr = supervised.finish()
    assert returncode == 0
    assert "draft process 1 did not stop within 0.5 s" in stderr
    assert supervised.alive() == []


@pytest.mark.slow
def test_target_processes_that_end_at_the_same_moment_are_a_clean_stop(supervise):
    supervised = supervise(num_drafts=1, target0="linger", target1="linger").await_ready()
    os.kill(supervised.pid("draft0"), signal.SIGSTOP)  # its turn comes last and takes a while
    supervised.process.send_signal(signal.SIGTERM)
    supervised.await_file("target0.leaving")
    supervised.await_file("target1.leaving")
    supervised.process.send_signal(signal.SIGSTOP)  # it sees both deaths in one look
    (supervised.folder / "leave").touch()
    deadline = time.monotonic() + 20
    while supervised.alive() != ["draft0"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    supervised.process.send_signal(signal.SIGCONT)
    assert supervised.finish()[0] == 0


@pytest.mark.slow
def test_a_killed_target_ends_the_service_and_its_drafts(supervise):
    supervised = supervise(num_drafts=2).await_ready()
    os.kill(supervised.pid("target1"), signal.SIGKILL)
    returncode, _ = supervised.finish()
    assert returncode == 1
    assert json.loads(supervised.await_file("api.heard"))["event"] == "target_lost"
    assert supervised.alive() == []


@pytest.mark.slow
def test_a_killed_supervisor_leaves_no_draft(supervise):
    supervised = supervise(num_drafts=2, draft0="ignore_sigterm").await_ready()
    supervised.process.kill()
    deadline = time.monotonic() + 5
    while supervised.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert supervised.alive() == []
