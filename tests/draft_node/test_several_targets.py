"""One draft process with two targets: real sockets, links and drafter, the test as the targets."""

import itertools
import os
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from draft_node import several_targets as module
from draft_node.draft_slots import DraftingFailed, DraftSlots
from draft_node.drafter_share import DrafterShare
from draft_node.node import DraftNode, Reach
from draft_node.prespeculation.draft_batches import BatchSettings
from draft_node.prespeculation.prespeculation import PreSpeculation
from draft_node.several_targets import Served, SeveralTargets, TargetWords
from specserve.errors import Unsupported
from specserve.transport.control.draft_control import Attach, Attached, DraftControlTarget
from specserve.transport.link.ends import TargetLinkEnd
from specserve.transport.link.messages import Report
from specserve.transport.network_link.connection import (
    NetworkDraftEnd,
    TargetConnection,
    ToldWords,
)
from specserve.transport.network_link.open_hub import Objection, OpenDraftHub
from target_node.speculation.draft_links import DraftLinks, DraftPeer
from tests.backends.chosen import BACKEND
from tests.draft_node.prespeculation.rounds import CPU, Rounds, blocks_of
from tests.draft_node.test_node import LIMITS, TEXT

TIMEOUT_S = 1.0
ATTACHED = {"vocab_size": 8, "max_positions": 8, "max_rows": 8, "max_kept": 8}


class Target:
    """The leader's end of one target, which may end and come back at the same place."""

    def __init__(self, folder, objection: Objection = lambda _: None) -> None:
        folder.mkdir()
        self._folder, self._objection = folder, objection
        self.place = "tcp://127.0.0.1:*"
        self.start(0)

    def start(self, port: int) -> None:
        self.hub = OpenDraftHub("127.0.0.1", port, 1, self._objection, silence_s=TIMEOUT_S)
        self.place, lane = self.hub.place, self.hub.lanes[0]
        self.peer = DraftPeer(0, TargetLinkEnd(lane, lane, LIMITS), lane, is_here=False)
        control = DraftControlTarget(self._folder, 1, far=self.hub.lanes)
        self.links = DraftLinks(
            [self.peer], control, limits=LIMITS, drafter="any", timeout_s=TIMEOUT_S
        )
        self.pushes: list = []

    def come_back(self) -> None:
        self.start(int(self.place.rpartition(":")[2]))

    def turn(self) -> None:
        self.links.poll()
        self.pushes += [push for _, push in self.links.receive()]

    def end(self) -> None:
        self.links.close()


