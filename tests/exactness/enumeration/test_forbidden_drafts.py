"""What is not verified behind a token that a grammar forbids leaves the distribution as it is."""

import pytest

from specserve.sampling.grammar import worth_verifying
from specserve.sampling.verification.method import VerificationMethod
from tests.exactness.enumeration.sequences import (
    all_contexts,
    plain_distribution,
    rounds_of,
    speculative_distribution,
    total_variation,
)
from tests.exactness.enumeration.toy import Toy

NUM_TOKENS = 3
TOY = Toy(draft="far", never_follows=1)


def verified(toy, context, drafted):
    """How many tokens of a block are."""
    return worth_verifying(toy.state(context).grammar, drafted, by_ratio=True)


def cut_rounds(toy, method, cut):
    """Rounds in which as many of gamma drafted tokens are verified as `cut(context, block)` says.

    That is settled by those alone: a block of that length is verified whenever it is drafted.
    """
    rounds = rounds_of(toy, method, NUM_TOKENS)
    return {
        (context, toy.gamma): [
            each
            for length in range(toy.gamma + 1)
            for each in rounds[context, length]
            if is_whole(toy, context, each[1], cut)
        ]
        for context in all_contexts(toy, NUM_TOKENS)
    }


def is_whole(toy, context, block, cut):
    """Whether nothing of `block` is left out, and whatever else was drafted behind it is."""
    if cut(toy, context, block) != len(block):
        return False
    return len(block) == toy.gamma or cut(toy, context, (*block, 0)) == len(block)


@pytest.mark.parametrize("method", [VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE])
def test_the_distribution_is_that_of_plain_decoding(method):
    rounds = cut_rounds(TOY, method, verified)
    lengths = {len(block) for choices in rounds.values() for _, block, _, _ in choices}
    assert lengths == {1, 2}  # some are cut
    found = speculative_distribution(TOY, rounds, NUM_TOKENS, lambda *_: TOY.gamma)
    assert total_variation(found, plain_distribution(TOY, NUM_TOKENS)) < 1e-12


def test_to_leave_the_forbidden_token_out_as_well_would_not():
    """A round whose first token is forbidden would draw from p, as if it had had no draft."""
    rounds = rounds_of(TOY, VerificationMethod.REJECTION, NUM_TOKENS)
    for context in all_contexts(TOY, NUM_TOKENS):
        forbidden = [t for t in range(TOY.num_tokens) if not allows(context, t)]
        share = sum(chance for chance, block, _, _ in rounds[context, 1] if block[0] in forbidden)
        stay = [each for each in rounds[context, 2] if allows(context, each[1][0])]
        plain = [(chance * share, *rest) for chance, *rest in rounds[context, 0]]
        rounds[context, 2] = stay + plain
    found = speculative_distribution(TOY, rounds, NUM_TOKENS, lambda *_: TOY.gamma)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert total_variation(found, plain_distribution(TOY, NUM_TOKENS)) > 0.01


def allows(context, token_id):
    return TOY.state(context).grammar.num_allowed((token_id,)) == 1
