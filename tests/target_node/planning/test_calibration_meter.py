"""Confidences held against what became of the tokens: by hand, and by many draws."""

import random

import pytest

from specserve.telemetry import VerifiedRow
from target_node.planning.calibration_meter import CalibrationMeter


def row(*confidences: float, judged: int, accepted: int) -> VerifiedRow:
    return VerifiedRow(
        request_id="r", sample_index=0, verify_len=len(confidences), num_accepted=accepted,
        num_emitted=accepted + 1, num_judged=judged, confidences=confidences,
    )  # fmt: skip


def test_positions_are_counted_as_far_as_they_were_reached():
    meter = CalibrationMeter()
    meter.observe([row(0.9, 0.8, 0.7, judged=2, accepted=1), row(0.5, judged=1, accepted=1)])
    first, second = meter.report()
    assert (first.num_judged, first.num_accepted) == (2, 2)
    assert (second.num_judged, second.num_accepted) == (1, 0)
    assert first.confidence == pytest.approx(1.4)
    assert first.error == pytest.approx((0.1 + 0.5) / 2)  # in two bins, both too low
    assert second.error == pytest.approx(0.8)


def test_a_bins_errors_cancel_and_those_of_two_bins_do_not():
    meter = CalibrationMeter()
    for accepted in (1, 0):
        meter.observe([row(0.52, judged=1, accepted=accepted)])
    assert meter.report()[0].error == pytest.approx(0.02)
    meter = CalibrationMeter()
    meter.observe([row(0.3, judged=1, accepted=1), row(0.7, judged=1, accepted=0)])
    assert meter.report()[0].error == pytest.approx(0.7)


def test_rows_without_confidences_or_verdict_tell_nothing():
    meter = CalibrationMeter()
    meter.observe([row(judged=2, accepted=1), row(0.9, judged=0, accepted=0)])
    assert meter.report() == []


def test_what_is_no_probability_is_taken_for_one():
    meter = CalibrationMeter()
    meter.observe([row(float("nan"), 1.5, 1.0, -0.5, judged=4, accepted=4)])
    found = meter.report()
    assert [each.confidence for each in found] == [0.0, 1.0, 1.0, 0.0]
    assert [each.error for each in found] == [1.0, 0.0, 0.0, 1.0]


def test_reports_go_on_from_each_other():
    together, apart = CalibrationMeter(), CalibrationMeter()
    rows = [row(0.9, judged=1, accepted=1), row(0.4, 0.6, judged=2, accepted=1)]
    together.observe(rows)
    for each in rows:
        apart.observe([each])
        apart.report()
    assert apart.report() == together.report() == together.report()


def test_probabilities_are_found_to_be_such():
    source, right, wrong = random.Random(1), CalibrationMeter(), CalibrationMeter()
    for _ in range(20_000):
        chance = source.random()
        accepted = int(source.random() < chance)
        right.observe([row(chance, judged=1, accepted=accepted)])
        wrong.observe([row((1 + chance) / 2, judged=1, accepted=accepted)])
    assert right.report()[0].error < 0.02
    assert wrong.report()[0].error == pytest.approx(0.25, abs=0.02)
