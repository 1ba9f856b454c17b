"""`auto` hands rounds over to what is fastest, told in time and not for the sake of changing."""

from collections import Counter
from types import SimpleNamespace

import pytest

import target_node.speculation.auto
from target_node.speculation.auto import MOST_WARM_UPS
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.planning.recorded_modes import Choosing, Recording, auto, decoding_row

ROUND_S = 0.03
MODES = ["off", "sync", "async"]


def test_one_mode_attaches_and_the_others_are_left_alone():
    modes = {name: Recording() for name in MODES}
    source = auto(modes)
    row = decoding_row()
    source.propose([row])
    source.poll()
    source.forget(row.sequence)
    source.close()
    asked = sorted((mode.asked for mode in modes.values()), key=len, reverse=True)
    assert asked == [["propose", "poll", "forget", "close"]] + 2 * [["poll", "forget", "close"]]


@pytest.mark.parametrize("num_unready", [0, 1, 7, MOST_WARM_UPS, 1000])
def test_a_mode_prepares_before_it_is_used(num_unready):
    modes = {"off": Recording(), "sync": Recording(), "async": Recording(num_unready)}
    source = auto(modes)
    source._chooser = chooser = Choosing()
    row, sampled = decoding_row(), [SimpleNamespace(token_ids=[1])]

    def rounds(count: int) -> None:
        for _ in range(count):
            source.observe(source.propose([row]), sampled)
        source.learn()

    rounds(40)
    assert modes["async"].asked == []
    chooser.mode, chooser.observed = "async", []
    num_waited = min(num_unready, MOST_WARM_UPS)
    rounds(num_waited + 5)
    asked = modes["async"].asked
    assert asked == (num_waited + 1) * ["warm_up"] + 5 * ["propose"]
    # The others' speed is not verified by what ran meanwhile.
    assert chooser.observed[:num_waited] == num_waited * [("off", None)]
    assert chooser.observed[num_waited:] == [("async", age) for age in range(5)]
    if num_unready <= MOST_WARM_UPS:
        chooser.mode = "sync"
        rounds(1)
        chooser.mode = "async"
        rounds(1)
        assert asked[num_waited + 6 :] == ["warm_up", "propose"]  # it is prepared still


def test_what_passes_between_two_rounds_counts_and_idle_time_does_not(monkeypatch):
    clock = ScriptedTime()
    monkeypatch.setattr(target_node.speculation.auto, "time", clock)
    source = auto({name: Recording() for name in MODES})
    source._chooser = chooser = Choosing()
    row = decoding_row()

    def turn(pause_s: float, *, has_rows: bool = True) -> None:
        clock.now_s += pause_s
        source.poll()
        if has_rows:
            rows = source.propose([row])
            clock.now_s += ROUND_S
            source.observe(rows, [SimpleNamespace(token_ids=[1])])

    turn(0.5)
    turn(0.002)
    turn(0.25, has_rows=False)
    turn(0.25)
    turn(0.001)
    source.learn()
    expected = [ROUND_S, ROUND_S + 0.002, ROUND_S, ROUND_S + 0.001]
    assert chooser.seconds == pytest.approx(expected)


def test_a_round_in_which_something_was_recorded_does_not_count(monkeypatch):
    source = auto({name: Recording() for name in MODES})
    source._chooser = chooser = Choosing()
    for num_first_calls in (0, 1, 1, 3, 3):
        rows = source.propose([decoding_row()])
        monkeypatch.setattr(BACKEND, "num_first_calls", num_first_calls)
        source.observe(rows, [SimpleNamespace(token_ids=[1])])
    source.learn()
    assert len(chooser.seconds) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("few", "many"), [(10, 40), (15, 100), (30, 30), (50, 50)])
