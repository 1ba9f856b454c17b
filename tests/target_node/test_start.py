"""Ranks come up together: the others wait for rank 0 as long as it takes, and for nothing else."""

import logging
import signal
import threading
import time

import pytest

from target_node.blocks import BlockPool
from target_node.start import await_leader, context_len


@pytest.fixture(autouse=True)
def usual_signals():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_rank_waits_until_rank_0_leads_and_leaves_signals_to_it_then(tmp_path):
    timer = threading.Timer(0.2, (tmp_path / "leading").touch)
    timer.start()
    began_s = time.monotonic()
    assert await_leader(tmp_path)
    assert time.monotonic() - began_s >= 0.15
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_signal_while_nobody_leads_ends_the_wait(tmp_path):
    timer = threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGTERM))
    timer.start()
    assert not await_leader(tmp_path)


def test_a_signal_after_rank_0_has_begun_to_lead_does_not_leave_it_alone(tmp_path):
    (tmp_path / "leading").touch()
    assert await_leader(tmp_path)
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(("wanted", "served"), [(100, 64), (64, 64), (10, 10)])
def test_a_context_that_memory_has_no_room_for_is_cut_and_told(wanted, served, caplog):
    pool = BlockPool(1 + 4, 16, prefix_cache=False)
    with caplog.at_level(logging.WARNING):
        assert context_len(wanted, pool) == served
    assert ("max_model_len is 64 instead of 100" in caplog.text) == (served < wanted)
