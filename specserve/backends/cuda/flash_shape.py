# pyright: strict
"""Shapes of captured forwards that attend by pages: few, and each holds many batches. Pure.

What tells a shape is how many tokens and rows there are, not how long contexts are: kernels read
that from tables. See docs/decisions/0024-cuda-graphs.md and 0042-flashinfer.md.
"""

from dataclasses import dataclass

from specserve.backends.cuda.graphs import BUCKETS, bucket_of
from specserve.backends.cuda.padded_attention import MOST_ROW_TOKENS
from specserve.models.attention import AttentionBatch

MOST_PAGES = 1 << 16  # of all rows of a batch, whose table every plan copies
# Twice the multiprocessors of the largest device: into so many parts kernels cut a batch at least.
_MOST_PARTS = 320


@dataclass(frozen=True)
class FlashShape:
    """N tokens in R rows, of which some may be empty."""

    num_tokens: int
    num_rows: int
    is_decode: bool  # a token a row: R is N

    @classmethod
    def of(cls, batch: AttentionBatch, block_size: int) -> "FlashShape | None":
        """The least that holds `batch`, of few; None where none does."""
        num_tokens, longest = int(batch.num_tokens.sum()), int(batch.num_tokens.max())
        num_pages = int((-(-batch.context_lens // block_size)).sum())
        # Padding takes a page for each of its rows, or for some of its tokens.
        if num_tokens > BUCKETS[-1] or longest > MOST_ROW_TOKENS:
            return None
        bucket = bucket_of(num_tokens)
        if num_pages + bucket - num_tokens > MOST_PAGES:
            return None
        if longest == 1:
            return cls(bucket, bucket, True)
        return cls(bucket, padded_rows(len(batch.num_tokens), bucket), False)


def padded_rows(num_rows: int, num_queries: int) -> int:
    """Rows that a shape of `num_queries` has for `num_rows`: no more than queries, and one to spare
    for those that pad, if any do.

    Kernels are planned for no more rows than queries: by their sources the longest row is as long
    as there are queries more than rows, counted without a sign.
    """
    return min(bucket_of(num_rows) + 1, num_queries)


def graph_bytes(
    num_queries: int, num_rows: int, *, num_heads: int, num_kv_heads: int, head_dim: int
) -> int:
    """Memory that a captured kernel takes for partial results, at most.

    As its planner counts, for whatever rows there may be: in tiles of `tile` queries of a group.
    """
    ratio = num_heads // num_kv_heads
    longest = (num_queries - num_rows + 1) * ratio
    tile = 16 if longest <= 16 else 64 if longest <= 64 or head_dim >= 256 else 128
    tiles = -(-num_queries * ratio // tile) + num_rows - 1
    parts = max(_MOST_PARTS // num_kv_heads, tiles)
    return num_heads * parts * tile * (head_dim + 1) * 4
