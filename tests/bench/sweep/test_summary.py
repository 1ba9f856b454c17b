"""The figures that goals are set for, from turns with known answers."""

import pytest

from bench.sweep.plan import FULL
from bench.sweep.summary import GOALS, best_elsewhere, common, summarise
from tests.bench.sweep.made_up import arms, cell

ARMS = arms(FULL)
Speeds = dict[str, float | tuple[float, ...]]


def turns(in_flight: int, speeds: Speeds, *, temperature: float = 1.0, **counts) -> list:
    """Of three repeats; one speed is that of all of them."""
    return [
        cell(arm, one, in_flight=in_flight, repeat=repeat, temperature=temperature, **counts)
        for arm, given in speeds.items()
        for repeat, one in enumerate(given if isinstance(given, tuple) else (given,) * 3)
    ]


def test_auto_is_held_against_the_best_mode_at_each_load_and_the_worst_counts():
    found = turns(1, {"off": 10, "sync": 20, "async": 16, "auto": 19})
    found += turns(4, {"off": 40, "sync": 30, "async": 20, "auto": 44})
    summary = summarise(found, ARMS)
    assert summary["auto_over_best_b1"] == pytest.approx(0.95)
    assert summary["auto_over_best_b4"] == pytest.approx(1.1)
    assert summary["auto_over_best_min"] == pytest.approx(0.95)
    assert summary["auto_over_best_min_lo"] == pytest.approx(0.95)
    assert summary["auto_over_best_min_hi"] == pytest.approx(0.95)
    assert summary["sync_over_off_b1"] == pytest.approx(2.0)
    assert summary["auto_over_off_b4"] == pytest.approx(1.1)


def test_the_best_is_picked_on_other_repeats_than_it_is_compared_on():
    """Each of two was lucky once: what counts is what it made without luck."""
    lucky = {"off": (30, 10, 10), "sync": (10, 30, 10), "auto": 10}
    # Without repeat 0 sync is best, without 1 plain decoding, without 2 they are alike.
    assert summarise(turns(1, lucky), ARMS)["auto_over_best_min"] == pytest.approx(1.0)


def test_with_one_repeat_the_best_is_picked_on_every_other_request():
    found = [
        cell(arm, speed, num_answers=4) for arm, speed in (("off", 10), ("sync", 20), ("auto", 10))
    ]
    assert summarise(found, ARMS)["auto_over_best_min"] == pytest.approx(0.5)
    alone = [cell(arm, speed, num_answers=1) for arm, speed in (("off", 10), ("auto", 20))]
    assert summarise(alone, ARMS)["auto_over_best_min"] == pytest.approx(2.0)


def test_what_has_other_hardware_is_no_single_mode():
    found = turns(1, {"off": 10, "sync 2 threads": 40, "auto": 10})
    assert summarise(found, ARMS)["auto_over_best_min"] == pytest.approx(1.0)


def test_fixed_lengths_are_compared_at_the_largest_load_alone():
    found = turns(1, {"sync fixed": 5, "auto": 10})
    found += turns(16, {"sync fixed": 80, "async fixed": 100, "auto": 125})
    summary = summarise(found, ARMS)
    assert summary["auto_over_fixed_at_largest"] == pytest.approx(1.25)
    assert summarise(turns(1, {"off": 5, "auto": 10}), ARMS)["auto_over_fixed_at_largest"] is None


def test_the_gain_that_is_kept_is_that_at_the_largest_load_where_speculation_pays():
    found = turns(1, {"off": 10, "sync": 20, "async": 30, "auto": 30})
    found += turns(4, {"off": 40, "sync": 50, "async": 45, "auto": 46})
    found += turns(16, {"off": 100, "sync": 80, "async": 90, "auto": 100})
    summary = summarise(found, ARMS)
    assert summary["gain_kept_at_largest_paying"] == pytest.approx(0.6)
    assert summary["gain_kept_at_largest_paying_lo"] == pytest.approx(0.6)


def test_a_gain_that_may_be_none_does_not_pay():
    doubtful = turns(4, {"off": 40, "sync": (60, 30, 50), "auto": 40})
    assert summarise(doubtful, ARMS)["gain_kept_at_largest_paying"] is None
    without_auto = turns(4, {"off": 40, "sync": 60})
    assert summarise(without_auto, ARMS)["gain_kept_at_largest_paying"] is None


def test_budgets_are_those_of_auto_by_load():
    found = turns(4, {"auto": 10}, num_rounds=10, num_verified=5)
    found += turns(1, {"auto": 10}, num_rounds=10, num_verified=30)
    found += turns(1, {"sync": 10}, num_rounds=10, num_verified=70)
    assert summarise(found, ARMS)["budget_by_load"] == [(1, 3.0), (4, 0.5)]
    assert summarise(turns(1, {"sync": 10}), ARMS)["budget_by_load"] is None


def test_every_temperature_has_its_figures_and_the_highest_has_no_name():
    found = turns(1, {"off": 10, "auto": 20}, temperature=0.0)
    found += turns(1, {"off": 10, "auto": 11}, temperature=1.0)
    summary = summarise(found, ARMS)
    assert summary["auto_over_best_min_t0"] == pytest.approx(2.0)
    assert summary["auto_over_best_min_t1"] == summary["auto_over_best_min"] == pytest.approx(1.1)


def test_nothing_measured_gives_unknowns_for_every_goal():
    summary = summarise([], ARMS)
    assert summary["budget_by_load"] is None
    for goal in GOALS:
        assert {summary[goal.key + end] for end in ("", "_lo", "_hi")} == {None}


def test_arms_are_compared_on_repeats_that_all_of_them_had():
    found = [*turns(1, {"off": (10, 20, 40)}), cell("auto", 30, repeat=1)]
    assert summarise(found, ARMS)["auto_over_off_b1"] == pytest.approx(1.5)
    assert common(found, ["auto", "sync"]) is None


def test_intervals_hold_what_repeats_differ_by():
    found = turns(1, {"off": 10, "auto": (9, 10, 12)})
    summary = summarise(found, ARMS)
    assert summary["auto_over_best_min_lo"] == pytest.approx(0.9)
    assert summary["auto_over_best_min_hi"] == pytest.approx(1.2)
    assert summary["auto_over_best_min"] == pytest.approx(3 / (1 / 0.9 + 1 + 1 / 1.2), abs=1e-4)


def test_the_best_elsewhere_is_made_of_the_turns_of_several():
    found = turns(1, {"off": (30, 10, 10), "sync": (11, 30, 10)})
    compared = common(found, ["off", "sync"])
    assert compared is not None
    rate = best_elsewhere(compared, ["off", "sync"])
    speeds = (rate.over / rate.under).reshape(3, 4)[:, 0]
    assert speeds == pytest.approx([11, 10, 10])
