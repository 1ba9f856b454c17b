"""Draft nodes that nobody here has started: who gets a lane, who is refused, and for how long."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import msgspec
import pytest

from specserve.transport.control.draft_control import Attach, Attached, Detached, Refused, Wanted
from specserve.transport.network_link import hub as hub_module
from specserve.transport.network_link.connection import TargetConnection, ToldWords
from specserve.transport.network_link.open_hub import OpenDraftHub
from specserve.transport.network_link.wire import identity_of
from tests.specserve.transport.network_link.test_network_link import eventually

SILENCE_S = 0.3
ATTACHED = Attached(epoch=3, vocab_size=9, max_positions=9, max_rows=9, max_kept=9)


class Visitor:
    """A draft node's connection, and what it has been told."""

    def __init__(
        self, hub: OpenDraftHub, pid: int = 7, model: str = "ours", name: bytes | None = None
    ) -> None:
        self.connection = TargetConnection(name or os.urandom(8), lambda: hub.place)
        self.own = SimpleNamespace(heartbeat_ns=0, draft_pid=0, draft_epoch=0)
        self.words = ToldWords(self.own, self.connection)
        self.told: list = []
        self._attach = Attach(
            draft=0, pid=pid, drafter="any", gamma=2, feature_size=0, agreed={"model": model}
        )

    def ask(self) -> None:
        self.words.draft_pid = self._attach.pid
        self.connection.send(self._attach)
        self.told += self.connection.receive()

    def beat(self) -> None:
        self.words.heartbeat_ns = time.monotonic_ns()
        self.told += self.connection.receive()

    def close(self) -> None:
        self.connection.close()


class Hub:
    """A target with room for some, and whoever comes."""

    def __init__(self) -> None:
        self.hub = OpenDraftHub("127.0.0.1", 0, 2, self._objection, silence_s=SILENCE_S)
        self.visitors: list[Visitor] = []

    @staticmethod
    def _objection(attach: Attach) -> str | None:
        return None if attach.agreed == {"model": "ours"} else "model: another one"

    def visitor(self, **fields) -> Visitor:
        self.visitors.append(Visitor(self.hub, **fields))
        return self.visitors[-1]

    def heard(self, draft: int) -> list:
        return self.hub.lanes[draft].receive()

    def until(self, happens: Callable[[], object], *asking: Visitor) -> None:
        def once() -> object:
            for each in asking:
                each.ask()
            self.hub.pump()
            return happens()

        assert eventually(once)


@pytest.fixture
def rig() -> Iterator[Hub]:
    made = Hub()
    yield made
    for each in made.visitors:
        each.close()
    made.hub.close()


def pids(rig: Hub) -> list[int]:
    return [lane.draft_pid for lane in rig.hub.lanes.values()]


def test_each_gets_a_lane_and_speaks_by_its_number(rig: Hub):
    first, second = rig.visitor(pid=11), rig.visitor(pid=12)
    rig.until(lambda: 11 in pids(rig), first)
    rig.until(lambda: 12 in pids(rig), second)
    lanes = {lane.draft_pid: draft for draft, lane in rig.hub.lanes.items()}
    for visitor, draft in ((first, lanes[11]), (second, lanes[12])):
        attach = rig.heard(draft)[0]
        assert (attach.draft, attach.pid) == (draft, visitor._attach.pid)
        wanted = Wanted(draft=0, epoch=3, stream=1, start=0)
        assert visitor.connection.send(wanted)
        found: list = []
        rig.until(lambda found=found, draft=draft: found.extend(rig.heard(draft)) or found)
        assert found[-1].draft == draft
        assert rig.hub.lanes[draft].send(ATTACHED)
        rig.until(lambda visitor=visitor: (visitor.beat(), ATTACHED in visitor.told)[1])


def test_one_that_differs_is_told_what_in_and_takes_no_room(rig: Hub):
    other = rig.visitor(model="theirs")
    rig.until(lambda: other.told, other)
    assert set(map(type, other.told)) == {Refused}
    assert (other.told[0].problem, other.told[0].may_pass) == ("model: another one", False)
    assert pids(rig) == [0, 0]


