"""Sampled answers of real models, drafted in other processes, against their enumerated
distribution.

The questions, trees and tests are those of `engine_distribution`, the false-alarm rate 1e-6 a test.
What `test_asynchronous_distribution` looks for in dice, with many times the samples, is looked for
here where distributions change from token to token and truncation, penalties, prefix cache and
chunks have their part.

With probability above 0.9 a distribution is found that is off by a total variation of at least

    0.21    in one question to one loop
    0.22    of two samples of a request jointly, in one question to one loop

in the direction that is hardest to see, and in `make test-long` by 0.18 and 0.19. Distributions of
another row's block, and noise that samples share, are off by more than either: a smaller sample
finds them in every run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from specserve.audit.chi_square import power
from specserve.sampling.verification.method import VerificationMethod
from target_node.planning.policies import ThresholdPolicy
from target_node.speculation.miss_policy import Miss
from tests.exactness.engine_distribution import (
    QUESTIONS,
    Answers,
    Models,
    answers_of,
    fits,
    make_models,
)
from tests.reliability.scale import is_long
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

FALSE_ALARMS = 1e-6
NUM_SAMPLES = 1000 if is_long() else 700  # a question
DISTANCE, PAIR_DISTANCE = (0.18, 0.19) if is_long() else (0.21, 0.22)
FREEDOM, PAIR_FREEDOM = 99, 15  # of the largest tree at most, and of pairs
DEPTH = 5  # tokens of an answer that are tested: the first two are not drafted ahead
ROWS = 64
METHODS = REJECTION, FORESEEABLE = [VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE]
USUAL = Drafting(draft_batch=64, fan_out=4, pace=(0, 2, 4, 6), max_extension=8192)
IN_TIME = replace(USUAL, fan_out=8, pace=(12,))


@dataclass(frozen=True)
class Loop:
    """Who drafts how, and what befalls it."""

    drafter: str
    drafting: Drafting = USUAL
    miss: Miss | None = Miss.SKIP
    auto: bool = False


LOOPS = {
    "language model, late by accident": Loop("language model"),
    "the target itself, in time": Loop("the target itself", IN_TIME),
    "dspark, misses wait": Loop("dspark", miss=Miss.DRAFT_NOW),
    # A draft batch brings few rows their block: in nearly every round some hit and some are drafted
    # here.
    "language model, misses drafted here": Loop(
        "language model",
        replace(USUAL, draft_batch=32, fan_out=2, pace=(4,)),
        miss=Miss.LOCAL_DRAFT,
    ),
    "any mode, any miss, deaths": Loop(
        "language model", replace(USUAL, num_drafts=2, death=0.03), miss=None, auto=True
    ),
}
# Where nothing is late, and where misses wait, the methods differ in nothing that dice do not show.
ONE_METHOD = {
    "the target itself, in time": FORESEEABLE,
    "dspark, misses wait": REJECTION,
    "language model, misses drafted here": REJECTION,
}
CASES = [
    (name, method) for name in LOOPS for method in METHODS if ONE_METHOD.get(name, method) is method
]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def distributions(models):
    return [question.distribution(models.model, DEPTH) for question in QUESTIONS]


@pytest.fixture(scope="module")
def ask(models) -> Callable[[Loop, VerificationMethod, int], Answers]:
    def ask(loop: Loop, method: VerificationMethod, num_samples: int) -> Answers:
        with InProcessPair(
            models.model,
            models.drafters[loop.drafter],
            loop.drafting,
            miss=loop.miss,
            auto=loop.auto,
            budget=ThresholdPolicy,
            default_method=method,
            num_blocks=2000,
            max_batch_rows=ROWS,
            max_batch_tokens=4 * ROWS,
        ) as pair:
            answers = answers_of(pair, num_samples, seed=1, depth=DEPTH)
            assert pair.asynchronous.status().num_hits > 20
            assert pair.sampler.num_broken_laws == 0
            return answers

    return ask


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), CASES)
def test_answers_have_their_distribution(ask, distributions, name, method):
    answers = ask(LOOPS[name], method, NUM_SAMPLES)
    found = fits(distributions, answers)
    assert max(fit.freedom for fit in found) <= FREEDOM
    assert min(fit.p_value for fit in found) * len(found) > FALSE_ALARMS  # Bonferroni
    assert answers.num_drafted > 100


def test_the_power_is_as_stated():
    """Of the largest tree and of pairs; false alarms as the test above divides them."""
    each = FALSE_ALARMS / (2 * len(QUESTIONS))
    assert power(NUM_SAMPLES, FREEDOM, DISTANCE, each) > 0.9
    assert power(NUM_SAMPLES // 2, PAIR_FREEDOM, PAIR_DISTANCE, each) > 0.9
