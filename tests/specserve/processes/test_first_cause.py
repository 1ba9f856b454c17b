"""Where several processes end for one reason, a launch names what came first."""

import os
import signal
import time

import pytest

pytestmark = pytest.mark.slow


def last_line(supervised) -> str:
    returncode, stderr = supervised.finish()
    assert returncode == 1
    assert supervised.alive() == []
    return stderr.splitlines()[-1].removeprefix("specserve: ")


def await_end(supervised, name: str) -> None:
    deadline = time.monotonic() + 20
    while name in supervised.alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("complainer", ["api", "target0"])
def test_a_stopped_rank_is_named_and_not_who_waits_for_it(supervise, complainer):
    supervised = supervise(**{complainer: "bereft"}).await_ready()
    os.kill(supervised.pid("target1"), signal.SIGSTOP)
    (supervised.folder / "bereave").touch()
    cause = f"target rank 1 stopped by a signal: {complainer} is alone"
    assert last_line(supervised) == f"{cause}; the service has stopped"


def test_of_deaths_seen_at_once_the_cause_is_named(supervise):
    supervised = supervise(target0="bereft").await_ready()
    supervised.process.send_signal(signal.SIGSTOP)  # it sees both in one look
    os.kill(supervised.pid("target1"), signal.SIGKILL)
    (supervised.folder / "bereave").touch()
    await_end(supervised, "target0")
    await_end(supervised, "target1")
    supervised.process.send_signal(signal.SIGCONT)
    cause = "target rank 1 was killed by SIGKILL"
    assert last_line(supervised) == f"{cause}; the service has stopped"


@pytest.mark.parametrize("bereft", ["api", "target0"])
def test_a_cause_that_is_seen_later_is_named(supervise, bereft):
    """A process that holds a device may take longer to end than those that miss it."""
    supervised = supervise(**{bereft: "bereft"}).await_ready()
    (supervised.folder / "bereave").touch()
    await_end(supervised, bereft)
    time.sleep(0.3)
    os.kill(supervised.pid("target1"), signal.SIGKILL)
    cause = "target rank 1 was killed by SIGKILL"
    assert last_line(supervised) == f"{cause}; the service has stopped"
    if bereft != "api":
        assert cause in supervised.await_file("api.heard")


@pytest.mark.parametrize("is_seen", ["at_once", "later"])
def test_a_cause_that_is_only_told_is_named(supervise, is_seen):
    """Who gives up may take minutes to let go of a device: its word is enough."""
    supervised = supervise(target0="bereft_lingering", target1="fail_lingering").await_ready()
    if is_seen == "at_once":
        supervised.process.send_signal(signal.SIGSTOP)
    (supervised.folder / "bereave").touch()
    supervised.await_file("target0.spoken")  # before the one that it suffers from
    (supervised.folder / "fail").touch()
    if is_seen == "at_once":
        supervised.await_file("target1.spoken")
        supervised.process.send_signal(signal.SIGCONT)
    cause = "target1 failed: out of memory"
    assert last_line(supervised) == f"{cause}; the service has stopped"
    assert cause in supervised.await_file("api.heard")


def test_a_cause_told_earlier_in_a_drain_is_named(supervise):
    supervised = supervise(api="bereft_draining", target1="fail_lingering").await_ready()
    os.kill(supervised.pid("api"), signal.SIGSTOP)
    supervised.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    (supervised.folder / "fail").touch()
    supervised.await_file("target1.spoken")
    time.sleep(0.3)
    os.kill(supervised.pid("api"), signal.SIGCONT)
    assert last_line(supervised) == "target1 failed: out of memory; the service has stopped"


def test_without_another_cause_a_process_is_taken_at_its_word(supervise):
    supervised = supervise(api="bereft").await_ready()
    (supervised.folder / "bereave").touch()
    assert last_line(supervised) == "api is alone; the service has stopped"


def test_who_fails_during_a_drain_ends_it(supervise):
    """Nobody is left to wait for, and the stopped rank would not hear of it."""
    supervised = supervise(api="bereft_draining").await_ready()
    os.kill(supervised.pid("target0"), signal.SIGSTOP)
    began = time.monotonic()
    supervised.process.send_signal(signal.SIGTERM)
    cause = "target rank 0 stopped by a signal: api is alone"
    assert last_line(supervised) == f"{cause}; the service has stopped"
    assert time.monotonic() - began < 8  # a rank has 10 s to stop


def test_who_ends_as_it_was_told_is_no_cause(supervise):
    supervised = supervise(target0="bereft_leaving", target1="linger").await_ready()
    supervised.process.send_signal(signal.SIGTERM)
    supervised.await_file("target0.leaving")
    supervised.await_file("target1.leaving")
    (supervised.folder / "bereave").touch()
    await_end(supervised, "target0")
    time.sleep(0.2)
    (supervised.folder / "leave").touch()
    assert last_line(supervised) == "target0 is alone; the service has stopped"


def test_of_ranks_that_end_in_one_look_of_a_drain_who_failed_is_named(supervise):
    """Nobody of the group is left then, which must not be taken for a clean end."""
    supervised = supervise(target0="bereft_leaving", target1="linger").await_ready()
    supervised.process.send_signal(signal.SIGTERM)
    supervised.await_file("target0.leaving")
    supervised.await_file("target1.leaving")
    supervised.process.send_signal(signal.SIGSTOP)
    (supervised.folder / "bereave").touch()
    (supervised.folder / "leave").touch()
    for name in ("target0", "target1"):
        await_end(supervised, name)
    supervised.process.send_signal(signal.SIGCONT)
    assert last_line(supervised) == "target0 is alone; the service has stopped"


def test_a_draft_process_that_ends_meanwhile_is_no_cause(supervise):
    supervised = supervise(num_drafts=1, target0="bereft_lingering").await_ready()
    supervised.process.send_signal(signal.SIGSTOP)
    (supervised.folder / "bereave").touch()
    supervised.await_file("target0.spoken")
    supervised.process.send_signal(signal.SIGCONT)
    time.sleep(0.3)  # nothing is started again from here on
    os.kill(supervised.pid("draft0"), signal.SIGKILL)
    assert last_line(supervised) == "target0 is alone; the service has stopped"


def test_who_gives_up_need_not_be_gone(supervise):
    supervised = supervise(target0="bereft_lingering").await_ready()
    os.kill(supervised.pid("target1"), signal.SIGSTOP)
    (supervised.folder / "bereave").touch()
    cause = "target rank 1 stopped by a signal: target0 is alone"
    assert last_line(supervised) == f"{cause}; the service has stopped"
    assert cause in supervised.await_file("api.heard")


def test_a_stop_that_takes_effect_later_is_seen(supervise):
    supervised = supervise(target0="bereft_lingering").await_ready()
    (supervised.folder / "bereave").touch()
    supervised.await_file("target0.spoken")
    time.sleep(0.3)
    os.kill(supervised.pid("target1"), signal.SIGSTOP)
    cause = "target rank 1 stopped by a signal: target0 is alone"
    assert last_line(supervised) == f"{cause}; the service has stopped"


def test_the_cause_of_a_bad_start_is_named(supervise):
    supervised = supervise(target0="bereft_starting", target1="crash_starting_late")
    assert last_line(supervised) == "target rank 1 was killed by SIGKILL while starting"


def test_a_start_that_fails_for_no_other_reason_is_taken_at_its_word(supervise):
    supervised = supervise(target0="bereft_starting", target1="hang_starting")
    assert supervised.finish() == (2, "specserve: target0 is alone\n")
