# pyright: strict
"""The verification methods by name, which one a request lives under, and the one by equality.

Knows no tensors: where all rows of a round stand by equality, the tokens that the target draws are
all that has to leave the device. `verify` says the same in tensors.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple


class VerificationMethod(enum.StrEnum):
    """How drafted tokens are verified. All are exact; at temperature 0 they are the same method."""

    REJECTION = "rejection"  # ratio test, recovery from the residual by noise nobody else has
    FORESEEABLE = "foreseeable"  # the same, but the draft knows the noise of the recovery token
    COUPLED = "coupled"  # the target's token under shared noise; a draft stands iff it is equal


def method_for_life(default: VerificationMethod, *, seeded_by_user: bool) -> VerificationMethod:
    """The method of a request from its first token to its last; `default` is the server's.

    An explicit seed promises a text, which only coupled keeps. Whoever else comes has a random seed
    that serves the rejection family as its never-reused nonce.
    """
    return VerificationMethod.COUPLED if seeded_by_user else default


def verified_by(method: VerificationMethod, *, is_greedy: bool) -> VerificationMethod:
    """Greedy rows are the limit of every method: a token stands iff it is the target's."""
    return VerificationMethod.COUPLED if is_greedy else method


_NO_TOKEN = -1  # as in `specserve.sampling.sampling`, which needs torch


class AcceptedPrefix(NamedTuple):
    """The outcome of one row."""

    num_accepted: int
    next_token: int
    is_spoiled: bool  # logits nobody can sample from, at the prefix's end or beyond it


def accepted_prefix(drafted: Sequence[int], drawn: Sequence[int]) -> AcceptedPrefix:
    """`drawn` are the target's tokens in place of each drafted one and, last, after all of them."""
    if len(drawn) != len(drafted) + 1:
        raise ValueError(f"{len(drawn)} tokens drawn along {len(drafted)} drafted ones")
    num_accepted = 0
    while num_accepted < len(drafted) and drafted[num_accepted] == drawn[num_accepted]:
        num_accepted += 1
    return AcceptedPrefix(num_accepted, drawn[num_accepted], _NO_TOKEN in drawn)
