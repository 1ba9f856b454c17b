"""One forward as flat integers: what rank 0 decides and every rank computes.

The same record feeds the runner of rank 0 and, as one int64 array, those of the other ranks, so
ranks cannot disagree about a batch.
"""

from dataclasses import dataclass

import numpy as np

from specserve.models.attention import AttentionBatch
from target_node.scheduler import Row


@dataclass(frozen=True)
class ForwardBatch:
    """N tokens of B rows, flattened without padding; R of them want logits.

    token_ids [N]; num_tokens, context_lens [B]; block_tables B arrays; logits_index [R];
    fresh_blocks are erased before the forward.
    """

    token_ids: np.ndarray
    logits_index: np.ndarray
    fresh_blocks: np.ndarray
    attention: AttentionBatch

    @classmethod
    def of(cls, rows: list[Row], fresh_blocks: list[int]) -> "ForwardBatch":
        token_ids: list[int] = []
        logits_index: list[int] = []
        num_tokens, context_lens, tables = [], [], []
        for row in rows:
            sequence = row.sequence
            start, end = sequence.num_computed, sequence.num_computed + row.num_tokens
            token_ids += sequence.token_ids[start:end]
            token_ids += row.drafted
            logits_index += range(len(token_ids) - row.num_logits, len(token_ids))
            num_tokens.append(row.num_tokens)
            context_lens.append(end)
            tables.append(np.array(sequence.block_ids, dtype=np.int64))
        counts = np.array(num_tokens, dtype=np.int64)
        ends = np.array(context_lens, dtype=np.int64)
        return cls(
            token_ids=np.array(token_ids, dtype=np.int64),
            logits_index=np.array(logits_index, dtype=np.int64),
            fresh_blocks=np.array(fresh_blocks, dtype=np.int64),
            attention=AttentionBatch(counts, ends, tables),
        )

    def encode(self) -> np.ndarray:
        """One int64 array: four sizes, then the fields in order, tables after their lengths."""
        plan = self.attention
        sizes = [len(self.token_ids), len(plan.num_tokens), len(self.logits_index)]
        sizes.append(len(self.fresh_blocks))
        lens = np.array([len(table) for table in plan.block_tables], dtype=np.int64)
        parts = [np.array(sizes, dtype=np.int64), self.token_ids, self.logits_index]
        parts.append(self.fresh_blocks)
        parts += [plan.num_tokens, plan.context_lens, lens, *plan.block_tables]
        return np.concatenate(parts)

    @classmethod
    def decode(cls, data: np.ndarray) -> "ForwardBatch":
        """The inverse of `encode`."""
        num_tokens, num_rows, num_logits, num_fresh = (int(size) for size in data[:4])
        sizes = [num_tokens, num_logits, num_fresh, num_rows, num_rows, num_rows]
        token_ids, logits_index, fresh, counts, ends, lens, flat = np.split(
            data[4:], np.cumsum(sizes)
        )
        tables = np.split(flat, np.cumsum(lens)[:-1])
        return cls(
            token_ids=token_ids,
            logits_index=logits_index,
            fresh_blocks=fresh,
            attention=AttentionBatch(counts, ends, tables),
        )
