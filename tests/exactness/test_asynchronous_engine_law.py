"""Sampled answers of real models, drafted in other processes, against their enumerated law.

The questions, trees and tests are those of `engine_law`, the false-alarm rate 1e-6 a test. What
`test_asynchronous_law` looks for in dice, with many times the samples, is looked for here where
laws change from token to token and truncation, penalties, prefix cache and chunks have their part.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from specserve.decoding.verification.rule import VerificationRule
from target_node.budget import SurvivalBudget
from target_node.miss_policy import Miss
from tests.exactness.engine_law import QUESTIONS, Answers, Models, answers_of, fits, make_models
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

FALSE_ALARMS = 1e-6
NUM_SAMPLES = 250  # a question
DEPTH = 5  # tokens of an answer that are tested: the first two are not drafted ahead
ROWS = 64
RULES = REJECTION, FORESEEABLE = [VerificationRule.REJECTION, VerificationRule.FORESEEABLE]
USUAL = Drafting(wave=64, fan_out=4, pace=(0, 2, 4, 6), max_extension=8192)
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
    "any regime, any miss, deaths": Loop(
        "language model", replace(USUAL, num_drafts=2, death=0.03), miss=None, auto=True
    ),
}
# Where nothing is late, and where misses wait, the rules differ in nothing that dice do not show.
ONE_RULE = {"the target itself, in time": FORESEEABLE, "dspark, misses wait": REJECTION}
CASES = [(name, rule) for name in LOOPS for rule in RULES if ONE_RULE.get(name, rule) is rule]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def laws(models):
    return [question.law(models.model, DEPTH) for question in QUESTIONS]


@pytest.fixture(scope="module")
def ask(models) -> Callable[[Loop, VerificationRule, int], Answers]:
    def ask(loop: Loop, rule: VerificationRule, num_samples: int) -> Answers:
        with InProcessPair(
            models.model,
            models.drafters[loop.drafter],
            loop.drafting,
            miss=loop.miss,
            auto=loop.auto,
            budget=SurvivalBudget,
            default_rule=rule,
            num_blocks=2000,
            max_batch_rows=ROWS,
            max_batch_tokens=4 * ROWS,
        ) as pair:
            answers = answers_of(pair, num_samples, seed=1, depth=DEPTH)
            assert pair.asynchronous.status().num_hits > 20
            return answers

    return ask


def least_p_value(laws, answers: Answers) -> float:
    """Of several tests, times their number (Bonferroni)."""
    found = fits(laws, answers)
    return min(fit.p_value for fit in found) * len(found)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rule"), CASES)
def test_answers_have_their_law(ask, laws, name, rule):
    answers = ask(LOOPS[name], rule, NUM_SAMPLES)
    assert least_p_value(laws, answers) > FALSE_ALARMS
    assert answers.num_drafted > 100
