"""Blocks from draft processes leave the distribution of sampled answers as it is, late replies
included.

Loaded dice in the real loops (`dice`): chi-square of tokens, of neighbours jointly, and of the
first token of every round apart for each past: how many tokens the round before accepted, and
whether a block was there in time. What is prepared and what is late may depend on anything but on
draws that are still to count; the last kind of test is where it would show.

The false-alarm rate is 1e-6 a test, whatever it tests together; all seeds are fixed. With
probability above 0.9 a distribution of tokens is found that is off by a total variation of 0.06, in
the direction that is hardest to see, and one of first tokens that is off by 0.13 in a group of
1,000. What that is good for the planted bugs of `tests.plants` show.
"""

from dataclasses import replace
from functools import partial

import pytest

from specserve.audit.chi_square import power
from specserve.models.transformer import Transformer
from specserve.sampling.verification.method import VerificationMethod
from target_node.planning.policies import ThresholdPolicy
from target_node.speculation.miss_policy import Miss
from tests.exactness.dice import (
    ANSWER_LEN,
    COINS,
    EVEN_SIDES,
    FOUR_SIDES,
    IN_TIME,
    ODD_COINS,
    ROWS,
    MoodyDieDrafter,
    Table,
    Throws,
    throw,
)
from tests.exactness.speculative import Jagged, RandomBudget
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint
from tests.specserve.transport.link.loopback import Script

FALSE_ALARMS = 1e-6
NUM_ANSWERS = 320
NUM_SIBLINGS = 640  # answers where pairs of samples count
METHODS = REJECTION, FORESEEABLE = [VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE]
FAULTS = Script(
    loss=0.05, duplication=0.1, reordering=0.1, bit_flips=0.05, garbage=0.1, stale=0.1, capacity=6
)
# One outcome a row in small draft batches: nothing is prepared that only fills a draft batch up.
ONE_OUTCOME = replace(IN_TIME, fan_out=1, draft_batch=4, pace=(60,))

TABLES = {
    "late by accident": Table(),
    "in time": Table(drafting=IN_TIME),
    "any length": Table(drafting=IN_TIME, budget=partial(RandomBudget, 5)),
    "misses wait": Table(miss=Miss.DRAFT_NOW),
    "misses look up": Table(miss=Miss.NGRAM),
    "misses drafted here": Table(miss=Miss.LOCAL_DRAFT),
    "any miss": Table(miss=None),
    "any mode": Table(drafting=IN_TIME, auto=True),
    "faults and deaths": Table(drafting=replace(IN_TIME, script=FAULTS, num_drafts=2, death=0.05)),
    # With as many outcomes prepared as elsewhere hardly a round would miss.
    "few places": Table(drafting=replace(IN_TIME, fan_out=2), places=ROWS + 30),
    "few blocks": Table(drafting=IN_TIME, num_blocks=300),
    "moody coins": Table(drafting=ONE_OUTCOME, dice=COINS, drafter=MoodyDieDrafter),
    "moody lengths": Table(
        drafting=IN_TIME, drafter=MoodyDieDrafter, budget=partial(ThresholdPolicy, 0.3)
    ),
    "causal": Table(drafting=IN_TIME, drafter=MoodyDieDrafter, budget=partial(Jagged, "causal", 3)),
    "barrier": Table(
        drafting=IN_TIME, drafter=MoodyDieDrafter, budget=partial(Jagged, "barrier", 4)
    ),
    # What was drafted here decides whether there is a block for the next round.
    "moody coins drafted here": Table(
        drafting=ONE_OUTCOME, dice=COINS, drafter=MoodyDieDrafter, miss=Miss.LOCAL_DRAFT
    ),
    "saguaro": Table(drafting=replace(IN_TIME, saguaro_c=0.3)),
    "odd coins": Table(drafting=ONE_OUTCOME, dice=ODD_COINS),
}

