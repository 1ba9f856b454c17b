"""Rotary positions in training: angles of any `RopeSpec` that is served, for positions that are
chosen there, their application, and how a drafter's config.json tells of them.
"""

import torch
from torch import Tensor

from specserve.errors import InvalidField
from specserve.models.config import RopeSpec
from specserve.models.rope import inverse_frequencies

Rotary = tuple[Tensor, Tensor]  # cos and sin, broadcast over heads
_LLAMA3 = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_YARN = (
    "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "attention_factor",
)  # fmt: skip
_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", *_LLAMA3),
    "yarn": ("factor", *_YARN),
}


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotary embedding. x [B, H, T, D], cos and sin [T, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class RotaryAngles:
    """As the service's table turns."""

    def __init__(self, rope: RopeSpec, head_dim: int) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim)
        self._factor = rope.attention_factor

    def at(self, positions: Tensor) -> Rotary:
        """cos and sin [..., 1, head_dim] float32 at `positions` [...]."""
        angles = positions[..., None].float() * self._frequencies.to(positions.device)
        angles = torch.cat([angles, angles], dim=-1)[..., None, :]
        return angles.cos() * self._factor, angles.sin() * self._factor


def refuse_untold(rope: RopeSpec) -> None:
    """Raise InvalidField for frequencies that config.json has no words for.

    A GGUF file may name a factor for every pair, which is how Llama 3's are stored there.
    """
    if rope.kind not in _FIELDS:
        problem = "a drafter's config.json cannot tell the rotary frequencies of this file"
        raise InvalidField("--target", f"{problem}; give the folder that it was made from")


def rope_fields(rope: RopeSpec) -> dict[str, object]:
    """`rope_parameters` of a config.json, for frequencies that `refuse_untold` lets pass."""
    content: dict[str, object] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    return content | {name: getattr(rope, name) for name in _FIELDS[rope.kind]}
