"""What supervisors on several machines hear of each other, over real connections."""

import logging
import math
import selectors
import time
from collections.abc import Callable, Iterator

import pytest

from specserve.errors import Unavailable
from specserve.processes.hosts import leader as leader_module
from specserve.processes.hosts import links as links_module
from specserve.processes.hosts.links import BEAT_S, HostLinks
from specserve.processes.hosts.meeting import Meeting
from specserve.processes.hosts.member import Member
from specserve.processes.hosts.messages import Answer, Arrived
from specserve.processes.roster import ChildState
from specserve.processes.supervised_events import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_REFUSED,
    Ending,
    HostEnded,
    HostReady,
    ServiceEnded,
    StopRequested,
)
from tests.specserve.processes.hosts.machines import TOKEN, Machines, facts_of, raw_lines

DRAFT = ChildState(role="draft", rank=0, name="draft process 0", pid=7, state="ready", detail="")


@pytest.fixture
def machines() -> Iterator[Callable[..., Machines]]:
    made: list[Machines] = []

    def make(*roles: str, **settings: float) -> Machines:
        made.append(Machines(*(roles or ("target", "target", "draft")), **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def is_connected(made: Machines, rank: int) -> bool:
    return made.leader.peers[rank - 1].lines is not None


def test_one_machine_alone_has_nobody_to_hear_of():
    alone = HostLinks()
    alone.tell_failed("x")
    alone.tell_ending(Ending(EXIT_OK))
    assert alone.due(0.0) == float("inf")
    assert (alone.leads, alone.unready, list(alone.events)) == (True, set(), [])
    assert alone.ask_to_stop(15)
    alone.close()


def test_all_are_ready_once_all_have_said_so(machines):
    made = machines()
    names = {"node 1 (127.0.0.1)", "node 2 (127.0.0.1)"}
    assert made.leader.unready == names
    assert made.members[1].unready == set()  # node 0 says nothing of the kind
    for member in made.members.values():
        member.tell_ready()
    made.until(lambda: not made.leader.unready)
    assert {event.name for event in made.leader.events} == names
    assert all(isinstance(event, HostReady) for event in made.leader.events)


def test_an_end_of_the_connection_is_an_end_of_the_machine_at_once(machines):
    made = machines()
    made.until(lambda: is_connected(made, 1) and is_connected(made, 2))
    for rank, is_needed in ((1, True), (2, False)):
        made.members[rank].close()
        made.until(lambda: made.leader.events, made.leader)
        lost = made.leader.events.pop()
        assert isinstance(lost, HostEnded)
        assert (lost.name, lost.is_needed) == (f"node {rank} (127.0.0.1)", is_needed)
        assert "is gone: its launch or the connection to it has ended" in lost.describe_end()


def test_silence_is_warned_of_within_a_second_and_ends_after_the_timeout(machines, caplog):
    made = machines("target", "target", timeout_s=1.5)
    made.until(lambda: made.leader.peers[0].is_heard)
    caplog.clear()
    since_s = time.monotonic()
    made.until(lambda: caplog.records, made.leader)  # node 1 says nothing meanwhile
    assert "node 1 (127.0.0.1) has been silent for 0.8 s" in caplog.text
    assert not made.leader.events
    made.until(lambda: made.leader.events, made.leader)
    assert time.monotonic() - since_s > 1.4
    (lost,) = made.leader.events
    assert isinstance(lost, HostEnded)
    assert lost.detail.endswith("has been silent for 1.5 s (topology.node_timeout_s)")


def test_a_pause_of_this_machine_is_not_taken_for_silence_of_others(machines):
    made = machines("target", "target", timeout_s=1.0)
    made.until(lambda: made.leader.peers[0].is_heard)
    for _ in range(3):
        time.sleep(1.2)  # as if it had been stopped
        made.leader.due(time.monotonic())
        made.turn()
    assert not made.leader.events
    assert is_connected(made, 1)


def test_one_that_is_heard_again_is_told_of(machines, caplog):
    made = machines("target", "target")
    made.until(lambda: made.leader.peers[0].is_heard)
    with caplog.at_level(logging.WARNING):
        made.until(lambda: "silent" in caplog.text, made.leader)
        made.until(lambda: "node 1 (127.0.0.1) is heard again" in caplog.text)
    assert not made.leader.events


def test_one_that_came_and_never_connects_is_lost(machines, monkeypatch):
    monkeypatch.setattr(links_module, "_START_BEATS", 3)
    made = machines("target")
    made.leader.peers.append(links_module.Peer(facts_of(1)))
    made.until(lambda: made.leader.events, made.leader)
    assert "came, and has said nothing for 1 s" in made.leader.events[0].detail


def test_the_cause_is_told_to_all_with_the_machine_where_it_began(machines):
    made = machines()
    made.until(lambda: is_connected(made, 1) and is_connected(made, 2))
    made.members[1].tell_failed("target rank 1 was killed by SIGKILL", is_consequence=True)
    made.until(lambda: made.leader.events)
    told = made.leader.events.popleft()
    assert isinstance(told, HostEnded)
    assert told.is_consequence
    assert told.detail == "node 1 (127.0.0.1): target rank 1 was killed by SIGKILL"
    made.leader.tell_failed(told.detail, is_here=False)
    made.until(lambda: made.members[1].events and made.members[2].events)
    for member in made.members.values():
        (event,) = member.events
        assert isinstance(event, HostEnded)
        assert (event.detail, event.is_needed) == (told.detail, True)
    made.leader.close()
    made.until(lambda: made.members[2].peers[0].is_gone, made.members[2])
    assert len(made.members[2].events) == 1  # it had said why


@pytest.mark.parametrize(
    ("ending", "is_refusal"),
    [
        (Ending(EXIT_FAILED, "broken", "UNAVAILABLE"), False),
        (Ending(EXIT_REFUSED, "no", "X"), True),
    ],
)
def test_how_a_launch_ends_is_told_unless_it_was(machines, ending, is_refusal):
    made = machines("target", "target")
    made.until(lambda: is_connected(made, 1))
    made.members[1].tell_ending(ending)
    made.until(lambda: made.leader.events)
    (event,) = made.leader.events
    assert isinstance(event, HostEnded)
    assert event.detail == f"node 1 (127.0.0.1): {ending.error}"
    assert (event.code, event.is_refusal) == (ending.code, is_refusal)
    made.members[1].tell_ending(ending)
    made.turn()
    assert len(made.leader.events) == 1


def test_a_clean_end_of_the_service_is_no_loss(machines):
    made = machines()
    made.until(lambda: is_connected(made, 1) and is_connected(made, 2))
    made.leader.tell_end()
    made.leader.tell_ending(Ending(EXIT_OK))  # says nothing new
    made.until(lambda: made.members[1].events and made.members[2].events)
    assert list(made.members[1].events) == [ServiceEnded(is_cut=False)]
    for member in made.members.values():
        member.close()
    made.until(lambda: all(peer.is_gone for peer in made.leader.peers), made.leader)
    assert not made.leader.events


def test_last_words_are_read_where_nothing_can_be_said_any_more(machines):
    made = machines("target", "target")
    made.until(lambda: is_connected(made, 1))
    member = made.members[1]
    made.leader.tell_end()
    made.leader.close()

    def speak() -> bool:  # as one whose supervisor has yet to look
        member.due(math.inf)
        member._next_beat_s = -math.inf
        return member.peers[0].is_gone

    deadline_s = time.monotonic() + 20
    while not speak():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert list(member.events) == [ServiceEnded(is_cut=False)]


def test_an_end_without_a_drain_is_told_as_one_that_is_cut(machines):
    made = machines("target", "target")
    made.until(lambda: is_connected(made, 1))
    made.leader.tell_ending(Ending(EXIT_OK))
    made.until(lambda: made.members[1].events)
    assert list(made.members[1].events) == [ServiceEnded(is_cut=True)]


@pytest.mark.parametrize("stop", [SystemExit(0), KeyboardInterrupt()])
@pytest.mark.parametrize("is_told", ["leader", "member"])
def test_a_stop_before_there_is_a_supervisor_is_told_as_one_and_no_loss(machines, is_told, stop):
    made = machines("target", "target")
    made.until(lambda: is_connected(made, 1))
    meeting = Meeting()
    meeting.links = made.leader if is_told == "leader" else made.members[1]
    meeting.__exit__(type(stop), stop, None)
    other = made.members[1] if is_told == "leader" else made.leader
    made.until(lambda: other.peers[0].is_gone, other)
    end = ServiceEnded(is_cut=True) if is_told == "leader" else StopRequested(15)
    assert next(iter(other.events)) == end


def test_a_stop_of_a_machine_with_ranks_is_one_of_the_service(machines, caplog):
    made = machines()
    made.until(lambda: is_connected(made, 1) and is_connected(made, 2))
    assert not made.members[1].ask_to_stop(15)
    made.until(lambda: made.leader.events)
    assert list(made.leader.events) == [StopRequested(15)]
    made.leader.events.clear()
    with caplog.at_level(logging.WARNING):
        assert made.members[2].ask_to_stop(15)  # drafts alone: it may go by itself
        made.members[2].close()
        made.until(lambda: made.leader.peers[1].is_gone, made.leader)
    assert "node 2 (127.0.0.1) leaves" in caplog.text
    assert not made.leader.events
    assert made.leader.ask_to_stop(15)


def test_states_of_processes_are_shown_as_they_were_until_their_machine_is_gone(machines):
    made = machines("target", "draft")
    made.members[1].tell_states([DRAFT])
    made.until(made.leader.other_states)
    assert made.leader.other_states() == [DRAFT]
    made.members[1].close()
    made.until(lambda: made.leader.peers[0].is_gone, made.leader)
    (state,) = made.leader.other_states()
    assert (state.state, state.pid, state.detail) == ("ended", 0, "node 1 (127.0.0.1) is gone")


@pytest.mark.parametrize(
    "lines",
    [
        [b"\xff\xff"],
        [b'{"type": "ready"}'],
        [b'{"type": "hello", "node_rank": 1, "token": "another"}'],
        [b'{"type": "hello", "node_rank": 7, "token": "token"}'],
        [b'{"type": "hello", "node_rank": 1}'],
        [b"x" * (1 << 21)],
    ],
)
def test_a_stranger_is_sent_away_and_changes_nothing(machines, lines):
    made = machines("target", "target")
    made.until(lambda: is_connected(made, 1))
    with raw_lines(made.facts[0].supervisor_port) as stranger:
        stranger.setblocking(False)
        data = b"".join(line + b"\n" for line in lines)

        def say() -> bool:
            nonlocal data
            try:
                data = data[stranger.send(data) :]
            except OSError:  # nobody reads it now, or ever
                return not made.leader._strangers
            return not data

        made.turn()
        made.until(say)
        made.until(lambda: not made.leader._strangers)
    assert is_connected(made, 1)
    assert not made.leader.events


def test_strangers_that_say_nothing_push_out_nobody_who_has_said_who_it_is(machines):
    made = machines("target", "target")
    crowd = [raw_lines(made.facts[0].supervisor_port) for _ in range(leader_module._MOST_STRANGERS)]
    for _ in range(3):
        made.leader.read(made.leader._listener)  # all are taken in before anybody is heard
    assert is_connected(made, 1)
    for stranger in crowd:
        stranger.close()
    made.until(lambda: not made.leader._strangers)


# --- who comes late --------------------------------------------------------------------------


def come(made: Machines, rank: int, address: str = "127.0.0.1", **agreed: str) -> Answer:
    made.process.far.send(Arrived(visit="v", facts=facts_of(rank, address=address, **agreed)))
    answers: list = []
    made.until(lambda: answers.extend(made.process.far.receive()) or answers)
    (answer,) = answers
    assert answer.visit == "v"
    return answer


def test_one_with_drafts_alone_may_come_back(machines, caplog):
    made = machines("target", "draft")
    made.until(lambda: is_connected(made, 1))
    made.members[1].close()
    made.until(lambda: made.leader.peers[0].is_gone, made.leader)
    made.leader.events.clear()
    answer = come(made, 1, "127.0.0.9")
    assert (answer.error, answer.token) == ("", TOKEN)
    assert [facts.address for facts in answer.facts] == ["127.0.0.1", "127.0.0.9"]
    with caplog.at_level(logging.INFO):
        made.members[1] = made.join(1)
        made.until(lambda: is_connected(made, 1))
    assert "node 1 (127.0.0.9) is back" in caplog.text
    made.members[1].tell_ready()
    made.until(lambda: made.leader.events)
    assert list(made.leader.events) == [HostReady(name="node 1 (127.0.0.9)")]


def test_one_that_is_started_again_on_its_machine_is_told_to_the_earlier_launch(machines):
    made = machines("target", "draft")
    made.until(lambda: is_connected(made, 1))
    earlier, made.members[1] = made.members[1], made.join(1)
    made.until(lambda: earlier.events, earlier, made.leader, made.members[1])
    (ended,) = earlier.events
    assert isinstance(ended, HostEnded)
    assert ended.detail.startswith("node 1 (127.0.0.1) was started again, and the later launch has")
    assert is_connected(made, 1)
    assert not made.leader.events
    earlier.close()


def test_one_with_ranks_cannot_be_replaced(machines):
    answer = come(machines("target", "target"), 1)
    assert answer.code == "FAILED_PRECONDITION"
    assert "the service runs with node 1, which cannot be replaced" in answer.error
    assert "end it and start every node anew" in answer.error


def test_a_second_one_of_a_rank_is_refused_while_the_first_is_there(machines):
    made = machines("target", "draft")
    made.until(lambda: is_connected(made, 1))
    answer = come(made, 1, "127.0.0.9")
    assert answer.error.startswith("topology.node_rank: 1 is that of 127.0.0.1, which is there; ")


def test_one_that_goes_by_other_settings_is_refused(machines):
    made = machines("target", "draft")
    answer = come(made, 1, **{"model.dtype": "float16"})
    assert answer.error.startswith("model.dtype: float16 on node 1 (127.0.0.1), not set on node 0")


def test_without_the_process_that_meets_nobody_can_come_back(machines, caplog):
    made = machines("target", "draft")
    selector = selectors.DefaultSelector()
    made.leader.watch(selector)
    made.process.far.close()
    made.leader.read(made.process.lines.sock)
    assert "no node can come back" in caplog.text
    assert made.process.lines.sock not in selector.get_map()
    selector.close()


def test_a_node_0_that_has_ended_is_told_by_who_connects(machines):
    made = machines("target", "draft")
    made.leader.close()
    with pytest.raises(Unavailable, match=r"node 0 \(127\.0\.0\.1\) cannot be reached at port"):
        Member(made.facts, 1.0, 1, TOKEN)


def test_beats_are_often_enough_for_a_warning_within_a_second():
    assert links_module._WARN_BEATS * BEAT_S < 1
