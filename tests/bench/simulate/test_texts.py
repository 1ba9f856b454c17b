"""What is drawn of texts is what is stated of them, and beliefs are as right as they should be."""

import numpy as np
import pytest

from bench.simulate.beliefs import Belief, Calibrated, calibration_error
from bench.simulate.texts import Draws, RankLaw, Texts

COUNT = 20_000


@pytest.mark.parametrize("law", [RankLaw(0.4, 1.2), RankLaw(0.1, 0.5), RankLaw(0.0, 1.0)])
def test_ranks_follow_their_law(law):
    ranks = law.ranks(np.random.default_rng(0), COUNT)
    for guesses in (1, 2, 4, 16):
        assert (ranks < guesses).mean() == pytest.approx(law.hit_rate(guesses), abs=0.012)


def test_without_a_guess_nothing_is_hit():
    assert RankLaw().hit_rate(0) == 0


def draws(**texts) -> Draws:
    return Draws(Texts(**texts), seed=3, gamma=5)


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_as_many_tokens_stand_as_is_stated(spread):
    found = draws(accept=(0.8, 0.5), spread=spread).blocks(COUNT, 3)
    for count, expected in ((1, 0.8), (2, 0.4), (3, 0.2)):
        assert (found.num_standing >= count).mean() == pytest.approx(expected, abs=0.012)


def test_prepared_blocks_stand_more_rarely_where_that_is_stated():
    found = draws(accept=(0.8,), prepared=0.9).blocks(COUNT, 1, is_prepared=True)
    assert found.num_standing.mean() == pytest.approx(0.72, abs=0.012)


def test_bonuses_and_recoveries_have_laws_of_their_own():
    found = draws(recovery=RankLaw(1.0, 0.0), bonus=RankLaw(0.0, 1.0))
    ranks = found.ranks(np.array([3, 2, 0]), np.array([3, 3, 0]))
    assert ranks[0] == ranks[2] == 0
    assert ranks[1] > 10**6


def error_of(belief: Belief) -> tuple[float, float]:
    """Calibration error, and how much surer what stands seems than what does not."""
    own = draws(accept=(0.6,), spread=0.25, belief=belief).blocks(COUNT, 1)
    stood, told = own.num_standing == 1, own.confidences[:, 0]
    return calibration_error(told, stood), told[stood].mean() - told[~stood].mean()


def test_beliefs_are_as_far_off_as_they_are_called():
    raw, calibrated, exact, oracle = (
        error_of(belief) for belief in (Belief.RAW, Belief.CALIBRATED, Belief.EXACT, Belief.ORACLE)
    )
    assert raw[0] > 0.1
    assert calibrated[0] < 0.03
    assert exact[0] < 0.02
    assert calibrated[1] < exact[1] < oracle[1]  # noise hides something of the chance
    assert oracle[1] > 0.99


def test_who_has_no_opinion_says_so():
    assert draws(belief=Belief.NONE).blocks(4, 5).confidences is None


def test_calibration_says_what_stood_of_that_score():
    """Scores without noise: of those of a chance of 0.3 three in ten stand, and nine of 0.9."""
    rng = np.random.default_rng(0)
    own = Calibrated(Belief.CALIBRATED, (1.0, 0.0), noise=0.0)
    own.fit(rng, rng.choice([0.3, 0.9], size=(COUNT, 1)))
    told = own.of(rng, np.array([[0.3, 0.9]]), np.zeros((1, 2), bool))
    assert told[0] == pytest.approx([0.3, 0.9], abs=0.03)
