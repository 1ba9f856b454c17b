"""The chooser spends its time in the fastest mode, wherever that is and whenever it changes."""

import random

import pytest

from target_node.planning.mode_chooser import ModeChooser
from target_node.planning.mode_speeds import BatchLoad

ROUND_S = 0.03
MODES = ["off", "sync", "async"]
ONE = BatchLoad(1, "coupled")


class Service:
    """Rounds of scripted speed: tokens a second by mode, at a time."""

    def __init__(self, speeds_at, num_barren: int = 0) -> None:
        """The first `num_barren` rounds after a change bring nothing."""
        self.now_s = 0.0
        self.chooser = ModeChooser(MODES)
        self._speeds_at = speeds_at
        self._num_barren = num_barren
        self._running, self._age = "", 0
        self._source = random.Random(4)

    def run(self, seconds: float) -> float:
        """Tokens made, as a share of those that the best mode had made at every moment."""
        end_s, made, possible = self.now_s + seconds, 0.0, 0.0
        while self.now_s < end_s:
            mode, count = self.chooser.next_run(ONE)
            if mode != self._running:
                self._running, self._age = mode, 0
            for _ in range(count):
                speeds = self._speeds_at(self.now_s)
                is_barren = self._age < self._num_barren
                expected = 0.0 if is_barren else speeds[mode] * ROUND_S
                self.now_s += ROUND_S
                made += expected
                possible += max(speeds.values()) * ROUND_S
                drawn = round(self._source.gauss(expected, 0.3 * expected))
                self.chooser.observe(ONE, mode, drawn, ROUND_S, age=self._age)
                self._age += 1
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
def test_nearly_all_tokens_of_the_best_mode_are_made(speeds):
    service = Service(lambda now_s: dict(zip(MODES, speeds, strict=True)))
    assert service.run(20.0) > 0.93
    assert service.run(300.0) > 0.97


@pytest.mark.parametrize("speeds", [(40, 80, 81), (40, 81, 80), (80, 81, 79)])
@pytest.mark.parametrize("num_barren", [1, 3])
def test_what_changing_over_costs_is_counted_too(speeds, num_barren):
    service = Service(lambda now_s: dict(zip(MODES, speeds, strict=True)), num_barren=num_barren)
    service.run(60.0)
    assert service.run(300.0) > 0.97


def test_a_mode_that_began_badly_is_found_soon():
    def speeds_at(now_s: float) -> dict[str, float]:
        return {"off": 100.0, "sync": 150.0, "async": 130.0 if now_s < 2.5 else 200.0}

    service = Service(speeds_at)
    service.run(20.0)
    assert service.run(60.0) > 0.97


@pytest.mark.slow
@pytest.mark.parametrize("outage_s", [10.0, 300.0])
def test_a_mode_that_gets_slow_is_left_and_found_again(outage_s):
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
    chooser, many = ModeChooser(MODES), BatchLoad(5, "coupled")
    for _ in range(100):
        for mode, few_tokens, many_tokens in (("off", 3, 90), ("sync", 4, 80), ("async", 5, 70)):
            chooser.observe(ONE, mode, few_tokens, ROUND_S, age=9)
            chooser.observe(many, mode, many_tokens, ROUND_S, age=9)
    assert chooser.speed(many, "off") > chooser.speed(many, "async") > chooser.speed(ONE, "async")
    assert (chooser.preferred(ONE), chooser.preferred(many)) == ("async", "off")
    assert chooser.speed(BatchLoad(2, "coupled"), "off") == 0.0


@pytest.mark.slow
def test_a_dear_change_is_made_seldom():
    """By what it was measured to cost, not by what it was believed to."""

    def num_changes(change_s: float) -> int:
        chooser, now, age, changes = ModeChooser(MODES), "", 0, 0
        for _ in range(2000):
            mode, count = chooser.next_run(ONE)
            if mode != now:
                now, age = mode, 0
                changes += 1
            for _ in range(count):
                seconds = ROUND_S + change_s * 0.5**age
                chooser.observe(ONE, mode, 3, seconds, age=age)
                age += 1
        return changes

    assert num_changes(0.5) < 0.6 * num_changes(0.1)


