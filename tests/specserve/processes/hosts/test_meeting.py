"""How machines come together: in a real store, and on node 0 one that comes after the other."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from specserve.errors import InvalidField, SpecserveError, Unavailable
from specserve.processes.hosts import store as store_module
from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.meeting import Meeting, _gather
from specserve.processes.hosts.messages import (
    Answer,
    Arrived,
    Broken,
    FromMeeting,
    Meet,
    ToMeeting,
)
from specserve.processes.hosts.rendezvous import RendezvousProcess
from specserve.settings.config import TopologyConfig
from specserve.settings.hosts import Place
from tests.specserve.processes.hosts.machines import MACHINE, MetByHand, facts_of

HOST = "127.0.0.2"
# By visit, what no launch says; a line of it that node 0 could not read would end the meeting.
STRAY = {
    "a" * 16: "{",
    "b" * 16: msgspec.json.encode(facts_of(9, x="y" * 5000)).decode(),
    "c" * 16: msgspec.json.encode(facts_of(9, address="x\x1b[2J")).decode(),
    "d" * 16: msgspec.json.encode(facts_of(-1)).decode(),
    "e" * 16: " " * (1 << 20),
    "7" * 100: msgspec.json.encode(facts_of(9)).decode(),
}


def wish(nnodes: int = 3, timeout_s: float = 20.0, **fields) -> TopologyConfig:
    return TopologyConfig(
        nnodes=nnodes, rendezvous=f"{HOST}:1", rendezvous_timeout_s=timeout_s, **fields
    )


def in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Begun; the call waits for what it returns, or raises what it raised."""
    results: queue.SimpleQueue = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((function(), None))
        except BaseException as error:  # noqa: BLE001
            results.put((None, error))

    threading.Thread(target=run, daemon=True).start()

    def result() -> object:
        found, error = results.get(timeout=60)
        if error is not None:
            raise error
        return found

    return result


# --- on node 0 -------------------------------------------------------------------------------


@pytest.fixture
def by_hand() -> Iterator[MetByHand]:
    made = MetByHand()
    yield made
    made.close()


def answers(process: MetByHand, count: int) -> dict[str, Answer]:
    found: list = []
    while len(found) < count:
        assert process.far.wait(20)
        found += process.far.receive()
    return {answer.visit: answer for answer in found}


def come(process: MetByHand, visit: str, rank: int, address: str = "127.0.0.1", **agreed) -> None:
    process.far.send(Arrived(visit=visit, facts=facts_of(rank, address=address, **agreed)))


def test_all_are_answered_once_all_are_there(by_hand: MetByHand):
    gathered = in_thread(lambda: _gather(by_hand, wish(), facts_of(0), "token"))
    come(by_hand, "b", 2)
    assert not by_hand.far.wait(0.3)
    come(by_hand, "a", 1)
    found = answers(by_hand, 2)
    facts = gathered()
    assert [each.node_rank for each in facts] == [0, 1, 2]
    for answer in found.values():
        assert (answer.facts, answer.token, answer.error) == (facts, "token", "")


def test_who_is_refused_may_come_again_with_better_settings(by_hand: MetByHand, caplog):
    gathered = in_thread(lambda: _gather(by_hand, wish(2), facts_of(0, x="1"), "token"))
    come(by_hand, "a", 1, x="2")
    refused = answers(by_hand, 1)["a"]
    assert refused.code == InvalidField.code
    assert refused.error.startswith("x: 2 on node 1 (127.0.0.1), 1 on node 0 (127.0.0.1); ")
    assert "node 1 (127.0.0.1) is refused: x: " in caplog.text
    come(by_hand, "b", 1, x="1")
    assert answers(by_hand, 1)["b"].error == ""
    gathered()


def test_a_rank_is_that_of_one_machine(by_hand: MetByHand):
    gathered = in_thread(lambda: _gather(by_hand, wish(), facts_of(0), "token"))
    come(by_hand, "a", 1, "10.0.0.2")
    come(by_hand, "b", 1, "10.0.0.3")
    come(by_hand, "c", 0, "10.0.0.3")
    found = answers(by_hand, 2)
    for visit, rank, taken in (("b", 1, "10.0.0.2"), ("c", 0, "127.0.0.1")):
        problem = f"topology.node_rank: {rank} is that of {taken} already, not of 10.0.0.3, too"
        assert found[visit].error == f"{problem}; type another one"
    come(by_hand, "d", 1, "10.0.0.2")  # started again: the later one is there
    found = answers(by_hand, 1)  # where the earlier one is, too, it does not wait in vain
    assert found["a"].error.startswith("topology.node_rank: 1 was taken over by a later launch on")
    come(by_hand, "e", 2, "10.0.0.3")
    assert set(answers(by_hand, 2)) == {"d", "e"}
    gathered()


def test_nobody_takes_a_rank_that_is_none_or_that_of_node_0(by_hand: MetByHand):
    gathered = in_thread(lambda: _gather(by_hand, wish(2), facts_of(0), "token"))
    come(by_hand, "a", 2)
    come(by_hand, "b", 0)
    found = answers(by_hand, 2)
    assert found["a"].error == "topology.node_rank: 2 is not below topology.nnodes, 2"
    assert found["b"].error.startswith("topology.node_rank: 0 is that of 127.0.0.1 already")
    come(by_hand, "c", 1)
    assert answers(by_hand, 1)["c"].error == ""
    assert [each.supervisor_port for each in gathered()] == [0, 0]


