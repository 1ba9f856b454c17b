"""The loop over a real link and real sockets, with the test as the target; and the real process."""

import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from draft_node import node as module
from draft_node.draft_slots import DraftSlots
from draft_node.node import SILENCE, DraftNode
from draft_node.prespeculation.draft_batches import BatchSettings
from draft_node.prespeculation.prespeculation import PreSpeculation
from specserve.drafters.load import DrafterOptions
from specserve.drafters.warm_up import warm_up
from specserve.errors import InvalidField
from specserve.processes.process import decode_report
from specserve.settings.config import (
    NUM_KEPT,
    EngineConfig,
    ModelConfig,
    Placement,
    ResolvedConfig,
    SpeculationConfig,
    load_config,
    write_resolved,
)
from specserve.transport.control.draft_control import (
    Attach,
    Attached,
    Context,
    DraftControlDraft,
    DraftControlTarget,
    Free,
    Wanted,
    feature_bytes,
)
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import BlockKey, Push, Report
from specserve.transport.link.ring import RingDraftEnd, RingTargetEnd, SharedRegion
from specserve.types import DRAFT_BATCH_SIZE
from tests.backends.chosen import BACKEND
from tests.draft_node.prespeculation.rounds import (
    CPU,
    HIDDEN,
    VOCAB,
    Rounds,
    blocks_of,
    dspark,
    features_of,
    tokens,
)
from tests.specserve.drafters.checkpoints import DSPARK, write_drafter

TEXT = tokens(30).tolist()
END = len(TEXT) - 1
LIMITS = LinkLimits(
    vocab_size=VOCAB, gamma=4, feature_size=HIDDEN, max_positions=128, max_rows=8, max_kept=16
)


