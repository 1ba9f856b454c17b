"""Blocks cut from token rows: where they start, what they read, see and have to predict.

A block's anchor stands at position s; its features are those before s - gap, and the gap's tokens
stand in front of it as provisional entries, as `BlockDrafter` lays them out when it drafts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """A blocks in each of R rows. S = max_gap + G entries: provisional, anchor, masks."""

    token_ids: Tensor  # [R, A, S] int64
    positions: Tensor  # [R, A, S] int64
    context_lens: Tensor  # [R, A] int64: features at positions below are seen
    visible: Tensor  # [R, A, S, S] bool: which entry sees which of its block
    labels: Tensor  # [R, A, G] int64: slot k predicts the token at s + k + 1
    previous_ids: Tensor  # [R, A, G] int64: the token at s + k
    sources: Tensor  # [R, A, G] int64: where the target predicts the same token
    valid: Tensor  # [R, A, G] bool: the slot has a label, and so have those before it
    row_ids: Tensor  # [R, L] int64: the text that they were cut from


@dataclass(frozen=True)
class BlockShape:
    """What all blocks have in common."""

    size: int  # G: slots of the anchor-first layout
    mask_token_id: int
    max_gap: int = 0


def draw_anchors(
    is_learned: Tensor, count: int, shape: BlockShape, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Anchors without replacement, sorted, and a gap for each: [R, A] int64 both, on the CPU.

    `is_learned` [R, L] bool, on the CPU too, tells which tokens count as labels; anchors before one
    that does not are drawn last. Every anchor has at least one feature before its gap, and labels
    within the row. A quarter of the gaps is 0, the rest uniform in 1..max_gap (shorter near a
    row's start).
    """
    num_rows, length = is_learned.shape[0], is_learned.shape[1] - 1
    num_candidates = length - shape.size
    if num_candidates < 1:
        raise ValueError(f"rows of {length} tokens hold no block of {shape.size}")
    count = min(count, num_candidates)
    keys = torch.rand(num_rows, num_candidates, generator=generator)
    keys -= (
        ~is_learned[:, 2 : num_candidates + 2]
    ).float()  # of candidate i, the anchor i + 1, the label
    anchors = keys.topk(count, dim=1).indices.sort(dim=1).values + 1
    if not shape.max_gap:
        return anchors, torch.zeros_like(anchors)
    gaps = torch.randint(1, shape.max_gap + 1, anchors.shape, generator=generator)
    gaps = gaps.masked_fill(torch.rand(anchors.shape, generator=generator) < 0.25, 0)
    return anchors, torch.minimum(gaps, anchors - 1)


def cut_blocks(
    tokens: Tensor,
    anchors: Tensor,
    gaps: Tensor,
    shape: BlockShape,
    supervised: Tensor | None = None,
) -> Blocks:
    """Blocks at `anchors` [R, A] of token rows [R, L].

    `supervised` [R, L] bool tells which tokens count as labels; None: all. Labels end at the first
    that does not count, or at the row's end.
    """
    device, length = tokens.device, tokens.shape[1]
    slots = torch.arange(shape.size, device=device)
    before = torch.arange(-shape.max_gap, 0, device=device)

    def token_at(positions: Tensor) -> Tensor:
        flat = positions.clamp(0, length - 1).flatten(1)
        return tokens.gather(1, flat).view(positions.shape)

    slot_positions = anchors[..., None] + slots
    label_positions = slot_positions + 1
    valid = label_positions < length
    if supervised is not None:
        flat = label_positions.clamp(max=length - 1).flatten(1)
        valid = valid & supervised.gather(1, flat).view(valid.shape)
    valid = valid.long().cumprod(-1).bool()

    block_ids = torch.full_like(slot_positions, shape.mask_token_id)
    block_ids[..., 0] = token_at(anchors)
    gap_positions = anchors[..., None] + before
    gap_ids = token_at(gap_positions).masked_fill(before < -gaps[..., None], 0)
    return Blocks(
        token_ids=torch.cat([gap_ids, block_ids], dim=-1),
        positions=torch.cat([gap_positions.clamp(min=0), slot_positions], dim=-1),
        context_lens=anchors - gaps,
        visible=_visible(gaps, shape),
        labels=token_at(label_positions),
        previous_ids=token_at(slot_positions),
        sources=label_positions.clamp(max=length - 1) - 1,
        valid=valid,
        row_ids=tokens,
    )


def _visible(gaps: Tensor, shape: BlockShape) -> Tensor:
    """Gap tokens see each other causally, the block sees all; padding is seen by itself alone."""
    size = shape.max_gap + shape.size
    places = torch.arange(size, device=gaps.device)
    visible = (places[None, :] <= places[:, None]) | (places >= shape.max_gap)[:, None]
    real = places >= shape.max_gap - gaps[..., None]  # [R, A, S]
    own = torch.eye(size, dtype=torch.bool, device=gaps.device)
    return (visible & real[..., None, :]) | own


def gather_rows(hidden: Tensor, places: Tensor) -> Tensor:
    """hidden [R, T, H] at places [R, ...] -> [R, ..., H]"""
    index = places.flatten(1)[..., None].expand(-1, -1, hidden.shape[-1])
    return hidden.gather(1, index).view(*places.shape, -1)