def test_who_does_not_come_is_named_to_all_that_have(by_hand: MetByHand):
    gathered = in_thread(lambda: _gather(by_hand, wish(4, 1.0), facts_of(0), "token"))
    come(by_hand, "a", 2)
    told = "topology.rendezvous: node 1 and node 3 did not come within 1 s"
    answer = answers(by_hand, 1)["a"]
    assert (answer.code, answer.error.startswith(told)) == ("UNAVAILABLE", True)
    with pytest.raises(Unavailable) as caught:
        gathered()
    assert str(caught.value).startswith(told)
    assert "start it with the same --rendezvous and its own --node-rank" in str(caught.value)


def test_without_its_process_nobody_is_met(by_hand: MetByHand):
    gathered = in_thread(lambda: _gather(by_hand, wish(), facts_of(0), "token"))
    by_hand.far.send(Broken(error="no network"))
    with pytest.raises(Unavailable, match=r"topology\.rendezvous: no network"):
        gathered()


# --- in the store ----------------------------------------------------------------------------


class Side:
    """A process that meets, as a thread, and its launch."""

    def __init__(self, meet: Meet, listener: socket.socket | None = None) -> None:
        near, far = socket.socketpair()
        self.lines: Lines[FromMeeting] = Lines(near, msgspec.json.Decoder(FromMeeting))
        self._far = Lines(far, msgspec.json.Decoder(ToMeeting))
        if listener is not None:
            store = store_module.open_store(meet, listener.detach())
            self.done = in_thread(lambda: store_module.hold(self._far, store))
        else:
            assert meet.facts is not None
            facts = meet.facts
            self.done = in_thread(
                lambda: self._far.send(store_module.ask(store_module.open_store(meet), facts))
            )

    def close(self) -> None:
        self.lines.close()
        self.done()
        self._far.close()

    def hear(self) -> FromMeeting:
        deadline_s = time.monotonic() + 20
        while not (messages := self.lines.receive()):
            assert time.monotonic() < deadline_s
            self.lines.wait(0.1)
        (message,) = messages
        return message


def test_what_is_said_in_the_store_reaches_node_0_and_its_answer_whom_it_is_for():
    listener = socket.create_server((HOST, 0))
    place = {"host": HOST, "port": listener.getsockname()[1], "timeout_s": 20.0}
    first = Side(Meet(**place), listener)
    sides = [Side(Meet(**place, facts=facts_of(rank))) for rank in (1, 2)]
    arrived = [first.hear(), first.hear()]
    assert {each.facts.node_rank for each in arrived} == {1, 2}
    # Somebody else's line, and one that leads nowhere, are no arrivals.
    stray = store_module.open_store(Meet(**place, facts=facts_of(3)))
    for visit, said in STRAY.items():
        stray.set(f"facts/{visit}", said)
        stray.append(store_module.VISITS, f"{visit}\n\n")
    stray.append(store_module.VISITS, f"{'f' * 16}\n")
    for each in arrived:
        rank = each.facts.node_rank
        first.lines.send(Answer(visit=each.visit, token=str(rank)))
    for rank, side in zip((1, 2), sides, strict=True):
        answer = side.hear()
        assert isinstance(answer, Answer)
        assert answer.token == str(rank)
    assert not first.lines.wait(0.3)
    for side in (*sides, first):
        side.close()


# --- as launches do it -----------------------------------------------------------------------


@pytest.mark.slow
def test_launches_meet_and_hear_of_each_other(caplog):
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]

    def attend(rank: int, nnodes: int = 2) -> Meeting:
        meeting = Meeting()
        topology = TopologyConfig(
            nnodes=nnodes,
            node_rank=rank,
            rendezvous=f"{HOST}:{port}",
            rendezvous_timeout_s=60,
        )
        try:
            meeting.attend(topology, MACHINE, {"topology.nnodes": str(nnodes)})
        except SpecserveError as error:
            meeting.__exit__(type(error), error, None)
            raise
        return meeting

    def come() -> Meeting:
        with pytest.raises(InvalidField) as caught:
            attend(1, nnodes=3)
        assert caught.value.field == "topology.nnodes"
        assert "3 on node 1 (127.0.0.1), 2 on node 0 (127.0.0.2)" in caught.value.problem
        return attend(1)

    coming = in_thread(come)
    with attend(0) as leading, coming() as second:
        assert [each.address for each in second.links.facts] == [HOST, "127.0.0.1"]
        assert (leading.links.leads, second.links.leads) == (True, False)
        assert leading.links.unready == {"node 1 (127.0.0.1)"}
        leading.links.tell_failed("broken")
        deadline_s = time.monotonic() + 20
        while not second.links.events and time.monotonic() < deadline_s:
            second.links.read(second.links.peers[0].lines.sock)
        assert second.links.events[0].detail == "node 0 (127.0.0.2): broken"


@pytest.mark.slow
def test_a_node_0_that_is_not_there_is_told_with_what_to_type():
    meeting = Meeting()
    topology = TopologyConfig(nnodes=2, node_rank=1, rendezvous=f"{HOST}:9", rendezvous_timeout_s=1)
    with pytest.raises(Unavailable) as caught:
        meeting.attend(topology, MACHINE, {})
    assert str(caught.value).startswith(f"topology.rendezvous: node 0 was not met at {HOST}:9, ")
    assert "start it, or correct --rendezvous" in str(caught.value)
    assert "timed out after 1000ms" in str(caught.value)


def test_a_place_in_use_is_refused_before_a_process_is_started():
    with socket.create_server((HOST, 0)) as taken:
        place = Place(HOST, HOST, taken.getsockname()[1], socket.AF_INET)
        with pytest.raises(InvalidField, match=r"node 0 cannot listen on 127\.0\.0\.2"):
            RendezvousProcess(place, 1.0, facts_of(0))
