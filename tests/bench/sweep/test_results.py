"""Rows, and what a report says of them."""

import msgspec

from bench.machine import describe_machine
from bench.sweep.kept import Kept, Measured
from bench.sweep.plan import FULL, QUICK, Load, Targets
from bench.sweep.report import conditions, tables, verdict
from bench.sweep.results import Collector, Results, Rows, num_broken, shortened
from tests.bench.sweep.made_up import arms, cell

ARMS = arms(FULL)
SPEEDS = {"off": 10.0, "sync": 12.0, "async": 20.0, "sync 2 threads": 16.0}


def turns(in_flight: int = 1) -> list:
    return [
        cell(arm, speed * in_flight, in_flight=in_flight, repeat=repeat)
        for arm, speed in SPEEDS.items()
        for repeat in range(2)
    ]


def results(tmp_path, cells, *, is_complete: bool = True) -> Results:
    measured = Measured(
        plan=QUICK, target="tiny", ballast="none", drafter="lm", device="cpu", flags="",
        prompts="", is_pinned=True,
    )  # fmt: skip
    kept = Kept(tmp_path, measured)
    kept.begin(describe_machine())
    for each in cells:
        kept.keep(each)
    collector = Collector(measured, Targets(), ARMS, prompts="Prompts", command="python -m x")
    return collector.results(kept, is_complete=is_complete)


def test_an_arm_with_a_draft_process_is_held_against_equal_hardware():
    rows = {row.arm: row for row in Rows(ARMS, Targets()).of(turns())}
    own = rows["async"]
    assert own.over_off is not None
    assert own.over_equal is not None
    assert (own.over_off.value, own.over_equal.value, own.equal) == (2.0, 1.25, "sync 2 threads")
    assert (own.num_answers, own.num_repeats, own.cores, own.foreign_share) == (8, 2, 2, 0.01)
    for name in ("off", "sync", "sync 2 threads"):
        assert rows[name].over_equal is rows[name].equal is None
    assert rows["off"].over_off is None


def test_rows_are_worked_out_again_where_a_turn_was_added_alone():
    rows, cells = Rows(ARMS, Targets()), turns()
    first = rows.of(cells)
    again = rows.of([*cells, *turns(4)])
    assert all(one is other for one, other in zip(first, again, strict=False))
    assert [row.load for row in again[4:]] == [Load(in_flight=4)] * 4
    added = rows.of([*cells, cell("off", repeat=2)])
    assert added[0].num_repeats == 3


def test_what_was_shortened_or_broken_is_told(tmp_path):
    few = cell("off", in_flight=4, num_answers=5)
    broken = [cell("off", num_answers=4), cell("sync", num_answers=4, session=1)]
    assert shortened([few, few, *broken], QUICK) == ["4 in flight, T 1, repeat 1: 5 of 8 requests"]
    assert num_broken([few, *broken]) == 1
    said = conditions(results(tmp_path, [few, *broken], is_complete=False))
    assert "**Shortened, to end in 820 s**: 4 in flight, T 1, repeat 1: 5 of 8 requests." in said
    assert "A stop lies within 1 comparisons" in said
    assert "**stopped before the end**" in said


def test_a_whole_run_without_a_break_says_nothing_of_either(tmp_path):
    unharmed = conditions(results(tmp_path, turns()))
    assert "Shortened" not in unharmed
    assert "stop" not in unharmed


def test_the_most_that_is_served_is_of_the_loads_that_give_users_enough(tmp_path):
    slow = [cell("off", 30.0, in_flight=4, num_answers=8)]  # 7.5 tokens a second each
    found = results(tmp_path, [*turns(), *slow])
    (table,) = [t for t in tables(found) if t.title.startswith("The most that is served")]
    by_arm = {row[1]: row[2:] for row in table.rows}
    assert str(by_arm["off"][0]) == "1 in flight"
    nobody = msgspec.structs.replace(found, targets=Targets(interactivity=1000.0))
    (table,) = [t for t in tables(nobody) if t.title.startswith("The most that is served")]
    assert {tuple(row[2:]) for row in table.rows} == {("-", "-")}


def test_a_report_has_every_table_and_says_what_was_not_measured(tmp_path):
    found = results(tmp_path, turns())
    text = "\n".join(table.markdown() for table in tables(found, ["speedup.png"]))
    for said in ("Temperature 1: speed", "latency", "rounds", "![speedup.png]", "sync 2 threads"):
        assert said in text
    assert "1.25 [1.25, 1.25]: sync 2 threads" in text
    assert verdict(found).count("not measured") == 3
