"""Answers of the real loop, drafts and all, have the distribution of plain decoding: sampled,
unseeded.

Chi-square over the 27 or 40 cells of three tokens, and over 16 of neighbouring samples jointly.
The false-alarm rate is 1e-6 a test, whatever it tests together; all seeds are fixed, so a test that
passes once always does. With probability above 0.9 a distribution is found that is off by a total
variation of at least

    0.17    in one question to one loop (fast)
    0.14    in one question to one loop (slow), and 0.11 in `make test-long`
    0.02    in all questions to all loops, together (slow)

in the direction that is hardest to see. What that is good for the planted bugs of `tests.plants`
show. Two fifths of the samples of a loop are left to the long run: all loops together find as much
without them.
"""

from functools import partial

import pytest

from specserve.audit.chi_square import Fit, power, survival
from specserve.sampling.verification.method import VerificationMethod
from target_node.planning.policies import ThresholdPolicy
from tests.exactness.engine_distribution import (
    QUESTIONS,
    Answers,
    Engine,
    Models,
    ask,
    fits,
    make_models,
)
from tests.exactness.speculative import Jagged, MoodyPrices, confident
from tests.reliability.scale import is_long

FALSE_ALARMS = 1e-6
FEW, MANY = 800, 2000 if is_long() else 1200  # samples a question
DISTANCE = 0.11 if is_long() else 0.14  # that is found in one question to one loop
METHODS = [VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE]

# Lengths at random, by confidence, by what was accepted before, and as long as there is room.
LOOPS = {
    "dspark, any length": partial(Engine, "dspark"),
    "dspark, by confidence": partial(Engine, "dspark", budget=partial(ThresholdPolicy, 0.3)),
    "language model, by history": partial(
        Engine, "language model", budget=partial(ThresholdPolicy, 0.2)
    ),
    "language model, by confidence": partial(
        Engine,
        "language model",
        budget=partial(ThresholdPolicy, 0.15),
        wrap=confident,
    ),
    "language model, ending where it does not pay": partial(
        Engine,
        "language model",
        wrap=confident,
        prices=partial(MoodyPrices, 5),
        max_batch_tokens=600,  # else all compete for places, and chains do not look at each other
    ),
    "language model, ending blindly among the best": partial(
        Engine,
        "language model",
        wrap=confident,
        prices=partial(MoodyPrices, 6),
        budget=ThresholdPolicy,
    ),
    "dspark, causal": partial(Engine, "dspark", budget=partial(Jagged, "causal", 7)),
    "language model, barrier": partial(
        Engine, "language model", wrap=confident, budget=partial(Jagged, "barrier", 8)
    ),
    "the target itself, all": partial(Engine, "the target itself", budget=ThresholdPolicy),
    "ngram, any length": partial(Engine, "ngram"),
    "language model, short of blocks": partial(
        Engine, "language model", num_blocks=200, block_size=1
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def distributions(models):
    return [question.distribution(models.model) for question in QUESTIONS]


@pytest.fixture(scope="module")
def answers(models):
    """Of one loop, asked once."""
    known: dict[tuple, Answers] = {}

    def answers(name: str, method: VerificationMethod) -> Answers:
        if (name, method) not in known:
            # The same whichever tests are chosen, and another for every case.
            seed = len(METHODS) * list(LOOPS).index(name) + METHODS.index(method)
            known[name, method] = ask(models, LOOPS[name](method=method), MANY, seed=seed)
        return known[name, method]

    return answers


def least_p_value(found: list[Fit]) -> float:
    """Of several tests, times their number (Bonferroni)."""
    return min(fit.p_value for fit in found) * len(found)


@pytest.mark.parametrize("method", METHODS)
def test_a_few_answers_have_their_distribution(models, distributions, method):
    """Of blocks that are verified whole: what takes one row's for another's moves most."""
    engine = Engine("language model", method, budget=ThresholdPolicy)
    found = ask(models, engine, FEW, seed=3)
    assert least_p_value(fits(distributions, found)) > FALSE_ALARMS
    assert found.num_accepted > 500


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LOOPS)
def test_answers_have_their_distribution(answers, distributions, name, method):
    found = answers(name, method)
    assert least_p_value(fits(distributions, found)) > FALSE_ALARMS
    assert found.num_accepted > (50 if "short" in name else 100)
    assert (found.num_preemptions > 10) is ("short" in name)


@pytest.mark.slow
def test_all_answers_together_have_their_distribution(answers, distributions):
    everything = [answers(name, method).tokens for name in LOOPS for method in METHODS]
    together = [
        distribution.fit(answer for tokens in everything for answer in tokens[place])
        for place, distribution in enumerate(distributions)
    ]
    statistic, freedom = sum(f.statistic for f in together), sum(f.freedom for f in together)
    assert survival(statistic, freedom) > FALSE_ALARMS


def test_the_power_is_as_stated():
    """`freedom` of the largest tree; false alarms as `least_p_value` divides them."""
    each = FALSE_ALARMS / (2 * len(QUESTIONS))
    assert power(FEW, 39, 0.17, each) > 0.9
    assert power(MANY, 39, DISTANCE, each) > 0.9
    num_samples = MANY * len(QUESTIONS) * len(LOOPS) * len(METHODS)
    assert power(num_samples, 39 * len(QUESTIONS), 0.02, FALSE_ALARMS) > 0.9
