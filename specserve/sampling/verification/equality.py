# pyright: strict
"""Drafted tokens judged by equality, on host values: each stands iff the target draws it too.

The rule of coupled and of greedy rows, `verify` says the same in tensors. Where all rows of a round
are such, the tokens that the target draws are all that has to leave the device.
"""

from collections.abc import Sequence
from typing import NamedTuple

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
