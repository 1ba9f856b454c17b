"""What drafts are told of the time they have is what most rounds of that size leave them."""

import random

import pytest

from target_node.speculation import round_latency
from target_node.speculation.round_latency import RoundLatency
from tests.scripted_time import ScriptedTime


@pytest.fixture
def take(monkeypatch):
    """`take(round_latency, SECONDS, TOKENS)`: one round; what was expected of it."""
    time = ScriptedTime()
    monkeypatch.setattr(round_latency, "time", time)

    def take(
        found: RoundLatency, seconds: float, num_tokens: int = 4, *, is_mixed: bool = False
    ) -> float:
        found.reported(num_tokens, is_mixed=is_mixed)
        expected_s = found.seconds
        time.now_s += seconds
        found.looked()
        return expected_s

    return take


def test_nothing_is_known_before_the_first_look(take):
    found = RoundLatency(26.0)
    found.looked()
    assert found.seconds == 0
    assert take(found, 0.03) == 0
    assert take(found, 0.03) == pytest.approx(0.03)


def test_rounds_that_were_held_up_do_not_count_on(take):
    found = RoundLatency(26.0)
    take(found, 0.03)
    for seconds in (0.4, 0.03, 0.03, 0.2, 0.03, 0.03, 0.9, 0.03):
        assert take(found, seconds) == pytest.approx(0.03)


def test_a_pause_is_no_round(take):
    found = RoundLatency(26.0)
    for seconds in (0.03, 5.0, 5.0, 5.0):
        take(found, seconds)
    assert take(found, 0.03) == pytest.approx(0.03)


def test_another_speed_is_known_after_a_few_rounds(take):
    found = RoundLatency(26.0)
    for seconds in [0.03] * 20 + [0.08] * 7:
        take(found, seconds)
    assert take(found, 0.08) == pytest.approx(0.08)


def test_what_a_token_adds_is_expected_of_the_very_round_that_computes_it(take):
    found, rng = RoundLatency(26.0), random.Random(1)
    for _ in range(100):
        size = rng.randint(1, 9)
        take(found, 0.02 + 0.001 * size, size)
    for size in (1, 5, 9):
        assert take(found, 0.02 + 0.001 * size, size) == pytest.approx(
            0.02 + 0.001 * size, rel=0.05
        )


def test_rows_that_end_shorten_the_next_round_already(take):
    found, rng = RoundLatency(26.0), random.Random(2)
    for _ in range(100):
        size = rng.randint(40, 80)
        take(found, 0.01 + 0.0005 * size, size)
    assert take(found, 0.02, 20) == pytest.approx(0.02, rel=0.1)


def test_rounds_with_prompts_are_expected_apart(take):
    found = RoundLatency(26.0)
    for _ in range(20):
        take(found, 0.03)
    take(found, 0.3, 260, is_mixed=True)
    assert take(found, 0.03) == pytest.approx(0.03)
    assert take(found, 0.3, 260, is_mixed=True) == pytest.approx(0.3)


def test_the_first_round_with_prompts_is_taken_for_one_without():
    """Too early costs a few outcomes; a line drawn so far out may be wrong by any factor."""
    found = RoundLatency(26.0)
    for size in (1, 5, 9, 2, 8):
        found.reported(size)
        found._usual.add(size, 0.02 + 0.001 * size)
    found.reported(512, is_mixed=True)
    assert 0.02 < found.seconds < 0.03


def test_a_round_is_never_of_unknown_length_once_some_were_seen(take):
    found = RoundLatency(26.0)
    for size in [60, 80] * 100:
        take(found, 0.0008 * size, size)
    for _ in range(9):  # others have left the machine
        take(found, 0.012, 60)
    found.reported(2)
    assert 0 < found.seconds < 0.001
