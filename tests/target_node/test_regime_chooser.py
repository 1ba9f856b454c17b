"""The chooser spends its time in the fastest regime, wherever that is and whenever it changes."""

import random

import pytest

from target_node.regime_chooser import SETTLING, RegimeChooser
from target_node.regime_speeds import Load

ROUND_S = 0.03
REGIMES = ["off", "sync", "async"]
ONE = Load(1, "coupled")


class Service:
    """Rounds of scripted speed: tokens a second by regime, at a time."""

    def __init__(self, speeds_at, num_barren: int = 0) -> None:
        """The first `num_barren` rounds after a change bring nothing."""
        self.now_s = 0.0
        self.chooser = RegimeChooser(REGIMES)
        self._speeds_at = speeds_at
        self._num_barren = num_barren
        self._running = ""
        self._source = random.Random(4)

    def run(self, seconds: float) -> float:
        """Tokens made, as a share of those that the best regime had made at every moment."""
        end_s, made, possible = self.now_s + seconds, 0.0, 0.0
        while self.now_s < end_s:
            regime, count = self.chooser.next_run(ONE)
            has_changed, self._running = regime != self._running, regime
            for index in range(count):
                speeds = self._speeds_at(self.now_s)
                is_barren = has_changed and index < self._num_barren
                expected = 0.0 if is_barren else speeds[regime] * ROUND_S
                self.now_s += ROUND_S
                made += expected
                possible += max(speeds.values()) * ROUND_S
                drawn = round(self._source.gauss(expected, 0.3 * expected))
                settles = has_changed and index < SETTLING
                self.chooser.observe(ONE, regime, drawn, ROUND_S, settles=settles)
        return made / possible


@pytest.mark.parametrize(
    "speeds",
    [
        pytest.param((100, 130, 160), id="async is best"),
        pytest.param((100, 150, 120), id="sync is best"),
        pytest.param((100, 95, 60), id="off is best"),
        pytest.param((100, 101, 99), id="all are alike"),
        pytest.param((100, 20, 200), id="one is very slow"),
    ],
)
def test_nearly_all_tokens_of_the_best_regime_are_made(speeds):
    service = Service(lambda now_s: dict(zip(REGIMES, speeds, strict=True)))
    assert service.run(20.0) > 0.93
    assert service.run(300.0) > 0.97


@pytest.mark.parametrize("speeds", [(40, 80, 81), (40, 81, 80), (80, 81, 79)])
@pytest.mark.parametrize("num_barren", [1, 3])
def test_what_changing_over_costs_is_counted_too(speeds, num_barren):
    service = Service(lambda now_s: dict(zip(REGIMES, speeds, strict=True)), num_barren=num_barren)
    service.run(60.0)
    assert service.run(300.0) > 0.97


def test_a_regime_that_began_badly_is_found_soon():
    def speeds_at(now_s: float) -> dict[str, float]:
        return {"off": 100.0, "sync": 150.0, "async": 130.0 if now_s < 2.5 else 200.0}

    service = Service(speeds_at)
    service.run(20.0)
    assert service.run(60.0) > 0.97


@pytest.mark.slow
@pytest.mark.parametrize("outage_s", [10.0, 300.0])
def test_a_regime_that_gets_slow_is_left_and_found_again(outage_s):
    def speeds_at(now_s: float) -> dict[str, float]:
        is_out = 600.0 < now_s < 600.0 + outage_s
        return {"off": 100.0, "sync": 130.0, "async": 100.0 if is_out else 160.0}

    service = Service(speeds_at)
    assert service.run(600.0) > 0.97
    service.run(outage_s)
    service.run(240.0)
    assert service.run(300.0) > 0.97
    assert service.chooser.speed(ONE, "async") > 150


def test_loads_are_judged_apart():
    chooser, many = RegimeChooser(REGIMES), Load(5, "coupled")
    for _ in range(100):
        for regime, few_tokens, many_tokens in (("off", 3, 90), ("sync", 4, 80), ("async", 5, 70)):
            chooser.observe(ONE, regime, few_tokens, ROUND_S)
            chooser.observe(many, regime, many_tokens, ROUND_S)
    assert chooser.speed(many, "off") > chooser.speed(many, "async") > chooser.speed(ONE, "async")
    assert (chooser.preferred(ONE), chooser.preferred(many)) == ("async", "off")
    assert chooser.speed(Load(2, "coupled"), "off") == 0.0


@pytest.mark.slow
def test_a_dear_change_is_made_seldom():
    """By what it was measured to cost, not by what it was believed to."""

    def num_changes(change_s: float) -> int:
        chooser, now, changes = RegimeChooser(REGIMES), "", 0
        for _ in range(2000):
            regime, count = chooser.next_run(ONE)
            has_changed, now = regime != now, regime
            changes += has_changed
            for index in range(count):
                settles = has_changed and index < SETTLING
                seconds = ROUND_S + change_s * settles
                chooser.observe(ONE, regime, 3, seconds, settles=settles)
        return changes

    assert num_changes(0.5) < 0.6 * num_changes(0.1)


def test_rounds_without_tokens_are_no_trouble():
    chooser = RegimeChooser(REGIMES)
    for num_tokens, seconds, settles in ((0, 0.01, False), (1, 0.01, True), (2, 0.0, False)):
        for load in (ONE, Load(3, "greedy")):
            chooser.observe(load, "off", num_tokens, seconds, settles=settles)
    assert chooser.next_run(ONE)[1] > 0
