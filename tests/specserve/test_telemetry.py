"""Spans and round records."""

import logging
import subprocess
import sys
import time

import pytest

from specserve.telemetry import RoundLog, SparseLog, Tally, one_line
from specserve.types import Distribution


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


def test_a_tally_counts_values_by_the_edge_below_which_they_lie():
    tally = Tally((0, 1, 4))
    for value in (0, 0, 1, 2, 4, 5, 100):
        tally.add(value)
    assert tally.report() == Distribution([2, 1, 2, 2], 112)
    tally.add(1)
    assert tally.report().counts == [2, 2, 2, 2]


@pytest.mark.parametrize("level", ["debug", "error"])
def test_libraries_do_not_talk_more_than_the_service(level):
    program = f"""
import logging
from specserve.telemetry import setup_logging
setup_logging("api", {level!r})
for name in ("specserve.api", "grpc._cython.cygrpc", "numba.core.ssa"):
    logging.getLogger(name).debug("a detail of %s", name)
    logging.getLogger(name).info("news of %s", name)
    logging.getLogger(name).error("an error of %s", name)
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stderr
    assert ("a detail of specserve.api" in found) == (level == "debug")
    assert found.count("a detail") == (level == "debug")
    assert found.count("news") == 3 * (level == "debug")
    assert found.count("an error") == 3


def test_what_strangers_bring_about_is_a_line_a_second(caplog, monkeypatch):
    now_s = [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    sparse = SparseLog(logging.getLogger("any"))
    assert [sparse.warning(f"no {number}") for number in range(11)] == [True] * 8 + [False] * 3
    now_s[0] += 1.0
    assert sparse.warning("no\nmore")
    assert not sparse.warning("no")
    now_s[0] += 100.0
    assert [sparse.warning("%s") for _ in range(9)] == [True] * 8 + [False]
    lines = [record.getMessage() for record in caplog.records]
    assert lines[7:10] == [
        "no 7", "no\\nmore (and 3 like it before)", "%s (and 1 like it before)",
    ]  # fmt: skip
    assert len(lines) == 17


def test_what_others_say_stays_on_one_line():
    assert one_line("all is well") == "all is well"
    assert one_line("a\nb\x1b[2J") == r"a\nb\x1b[2J"
    assert len(one_line("\n" * 5000)) == 1000
