"""What the supervisor writes down of its children, and what is read of it."""

import os
import signal
import time

import pytest

from specserve.processes.child import ChildCommand
from specserve.processes.roster import ChildState, Roster, read_roster, state_of


def until(condition, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not told in time"
        time.sleep(0.01)


def states(supervised) -> dict[str, str]:
    return {each.name: each.state for each in read_roster(supervised.folder)}


@pytest.mark.slow
def test_every_process_is_told_with_its_pid(supervise):
    supervised = supervise(num_ranks=2, num_drafts=1).await_ready()
    until(lambda: set(states(supervised).values()) == {"ready"})
    told = {f"{each.role}{each.rank}": each.pid for each in read_roster(supervised.folder)}
    names = {"api": "api0"}
    assert told == {names.get(name, name): supervised.pid(name) for name in supervised.names}
    assert supervised.stop() == ""


@pytest.mark.slow
def test_a_draft_that_ends_is_told_with_what_happened(supervise):
    supervised = supervise(num_ranks=1, num_drafts=1).await_ready()
    first = supervised.pid("draft0")
    until(lambda: states(supervised)["draft process 0"] == "ready")
    seen: list[ChildState] = []
    os.kill(first, signal.SIGKILL)

    def draft() -> ChildState:
        (found,) = (each for each in read_roster(supervised.folder) if each.role == "draft")
        if not seen or found != seen[-1]:
            seen.append(found)
        return found

    until(lambda: draft().state == "ended")
    until(lambda: draft().state == "ready" and draft().pid not in (0, first))
    (ended,) = (each for each in seen if each.state == "ended")
    assert (ended.pid, ended.detail) == (0, "was killed by SIGKILL; starting it again in 0.25 s")
    assert seen[-1].detail == "is back"
    supervised.stop()


@pytest.mark.slow
def test_a_process_that_does_not_get_ready_is_starting(supervise):
    supervised = supervise(num_ranks=1, target0="hang_starting")
    supervised.pid("target0")
    until(lambda: states(supervised).get("API process") == "ready")
    assert states(supervised)["target rank 0"] == "starting"


def test_what_nobody_has_written_is_empty(tmp_path):
    assert read_roster(tmp_path) == []


def test_one_that_cannot_be_started_has_ended():
    command = ChildCommand(role="draft", rank=1, module="draft_node")
    state = state_of(command, None, "cannot be started: no more processes")
    assert (state.name, state.pid, state.state) == ("draft process 1", 0, "ended")
    assert state.detail == "cannot be started: no more processes"


def test_only_news_is_written(tmp_path):
    roster = Roster(tmp_path)
    state = ChildState(role="api", rank=0, name="API process", pid=1, state="ready", detail="")
    roster.tell([state])
    (file,) = tmp_path.iterdir()
    file.unlink()
    roster.tell([state])
    assert read_roster(tmp_path) == []
    other = ChildState(role="api", rank=0, name="API process", pid=2, state="ready", detail="")
    roster.tell([other])
    assert read_roster(tmp_path) == [other]


def test_a_folder_that_takes_no_file_is_a_warning(tmp_path, caplog):
    state = ChildState(role="api", rank=0, name="API process", pid=1, state="ready", detail="")
    Roster(tmp_path / "gone").tell([state])
    assert "cannot tell the state of processes" in caplog.text
