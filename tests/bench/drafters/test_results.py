"""From rounds to cells, ratios and the summary."""

import pytest

from bench.bootstrap import Interval
from bench.drafters.plan import FULL, Condition
from bench.drafters.results import Cell, compare, make_cell, summarise
from bench.rounds import Answer, Round
from specserve.sampling.verification.method import VerificationMethod

FORESEEABLE, COUPLED = VerificationMethod.FORESEEABLE, VerificationMethod.COUPLED


def cell(drafter: str, accepted: list[int], domain: str = "code", **changes) -> Cell:
    """One prompt for each of `accepted`, each with two rounds of so many accepted tokens."""
    fields = {"temperature": 1.0, "method": FORESEEABLE, "max_verify_len": 4} | changes
    answers = [
        Answer(rounds=[Round(room=30, num_emitted=k + 1, verify_len=4, num_accepted=k)] * 2)
        for k in accepted
    ]
    return make_cell(drafter, Condition(domain=domain, **fields), answers, 4)


def test_a_cell_has_a_figure_for_every_position_that_was_reached():
    found = cell("dspark", [1, 3])
    assert found.accept_len.value == pytest.approx(3.0)
    assert found.accepted_share is not None
    assert found.accepted_share.value == pytest.approx(0.5)
    values = [one.value for one in found.conditional if one is not None]
    assert values == pytest.approx([1.0, 0.5, 1.0, 0.0])
    assert cell("dspark", [0]).conditional[1:] == [None, None, None]


def test_ratios_are_over_dflash_by_domain_and_on_average():
    cells = [
        cell("dspark", [3, 3]), cell("dflash", [1, 1]), cell("ngram", [0, 0]),
        cell("dspark", [3], "prose"), cell("dflash", [3], "prose"), cell("ngram", [1], "prose"),
    ]  # fmt: skip
    found = {(row.over, row.domain): row.ratio.value for row in compare(cells)}
    assert found == pytest.approx(
        {
            ("dspark", "code"): 2.0, ("dspark", "prose"): 1.0, ("dspark", None): 1.5,
            ("ngram", "code"): 0.5, ("ngram", "prose"): 0.5, ("ngram", None): 0.5,
        }
    )  # fmt: skip
    assert {row.under for row in compare(cells)} == {"dflash"}


def test_a_domain_that_one_drafter_lacks_is_not_compared():
    cells = [cell("dspark", [3]), cell("dspark", [3], "prose"), cell("dflash", [1])]
    assert [row.domain for row in compare(cells)] == ["code", None]


def test_a_drafter_alone_is_compared_with_nobody():
    assert compare([cell("dspark", [3])]) == []


def test_the_summary_keeps_methods_and_temperatures_apart():
    cells = [
        cell("dspark", [3]), cell("dflash", [1]), cell("dels", [2]),
        cell("dspark", [2], method=COUPLED), cell("dflash", [1], method=COUPLED),
        cell("dspark", [4], temperature=0.0), cell("dflash", [0], temperature=0.0),
    ]  # fmt: skip
    summary = summarise(cells, [], FULL)
    assert summary["dspark_over_dflash"] == pytest.approx(2.0)
    assert summary["dspark_over_dflash_lo"] == summary["dspark_over_dflash_hi"] == pytest.approx(2)
    assert summary["dspark_over_dflash_coupled"] == pytest.approx(1.5)
    assert summary["dels_over_dflash"] == pytest.approx(1.5)
    assert summary["dels_over_dflash_coupled"] is None
    assert summary["dspark_over_eagle3"] is None
    assert summary["async_over_sync_accept_len_lo"] is None
    assert summary["accept_len_dspark_t1"] == pytest.approx(4.0)
    assert summary["accept_len_dspark_t0"] == summary["accept_len_dspark_t0_hi"] == 5.0
    assert summary["ece_before"] is None


def test_the_summary_compares_with_eagle_and_the_draft_that_runs_ahead_with_the_one_that_does_not():
    cells = [
        cell("dspark", [3, 1]), cell("eagle3", [1, 1]), cell("dspark-async", [4, 3]),
        cell("dspark", [1], "prose"), cell("eagle3", [0], "prose"),
    ]  # fmt: skip
    summary = summarise(cells, [], FULL)
    assert summary["dspark_over_eagle3"] == pytest.approx((1.5 + 2.0) / 2)
    assert summary["async_over_sync_accept_len"] == pytest.approx(4.5 / 3)
    assert summary["dspark_over_dflash"] is None
    # All prompts alike, of whatever domain: 4, 2 and 2 tokens a round.
    assert summary["accept_len_dspark_t1"] == pytest.approx(8 / 3)
    assert 2 <= summary["accept_len_dspark_t1_lo"] < 8 / 3 < summary["accept_len_dspark_t1_hi"] <= 4


def test_greedy_rows_are_of_no_method_in_particular():
    found = compare([cell("dspark", [3], temperature=0.0), cell("dflash", [1], temperature=0.0)])
    assert {row.method for row in found} == {"any"}
    assert all(isinstance(row.ratio, Interval) for row in found)
