"""When a target says how it is doing."""

import pytest

from specserve.telemetry import RoundRecord
from target_node.blocks import BlockPool
from target_node.planning import load
from target_node.planning.load import LOAD_PERIOD_S, LoadMeter
from target_node.planning.step_table import StepTable
from target_node.scheduler import Scheduler
from target_node.speculation.source import SpeculationStatus


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(load.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def scheduler():
    return Scheduler(BlockPool(4, 4, prefix_cache=False), max_batch_rows=1, max_batch_tokens=1)


def report(meter: LoadMeter, scheduler: Scheduler, num_attached: int):
    status = SpeculationStatus("off", num_drafts_attached=num_attached)
    return meter.report(scheduler, status, StepTable(), num_broken_laws=0, draining=False)


def test_a_report_is_due_at_first_and_once_a_period(clock, scheduler):
    meter = LoadMeter()
    assert meter.is_due(scheduler, 0)
    assert report(meter, scheduler, 0).num_running == 0
    assert not meter.is_due(scheduler, 0)
    clock[0] += 0.9 * LOAD_PERIOD_S
    assert not meter.is_due(scheduler, 0)
    clock[0] += 0.2 * LOAD_PERIOD_S
    assert meter.is_due(scheduler, 0)


def test_a_report_is_due_at_once_when_a_draft_comes_or_goes(clock, scheduler):
    meter = LoadMeter()
    report(meter, scheduler, 0)
    assert meter.is_due(scheduler, 1)
    assert report(meter, scheduler, 1).num_drafts_attached == 1
    assert not meter.is_due(scheduler, 1)
    assert meter.is_due(scheduler, 0)


def test_a_report_is_due_where_the_last_one_was_busy_and_no_round_has_run_since(clock, scheduler):
    """A stop string, a client that leaves or a deadline ends a request between rounds."""
    meter = LoadMeter()
    scheduler.running = [object()]
    assert report(meter, scheduler, 0).num_running == 1
    assert not meter.is_due(scheduler, 0)
    scheduler.running = []
    assert meter.is_due(scheduler, 0)
    assert report(meter, scheduler, 0).num_running == 0
    assert not meter.is_due(scheduler, 0)


@pytest.mark.parametrize("queue", ["running", "waiting"])
def test_a_report_is_due_at_once_when_the_last_request_has_ended(clock, scheduler, queue):
    """However short it was: who asks after its answer has come finds it counted."""
    meter = LoadMeter()
    report(meter, scheduler, 0)
    setattr(scheduler, queue, [object()])
    meter.count_round([], RoundRecord(round_id=0))
    assert not meter.is_due(scheduler, 0)
    getattr(scheduler, queue).clear()
    assert meter.is_due(scheduler, 0)
    assert report(meter, scheduler, 0).num_rounds == 1
    assert not meter.is_due(scheduler, 0)