@pytest.mark.parametrize("best", ["sync", "async"])
def test_loads_that_take_turns_each_have_their_best_mode(few, many, best, monkeypatch):
    clock = ScriptedTime()
    monkeypatch.setattr(target_node.speculation.auto, "time", clock)
    source = auto({name: Recording() for name in MODES})
    other = "sync" if best == "async" else "async"
    tokens = {(1, best): 6, (1, other): 4, (1, "off"): 2, (16, "off"): 6, (16, "sync"): 4}
    made = possible = 0
    for turn in range(200):
        for num_rows, num_rounds in ((1, few), (16, many)):
            # Requests of this turn: draft processes have to be told of them.
            source._modes["async"].asked, source._modes["async"].num_unready = [], 2
            rows = [decoding_row()] * num_rows
            for _ in range(num_rounds):
                source.propose(rows)
                clock.now_s += ROUND_S
                num_tokens = tokens.get((num_rows, source.mode), 3)
                source.observe(rows, [SimpleNamespace(token_ids=[0] * num_tokens)])
                if turn > 100 and num_rows == 1:
                    made, possible = made + num_tokens, possible + 6
    # Two rounds of each turn may pass while draft processes are told.
    assert made / possible > 0.93 - (best == "async") * 2 / few * (1 - 4 / 6)


def test_rounds_that_compute_prompts_neither_count_nor_end_a_run():
    source = auto({name: Recording() for name in MODES})
    sampled = [SimpleNamespace(token_ids=[1]), SimpleNamespace(token_ids=[])]
    for _ in range(50):
        rows = [decoding_row(), decoding_row(is_decoding=False)]
        source.observe(source.propose(rows), sampled)
    assert not any(source._chooser.speed(source._run.load, mode) for mode in MODES)
    mode = source.mode
    for _ in range(10):
        source.propose([decoding_row(is_decoding=False)])
    assert source.mode == mode


@pytest.mark.parametrize(
    ("rows", "load"),
    [
        ([decoding_row()], (1, "coupled")),
        ([decoding_row(temperature=0.0, method="rejection")], (1, "greedy")),
        ([decoding_row(), decoding_row(is_decoding=False, method="rejection")], (2, "rejection")),
        (
            [decoding_row(), decoding_row(method="rejection"), decoding_row(method="rejection")],
            (2, "rejection"),
        ),
        ([decoding_row(temperature=0.0) for _ in range(16)], (5, "greedy")),
    ],
)
def test_a_load_is_how_many_rows_and_how_most_of_them_are_judged(rows, load):
    source = auto({name: Recording() for name in MODES})
    source.propose(rows)
    assert source._run.load == load


def test_what_is_fast_for_greedy_rows_says_nothing_of_drawn_ones(monkeypatch):
    """Requests of two kinds in turn: each is served by what is fastest for it."""
    source = auto({name: Recording() for name in MODES})
    tokens = {("greedy", "async"): 5, ("greedy", "sync"): 3, ("drawn", "sync"): 5}
    chosen = {"greedy": Counter(), "drawn": Counter()}
    clock = ScriptedTime()
    monkeypatch.setattr(target_node.speculation.auto, "time", clock)
    for turn in range(400):
        kind = ("greedy", "drawn")[turn % 2]
        row = decoding_row(temperature=float(kind == "drawn"))
        for _ in range(30):
            source.propose([row])
            clock.now_s += ROUND_S
            num_tokens = tokens.get((kind, source.mode), 2)
            source.observe([row], [SimpleNamespace(token_ids=[0] * num_tokens)])
            chosen[kind][source.mode] += turn > 100
    for kind, best in (("greedy", "async"), ("drawn", "sync")):
        assert chosen[kind][best] > 0.95 * chosen[kind].total()


def test_draft_processes_are_counted_whichever_mode_runs():
    modes = {name: Recording() for name in MODES}
    modes["async"].num_drafts_attached = 2
    assert auto(modes).num_drafts_attached == 2
    assert auto({name: Recording() for name in ("off", "sync")}).num_drafts_attached == 0


def test_a_round_is_heard_of_once_the_next_ones_mode_is_chosen():
    """Blocks of the next one were drawn while it ran: how long it took must not decide on them."""
    source = auto({name: Recording() for name in MODES})
    source._chooser = chooser = Choosing()
    row, heard_before_choosing = decoding_row(), []
    choose = chooser.next_run

    def listening(load, *, but=()):
        heard_before_choosing.append(len(chooser.observed))
        return choose(load, but=but)

    chooser.next_run = listening
    for _ in range(5):
        source.observe(source.propose([row]), [SimpleNamespace(token_ids=[1])])
    assert heard_before_choosing == [0, 0, 1, 2, 3]
