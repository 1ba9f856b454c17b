"""Ranks come up together: the others wait for rank 0 as long as it takes, and for nothing else."""

import logging
import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest

from specserve.processes.process import ChildArguments, decode_report
from specserve.settings.config import ResolvedConfig
from target_node import start
from target_node.blocks import BlockPool
from target_node.meeting import await_leader
from target_node.ranks import Ranks
from target_node.start import context_len


@pytest.fixture(autouse=True)
def usual_signals():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_rank_waits_until_rank_0_leads_and_leaves_signals_to_it_then(tmp_path):
    timer = threading.Timer(0.2, (tmp_path / "leading").touch)
    timer.start()
    began_s = time.monotonic()
    assert await_leader(ResolvedConfig(), tmp_path)
    assert time.monotonic() - began_s >= 0.15
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_signal_while_nobody_leads_ends_the_wait(tmp_path):
    timer = threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGTERM))
    timer.start()
    assert not await_leader(ResolvedConfig(), tmp_path)


def test_a_signal_after_rank_0_has_begun_to_lead_does_not_leave_it_alone(tmp_path):
    (tmp_path / "leading").touch()
    assert await_leader(ResolvedConfig(), tmp_path)
    signal.raise_signal(signal.SIGTERM)


LOST = "target rank 1 has lost another rank"
WAITED = "target rank 1 waited in vain for another rank (engine.hang_timeout_s)"
DEFECT = "target rank 1 failed: RuntimeError: index out of range"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:5", LOST),
        ("Read error [::1]:5: Connection reset by peer", LOST),
        ("NCCL error: remote process exited or there was a network error", LOST),
        ("[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv", WAITED),
        ("index out of range", DEFECT),
    ],
)
def test_a_peer_that_is_gone_or_silent_is_no_defect_and_everything_else_is(
    what, told, tmp_path, monkeypatch
):
    def follow(*_):
        raise RuntimeError(what)

    read, write = os.pipe()
    arguments = ChildArguments(
        config=tmp_path, control_dir=tmp_path, ready_fd=write, parent_pid=os.getpid(), rank=1
    )
    (tmp_path / "leading").touch()
    monkeypatch.setattr(start, "read_resolved", lambda _: ResolvedConfig())
    monkeypatch.setattr(start, "_build", lambda *_: (Ranks(1), None))
    monkeypatch.setattr(start, "follow", follow)
    with pytest.raises(RuntimeError, match=what) if told == DEFECT else nullcontext():
        assert start.run_rank(arguments) == 1
    reports = [decode_report(line) for line in os.read(read, 4096).splitlines()]
    os.close(read)
    assert [report.ready for report in reports] == [True, False]
    assert (reports[1].error, reports[1].is_consequence) == (told, told != DEFECT)


def test_only_what_collectives_raise_tells_of_a_peer():
    assert start.loss_of_peer(OSError("Connection reset by peer"), 1) is None


@pytest.mark.parametrize(("wanted", "served"), [(100, 64), (64, 64), (10, 10)])
def test_a_context_that_memory_has_no_room_for_is_cut_and_told(wanted, served, caplog):
    pool = BlockPool(1 + 4, 16, prefix_cache=False)
    with caplog.at_level(logging.WARNING):
        assert context_len(wanted, pool) == served
    assert ("max_model_len is 64 instead of 100" in caplog.text) == (served < wanted)


@pytest.mark.parametrize("error", [None, RuntimeError("a round failed")])
def test_however_the_loop_ends_clients_are_told_and_links_closed(tmp_path, monkeypatch, error):
    done = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name, self.gamma = name, 0

        def close(self) -> None:
            done.append(self.name)

        def announce(self, _) -> None: ...

    class Node:
        control, speculation = Part("control"), Part("speculation")

        def run(self) -> None:
            done.append("run")
            if error:
                raise error

    read, write = os.pipe()
    arguments = ChildArguments(
        config=tmp_path, control_dir=tmp_path, ready_fd=write, parent_pid=os.getpid(), rank=0
    )
    monkeypatch.setattr(start, "_ready", lambda *_: None)
    with pytest.raises(RuntimeError) if error else nullcontext():
        start.serve(Node(), ResolvedConfig(), arguments, step_file=None)
    assert done == ["run", "control", "speculation"]
    os.close(read)
