"""Every method leaves the distribution of the output as it is, to 1e-12 in total variation, by
enumeration.
"""

import pytest

from specserve.sampling.verification.method import VerificationMethod
from tests.exactness.enumeration.sequences import (
    plain_distribution,
    rounds_of,
    speculative_distribution,
    total_variation,
)
from tests.exactness.enumeration.toy import Toy
from tests.reliability.scale import is_long
from tests.specserve.sampling.test_sampling import expected_distribution

TOYS = {
    "close draft": Toy(),
    "far draft": Toy(draft="far"),
    "equal distributions": Toy(draft="equal"),
    "disjoint distributions": Toy(draft="disjoint", num_kept=2),
    "one-hot draft": Toy(draft="one-hot", num_kept=1),
    "truncated draft": Toy(draft="close", num_kept=2),
    "impossible token": Toy(draft="far", impossible=(1,)),
    "top_k": Toy(fields={"top_k": 2}),
    "top_p": Toy(draft="far", fields={"top_p": 0.6}),
    "min_p": Toy(draft="far", fields={"min_p": 0.4, "temperature": 0.7}),
    "penalties": Toy(
        fields={"frequency_penalty": 0.9, "presence_penalty": -0.5, "repetition_penalty": 1.7}
    ),
    "bias": Toy(draft="far", fields={"logit_bias": {0: 1.5, 2: -1.0}}),
    "end token": Toy(end_token_ids=(2,)),
    "held-back end token": Toy(
        draft="far", end_token_ids=(2,), fields={"min_tokens": 2, "stop_token_ids": (0,)}
    ),
    "grammar": Toy(draft="far", end_token_ids=(2,), never_follows=1, fields={"min_tokens": 2}),
    "everything": Toy(
        draft="far",
        end_token_ids=(1,),
        fields={
            "temperature": 1.4,
            "top_k": 2,
            "top_p": 0.9,
            "min_tokens": 1,
            "frequency_penalty": 0.8,
            "logit_bias": {1: 0.7},
        },
    ),
}

# "everything" holds these too, so the fast suite leaves them alone.
IN_EVERYTHING = {"top_k", "top_p", "penalties", "bias"}
QUICK_OR_SLOW = [
    pytest.param(name, marks=pytest.mark.slow) if name in IN_EVERYTHING else name for name in TOYS
]


def always(toy):
    return lambda context, outcome: toy.gamma


def never(toy):
    return lambda context, outcome: 0


def by_position(toy):
    return lambda context, outcome: (len(context) + 1) % (toy.gamma + 1)


def by_hit(toy):
    """A hit where the outcome before was among those prepared, which it may be for any reason."""
    return lambda context, outcome: toy.gamma if outcome and sum(outcome) % 2 else 0


SCHEDULES = [always, never, by_position, by_hit]


@pytest.mark.parametrize("method", VerificationMethod)
@pytest.mark.parametrize("name", QUICK_OR_SLOW)
def test_the_distribution_of_the_output_is_that_of_plain_decoding(name, method):
    toy = TOYS[name]
    expected = plain_distribution(toy, num_tokens=3)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-12)
    rounds = rounds_of(toy, method, 3)
    for schedule in SCHEDULES:
        found = speculative_distribution(toy, rounds, 3, schedule(toy))
        assert total_variation(found, expected) < 1e-12, schedule.__name__


# Half of the time of this file goes to four tokens that are coupled, where three are enough.
LARGER = [
    (num_tokens, method)
    for num_tokens in (3, 4)
    for method in VerificationMethod
    if is_long() or (num_tokens, method) != (4, VerificationMethod.COUPLED)
]


@pytest.mark.slow
@pytest.mark.parametrize(("num_tokens", "method"), LARGER)
def test_longer_drafts_and_larger_vocabularies_too(num_tokens, method):
    toy = Toy(
        num_tokens=num_tokens,
        gamma=3,
        num_kept=3,
        end_token_ids=(num_tokens - 1,),
        fields={"frequency_penalty": 0.4, "top_p": 0.95},
    )
    length = 3 if num_tokens == 3 else 2
    expected = plain_distribution(toy, length)
    rounds = rounds_of(toy, method, length)
    for schedule in SCHEDULES:
        found = speculative_distribution(toy, rounds, length, schedule(toy))
        assert total_variation(found, expected) < 1e-12, schedule.__name__


@pytest.mark.parametrize("name", TOYS)
def test_the_toys_have_the_distribution_that_the_definition_gives(name):
    toy = TOYS[name]
    for context in ((), (1,), (2, 2)):
        found = toy.target_distribution(context).tolist()
        defined = expected_distribution(toy.logits(context), toy.state(context), toy.num_tokens)
        assert found == pytest.approx(defined, abs=1e-12)