class Rig:
    """Both, and the draft process."""

    def __init__(self, tmp_path, drafter, *objections: Objection) -> None:
        self.targets = [
            Target(tmp_path / f"target {number}", objection)
            for number, objection in enumerate(objections)
        ]
        self.drafter = drafter
        self.words = TargetWords()
        rows = itertools.count()
        self.several = SeveralTargets([self._serve(t, rows) for t in self.targets], self.words)
        self.nodes = [served.node for served in self.several._targets]
        self.running = list(self.targets)

    def _serve(self, target: Target, rows: Iterator[int]) -> Served:
        share = DrafterShare(self.drafter, rows, 128)
        connection = TargetConnection(os.urandom(8), lambda: target.place)
        streams = DraftSlots(share, dtype=torch.float32, device=CPU)
        settings = BatchSettings(size=4, fan_out=8, num_kept=16)
        node = DraftNode(
            Attach(draft=0, pid=os.getpid(), drafter="any", gamma=4, feature_size=32),
            streams=streams,
            prespeculation=PreSpeculation(share, streams, settings, backend=BACKEND),
            control=connection,
            words=ToldWords(TargetWords(), connection),
            open_link=lambda limits: NetworkDraftEnd(connection, limits),
        )
        return Served(target.place, node, connection)

    def until(self, happens: Callable[[], object], timeout_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not happens():
            assert time.monotonic() < deadline_s
            self.turn()

    def turn(self) -> None:
        for target in self.running:
            target.turn()
        if not self.several.turn():
            time.sleep(0.001)

    def report(self, target: Target, known=TEXT, **fields) -> None:
        row = Rounds(self.drafter).row(known, **fields)
        assert target.peer.end.send(Report([row]))

    def meet(self) -> None:
        """As at a start, with targets that answer."""
        turn = self.several.turn

        def of_all() -> bool:
            for target in self.running:
                target.turn()
            return turn()

        self.several.turn = of_all
        self.several.meet(30.0)

    def attach(self) -> None:
        # Twice: what is told of an epoch takes a way of its own, as in a target.
        self.until(lambda: all(t.links.num_attached for t in self.running))
        self.until(lambda: all(t.peer.words.draft_epoch == t.peer.epoch for t in self.running))

    def close(self) -> None:
        self.several.close()
        for target in self.running:
            target.end()


def fits(_: Attach) -> str | None:
    return None


@pytest.fixture
def make(tmp_path, dspark_drafter) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def rig(*objections: Objection) -> Rig:
        made.append(Rig(tmp_path, dspark_drafter, *objections))
        return made[-1]

    yield rig
    for each in made:
        each.close()


@pytest.mark.slow
def test_both_are_drafted_for_under_the_same_stream(make):
    rig = make(fits, fits)
    rig.attach()
    first, second = rig.targets
    rig.report(first)
    rig.report(second, TEXT[5:])
    rig.until(lambda: min(len(blocks_of(t.pushes)) for t in rig.targets) >= 8)
    assert {key.position for key in blocks_of(first.pushes)} == {len(TEXT)}
    assert {key.position for key in blocks_of(second.pushes)} == {len(TEXT) - 5}
    assert rig.words.heartbeat_ns
    for target in rig.targets:
        assert target.peer.end.counters.num_malformed == 0


@pytest.mark.slow
def test_a_target_that_ends_is_forgotten_and_comes_back_in_an_epoch_of_its_own(make, monkeypatch):
    monkeypatch.setattr(module, "LOST_S", 0.2)
    rig = make(fits, fits)
    rig.attach()
    first, second = rig.targets
    for target in rig.targets:
        rig.report(target)
    rig.until(lambda: all(len(node.streams) == 1 for node in rig.nodes))
    first.end()
    rig.running.remove(first)
    rig.until(lambda: not rig.nodes[0].is_attached)
    assert len(rig.nodes[0].streams) == len(rig.nodes[0].prespeculation.cache) == 0
    second.pushes.clear()
    rig.report(second, round=2)
    rig.until(lambda: blocks_of(second.pushes))  # which was not disturbed
    assert (second.peer.epoch, len(rig.nodes[1].streams)) == (1, 1)
    first.come_back()
    rig.running.append(first)
    rig.attach()
    rig.report(first, round=7)
    rig.until(lambda: {key.round for key in blocks_of(first.pushes)} == {8})


@pytest.mark.slow
def test_a_target_that_has_lost_this_process_is_attached_to_anew(make):
    rig = make(fits)
    rig.attach()
    (target,) = rig.targets
    # A restart that no connection tells of: the lane is nobody's, and the draft thinks it has it.
    lane = target.hub.lanes[0]
    target.hub._by_identity.pop(lane.identity)
    lane._words = lane._words._replace(pid=0)
    rig.until(lambda: target.peer.epoch > 1)
    rig.attach()


@pytest.mark.slow
def test_what_breaks_the_drafts_of_one_target_ends_them_for_that_one_alone(make):
    def fail() -> bool:
        raise DraftingFailed("drafting: 16 times in a row")

    rig = make(fits, fits)
    rig.attach()
    first, second = rig.targets
    rig.nodes[0].work = fail
    rig.until(lambda: not first.links.num_attached)
    for _ in range(30):
        assert first.hub.lanes[0].send(Attached(epoch=7, **ATTACHED))
        rig.turn()
    assert [node.is_attached for node in rig.nodes] == [False, True]
    rig.report(second)
    rig.until(lambda: blocks_of(second.pushes))
    rig.nodes[1].work = fail
    with pytest.raises(DraftingFailed):  # it is the drafter
        rig.until(lambda: False)


def test_one_that_takes_long_to_be_heard_leaves_others_most_of_the_time(make):
    rig = make(fits, fits)
    began_s, heard = time.perf_counter(), [0, 0]

    def hear(number: int, seconds: float) -> None:
        heard[number] += 1
        time.sleep(seconds)

    rig.nodes[0].hear = lambda: hear(0, 0.02)
    rig.nodes[1].hear = lambda: hear(1, 0.0)
    while time.perf_counter() < began_s + 0.6:
        rig.several.turn()
    assert 1 <= heard[0] <= (time.perf_counter() - began_s) / 0.06 + 1
    assert heard[1] > heard[0]


def test_of_what_is_said_at_once_only_the_latest_epoch_counts(make):
    rig = make(fits)
    rig.attach()
    (node,) = rig.nodes
    opened = []
    open_link = node._open_link
    node._open_link = lambda limits: opened.append(limits) or open_link(limits)
    for epoch in range(10, 60):
        assert rig.targets[0].hub.lanes[0].send(Attached(epoch=epoch, **ATTACHED))
    time.sleep(0.2)  # until they are there
    node.hear()
    assert len(opened) == 1
    assert node._words.draft_epoch == 59


def test_who_fits_no_target_is_told_by_the_name_of_what_differs(make):
    rig = make(lambda _: "speculation.drafter: another one")
    with pytest.raises(Unsupported, match=r"speculation\.drafter: another one") as refused:
        rig.meet()
    assert refused.value.code == "FAILED_PRECONDITION"


@pytest.mark.parametrize(
    ("reach", "problem"),
    [
        (Reach(LIMITS.vocab_size - 1, LIMITS.max_positions), r"model\.target: \d+ tokens in the"),
        (Reach(LIMITS.vocab_size, LIMITS.max_positions - 1), r"model\.max_model_len: 128 posit"),
    ],
)
def test_a_target_of_another_model_is_not_drafted_for_whatever_it_says(make, reach, problem):
    rig = make(fits)
    rig.nodes[0].reach = reach
    with pytest.raises(Unsupported, match=problem):
        rig.meet()
    assert not rig.nodes[0].is_attached


def test_what_a_target_says_stays_on_one_line(make, caplog):
    rig = make(lambda _: "model: x\n00:00:00.000 E draft 0: all is lost")
    with pytest.raises(Unsupported):
        rig.meet()
    assert any("all is lost" in record.getMessage() for record in caplog.records)
    assert not any("\n" in record.getMessage() for record in caplog.records)


def test_one_that_fits_is_served_though_another_refuses(make):
    rig = make(fits, lambda _: "model.target: another one")
    rig.meet()
    assert [node.is_attached for node in rig.nodes] == [True, False]
    assert rig.nodes[1].refusal is not None


def test_a_target_that_is_not_there_is_not_waited_for(make):
    rig = make(fits)
    rig.targets[0].end()
    rig.running = []
    began_s = time.monotonic()
    rig.several.meet(0.3)
    assert time.monotonic() - began_s < 10
    assert not rig.nodes[0].is_attached