def test_rounds_without_tokens_are_no_trouble():
    chooser = ModeChooser(MODES)
    for num_tokens, seconds, age in ((0, 0.01, 9), (1, 0.01, None), (2, 0.0, 0)):
        for load in (ONE, BatchLoad(3, "greedy")):
            chooser.observe(load, "off", num_tokens, seconds, age=age)
    assert chooser.next_run(ONE)[1] > 0


def test_what_is_left_out_neither_runs_nor_stops_being_preferred():
    chooser = ModeChooser(MODES)
    for _ in range(200):
        for mode, num_tokens in zip(MODES, (2, 4, 6), strict=True):
            chooser.observe(ONE, mode, num_tokens, ROUND_S, age=9)
    assert chooser.preferred(ONE) == "async"
    assert chooser.best(ONE, but=["async"]) == chooser.preferred(ONE, but=["async"]) == "sync"
    assert chooser.best(ONE, but=["sync", "async"]) == "off"
    for _ in range(200):
        mode, count = chooser.next_run(ONE, but=["async", "sync"])
        assert (mode, count > 0) == ("off", True)
        chooser.observe(ONE, mode, 2, ROUND_S, age=9)
    assert chooser.next_run(ONE)[0] == "async"


@pytest.mark.parametrize("slowness", [0.1, 0.3, 0.6])
def test_a_mode_that_is_tried_seldom_is_not_taken_for_slower_than_it_is(slowness):
    """The first rounds after a change are slower; short tries have hardly any others."""
    chooser, now, age = ModeChooser(["off", "sync"]), "", 0
    speeds = {"off": 100.0, "sync": 90.0}
    for _ in range(600):
        mode, count = chooser.next_run(ONE)
        if mode != now:
            now, age = mode, 0
        for _ in range(count):
            seconds = 3 / speeds[mode] * (1 + slowness * 0.6**age)
            chooser.observe(ONE, mode, 3, seconds, age=age)
            age += 1
    assert chooser.preferred(ONE) == "off"
    assert chooser.speed(ONE, "sync") == pytest.approx(90, rel=0.04)


@pytest.mark.parametrize(
    ("num_rounds", "num_tokens", "preferred"),
    [(20, 101, "off"), (20, 130, "async"), (2000, 101, "off"), (2000, 108, "async")],
)
def test_what_is_safe_runs_until_another_is_faster_beyond_doubt(num_rounds, num_tokens, preferred):
    chooser, many = ModeChooser(MODES, safe="off"), BatchLoad(5, "coupled")
    rounds = {"sync": (5, 0.1), "async": (num_tokens, 1.0)}
    for known in (rounds, rounds | {"off": (100, 1.0)}):
        for age in range(num_rounds):
            for mode, (made, seconds) in known.items():
                chooser.observe(many, mode, made, seconds, age=age)
        # Until it was measured, nothing is known of what is safe.
        assert chooser.preferred(many) == (preferred if "off" in known else "async")


@pytest.mark.parametrize("num_rows_bits", [1, 3, 5])
@pytest.mark.parametrize("slow", [0.8, 0.5, 0.3])
def test_a_slow_mode_does_not_keep_others_of_its_kind_from_their_try(slow, num_rows_bits):
    chooser = ModeChooser(["off", "sync", "a", "b"], ["off", "sync", "k", "k"], safe="off")
    load, speeds = (
        BatchLoad(num_rows_bits, "coupled"),
        {"off": 1.0, "sync": 0.6, "a": slow, "b": 1.5},
    )
    rounds: list[str] = []
    while len(rounds) < 4000:
        mode, count = chooser.next_run(load)
        for age in range(count):
            made = 2 * load.num_rows
            chooser.observe(load, mode, made, made / (100 * speeds[mode]), age=age + 6)
        rounds += count * [mode]
    assert "b" in rounds[:3000]
    assert rounds[-100:].count("b") > 60


