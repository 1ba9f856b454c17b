"""What drafts are told of the time they have is what most rounds leave them, and no more."""

import pytest

from target_node import lead
from target_node.lead import Lead


@pytest.fixture
def take(monkeypatch):
    """`take(lead, SECONDS)`: one round that long."""

    class Time:
        now_s = 10.0

        def perf_counter(self):
            return self.now_s

    time = Time()
    monkeypatch.setattr(lead, "time", time)

    def take(found: Lead, seconds: float) -> None:
        found.reported()
        time.now_s += seconds
        found.looked()

    return take


def test_nothing_is_known_before_the_first_look(take):
    found = Lead()
    assert found.seconds == 0
    found.looked()
    assert found.seconds == 0
    take(found, 0.03)
    assert found.seconds == pytest.approx(0.03)


def test_rounds_with_prompts_do_not_count_on(take):
    found = Lead()
    for seconds in (0.4, 0.03, 0.03, 0.2, 0.03, 0.03, 0.9, 0.03):
        take(found, seconds)
        if seconds != 0.4:
            assert found.seconds == pytest.approx(0.03)


def test_a_pause_is_no_round(take):
    found = Lead()
    for seconds in (0.03, 5.0, 5.0, 5.0):
        take(found, seconds)
    assert found.seconds == pytest.approx(0.03)


def test_another_load_is_known_after_a_few_rounds(take):
    found = Lead()
    for seconds in [0.03] * 20 + [0.08] * 7:
        take(found, seconds)
    assert found.seconds == pytest.approx(0.08)
