"""Rotary position embedding: frequencies, one table for all positions, and its application.

Half-split layout: dimension i turns with dimension i + head_dim / 2. Frequencies and angles are
float32 whatever the model's dtype.
"""

import math

import torch

from specserve.models.config import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """Radians a position for each pair of dimensions: [head_dim / 2] float32, after scaling."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.kind == "default":
        return frequencies
    if rope.kind == "proportional":
        frequencies[int(rope.rotary_fraction * head_dim) // 2 :] = 0  # the rest never turns
        return frequencies
    if rope.kind == "factors":
        return frequencies / torch.tensor(rope.pair_factors)
    scaled = frequencies / rope.factor
    if rope.kind == "linear":
        return scaled
    if rope.kind == "yarn":
        kept = _kept_by_yarn(rope, head_dim)
        return (1 - kept) * scaled + kept * frequencies
    # llama3: long wavelengths are stretched, short ones kept, those between interpolated.
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_max_position_embeddings / wavelengths
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * scaled + blend * frequencies


def _kept_by_yarn(rope: RopeSpec, head_dim: int) -> torch.Tensor:
    """How much of its frequency each pair keeps, [head_dim / 2]: all where it turns often within
    the context of pretraining, none where it does not once, and a ramp between."""

    def place_of(turns: float) -> float:
        wavelength = rope.original_max_position_embeddings / turns
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = place_of(rope.beta_fast), place_of(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - first) / width
    return 1 - ramp.clamp(0, 1)


def turns(
    rope: RopeSpec, *, head_dim: int, num_positions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position and pair of dimensions: [num_positions, head_dim / 2] float32.

    Longer by the attention factor of a scaling that has one.
    """
    frequencies = inverse_frequencies(rope, head_dim)
    angles = torch.arange(num_positions).float()[:, None] * frequencies
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


class RotaryTable:
    """cos and sin of every position, gathered once a forward and shared by all layers."""

    def __init__(
        self,
        rope: RopeSpec,
        *,
        head_dim: int,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        cos, sin = turns(rope, head_dim=head_dim, num_positions=num_positions)
        # The sign of a rotation's first half lives in the table: `rotate` then needs three ops.
        table = torch.stack([torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)], dim=1)
        self.table = table.to(device, dtype)  # [num_positions, 2, head_dim]
        self.num_positions = num_positions

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin at `positions` [N]: two tensors [N, 1, head_dim]."""
        rows = self.table.index_select(0, positions)
        return rows[:, :1], rows[:, 1:]


def rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Turn every head of `x` [N, heads, head_dim] by its token's angles; a new tensor."""
    swapped = x.roll(x.shape[-1] // 2, -1)
    return (x * cos).addcmul_(swapped, signed_sin)
