"""`auto` spends its time in the fastest regime, wherever that is and whenever it changes."""

import random
from collections import Counter
from types import SimpleNamespace

import pytest

import target_node.auto
from specserve.decoding.verification.rule import VerificationRule
from target_node.auto import SETTLING, AutoSpeculation, RegimeChooser
from target_node.speculation import NoSpeculation
from tests.scripted_time import ScriptedTime

ROUND_S = 0.03
REGIMES = ["off", "sync", "async"]


class Service:
    """Rounds of scripted speed: tokens a second by regime, at a time."""

    def __init__(self, speeds_at, num_rows: int = 1, num_barren: int = 0) -> None:
        """The first `num_barren` rounds after a change bring nothing."""
        self.now_s = 0.0
        self.chooser = RegimeChooser(REGIMES)
        self._speeds_at = speeds_at
        self._num_rows = num_rows
        self._num_barren = num_barren
        self._running = ""
        self._source = random.Random(4)

    def run(self, seconds: float) -> float:
        """Tokens made, as a share of those that the best regime had made at every moment."""
        end_s, made, possible = self.now_s + seconds, 0.0, 0.0
        while self.now_s < end_s:
            regime, count = self.chooser.next_run(self._num_rows)
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
                self.chooser.observe(self._num_rows, regime, drawn, ROUND_S, settles=settles)
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
    assert service.chooser.speed(1, "async") > 150


def test_loads_are_judged_apart():
    chooser = RegimeChooser(REGIMES)
    for _ in range(100):
        for regime, few, many in (("off", 3, 90), ("sync", 4, 80), ("async", 5, 70)):
            chooser.observe(1, regime, few, ROUND_S)
            chooser.observe(16, regime, many, ROUND_S)
    assert chooser.speed(16, "off") > chooser.speed(16, "async") > chooser.speed(1, "async")
    chosen = {
        rows: [chooser.next_run(rows)[0] for _ in range(5)] for rows in (1, 16)
    }  # nothing is observed in between: every choice is the same
    assert len({*chosen[1]}) == len({*chosen[16]}) == 1
    assert chooser.speed(2, "off") == 0.0


class Recording(NoSpeculation):
    """What a regime is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def attach(self, rows):
        self.asked.append("attach")
        return rows

    def follow(self, rows):
        self.asked.append("follow")

    def tend(self):
        self.asked.append("tend")

    def forget(self, sequence):
        self.asked.append("forget")


def decoding_row(is_decoding: bool = True, temperature: float = 1.0, rule: str = "coupled"):
    sampling = SimpleNamespace(temperature=temperature)
    request = SimpleNamespace(sampling=sampling, rule=VerificationRule(rule))
    return SimpleNamespace(sequence=SimpleNamespace(is_decoding=is_decoding, request=request))


def auto(regimes) -> AutoSpeculation:
    return AutoSpeculation(regimes, lambda sequence: sequence.request.rule)


class Choosing:
    """In place of `RegimeChooser`: what a test says."""

    def __init__(self) -> None:
        self.regime = "off"
        self.observed: list[tuple[str, bool]] = []

    def next_run(self, load):
        return self.regime, 1

    def observe(self, load, regime, num_tokens, seconds, *, settles=False):
        self.observed.append((regime, settles))


def test_one_regime_attaches_and_the_others_are_left_alone():
    regimes = {name: Recording() for name in REGIMES}
    source = auto(regimes)
    row = decoding_row()
    source.attach([row])
    source.tend()
    source.forget(row.sequence)
    asked = sorted(regime.asked for regime in regimes.values())
    assert asked == [["attach", "tend", "forget"]] + 2 * [["tend", "forget"]]


@pytest.mark.parametrize(("num_away", "num_telling"), [(1, 0), (32, 0), (40, 4), (1000, 16)])
def test_draft_processes_are_told_what_they_missed_before_they_are_used(num_away, num_telling):
    regimes = {name: Recording() for name in REGIMES}
    source = auto(regimes)
    source._chooser = chooser = Choosing()
    row, sampled = decoding_row(), [SimpleNamespace(token_ids=[1])]

    def rounds(count: int) -> None:
        for _ in range(count):
            source.observe(source.attach([row]), sampled)

    rounds(num_away)
    assert regimes["async"].asked == []
    chooser.regime, chooser.observed = "async", []
    rounds(num_telling)
    assert regimes["async"].asked == num_telling * ["follow"]
    assert chooser.observed == num_telling * [("off", True)]  # others' speed is not judged by these
    rounds(5)
    assert regimes["async"].asked[num_telling:] == 5 * ["attach"]
    assert chooser.observed[-1] == ("async", False)


def test_loads_that_take_turns_do_not_keep_draft_processes_out():
    regimes = {name: Recording() for name in REGIMES}
    source = auto(regimes)
    source._chooser = chooser = Choosing()
    for turn in range(200):
        chooser.regime = ("off", "async")[turn >= 50 and turn % 2]
        source.observe(source.attach([decoding_row()]), [SimpleNamespace(token_ids=[1])])
    assert "attach" in regimes["async"].asked


def test_rounds_that_compute_prompts_neither_count_nor_end_a_run():
    source = auto({name: Recording() for name in REGIMES})
    sampled = [SimpleNamespace(token_ids=[1]), SimpleNamespace(token_ids=[])]
    for _ in range(50):
        rows = [decoding_row(), decoding_row(is_decoding=False)]
        source.observe(source.attach(rows), sampled)
    assert not any(speed.seconds for speed in source._chooser._speeds.values())
    regime = source.regime
    for _ in range(10):
        source.attach([decoding_row(is_decoding=False)])
    assert source.regime == regime


@pytest.mark.parametrize(
    ("rows", "load"),
    [
        ([decoding_row()], (1, "coupled")),
        ([decoding_row(temperature=0.0, rule="rejection")], (1, "greedy")),
        ([decoding_row(), decoding_row(is_decoding=False, rule="rejection")], (1, "coupled")),
        (
            [decoding_row(), decoding_row(rule="rejection"), decoding_row(rule="rejection")],
            (2, "rejection"),
        ),
        ([decoding_row(temperature=0.0) for _ in range(16)], (5, "greedy")),
    ],
)
def test_a_load_is_how_many_rows_and_how_most_of_them_are_judged(rows, load):
    source = auto({name: Recording() for name in REGIMES})
    source.attach(rows)
    assert source._load == load


def test_what_is_fast_for_greedy_rows_says_nothing_of_drawn_ones(monkeypatch):
    """Requests of two kinds in turn: each is served by what is fastest for it."""
    source = auto({name: Recording() for name in REGIMES})
    tokens = {("greedy", "async"): 5, ("greedy", "sync"): 3, ("drawn", "sync"): 5}
    chosen = {"greedy": Counter(), "drawn": Counter()}
    clock = ScriptedTime()
    monkeypatch.setattr(target_node.auto, "time", clock)
    for turn in range(400):
        kind = ("greedy", "drawn")[turn % 2]
        row = decoding_row(temperature=float(kind == "drawn"))
        for _ in range(30):
            source.attach([row])
            clock.now_s += ROUND_S
            num_tokens = tokens.get((kind, source.regime), 2)
            source.observe([row], [SimpleNamespace(token_ids=[0] * num_tokens)])
            chosen[kind][source.regime] += turn > 100
    for kind, best in (("greedy", "async"), ("drawn", "sync")):
        assert chosen[kind][best] > 0.95 * chosen[kind].total()
