"""The likely outcomes of a verification: candidates for the next token after every prefix.

If k of the pending tokens are accepted, the next token stands where the k-th (from 0) stood and
the block's own distribution of that place says which tokens are likely; the drafted token itself
was rejected there, unless everything was accepted. Pure functions over slots, one slot for each k.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.drafters.slot_scores import SlotScores
from specserve.noise import Purpose, exponential_noise_at
from specserve.sampling.verification.method import VerificationMethod


class OutcomeKind(enum.StrEnum):
    """How predictable a next token is, which depends on how it will be drawn.

    Rows of one kind share their hit rates.
    """

    GREEDY = "greedy"  # the likeliest token
    REJECTION = "rejection"  # a sample by noise that only the target has
    FORESEEABLE = "foreseeable"  # a sample of the residual by shared noise
    COUPLED = "coupled"  # drawn with the same noise

    @staticmethod
    def of(method: str, temperature: float) -> "OutcomeKind":
        """Of a row under a `VerificationMethod`'s value; ValueError for any other."""
        method = VerificationMethod(method)
        return OutcomeKind.GREEDY if temperature <= 0 else OutcomeKind(method.value)

    @property
    def shares_noise(self) -> bool:
        """Whether the draft knows the noise that draws the next token."""
        return self in (OutcomeKind.FORESEEABLE, OutcomeKind.COUPLED)

    @property
    def needs_probs(self) -> bool:
        """Whether drafts are verified by the ratio test."""
        return self in (OutcomeKind.REJECTION, OutcomeKind.FORESEEABLE)


NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class SlotNoise:
    """Keys of the output noise of N slots, all int64 [N], and which slots it may order."""

    seeds: Tensor
    sample_indices: Tensor
    positions: Tensor  # absolute, of the next token: no noise beyond it is ever looked at
    is_shared: Tensor  # bool [N]


def rank_candidates(
    slots: SlotScores, noise: SlotNoise, excluded_ids: Tensor, num_candidates: int
) -> NDArray[np.int64]:
    """Candidates of each slot, the likeliest first: ids [N, num_candidates], then `NO_TOKEN`.

    With shared noise the order is that in which the noise of the output puts the tokens of `slots`
    alone: the token that it draws of all may be missing, which costs a hit, never a token.
    `excluded_ids` int64 [N]: the rejected token of each slot, or `NO_TOKEN`.
    """
    scores = slots.scores
    if bool(noise.is_shared.any()):
        keys = (noise.seeds, noise.sample_indices, noise.positions)
        log_noise = exponential_noise_at(*keys, Purpose.OUTPUT, slots.ids).log_()
        scores = torch.where(noise.is_shared[:, None], scores - log_noise, scores)
    scores = scores.masked_fill(slots.ids == excluded_ids[:, None], -torch.inf)
    best, places = scores.topk(min(num_candidates, scores.shape[1]), dim=1)
    return _candidates(slots.ids.gather(1, places), best, num_candidates)


def rank_all(
    scores: Tensor,
    target_ids: Tensor | None,
    output_noise: tuple[Tensor, Tensor],
    slots: SlotNoise,
    excluded_ids: Tensor,
    num_candidates: int,
) -> NDArray[np.int64]:
    """`rank_candidates` over all tokens: none is missing.

    `scores` [N, DV]; `target_ids` int64 [DV] of their columns, None: the same. `output_noise`: log
    noise [D, DV] and which of it a slot has, [N], if its noise is shared at all.
    """
    noise, rows = output_noise
    excluded = excluded_ids
    if target_ids is not None:
        matches = target_ids == excluded_ids[:, None]
        excluded = torch.where(matches.any(1), matches.int().argmax(1), NO_TOKEN)
    count = min(num_candidates, scores.shape[1])
    ranked = torch.where(slots.is_shared[:, None], scores - noise[rows], scores)
    columns = torch.arange(scores.shape[1], device=scores.device)
    ranked.masked_fill_((columns == excluded[:, None]) | ranked.isnan(), -torch.inf)
    best, places = ranked.topk(count, dim=1)
    ids = places if target_ids is None else target_ids[places]
    return _candidates(ids, best, num_candidates)


def _candidates(ids: Tensor, scores: Tensor, count: int) -> NDArray[np.int64]:
    """[N, count] of ranked ids and their scores: `NO_TOKEN` where there is none."""
    possible = ids.masked_fill(scores == -torch.inf, NO_TOKEN).cpu().numpy()
    if possible.shape[1] == count:
        return possible
    candidates = np.full((len(ids), count), NO_TOKEN, dtype=np.int64)
    candidates[:, : ids.shape[1]] = possible
    return candidates


def outcome_weights(
    confidences: Sequence[float], verify_len: int, num_slots: int
) -> NDArray[np.float64]:
    """P(exactly k of `verify_len` tokens are accepted) for k < num_slots: [num_slots].

    Products of confidences, c_1 .. c_k (1 - c_{k+1}), and c_1 .. c_{verify_len} for all.
    """
    weights, survival = [], 1.0
    for confidence in confidences[:verify_len]:
        longer = survival * min(max(confidence, 0.0), 1.0)
        weights.append(survival - longer)
        survival = longer
    return np.array([*weights, survival][:num_slots])
