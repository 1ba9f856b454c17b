"""When a target says how it is doing."""

import pytest

from target_node import load
from target_node.blocks import BlockPool
from target_node.load import LOAD_PERIOD_S, LoadMeter
from target_node.scheduler import Scheduler
from target_node.speculation import SpeculationStatus


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(load.time, "monotonic", lambda: now[0])
    return now


def report(meter: LoadMeter, num_attached: int):
    scheduler = Scheduler(BlockPool(4, 4, prefix_cache=False), max_batch_rows=1, max_batch_tokens=1)
    status = SpeculationStatus("off", num_drafts_attached=num_attached)
    return meter.report(scheduler, status, draining=False)


def test_a_report_is_due_at_first_and_once_a_period(clock):
    meter = LoadMeter()
    assert meter.is_due(0)
    assert report(meter, 0).num_running == 0
    assert not meter.is_due(0)
    clock[0] += 0.9 * LOAD_PERIOD_S
    assert not meter.is_due(0)
    clock[0] += 0.2 * LOAD_PERIOD_S
    assert meter.is_due(0)


def test_a_report_is_due_at_once_when_a_draft_comes_or_goes(clock):
    meter = LoadMeter()
    report(meter, 0)
    assert meter.is_due(1)
    assert report(meter, 1).num_drafts_attached == 1
    assert not meter.is_due(1)
    assert meter.is_due(0)
