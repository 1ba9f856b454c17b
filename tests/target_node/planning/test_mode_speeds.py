"""What is believed of a load: what was measured there, and what is like it elsewhere."""

import math

import pytest

from specserve.drafters.usual_acceptance import GREEDY
from target_node.planning.mode_speeds import BatchLoad, Measured, ModeSpeeds

OFF, DRAFTS = 0, 1
KINDS = ("off", "drafts")


def measured(*figures: tuple[BatchLoad, float, float]) -> ModeSpeeds:
    """Of each load, how much faster drafts are, over so many tokens."""
    speeds = ModeSpeeds(KINDS)
    for load, faster, num_tokens in figures:
        # How fast anything is at a load says nothing of another.
        off_s = num_tokens / (100 * load.num_rows)
        speeds.at(load)[OFF].add(num_tokens, off_s)
        speeds.at(load)[DRAFTS].add(num_tokens, off_s / faster)
    return speeds


def ahead(speeds: ModeSpeeds, load: BatchLoad) -> float:
    return speeds.belief(load).behind(OFF, DRAFTS)


def doubt(speeds: ModeSpeeds, load: BatchLoad) -> float:
    return speeds.belief(load).doubt(OFF, DRAFTS)


def of_rows(num_bits: int, verification: str = "coupled") -> BatchLoad:
    return BatchLoad(num_bits, verification)


def test_nothing_is_believed_of_what_was_never_seen():
    assert ahead(ModeSpeeds(KINDS), of_rows(3)) == 0
    assert doubt(ModeSpeeds(KINDS), of_rows(3)) > 0.5


def test_a_load_borrows_what_its_neighbour_knows_the_less_the_further_away():
    speeds = measured((of_rows(3), 1.5, 5000))
    beliefs = [ahead(speeds, of_rows(bits)) for bits in (3, 4, 5, 6)]
    assert beliefs == sorted(beliefs, reverse=True)
    assert 0 < beliefs[-1] < beliefs[1] < beliefs[0] == pytest.approx(0.405, rel=0.02)
    doubts = [doubt(speeds, of_rows(bits)) for bits in (3, 4, 5, 6)]
    assert doubts == sorted(doubts)
    assert ahead(speeds, of_rows(2)) == pytest.approx(beliefs[1])


def test_between_two_loads_both_count():
    speeds = measured((of_rows(1), 1.5, 5000), (of_rows(5), 0.7, 5000))
    assert ahead(speeds, of_rows(2)) > 0 > ahead(speeds, of_rows(4))


def test_other_distributions_count_little():
    speeds = measured((of_rows(3, "greedy"), 1.5, 5000))
    assert 0 < ahead(speeds, of_rows(3)) < ahead(speeds, of_rows(4, "greedy"))
    assert not speeds.is_known("coupled", DRAFTS)


def test_a_few_hundred_tokens_of_its_own_outweigh_a_neighbour():
    elsewhere = (of_rows(3), 1.5, 50_000)
    assert ahead(measured(elsewhere, (of_rows(4), 0.7, 8)), of_rows(4)) > -0.1
    assert ahead(measured(elsewhere, (of_rows(4), 0.7, 500)), of_rows(4)) < -0.25


def test_doubt_counts_tokens_and_not_seconds():
    slow, fast = ModeSpeeds(KINDS), ModeSpeeds(KINDS)
    for speeds, seconds in ((slow, 10.0), (fast, 0.1)):
        for mode in (OFF, DRAFTS):
            speeds.at(of_rows(1))[mode].add(400, seconds)
    assert doubt(slow, of_rows(1)) == pytest.approx(doubt(fast, of_rows(1)))


def test_many_rows_say_more_with_as_many_tokens_since_their_texts_differ():
    few, many = (measured((of_rows(bits), 1.5, 400)) for bits in (1, 5))
    assert doubt(many, of_rows(5)) < 0.7 * doubt(few, of_rows(1))


