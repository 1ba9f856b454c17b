"""What drafted tokens were drawn from, slot by slot: it tells which tokens may follow instead.

Pure tensors; both nodes use it, one to foresee outcomes, the other to say what it drafted itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specserve.drafters.protocol import SpeculationBatch
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import likeliest

# Blocks of larger vocabularies keep their likeliest tokens at once; for smaller ones, keeping all
# logits of all branches costs less than sorting those of the many that will never be verified.
_MAX_KEPT_COLUMNS = 1 << 15
_MAX_SAMPLED = 1 << 13  # columns among all of which sampling is worth its time


@dataclass(frozen=True, slots=True)
class SlotScores:
    """The likeliest tokens of N slots, in any order, by the weight that a draw gives them.

    `ids` int64 [N, M]; `scores` float32 [N, M]: log weights at the row's temperature up to a
    constant of the slot, minus infinity in padding; the logits themselves at temperature 0.
    """

    ids: Tensor
    scores: Tensor

    @staticmethod
    def of_logits(
        logits: Tensor, scales: Tensor, num_kept: int, target_ids: Tensor | None = None
    ) -> "SlotScores":
        """From draft logits [N, DV] times `scales` [N], 1 / temperature."""
        scores, ids = likeliest(logits, min(num_kept, logits.shape[1]))
        return SlotScores(ids if target_ids is None else target_ids[ids], scores * scales[:, None])

    @staticmethod
    def of_probs(draft_probs: DraftProbs) -> "SlotScores":
        """From distributions at the row's temperature already, [N, M]."""
        return SlotScores(draft_probs.ids, draft_probs.probs.log())

    @staticmethod
    def joined(parts: Sequence["SlotScores"]) -> "SlotScores":
        """The slots of all, padded to the widest."""
        width = max(part.ids.shape[1] for part in parts)
        padded = [(part, (0, width - part.ids.shape[1])) for part in parts]
        fill = torch.nn.functional.pad
        return SlotScores(
            torch.cat([fill(part.ids, missing) for part, missing in padded]),
            torch.cat([fill(part.scores, missing, value=-torch.inf) for part, missing in padded]),
        )


@dataclass(frozen=True, slots=True)
class BatchScores:
    """What the B blocks of one batch were drawn from, slot by slot."""

    width: int  # G
    num_scored: int
    top: SlotScores | None  # [B * G] slots, or
    logits: Tensor | None  # [B, G, DV]
    scales: Tensor  # [B] 1 / temperature, 1 at temperature 0
    target_ids: Tensor | None  # of the columns

    @staticmethod
    def of(drawn: SpeculationBatch, scales: Tensor, num_scored: int) -> "BatchScores | None":
        """The `num_scored` likeliest tokens count; None if the drafter says nothing of the kind."""
        width = drawn.token_ids.shape[1]
        top, logits, target_ids = None, drawn.logits, drawn.target_ids
        if logits is None:
            if drawn.draft_probs is None:
                return None
            top = SlotScores.of_probs(drawn.draft_probs)
        elif logits.shape[2] > _MAX_KEPT_COLUMNS:
            repeated = scales.repeat_interleave(width)
            top = SlotScores.of_logits(logits.flatten(0, 1), repeated, num_scored, target_ids)
            logits = None
        return BatchScores(width, num_scored, top, logits, scales, target_ids)

    @property
    def are_whole(self) -> bool:
        """Whether there are scores of all columns, and not too many to sample among."""
        return self.logits is not None and self.logits.shape[2] <= _MAX_SAMPLED

    def whole(self, place: int, num_slots: int) -> Tensor:
        """Scores of all columns for the first slots of block `place`: [num_slots, DV]."""
        assert self.logits is not None
        return self.logits[place, :num_slots] * self.scales[place]

    def slots(self, place: int, num_slots: int) -> SlotScores:
        """Of the first slots of block `place`."""
        if self.logits is None:
            assert self.top is not None
            part = slice(place * self.width, place * self.width + num_slots)
            return SlotScores(self.top.ids[part], self.top.scores[part])
        scales = self.scales[place].expand(num_slots)
        logits = self.logits[place, :num_slots]
        return SlotScores.of_logits(logits, scales, self.num_scored, self.target_ids)