def test_without_room_one_is_told_so_until_another_is_silent(rig: Hub):
    first, second, third = (rig.visitor(pid=pid) for pid in (11, 12, 13))
    rig.until(lambda: 11 in pids(rig), first)
    rig.until(lambda: 12 in pids(rig), second)

    def both_beat() -> None:
        first.beat()
        second.beat()

    rig.until(lambda: (both_beat(), third.told)[1], third)
    refused = third.told[0]
    assert refused.may_pass
    assert "topology.topology: this target has room for 2" in refused.problem
    began_s = time.monotonic()
    rig.until(lambda: (second.beat(), 13 in pids(rig))[1], third)
    assert time.monotonic() - began_s > 0.5 * SILENCE_S
    assert sorted(pids(rig)) == [12, 13]


def test_one_that_leaves_makes_room_at_once(rig: Hub):
    first, second, third = (rig.visitor(pid=pid) for pid in (11, 12, 13))
    rig.until(lambda: 11 in pids(rig), first)
    rig.until(lambda: 12 in pids(rig), second)
    first.words.draft_pid = 0
    rig.until(lambda: (second.beat(), 13 in pids(rig))[1], third)
    assert sorted(pids(rig)) == [12, 13]


def test_one_whose_lane_was_given_away_is_told_to_come_anew(rig: Hub):
    first, second, third = (rig.visitor(pid=pid) for pid in (11, 12, 13))
    rig.until(lambda: 11 in pids(rig), first)
    rig.until(lambda: 12 in pids(rig), second)
    first.words.draft_epoch = 1  # it was attached, and then stood still
    rig.until(lambda: (second.beat(), 13 in pids(rig))[1], third)
    rig.until(lambda: (first.beat(), Detached() in first.told)[1])


def test_nobody_gets_a_lane_by_knowing_its_number(rig: Hub):
    """As drafts of a launch have theirs: what it goes by would not be asked."""
    strangers = [rig.visitor(model="theirs", name=identity_of(draft)) for draft in (0, 1)]
    rig.until(lambda: all(each.told for each in strangers), *strangers)
    assert {type(told) for each in strangers for told in each.told} == {Refused}
    assert pids(rig) == [0, 0]
    assert rig.heard(0) == rig.heard(1) == []


def test_a_flood_keeps_nobody_out(rig: Hub, monkeypatch):
    flooding, honest = rig.visitor(model="theirs"), rig.visitor(pid=11)
    rig.until(lambda: flooding.told, flooding)
    monkeypatch.setattr(hub_module, "MOST_A_LOOK", 2)

    def flood() -> bool:
        for _ in range(8):
            flooding.connection.write([b"x"])
        return 11 in pids(rig)

    for _ in range(100):
        flooding.connection.write([b"x"])
    time.sleep(0.1)  # until they are there
    rig.until(flood, honest)


def test_many_that_are_refused_are_few_lines(rig: Hub, caplog):
    began_s = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            other = rig.visitor(model="theirs")
            rig.until(lambda other=other: other.told, other)
    lines = [record for record in caplog.records if "is refused: model" in record.getMessage()]
    assert 1 <= len(lines) <= 9 + (time.monotonic() - began_s)


def test_what_a_draft_goes_by_has_names_and_no_lines(rig: Hub):
    other = rig.visitor()
    agreed = {"model\n00:00:00.000 E target 0: all is lost": "ours"}
    other._attach = msgspec.structs.replace(other._attach, agreed=agreed)
    rig.until(lambda: rig.hub._reader.num_malformed, other)
    assert other.told == []
    assert pids(rig) == [0, 0]


def test_what_strangers_send_besides_is_dropped(rig: Hub):
    stranger = rig.visitor(model="theirs")
    rig.until(lambda: stranger.told, stranger)
    stranger.words.draft_epoch = 0
    assert stranger.connection.write([b"no frame"])
    stranger.connection.send(Wanted(draft=1, epoch=1, stream=1, start=0))
    for _ in range(20):
        rig.hub.pump()
        time.sleep(0.002)
    assert pids(rig) == [0, 0]
    assert rig.heard(0) == rig.heard(1) == []