def test_what_one_kind_does_is_expected_of_its_others_until_they_are_measured():
    off, one, other = range(3)
    speeds, load = ModeSpeeds(("off", "drafts", "drafts")), of_rows(1)
    for mode, seconds in ((off, 10.0), (one, 5.0)):
        speeds.at(load)[mode].add(4000, seconds)
    believed = speeds.belief(load)
    assert (
        0.3 < believed.behind(off, other) < believed.behind(off, one) == pytest.approx(0.69, 0.02)
    )
    assert believed.doubt(one, other) < ModeSpeeds(KINDS).belief(load).doubt(OFF, DRAFTS)
    speeds.at(load)[other].add(4000, 20.0)
    assert speeds.belief(load).behind(off, other) == pytest.approx(-0.69, rel=0.02)


def test_what_one_mode_says_of_a_load_is_no_matter_of_the_other():
    """A load that is fast because many rows decode is not one where drafts are slow."""
    speeds = measured((of_rows(1), 1.0, 5000))
    speeds.at(of_rows(5))[OFF].add(5000, 1.0)
    assert ahead(speeds, of_rows(5)) == pytest.approx(0, abs=0.01)


def test_of_many_loads_those_most_alike_count():
    elsewhere = [
        (BatchLoad(bits, distribution), 3.0, 5000.0)
        for bits in range(8, 12)
        for distribution in "abcd"
    ]
    speeds = measured(*elsewhere, (of_rows(2), 0.7, 5000), (of_rows(4), 0.7, 5000))
    assert ahead(speeds, of_rows(3)) < -0.2


@pytest.mark.parametrize("stalled", [1, 2, 3, 8])
def test_one_stall_is_a_slow_round_and_no_more(stalled):
    """Whatever it was: a mode that looks many times too slow would not be tried for minutes."""
    figures = Measured()
    for turn in range(1, 9):
        figures.add(3, 5.0 if turn == stalled else 0.01)
    assert figures.speed == pytest.approx(300, rel=0.15)
    for _ in range(100):
        figures.add(3, 0.02)  # what is so for good is believed
        figures.fade(math.exp2(-0.001))
    assert figures.speed == pytest.approx(150, rel=0.15)


@pytest.mark.parametrize(("usual_s", "slow_s", "every"), [(0.005, 0.08, 10), (0.007, 0.12, 20)])
def test_slow_rounds_that_recur_are_the_modes_own(usual_s, slow_s, every):
    figures = Measured()
    for turn in range(20 * every):
        seconds = slow_s if turn % every == every - 1 else usual_s
        figures.add(3, seconds)
        figures.fade(math.exp2(-seconds / 20))
    true = 3 * every / (usual_s * (every - 1) + slow_s)
    assert figures.speed == pytest.approx(true, rel=0.25)


@pytest.mark.parametrize("short", [1, 2, 3])
def test_a_short_round_does_not_make_others_short(short):
    figures = Measured()
    for turn in range(1, 9):
        figures.add(*((1, 0.001) if turn == short else (3, 0.01)))
    assert figures.speed == pytest.approx(22 / 0.071, rel=0.05)


def test_time_that_passes_counts_for_every_mode_and_for_what_was_held_back():
    speeds, load = ModeSpeeds(KINDS), of_rows(1)
    for mode in (OFF, DRAFTS):
        for _ in range(400):
            speeds.at(load)[mode].add(1, 0.01)
        speeds.at(load)[mode].add(1, 1.0)  # a stall: cut, and kept aside
    before = [(each.tokens, each.held_s) for each in speeds.at(load)]
    speeds.fade(load, 20.0)
    after = [(each.tokens, each.held_s) for each in speeds.at(load)]
    assert all(held_s > 0.5 for _, held_s in before)
    for old, new in zip(before, after, strict=True):
        assert new == pytest.approx((old[0] / 2, old[1] / 2))


@pytest.mark.parametrize(
    ("num_rows", "verification", "words"),
    [
        (1, GREEDY, "1 request at temperature 0"),
        (16, GREEDY, "16 requests at temperature 0"),
        (1, "foreseeable", "1 request, sampled"),
        (16, "coupled, alone", "16 requests, sampled"),
    ],
)
def test_a_load_is_told_in_words_of_who_runs_the_service(num_rows, verification, words):
    assert BatchLoad.of(num_rows, verification).in_words == words
