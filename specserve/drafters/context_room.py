# pyright: strict
"""How much the contexts of a drafter hold, in words of the settings that decide it.

A target's prefix cache lends a block to many rows, and contexts are never shared: a pool that is
large enough for the target may be too small for its drafter.
"""

from collections.abc import Collection
from dataclasses import dataclass

PAGE = 16  # tokens that contexts grow by
_MIB = 2**20


@dataclass(frozen=True)
class ContextRoom:
    """Of one drafter, for all its rows."""

    num_tokens: int
    token_bytes: int  # of the target's KV pool, which contexts are as large as
    max_len: int  # tokens that a row may come to have

    def shortage(self, lengths: Collection[int]) -> str:
        """What is too small, and what would do, when rows of `lengths` do not fit together."""
        now, in_the_end = self._memory(lengths), self._memory([self.max_len] * len(lengths))
        return (
            f"{len(lengths)} rows have {sum(lengths)} tokens and draft contexts hold "
            f"{self.num_tokens}; set engine.kv_memory={now} for what they have, {in_the_end} for "
            f"all that they may have (model.max_model_len={self.max_len}), or a lower "
            "engine.max_batch_rows"
        )

    def _memory(self, lengths: Collection[int]) -> str:
        num_tokens = sum(-(-length // PAGE) * PAGE for length in lengths)
        return f"{-(-num_tokens * self.token_bytes // _MIB)}MiB"
