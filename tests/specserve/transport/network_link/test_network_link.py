"""A target and draft processes over TCP: what arrives, what is dropped, and who is forgotten."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import zmq
from msgspec import structs

from specserve.transport.control.draft_control import Attach, Attached, DraftControlTarget, Wanted
from specserve.transport.link.ends import Frame, TargetLinkEnd
from specserve.transport.network_link import connection as connection_module
from specserve.transport.network_link import hub as hub_module
from specserve.transport.network_link.connection import (
    NetworkDraftEnd,
    TargetConnection,
    ToldWords,
    close_all,
)
from specserve.transport.network_link.hub import DraftHub, Lane
from specserve.transport.network_link.wire import (
    CONTROL,
    FRAME,
    MOST_TO_TARGET,
    WORDS,
    WaitingFrames,
    Words,
    identity_of,
)
from tests.specserve.transport.link.messages import LIMITS, random_push, random_report

ATTACH = Attach(draft=0, pid=7, drafter="any", gamma=LIMITS.gamma, feature_size=0)
ATTACHED = Attached(epoch=3, vocab_size=9, max_positions=9, max_rows=9, max_kept=9)


def eventually(happens: Callable[[], object], timeout_s: float = 20.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not happens():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.001)
    return True


@pytest.fixture
def hub() -> Iterator[DraftHub]:
    made = DraftHub("127.0.0.1", [0, 2])
    yield made
    made.close()


@contextmanager
def connected(hub: DraftHub, draft: int = 0) -> Iterator[TargetConnection]:
    connection = TargetConnection(draft, lambda: hub.place)
    try:
        assert eventually(lambda: connection.send(ATTACH))
        assert eventually(lambda: any(m == ATTACH for m in hub.lanes[draft].receive()))
        yield connection
    finally:
        connection.close()


def received(lane: Lane) -> list:
    found: list = []
    assert eventually(lambda: found.extend(lane.receive()) or found)
    return found


def test_it_listens_where_it_is_told_and_nowhere_else(hub: DraftHub):
    assert hub.place.startswith("tcp://127.0.0.1:")


def test_messages_go_both_ways_and_only_to_whom_they_are_for(hub: DraftHub):
    with connected(hub) as first, connected(hub, 2) as second:
        lane = hub.lanes[0]
        assert eventually(lambda: lane.send(ATTACHED))
        assert eventually(lambda: first.wait(0.1) and first.receive() == [ATTACHED])
        wanted = Wanted(draft=2, epoch=3, stream=1, start=0)
        assert second.send(wanted)
        assert received(hub.lanes[2]) == [wanted]
        assert second.receive() == []
        assert lane.receive() == []


def test_rounds_travel_as_over_every_link(hub: DraftHub):
    rng = np.random.default_rng(1)
    with connected(hub) as connection:
        lane = hub.lanes[0]
        target = TargetLinkEnd(lane, lane, LIMITS)
        draft = NetworkDraftEnd(connection, LIMITS)
        target.epoch = draft.epoch = 5
        reports, pushes = [], []
        for _ in range(20):
            assert eventually(lambda: target.send(random_report(rng)))
            assert eventually(lambda: draft.send(random_push(rng)))
        assert eventually(lambda: reports.extend(draft.receive()) or len(reports) == 20)
        assert eventually(lambda: pushes.extend(target.receive()) or len(pushes) == 20)
        assert target.counters.num_malformed == draft.counters.num_malformed == 0
        assert target.counters.bytes_sent == draft.counters.bytes_received > 0
        assert target.is_empty()
        # A clock of another machine says nothing here.
        assert {report.sent_s for report in reports} == {0.0}


def test_what_waits_can_be_forgotten(hub: DraftHub):
    with connected(hub) as connection:
        lane = hub.lanes[0]
        assert connection.write([b"one", b"two"])
        assert eventually(lambda: not lane.is_empty())
        lane.drop()
        assert lane.read() is None
        assert connection.write([b"one", b"two"])
        assert eventually(lambda: not lane.is_empty())
        frame = lane.read()
        assert frame is not None
        assert frame.data == b"onetwo"


def test_who_is_not_there_is_not_sent_to(hub: DraftHub):
    lane = hub.lanes[2]
    assert not lane.write([b"x"])
    assert not lane.send(ATTACHED)
    assert lane.num_dropped == 1
    found = False
    connection = TargetConnection(0, lambda: hub.place if found else None)
    try:
        assert not connection.send(ATTACH)  # the target has not said where it is
        assert not connection.write([b"x"])
        found = True
        assert eventually(lambda: connection.send(ATTACH))
    finally:
        connection.close()


def test_a_draft_that_comes_again_takes_its_former_place(hub: DraftHub):
    """As after a cut of its network: nobody has told that the former connection is of no use."""
    with connected(hub) as former, connected(hub) as latter:
        lane = hub.lanes[0]
        for _ in range(30):
            assert eventually(lambda: lane.write([b"x"]))
        count: list[Frame] = []
        assert eventually(lambda: count.extend(filter(None, [latter.read()])) or len(count) == 30)
        assert former.is_empty()


def test_words_are_told_and_kept_for_the_own_supervisor(hub: DraftHub):
    own = SimpleNamespace(heartbeat_ns=0, draft_pid=0, draft_epoch=0)
    with connected(hub) as connection:
        lane = hub.lanes[0]
        # An introduction is a word, too.
        assert (lane.draft_pid, lane.draft_epoch) == (ATTACH.pid, 0)
        assert 0 <= time.monotonic_ns() - lane.heartbeat_ns < 60e9
        words = ToldWords(own, connection)
        words.draft_pid, words.draft_epoch = 17, 4
        words.heartbeat_ns = 99
        assert (own.draft_pid, own.draft_epoch, own.heartbeat_ns) == (17, 4, 99)
        assert (words.draft_pid, words.draft_epoch, words.heartbeat_ns) == (17, 4, 99)
        assert eventually(lambda: lane.heartbeat_ns and lane.draft_epoch == 4)
        assert lane.draft_pid == 17
        before_ns = lane.heartbeat_ns
        assert 0 <= time.monotonic_ns() - before_ns < 60e9  # by this machine's clock
        time.sleep(0.03)
        words.heartbeat_ns = 100
        assert eventually(lambda: lane.heartbeat_ns > before_ns)
        words.draft_pid = 0
        assert eventually(lambda: lane.heartbeat_ns and lane.draft_pid == 0)


def test_one_that_introduces_itself_without_end_is_heard_now_and_then(hub: DraftHub):
    with connected(hub) as connection:
        began_s, found = time.monotonic(), []
        for _ in range(300):
            assert eventually(lambda: connection.send(ATTACH))
            found += hub.lanes[0].receive()
        last = Wanted(draft=0, epoch=3, stream=1, start=0)
        assert eventually(lambda: connection.send(last))
        assert eventually(lambda: found.extend(hub.lanes[0].receive()) or last in found)
        assert len(found) <= 6 + 5 * (time.monotonic() - began_s)


def test_nothing_that_arrives_can_raise(hub: DraftHub):
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.setsockopt(zmq.ROUTING_ID, identity_of(0))
    stranger.connect(hub.place)
    lane = hub.lanes[0]
    for parts in (
        [b""], [b"x"], [FRAME], [WORDS, b"short"], [CONTROL, b"\xff" * 40], [b"?", b"x"],
        [FRAME, b"a", b"b"], [FRAME, b"garbage"],
    ):  # fmt: skip
        stranger.send_multipart(parts)
    assert eventually(lambda: lane.receive() or lane.num_malformed == 1)
    assert lane.heartbeat_ns == 0
    assert lane.receive() == []
    end = TargetLinkEnd(lane, lane, LIMITS)
    end.epoch = 1
    assert eventually(lambda: end.receive() or end.counters.num_malformed == 1)
    stranger.close()
    context.term()
    assert Words.unpack(b"x" * 15) is None


def test_one_control_plane_reaches_drafts_here_and_elsewhere(hub: DraftHub, tmp_path):
    control = DraftControlTarget(tmp_path, 3, far=hub.lanes)
    with connected(hub) as connection:
        wanted = Wanted(draft=0, epoch=3, stream=1, start=0)
        assert eventually(lambda: connection.send(wanted))
        assert eventually(lambda: connection.send(structs.replace(wanted, draft=2)))
        assert eventually(lambda: control.receive() == [wanted] or control.num_malformed)
        assert eventually(lambda: control.receive() == [] and control.num_malformed == 1)
        assert control.send(0, ATTACHED)
        assert eventually(lambda: connection.receive() == [ATTACHED])
        assert not control.send(1, ATTACHED)  # of this machine, and not there
        assert not control.send(2, ATTACHED)
        assert control.num_dropped == 2
    control.close()


def test_reading_one_frame_takes_in_no_others(hub: DraftHub):
    """Else a flood is moved into this process's memory, a look's worth for each that is read."""
    with connected(hub) as connection:
        lane = hub.lanes[0]

        def fills(write, frames) -> None:
            for _ in range(2):
                for number in range(10):
                    assert eventually(lambda number=number: write([b"%d" % number]))
                time.sleep(0.1)  # until they are there
                frames.is_empty()
            assert len(frames._frames) == 10
            assert frames.read().data == b"0"
            assert len(frames._frames) == 9

        fills(connection.write, lane)
        fills(lane.write, connection)


def test_what_waits_for_its_reader_has_a_limit_in_number_and_in_bytes():
    waiting = WaitingFrames()
    for number in range(1000):
        waiting.append(b"%d" % number)
    assert len(waiting) == 256
    assert waiting.pop() == b"744"
    for _ in range(10):
        waiting.append(bytes(8 << 20))
    assert len(waiting) == 4
    waiting.clear()
    waiting.append(b"x")
    assert (len(waiting), waiting.pop()) == (1, b"x")


def test_a_message_that_no_draft_has_ends_its_connection(hub: DraftHub):
    with connected(hub) as connection, connected(hub, 2) as other:
        assert connection.write([bytes(MOST_TO_TARGET + 1)])
        assert other.write([bytes(1000)])
        assert eventually(lambda: not hub.lanes[2].is_empty())
        time.sleep(0.2)
        assert hub.lanes[0].is_empty()


@pytest.mark.parametrize("ends", ["hub", "connection"])
def test_large_messages_keep_no_loop_from_its_work(hub: DraftHub, monkeypatch, ends: str):
    module = {"hub": hub_module, "connection": connection_module}[ends]
    monkeypatch.setattr(module, "MOST_BYTES_A_LOOK", 1000)
    with connected(hub) as connection:
        lane = hub.lanes[0]
        write, reader = (connection.write, lane) if ends == "hub" else (lane.write, connection)
        for _ in range(10):
            assert eventually(lambda: write([bytes(600)]))
        time.sleep(0.1)  # until they are there
        assert not reader.is_empty()
        assert len(reader._frames) <= 2


def test_several_connections_that_nobody_reads_are_closed_in_the_time_of_one():
    context = zmq.Context()
    target = context.socket(zmq.ROUTER)
    target.setsockopt(zmq.RCVHWM, 1)
    target.setsockopt(zmq.LINGER, 0)
    port = target.bind_to_random_port("tcp://127.0.0.1")
    place = f"tcp://127.0.0.1:{port}"
    connections = []
    for number in range(10):
        connection = TargetConnection(b"node %d" % number, lambda: place)
        assert eventually(lambda connection=connection: connection.send(ATTACH))
        while connection.write([bytes(1 << 18)]):
            pass  # until the network takes no more
        connections.append(connection)
    began_s = time.monotonic()
    close_all(connections)
    assert time.monotonic() - began_s < 1.5  # one by one they take two seconds
    target.close()
    context.term()
