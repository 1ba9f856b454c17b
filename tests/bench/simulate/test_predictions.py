"""What cannot be run here is predicted of the parts that it has."""

import pytest

from bench.simulate.placement import KEPT, compare
from bench.simulate.predictions import (
    SYSTEMS,
    System,
    arms_of,
    at_loads,
    setting_of,
    sharing,
)
from bench.simulate.service import simulate

QWEN_4_1 = SYSTEMS[0]


def test_equal_devices_stand_beside_every_asynchronous_figure():
    for system in SYSTEMS:
        devices = system.num_devices + system.num_processes
        arms = arms_of(system, setting_of(system, 1))
        assert f"sync, {devices}+0" in arms
        assert f"async, {system.num_devices}+{system.num_processes}" in arms
        assert arms[f"sync, {devices}+0"].topology.num_processes == 0


def test_more_devices_in_the_target_make_plain_decoding_faster_but_not_as_much():
    arms = arms_of(SYSTEMS[2], setting_of(SYSTEMS[2], 1))
    eight, ten = (arms[f"off, {count}+0"].steps.at(1, 0).seconds([1])[0] for count in (8, 10))
    assert ten < eight < 10 / 8 * ten


def test_one_request_gains_by_a_device_that_drafts_and_many_by_one_in_the_target():
    one = made_of(QWEN_4_1, 1, tokens_each=300)
    assert one["async, 4+1"] > 1.2 * one["sync, 5+0"] > 1.2
    assert one["sync, 5+0"] > one["sync, 4+0"] > 1.3 * one["off, 4+0"]
    assert one["off, 4+0"] == pytest.approx(88.8, rel=0.02)
    many = made_of(QWEN_4_1, 96, tokens_each=16)
    assert many["sync, 5+0"] > 1.2 * many["async, 4+1"]


def made_of(system: System, size: int, *, tokens_each: int) -> dict[str, float]:
    """Tokens a second of every arm but `auto`."""
    arms = arms_of(system, setting_of(system, size))
    return {
        arm: simulate(each, tokens_each=tokens_each).tokens_per_s
        for arm, each in arms.items()
        if each.mode != "auto"
    }


def test_loads_are_held_against_plain_decoding_on_the_targets_devices():
    loads = at_loads(QWEN_4_1, (2,), 20)
    assert [load.num_at_once for load in loads] == [2] * 6
    plain = loads[0]
    assert plain.over_off == 1
    for load in loads:
        assert load.over_off == pytest.approx(load.tokens_per_s / plain.tokens_per_s)


def test_the_more_targets_share_a_draft_process_the_less_each_gains():
    gains = [load.over_off / count for load, count in zip(
        sharing(QWEN_4_1, (1, 4), (8,), 40), (1, 4), strict=True
    )]  # fmt: skip
    assert gains[0] > 1.2 * gains[1] > 1.2


def test_rule_and_simulation_agree_where_drafts_are_in_time():
    placed = compare((0.1, 0.45), (1.0, 2.0), 500)
    clear = [each for each in placed if abs(each.simulated - 1) > 0.05]
    assert len(clear) >= 3
    assert all((each.by_rule > 1) == (each.simulated > 1) for each in clear)
    assert all(each.simulated == pytest.approx(each.by_rule, rel=0.1) for each in placed)
    assert all(each.by_rule == pytest.approx(KEPT * each.at_best) for each in placed)


def test_what_launch_goes_by_is_an_upper_bound_even_where_drafts_are_late():
    placed = compare((0.05, 0.8), (1.15, 2.0), 400)
    assert all(each.simulated < 1.05 * each.at_best for each in placed)