# What goes the same way under both methods is played under one.
ONE_METHOD = {
    "any length": FORESEEABLE,
    "misses wait": REJECTION,
    "misses look up": FORESEEABLE,
    "any miss": REJECTION,
    "causal": FORESEEABLE,
    "barrier": REJECTION,
    "any mode": FORESEEABLE,
    "saguaro": REJECTION,
    "few places": FORESEEABLE,
    "few blocks": REJECTION,
    "moody coins drafted here": REJECTION,
}
# A second and a half each: what mixes up rows, blocks, distributions or keys falls to one of these.
FAST = {"in time", "barrier", "misses drafted here", "moody coins drafted here", "any mode"}
CASES = [
    pytest.param(name, method, marks=[] if name in FAST else pytest.mark.slow)
    for name in TABLES
    for method in METHODS
    if ONE_METHOD.get(name, method) is method
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Transformer:
    """Of which the sizes count alone."""
    return load(write_checkpoint(tmp_path_factory.mktemp("model"), QWEN3, vocab_size=8))


def least_p_value(throws: Throws) -> float:
    """Of several tests, times their number (Bonferroni)."""
    fits = throws.fits()
    return min(fit.p_value for fit in fits) * len(fits)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_throws_have_their_distribution(model, name, method):
    throws = throw(model, replace(TABLES[name], method=method), NUM_ANSWERS)
    assert least_p_value(throws) > FALSE_ALARMS
    assert 0.1 < throws.hit_rate < 0.9
    assert throws.num_accepted > 500
    assert (throws.num_switches > 10) is (name == "any mode")
    assert (throws.num_lives > 4) is (name == "faults and deaths")
    assert (throws.num_preemptions > 5) is (name == "few blocks")
    assert throws.num_broken_laws == 0


@pytest.mark.parametrize("method", METHODS)
def test_samples_of_a_request_are_independent(model, method):
    throws = throw(model, Table(method, IN_TIME, EVEN_SIDES), NUM_SIBLINGS)
    assert throws.pair_fit().p_value > FALSE_ALARMS
    assert throws.num_accepted > 4000


@pytest.mark.slow
def test_lateness_by_accident_leaves_blocks_late_and_in_time(model):
    """Else the groups would be one."""
    throws = throw(model, TABLES["late by accident"], NUM_ANSWERS)
    sizes = {past: counts.total() for past, counts in throws.first_tokens.items()}
    assert sum(size for (_, was_hit), size in sizes.items() if was_hit) > 1000
    assert sum(size for (_, was_hit), size in sizes.items() if not was_hit) > 1000
    assert len(sizes) > 6


def test_the_power_is_as_stated():
    """With four joint tests and twelve groups at most, of four sides."""
    each = FALSE_ALARMS / 16
    assert power(NUM_ANSWERS * ANSWER_LEN, 3, 0.06, each) > 0.9
    assert power(1000, 3, 0.13, each) > 0.9


def judged_distribution(target, drawn, judge):
    """The distribution of a token that is drawn from one distribution and verified by another."""
    stands = [q * min(1.0, p / r) for p, q, r in zip(target, drawn, judge, strict=True)]
    left = [max(p - r, 0.0) for p, r in zip(target, judge, strict=True)]
    return [s + (1 - sum(stands)) * x / sum(left) for s, x in zip(stands, left, strict=True)]


def test_distributions_that_are_taken_for_others_do_not_average_out():
    target, distributions = FOUR_SIDES.target, FOUR_SIDES.draft
    places = range(len(distributions))
    mixed_up = [[(k, (k + by) % len(distributions)) for k in places] for by in (1, 2, 3)]
    mixed_up += [[(k, one) for k in places] for one in places]
    for pairs in mixed_up:
        found = [
            judged_distribution(target, distributions[drawn], distributions[judge])
            for drawn, judge in pairs
        ]
        mean = [sum(side) / len(found) for side in zip(*found, strict=True)]
        assert sum(abs(x - p) for x, p in zip(mean, target, strict=True)) / 2 > 0.16
    right = judged_distribution(target, distributions[1], distributions[1])
    assert right == pytest.approx(target)