def test_what_stands_in_for_the_preferred_mode_is_not_charged_as_a_try():
    chooser = ModeChooser(MODES)

    def run(count: int, speeds: dict[str, int], but: tuple[str, ...] = ()) -> list[str]:
        rounds: list[str] = []
        while len(rounds) < count:
            mode, length = chooser.next_run(ONE, but=but)
            for age in range(length):
                chooser.observe(ONE, mode, speeds[mode], 0.01, age=age + 6)
            rounds += length * [mode]
        return rounds

    speeds = {"off": 2, "sync": 3, "async": 6}
    run(1500, speeds)
    assert run(3000, speeds, ("async",)).count("sync") > 2700
    assert chooser.preferred(ONE) == "async"
    assert chooser._lost[ONE]["sync"] < 250


def test_what_changes_and_stalls_take_is_bounded():
    chooser = ModeChooser(["off", "sync"])
    for age in range(200):
        chooser.observe(ONE, "off", 3, 0.01, age=age)
    for _ in range(20):
        for age in range(20):
            chooser.observe(ONE, "off", 3, 5.0 if age < 6 else 0.01, age=age)
    assert chooser._change_rounds <= 32
    chooser.observe(ONE, "sync", 3, 0.01, age=0)
    assert chooser.speed(ONE, "sync") <= 600  # a round is not taken for many


def test_one_stall_is_not_what_a_change_takes():
    chooser = ModeChooser(["off", "sync"])
    for age in range(200):
        chooser.observe(ONE, "off", 3, 0.01, age=age)
    before = chooser._change_rounds
    for age in range(20):
        chooser.observe(ONE, "off", 3, 0.01 if age else 5.0, age=age)
    assert before < chooser._change_rounds < before + 0.2 * 8


def test_the_dearer_a_change_the_longer_a_try():
    chooser = ModeChooser(["off", "sync"])
    for mode, num_tokens in (("off", 4), ("sync", 3)):
        for age in range(100):
            chooser.observe(ONE, mode, num_tokens, 0.01, age=age + 6)
    belief = chooser._speeds.belief(ONE)
    lengths: list[float] = []
    for chooser._change_rounds in (1.0, 6.0):
        lengths.append(chooser._trial_tokens(ONE, 1, 0, belief))
    assert lengths[0] == pytest.approx(10 / belief.behind(1, 0))
    assert lengths[1] == pytest.approx(24 / belief.behind(1, 0), rel=0.05)


@pytest.mark.parametrize(("num_tokens", "seconds"), [(0, 0.01), (2, 0.0), (0, 0.0)])
def test_many_rounds_without_tokens_or_time_are_no_trouble_either(num_tokens, seconds):
    chooser = ModeChooser(MODES, safe="off")
    for age in (*range(40), None, *range(10)):
        chooser.observe(ONE, "off", num_tokens, seconds, age=age)
    assert chooser.next_run(ONE)[1] > 0


@pytest.mark.parametrize(("before", "after"), [("async", "off"), ("off", "async")])
def test_after_hours_of_one_mode_a_better_one_does_not_wait_for_minutes(before, after):
    """What was not lost in hours of one mode may not be lost at a stretch once it is slow."""
    speeds = {"off": 100.0, "sync": 90.0, "async": 90.0}
    service = Service(lambda _: {**speeds, before: 150.0})
    service.run(60.0)
    for _ in range(1000):  # as much as an hour and a half of a larger batch
        service.chooser.observe(ONE, before, 10_000, 10_000 / 150, age=9)
    service._speeds_at = lambda _: {**speeds, before: 70.0, after: 150.0}
    service.run(90.0)
    assert service.run(60.0) > 0.95