class Target:
    """The target's ends, and what a target would say over them."""

    def __init__(self, folder):
        self.fd = SharedRegion.create(1 << 20)
        self.region = SharedRegion.attach(self.fd)
        self.control = DraftControlTarget(folder, 1)
        self.link = RingTargetEnd(self.region, LIMITS)

    def close(self):
        self.control.close()
        self.region.close()
        os.close(self.fd)

    def attach(self, epoch, drive=lambda: None):
        """Answer the draft until it has heard; its introduction."""
        self.link.epoch = epoch
        limits = {"vocab_size": VOCAB, "max_positions": 128, "max_rows": 8, "max_kept": 16}
        while self.region.draft_epoch != epoch:
            introduction = self.wait_for(Attach, drive)[0]
            self.control.send(0, Attached(epoch=epoch, **limits))
            for _ in range(100):
                drive()
                time.sleep(0.001)
        return introduction

    def wait_for(self, kind, drive=lambda: None, timeout_s=30.0):
        """The messages received, up to those that hold one of `kind`."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            drive()
            messages = [m for m in self.control.receive() if isinstance(m, kind)]
            if messages:
                return messages
            time.sleep(0.001)
        raise TimeoutError(kind.__name__)

    def send_context(self, known, stream=1, start=0, epoch=1):
        self.control.send(
            0,
            Context(
                epoch=epoch,
                stream=stream,
                start=start,
                token_ids=list(known[start:]),
                features=feature_bytes(features_of(known[start:], start)),
            ),
        )

    def pushes(self, count, drive=lambda: None, timeout_s=30.0):
        """At least `count` blocks."""
        deadline_s, received = time.monotonic() + timeout_s, []
        while sum(len(push.keys) for push in received) < count:
            assert time.monotonic() < deadline_s, f"{len(received)} pushes"
            drive()
            received += self.link.receive()
            time.sleep(0.001)
        return received


@pytest.fixture
def peer(tmp_path):
    folder = tmp_path / "control"
    folder.mkdir()
    target = Target(folder)
    target.folder = folder
    yield target
    target.close()


@pytest.fixture
def drafter(target, tmp_path):
    return dspark(tmp_path / "draft", target)


@pytest.fixture
def node(peer, drafter):
    region = SharedRegion.attach(peer.fd)
    control = DraftControlDraft(peer.folder, 0)
    streams = DraftSlots(drafter, dtype=torch.float32, device=CPU)
    settings = BatchSettings(size=4, fan_out=8, num_kept=16)
    introduction = Attach(draft=0, pid=1, drafter="dspark", gamma=4, feature_size=HIDDEN)
    node = DraftNode(
        introduction,
        streams=streams,
        prespeculation=PreSpeculation(drafter, streams, settings, backend=BACKEND),
        control=control,
        words=region,
        open_link=lambda limits: RingDraftEnd(region, limits),
        max_extension=16,
    )
    yield node
    control.close()
    region.close()


def row_of(known, drafter, **fields):
    rounds = Rounds(drafter)
    return rounds.row(known, **fields)


@pytest.mark.slow
def test_a_prompt_and_a_report_bring_blocks_for_the_next_round(peer, node, drafter):
    introduction = peer.attach(1, node.step)
    assert (introduction.gamma, introduction.feature_size) == (4, HIDDEN)
    peer.send_context(TEXT[:20])
    row = row_of(TEXT, drafter, start=20)
    assert peer.link.send(Report([row]))
    found = blocks_of(peer.pushes(8, node.step))
    assert {key.round for key in found} == {2}
    assert {key.position for key in found} == {END + 1}
    assert peer.link.counters.num_malformed == 0
    assert peer.region.draft_epoch == 1


@pytest.mark.slow
def test_an_unknown_stream_makes_the_draft_ask_for_what_it_lacks(peer, node, drafter):
    peer.attach(1, node.step)
    for _ in range(20):
        node.step()
    peer.link.send(Report([row_of(TEXT, drafter, start=25)]))
    (wanted,) = peer.wait_for(Wanted, node.step)
    assert (wanted.epoch, wanted.stream, wanted.start) == (1, 1, 0)
    peer.send_context(TEXT[:25])
    assert blocks_of(peer.pushes(8, node.step))


@pytest.mark.slow
def test_blocks_do_not_depend_on_how_the_context_came(peer, node, drafter):
    peer.attach(1, node.step)
    peer.send_context(TEXT[:END])
    peer.link.send(Report([row_of(TEXT, drafter, start=END, stream=1)]))
    peer.link.send(Report([row_of(TEXT, drafter, start=0, stream=2, seed=8)]))
    found = blocks_of(peer.pushes(16, node.step))
    of_stream = [
        {key[1:]: block[0] for key, block in found.items() if key.stream == stream}
        for stream in (1, 2)
    ]
    assert of_stream[0] == of_stream[1]


@pytest.mark.slow
def test_a_new_epoch_starts_clean(peer, node, drafter):
    peer.attach(1, node.step)
    peer.link.send(Report([row_of(TEXT, drafter)]))
    peer.pushes(8, node.step)
    peer.control.send(
        0, Attached(epoch=2, vocab_size=VOCAB, max_positions=128, max_rows=8, max_kept=16)
    )
    while peer.region.draft_epoch != 2:
        node.step()
    assert len(node.streams) == 0
    assert drafter.context_len(1) == 0
    peer.link.epoch = 2
    peer.link.send(Report([row_of(TEXT, drafter, round=1)]))
    ids = [number for push in peer.pushes(8, node.step) for number in push.speculation_ids]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_a_stream_that_has_ended_is_forgotten(peer, node, drafter):
    peer.attach(1, node.step)
    peer.link.send(Report([row_of(TEXT, drafter)]))
    peer.pushes(8, node.step)
    peer.control.send(0, Free(epoch=1, streams=[1]))
    for _ in itertools.takewhile(lambda _: len(node.streams), itertools.count()):
        node.step()
    assert drafter.context_len(1) == 0
    assert len(node.prespeculation.cache) == 0


def test_a_draft_counts_how_often_it_has_introduced_itself(peer, node, monkeypatch):
    monkeypatch.setattr(module, "ATTACH_AGAIN_S", 0.0)
    heard = []
    while len(heard) < 3:
        heard += [message.repetition for message in peer.wait_for(Attach, node.step)]
    assert heard == list(range(heard[0], heard[0] + len(heard)))


def test_who_leaves_says_so(peer, node):
    node.step()
    assert peer.region.draft_pid == os.getpid()
    node.is_stopping = True
    node.run()
    assert peer.region.draft_pid == 0
    assert peer.region.heartbeat_ns  # who keeps drafts alive knows since when


def test_every_turn_is_a_heartbeat(peer, node):
    node.step()
    first = peer.region.heartbeat_ns
    node.step()
    assert time.monotonic_ns() > peer.region.heartbeat_ns > first > 0


@pytest.mark.slow
def test_looks_grow_rare_while_nobody_reports(peer, node, drafter, monkeypatch):
    """Services that share a core: one at full pace takes much of it from who decodes now."""
    peer.attach(1, node.step)
    peer.link.send(Report([row_of(TEXT, drafter)]))
    peer.pushes(8, node.step)
    looks = []

    def counted():
        looks.append(time.monotonic())
        node.is_stopping = looks[-1] > looks[0] + 0.2
        return DraftNode.step(node)

    while node.step():
        pass
    time.sleep(0.5)
    monkeypatch.setattr(node, "step", counted)
    node.run()
    assert 3 < len(looks) < 0.2 / (0.5 * SILENCE) + 5


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("max_positions", [1, 8, 128])
def test_warming_up_leaves_nothing_behind(drafter, size, max_positions):
    options = DrafterOptions(
        torch.float32, BACKEND, num_context_tokens=64, max_positions=max_positions
    )
    warm_up(drafter, options, size=size, num_kept=16)
    assert drafter.context_len(-1) == 0


def test_the_largest_push_there_may_be_fits_a_link():
    """Blocks as long as may be asked for, with whole distributions, in the largest batch."""
    most = 64
    with pytest.raises(InvalidField, match=f"expected int from 1 to {most}"):
        load_config(None, {"speculation.gamma": str(most + 1)})
    limits = LinkLimits(
        vocab_size=2**18, gamma=most, feature_size=1, max_positions=2**17, max_rows=1,
        max_kept=NUM_KEPT,
    )  # fmt: skip
    shape = (DRAFT_BATCH_SIZE, most)
    push = Push(
        keys=[BlockKey(1, 1, 2, place) for place in range(DRAFT_BATCH_SIZE)],
        speculation_ids=list(range(1, DRAFT_BATCH_SIZE + 1)),
        lengths=[most] * DRAFT_BATCH_SIZE,
        token_ids=np.zeros(shape, np.int32),
        confidences=np.ones(shape, np.float32),
        kept_ids=np.broadcast_to(np.arange(NUM_KEPT, dtype=np.int32), (*shape, NUM_KEPT)).copy(),
        kept_probs=np.full((*shape, NUM_KEPT), 1 / NUM_KEPT, np.float32),
    )
    fd = SharedRegion.create()
    region = SharedRegion.attach(fd)
    try:
        target, draft = RingTargetEnd(region, limits), RingDraftEnd(region, limits)
        target.epoch = draft.epoch = 1
        assert draft.send(push)
        assert len(target.receive()) == 1
    finally:
        region.close()
        os.close(fd)


def start_process(peer, target, folder, drafter=None):
    """A draft process for `drafter`, None: that in `folder`, and what it reports."""
    config = ResolvedConfig(
        model=ModelConfig(target=str(target.folder), dtype="float32", max_model_len=128),
        engine=EngineConfig(kv_dtype="float32"),
        speculation=SpeculationConfig(mode="async", drafter=drafter or str(folder), fan_out=8),
        placements=(Placement(role="draft", rank=0, device="cpu"),),
        num_blocks=64,
    )
    write_resolved(config, folder / "resolved.json")
    read_end, write_end = os.pipe()
    words = [sys.executable, "-P", "-m", "draft_node", "--config", str(folder / "resolved.json")]
    words += ["--control-dir", str(peer.folder), "--ready-fd", str(write_end)]
    words += ["--parent-pid", str(os.getpid()), "--link-fd", str(peer.fd)]
    process = subprocess.Popen(words, pass_fds=(write_end, peer.fd))
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        return process, decode_report(pipe.readline())


@pytest.mark.slow
def test_the_process_serves_until_it_is_told_to_stop(peer, target, tmp_path):
    drafter = dspark(tmp_path / "drafter", target)
    process, report = start_process(peer, target, tmp_path / "drafter")
    try:
        assert report.ready, report.error
        introduction = peer.attach(1)
        assert introduction.drafter == "dspark"
        assert introduction.pid == process.pid == peer.region.draft_pid
        peer.link.send(Report([row_of(TEXT, drafter, awaits=True)]))
        assert (1, 1, END, TEXT[-1]) in blocks_of(peer.pushes(1))
        peer.link.send(Report([row_of(TEXT, drafter, start=END)]))
        assert len(blocks_of(peer.pushes(8))) == 8
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_drafter_that_does_not_fit_is_one_line_to_the_supervisor(peer, target, tmp_path):
    write_drafter(tmp_path / "drafter", DSPARK, vocab_size=65)
    process, report = start_process(peer, target, tmp_path / "drafter")
    assert process.wait(timeout=20) == 2
    assert not report.ready
    assert "vocab_size" in report.error
