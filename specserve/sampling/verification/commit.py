# pyright: strict
"""What of an outcome enters a sample: nothing after its first end token or its last free place.

Works on host values, after the outcome has left the device. Knows no KV and no messages.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from specserve.types import FinishReason

_NO_TOKEN = -1  # as in `specserve.sampling.sampling`, which needs torch


@dataclass(frozen=True, slots=True)
class Commit:
    """The tokens a round adds to one sample."""

    token_ids: list[int]
    num_accepted: int  # how many of them were drafted
    finish_reason: FinishReason | None
    failed: bool  # logits nobody can sample from came next


def commit_of(
    drafted: Sequence[int],
    num_accepted: int,
    next_token: int,
    *,
    end_token_ids: Container[int],
    num_held_back: int,
    room: int,
    num_completing: int | None = None,
) -> Commit:
    """Cut the outcome (`num_accepted`, `next_token`) of `drafted` where plain decoding would stop.

    The next `num_held_back` tokens may not end the sample (what is left of `min_tokens`); `room`,
    at least 1, is what is left of `max_tokens` and of the context. An end token is part of the
    answer. As many as `num_completing` complete a text that a grammar lets nothing follow. A bad
    row that ended before it turned bad has not failed.
    """
    if not 0 <= num_accepted <= len(drafted) or room < 1:
        raise ValueError(f"{num_accepted} of {len(drafted)} accepted, room for {room}")
    token_ids: list[int] = []
    for token_id in (*drafted[:num_accepted], next_token):
        if token_id == _NO_TOKEN:
            return Commit(token_ids, num_accepted, None, failed=True)
        token_ids.append(token_id)
        reason = None
        if len(token_ids) > num_held_back and token_id in end_token_ids:
            reason = FinishReason.STOP
        elif len(token_ids) == room:
            reason = FinishReason.LENGTH
        if len(token_ids) == num_completing:
            reason = FinishReason.STOP
        if reason is not None:
            return Commit(token_ids, min(num_accepted, len(token_ids)), reason, failed=False)
    return Commit(token_ids, num_accepted, None, failed=False)
