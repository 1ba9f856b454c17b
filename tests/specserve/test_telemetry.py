"""Spans and round records."""

import time

import pytest

from specserve.telemetry import RoundLog


def test_spans_of_one_name_add_up():
    log = RoundLog()
    with log.round() as record:
        for _ in range(2):
            with record.span("forward"):
                time.sleep(0.002)
    assert 0.004 <= record.spans_s["forward"] <= record.round_s


def test_rounds_are_numbered_and_the_oldest_are_dropped():
    log = RoundLog(capacity=2)
    for _ in range(3):
        with log.round():
            pass
    assert [record.round_id for record in log.records] == [1, 2]


def test_a_round_that_fails_is_not_recorded():
    log = RoundLog()
    with pytest.raises(ZeroDivisionError), log.round():
        _ = 1 / 0
    assert not log.records
