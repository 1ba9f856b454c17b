"""Saguaro sampling (SSD, Definition 14): draft less often what is prepared as an outcome anyway.

The tokens that are likeliest to be prepared, the F largest logits of a slot, weigh C times what the
drafter says, so that after a rejection the residual lies on them. The law that is shipped is the
law that was drawn from, so verification is as exact as ever.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specserve.sampling.draft_law import DraftLaw
from specserve.sampling.drawing import BlockLayout, Drawing, DrawingRule


@dataclass(frozen=True)
class Saguaro:
    """A `DrawingRule` in front of another one; temperature 0 must not stand among its rows.

    `factors` float32 [B] are C of each block, 1 where the law is to stay; `num_prepared` is F.
    """

    inner: DrawingRule
    temperatures: Tensor  # [B] float32
    factors: Tensor
    num_prepared: int

    def begin(self, layout: BlockLayout) -> "Saguaro._Draws":
        # The inner rule divides logits by the temperature: log C is added in its units.
        shifts = self.factors.log() * self.temperatures
        return Saguaro._Draws(self.inner.begin(layout), shifts[:, None, None], self.num_prepared)

    @dataclass(frozen=True)
    class _Draws:
        inner: Drawing
        shifts: Tensor  # [B, 1, 1]
        num_prepared: int

        def draw(self, first_slot: int, logits: Tensor) -> Tensor:
            num_prepared = min(self.num_prepared, logits.shape[-1] - 1)
            prepared = logits.topk(num_prepared, dim=-1).indices
            # Of a row that is cut to these there would be nothing left.
            num_possible = (logits > -torch.inf).sum(dim=-1, keepdim=True)
            shifts = self.shifts.masked_fill(num_possible <= num_prepared, 0.0)
            shifts = shifts.expand(prepared.shape)
            return self.inner.draw(first_slot, logits.scatter_add(2, prepared, shifts))

        def law(self) -> DraftLaw | None:
            return self.inner.law()


def prepared_per_slot(fan_out: int, gamma: int) -> int:
    """F: how many outcomes a slot gets on average, at least 1."""
    return max(1, math.ceil(fan_out / (gamma + 1)))


def factors_of(is_rejection: list[bool], factor: float, device: torch.device) -> Tensor:
    """C for rows whose recovery token nobody foresees, 1 for the others: [B] float32."""
    return torch.tensor([factor if plain else 1.0 for plain in is_rejection], device=device)
