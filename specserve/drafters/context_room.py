# pyright: strict
"""How much the contexts of a drafter hold, in words of the settings that decide it.

A target's prefix cache lends a block to many rows, and contexts are never shared: a pool that is
large enough for the target may be too small for its drafter.
"""

from collections.abc import Collection
from dataclasses import dataclass

# Tokens that contexts grow by. Settings count in blocks of `engine.block_size`.
PAGE = 16


@dataclass(frozen=True)
class ContextRoom:
    """Of one drafter, for all its rows."""

    num_tokens: int
    block_size: int  # engine.block_size
    max_len: int  # tokens that a row may come to have

    def shortage(self, lengths: Collection[int]) -> str:
        """What is too small, and what would do, when rows of `lengths` do not fit together."""
        now, in_the_end = self._num_blocks(lengths), self._num_blocks([self.max_len] * len(lengths))
        return (
            f"{len(lengths)} rows have {sum(lengths)} tokens and draft contexts hold "
            f"{self.num_tokens} (engine.num_blocks={self.num_tokens // self.block_size}); "
            f"set engine.num_blocks={now} for what they have, {in_the_end} for all that they may "
            f"have (model.max_model_len={self.max_len}), or a lower engine.max_batch_rows"
        )

    def _num_blocks(self, lengths: Collection[int]) -> int:
        pages = sum(-(-length // PAGE) for length in lengths)
        return -(-pages * PAGE // self.block_size)
