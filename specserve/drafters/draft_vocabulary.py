"""Drafters that know only a part of the target's tokens: the tables that say which."""

import torch
from torch import Tensor

from specserve.drafters.weights import DraftWeights
from specserve.errors import Unsupported

OFFSETS = "d2t"  # [DV] int64: target id - draft id
IN_DRAFT = "t2d"  # [V] bool: whether a target id has a draft id
TABLE_DTYPES = {OFFSETS: "I64", IN_DRAFT: "BOOL"}


def table_shapes(draft_vocab_size: int, vocab_size: int) -> dict[str, tuple[int, ...]]:
    return {OFFSETS: (draft_vocab_size,), IN_DRAFT: (vocab_size,)}


def draft_vocabulary(weights: DraftWeights, vocab_size: int) -> Tensor | None:
    """Target id of every draft id, [DV]; None where all of the target's tokens are known.

    On disk they are offsets, and a bitmap that must agree. Raises `Unsupported`.
    """
    if OFFSETS not in weights.checkpoint:
        return None
    offsets = weights.table(OFFSETS)
    ids = offsets + torch.arange(len(offsets), device=offsets.device)
    in_range = bool(((ids >= 0) & (ids < vocab_size)).all())
    if not in_range or len(ids.unique()) != len(ids):
        raise Unsupported(
            f"{weights.checkpoint.folder}: {OFFSETS}: not offsets to distinct target ids"
        )
    if IN_DRAFT in weights.checkpoint:
        listed = weights.table(IN_DRAFT).nonzero().flatten()
        if not torch.equal(listed, ids.sort().values):
            raise Unsupported(f"{weights.checkpoint.folder}: {IN_DRAFT} contradicts {OFFSETS}")
    return ids
