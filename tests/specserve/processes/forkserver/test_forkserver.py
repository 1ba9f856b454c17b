"""Nodes that are forked: real forkservers under a real supervisor, scripted nodes."""

import os
import signal
from pathlib import Path

import pytest

from tests.service.draft_watch import eventually
from tests.specserve.processes.supervised import Supervised

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("supervise", ["forked"], indirect=True),
]


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def forkservers(supervised: Supervised) -> list[int]:
    """Live ones of a supervisor, which lives."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(folder.name)
            if parent_of(
                pid
            ) == supervised.process.pid and "specserve.processes.forkserver" in words_of(pid):
                found.append(pid)
        except OSError:  # ended meanwhile
            continue
    return found


def is_over(pid: int) -> bool:
    """Gone, or about to be: nobody may have collected it yet."""
    try:
        return state_of(pid) == "Z"
    except FileNotFoundError:
        return True


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if parent_of(int(folder.name)) == parent:
                found.append(int(folder.name))
        except OSError:  # ended meanwhile
            continue
    return found


def num_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def strike_draft(supervised: Supervised) -> int:
    pid = supervised.pid("draft0")
    os.kill(pid, signal.SIGKILL)
    return pid


def strike_while_the_forkserver_hangs(supervised: Supervised) -> tuple[int, int]:
    """The forkserver, asked for a draft that it does not fork, and the draft before."""
    (forkserver,) = forkservers(supervised)
    os.kill(forkserver, signal.SIGSTOP)
    first = strike_draft(supervised)
    assert not eventually(lambda: supervised.pid("draft0") != first, 1)
    return forkserver, first


def await_another(supervised: Supervised, old: int) -> int:
    assert eventually(lambda: supervised.pid("draft0") != old, 20)
    return supervised.pid("draft0")


def num_preloads(supervised: Supervised) -> int:
    return supervised.await_file("preloads").count("\n")


def test_what_is_forked_looks_like_what_is_spawned(supervise):
    supervised = supervise(num_ranks=2, num_drafts=1).await_ready()
    (forkserver,) = forkservers(supervised)
    assert words_of(forkserver)[-1] == "warning"  # and no padding
    for name, rank in (("target0", "0"), ("target1", "1"), ("draft0", "0")):
        pid = supervised.pid(name)
        words = words_of(pid)
        assert words[1:4] == ["-P", "-m", f"stand_in_{name[:-1]}"]
        assert words[words.index("--rank") + 1] == rank
        assert words[-2] == ("--ready-fd" if name == "target1" else "--link-fd")
        assert parent_of(pid) == supervised.process.pid
        assert os.getsid(pid) == pid
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
    assert num_preloads(supervised) == 1
    assert supervised.stop() == ""
    assert is_over(forkserver)


def test_a_draft_that_is_started_again_needs_no_second_preload(supervise):
    supervised = supervise(num_drafts=1).await_ready()
    first = strike_draft(supervised)
    second = await_another(supervised, first)
    assert parent_of(second) == supervised.process.pid
    assert num_preloads(supervised) == 1
    supervised.stop()


def test_a_killed_forkserver_takes_nobody_along_and_is_replaced_when_it_is_needed(supervise):
    supervised = supervise(num_drafts=1).await_ready()
    (forkserver,) = forkservers(supervised)
    os.kill(forkserver, signal.SIGKILL)
    assert eventually(lambda: not forkservers(supervised), 20)
    first = strike_draft(supervised)
    second = await_another(supervised, first)
    assert parent_of(second) == supervised.process.pid
    assert len(forkservers(supervised)) == 1
    assert num_preloads(supervised) == 2
    supervised.stop()


def test_what_a_forkserver_had_yet_to_fork_is_started_by_the_next_one(supervise):
    supervised = supervise(num_drafts=1).await_ready()
    forkserver, first = strike_while_the_forkserver_hangs(supervised)
    os.kill(forkserver, signal.SIGKILL)
    await_another(supervised, first)
    supervised.stop()


def test_a_stop_while_a_forkserver_hangs_leaves_nobody(supervise):
    supervised = supervise(num_drafts=1).await_ready()
    forkserver, _ = strike_while_the_forkserver_hangs(supervised)
    assert "did not stop" not in supervised.stop()  # nobody waits for what is not born
    assert is_over(forkserver)


def test_what_is_born_after_its_forkserver_has_ended_does_not_live(supervise, tmp_path):
    (tmp_path / "slow_births").touch()
    supervised = supervise(num_drafts=1).await_ready()
    pid = supervised.process.pid
    before, (forkserver,) = len(children_of(pid)), forkservers(supervised)
    first = strike_draft(supervised)
    assert eventually(lambda: not Path(f"/proc/{first}").exists(), 20)
    assert eventually(lambda: len(children_of(pid)) == before, 20)  # it is there, and has no name
    os.kill(forkserver, signal.SIGKILL)
    second = await_another(supervised, first)
    assert eventually(lambda: len(children_of(pid)) <= before, 20)
    assert eventually(lambda: not any(map(is_over, children_of(pid))), 20)
    assert lives(supervised) == 2
    assert second == supervised.pid("draft0")
    assert "Traceback" not in supervised.stop()


def lives(supervised: Supervised) -> int:
    """Of the draft process."""
    return supervised.await_file("draft0.lives").count("\n")


def test_no_descriptor_and_no_dead_process_is_left_by_any_number_of_starts(supervise):
    supervised = supervise(num_drafts=1).await_ready()
    supervisor, (forkserver,) = supervised.process.pid, forkservers(supervised)
    for _ in range(2):
        await_another(supervised, strike_draft(supervised))
    before = num_descriptors(supervisor), num_descriptors(forkserver), len(children_of(supervisor))
    await_another(supervised, strike_draft(supervised))
    assert eventually(
        lambda: (
            before
            == (
                num_descriptors(supervisor),
                num_descriptors(forkserver),
                len(children_of(supervisor)),
            )
        ),
        5,
    )
    os.kill(forkserver, signal.SIGKILL)
    assert eventually(lambda: not forkservers(supervised), 20)
    await_another(supervised, strike_draft(supervised))
    assert eventually(
        lambda: (num_descriptors(supervisor), len(children_of(supervisor))) == before[::2], 5
    )
    supervised.stop()


def test_a_killed_supervisor_leaves_no_forkserver(supervise):
    supervised = supervise(num_drafts=1).await_ready()
    (forkserver,) = forkservers(supervised)
    supervised.process.kill()
    supervised.process.wait()
    assert eventually(lambda: is_over(forkserver), 20)


@pytest.mark.parametrize(
    ("trouble", "said"), [("fail", "no preload here"), ("no_forks", "no more processes")]
)
def test_a_forkserver_that_is_of_no_use_ends_the_launch(supervise, tmp_path, trouble, said):
    (tmp_path / trouble).touch()
    returncode, stderr = supervise(num_drafts=1).finish()
    assert returncode == 1
    assert said in stderr
    assert "while starting" in stderr.splitlines()[-1]
