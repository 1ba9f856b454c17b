"""What a forward attends to, and attention of it over a paged cache, behind plan() and run().

A row brings 1..n new tokens (decode, verification and prefill chunks are the same thing here).
`plan` does the host's work once a forward; `run` is called by every layer.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


@dataclass(frozen=True)
class AttentionBatch:
    """What a forward attends to. B rows, N = sum(num_tokens).

    num_tokens[b] new tokens of row b end at context_lens[b] (old and new together);
    block_tables[b] lists the blocks that hold its context, in order.
    """

    num_tokens: np.ndarray  # [B] int64
    context_lens: np.ndarray  # [B] int64
    block_tables: list[np.ndarray]  # B arrays of int64

    def positions(self) -> np.ndarray:
        """Of every new token: [N] int64."""
        counts, ends = self.num_tokens, self.context_lens
        firsts = np.cumsum(counts) - counts
        return np.arange(int(counts.sum())) + np.repeat(ends - counts - firsts, counts)

    def slots(self, block_size: int) -> np.ndarray:
        """Where each new token's entries are kept, block_id * block_size + offset: [N] int64."""
        counts, ends = self.num_tokens, self.context_lens
        places = [
            (positions := np.arange(end - count, end), table[positions // block_size])
            for count, end, table in zip(counts, ends, self.block_tables, strict=True)
        ]
        return np.concatenate([blocks * block_size + p % block_size for p, blocks in places])


class Attention(Protocol):
    def plan(self, batch: AttentionBatch) -> None:
        """Prepare one forward of `batch`."""
        ...

    def run(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Write k, v [N, kv_heads, head_dim], attend causally with q [N, heads, head_dim].

        Returns [N, heads, head_dim]. The scale head_dim ** -0.5 is applied here.
        """
        ...
