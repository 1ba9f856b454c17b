"""Passes of a drafter on a CPU, each of them one compiled forward, the one that targets have.

What is drafted stands in pages of its own behind the pages of its row, which all branches of a
request share and which are read as they lie: nothing is padded, masked or copied for a branch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.backends.cpu.forward import CompiledForward, block_table
from specserve.backends.cpu.kernel_arguments import Batch
from specserve.backends.cpu.kv_cache import TiledKVCache
from specserve.drafters.backbone import Backbone
from specserve.drafters.branch_attention import Entering
from specserve.drafters.context import BLOCK_SIZE, Context, num_pages
from specserve.models.kv_cache import NULL_BLOCK
from specserve.models.transformer import Transformer

Integers = NDArray[np.int64]

COUNT, END, SHARED, SEES_ALL = range(4)  # of `Batch.rows`
# Drafted at once: one for every page that rows may have and so many more, but no more than these.
_SPARE_BLOCKS, _MOST_BLOCKS = 256, 1024


class CompiledPasses:
    """`ChainPasses` and `BlockPasses` of a model of compiled products that is whole.

    Those of blocks are of a drafter whose layers `model` has.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        num_tokens: int,
        longest: int,
        backbone: Backbone | None = None,
    ) -> None:
        """Rows have room for `num_tokens`; what is drafted has at most about `longest` each."""
        self._backbone = backbone
        num_blocks, self._pages_each = num_pages(num_tokens), -(-longest // BLOCK_SIZE)
        self._most_blocks = min(num_blocks + _SPARE_BLOCKS, _MOST_BLOCKS)
        num_spare = (self._most_blocks + 1) * self._pages_each
        self._forward = CompiledForward(
            model,
            num_blocks=num_blocks + num_spare,
            block_size=BLOCK_SIZE,
            # Drafts past the model's last position are never used, but must not fail.
            num_spare_positions=self._pages_each * BLOCK_SIZE,
        )
        self.context: Context[TiledKVCache] = Context(self._forward.cache, num_blocks)
        spare = num_blocks + np.arange(num_spare)
        self._spare = spare.reshape(-1, self._pages_each)  # the last is for what nobody sees

    def enter(self, entering: Entering) -> None:
        self._forward.plan(self.context.causal_batch(entering.rows, entering.counts))
        self._forward.run(torch.tensor(entering.token_ids))

    # --- chains ----------------------------------------------------------------------------------

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_passes: int,
        entering: Entering | None,
    ) -> None:
        if len(rows) > self._most_blocks:
            raise ValueError(f"{len(rows)} chains, there is room for {self._most_blocks}")
        self._check(num_passes)
        drafted = np.zeros((len(rows), 4), dtype=np.int64)
        drafted[:, COUNT], drafted[:, SHARED] = 1, lengths
        drafted[:, END] = drafted[:, SHARED] + 1
        self._first = self._batch_of(drafted, rows, self._spare[: len(rows)], entering)
        later = Batch(*(array[-len(rows) :].copy() for array in self._first))
        later.rows[:, END] += 1
        self._later, self._num_passes = later, num_passes
        self._first_ids = None if entering is None else entering.token_ids
        self._is_first = True

    def run(self, token_ids: Tensor) -> Tensor:
        num_chains = len(token_ids)
        if self._is_first:
            self._forward.lay_out(self._first)
            if self._first_ids is not None:
                token_ids = torch.cat([torch.tensor(self._first_ids), token_ids])
            hidden, _ = self._forward.run(token_ids)
            self._is_first = False
            self._forward.lay_out(self._later, num_more=self._num_passes)
        else:
            hidden, _ = self._forward.run(token_ids)
            self._later.rows[:, END] += 1
        return hidden[-num_chains:]

    # --- blocks ----------------------------------------------------------------------------------

    def write_context(self, features: Tensor, positions: Integers, slots: Integers) -> None:
        assert self._backbone is not None, "chains have no features"
        entries = self._backbone.context_entries(features, torch.from_numpy(positions))
        self.context.write(slots, *entries)

    def blocks(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        token_ids: Tensor,
        entering: Entering | None,
        gap_ids: Sequence[Sequence[int]] | None = None,
        min_gap: int = 0,
    ) -> Tensor:
        num_blocks, size = token_ids.shape
        gap_ids = gap_ids or [()] * num_blocks
        if num_blocks > self._most_blocks:
            parts = (slice(None, self._most_blocks), slice(self._most_blocks, None))
            min_gap = max(min_gap, *map(len, gap_ids))
            return torch.cat(
                [
                    self.blocks(
                        rows[part],
                        lengths[part],
                        token_ids[part],
                        entering if part.start is None else None,
                        gap_ids[part],
                        min_gap,
                    )
                    for part in parts
                ]
            )
        gaps = np.array([len(ids) for ids in gap_ids], dtype=np.int64)
        widest = int(max(min_gap, gaps.max()))
        self._check(widest + size)
        ends = np.array(lengths, dtype=np.int64) + gaps
        drafted = np.zeros((num_blocks, 4), dtype=np.int64)
        drafted[:, COUNT], drafted[:, END] = size, ends + size
        drafted[:, SHARED], drafted[:, SEES_ALL] = lengths, 1
        pages, flat = self._spare[:num_blocks], token_ids.flatten()
        if widest:
            drafted, rows, pages, first = self._with_gaps(drafted, rows, pages, gap_ids, widest)
            flat = torch.cat([torch.tensor(first), flat])
        batch = self._batch_of(drafted, rows, pages, entering)
        if entering is not None:
            flat = torch.cat([torch.tensor(entering.token_ids), flat])
        self._forward.lay_out(batch)
        hidden, _ = self._forward.run(flat)
        return hidden[-token_ids.numel() :].view(num_blocks, size, -1)

    def _with_gaps(
        self,
        drafted: Integers,
        rows: Sequence[int],
        pages: Integers,
        gap_ids: Sequence[Sequence[int]],
        widest: int,
    ) -> tuple[Integers, Sequence[int], Integers, list[int]]:
        """Rows of `drafted`, their own and their pages, and the gaps' tokens, which come first.

        Shorter gaps are followed by tokens that nobody sees, so that all take as long.
        """
        first, of_rows, of_pages = [], [], []
        token_ids: list[int] = []
        for place, ids in enumerate(gap_ids):
            shared, gap = drafted[place, SHARED], len(ids)
            unused = widest - gap
            if gap:
                first.append((gap, shared + gap, shared, 0))
                of_pages.append(pages[place])
            if unused:
                first.append((unused, unused, 0, 0))
                of_pages.append(self._spare[-1])
            of_rows += [rows[place]] * (bool(gap) + bool(unused))
            token_ids += [*ids, *[0] * unused]
        drafted = np.concatenate([np.array(first, dtype=np.int64), drafted])
        return drafted, [*of_rows, *rows], np.concatenate([np.array(of_pages), pages]), token_ids

    # --- both ------------------------------------------------------------------------------------

    def _check(self, size: int) -> None:
        if size > self._pages_each * BLOCK_SIZE:
            most = self._pages_each * BLOCK_SIZE
            raise ValueError(f"{size} tokens behind a row, there is room for {most}")

    def _batch_of(
        self,
        drafted: Integers,
        rows: Sequence[int],
        pages: Integers,
        entering: Entering | None,
    ) -> Batch:
        """Pending tokens, and then what is drafted behind the `rows`, in `pages` of its own."""
        shared = self._tables_of(rows)
        if drafted[:, SHARED].max() > shared.shape[1] * BLOCK_SIZE:
            raise ValueError(f"drafts behind {drafted[:, SHARED].max()} positions: not there")
        if entering is None:
            return Batch(drafted, pages, shared)
        counts = np.array(entering.counts, dtype=np.int64)
        first = np.zeros((len(counts), 4), dtype=np.int64)
        first[:, COUNT], first[:, END] = counts, np.array(entering.starts) + counts
        own = self._tables_of(entering.rows)
        nothing = np.zeros((len(first), shared.shape[1]), dtype=np.int64)
        return Batch(
            np.concatenate([first, drafted]),
            _stacked(own, pages),
            np.concatenate([nothing, shared]),
        )

    def _tables_of(self, rows: Sequence[int]) -> Integers:
        """Of each of them, [B, pages]; many are of one row."""
        place_of = {row: place for place, row in enumerate(dict.fromkeys(rows))}
        tables = block_table([self.context.rows.table(row) for row in place_of])
        return tables[[place_of[row] for row in rows]]


def _stacked(first: Integers, second: Integers) -> Integers:
    """One table of both."""
    table = np.full(
        (len(first) + len(second), max(first.shape[1], second.shape[1])), NULL_BLOCK, np.int64
    )
    table[: len(first), : first.shape[1]] = first
    table[len(first) :, : second.shape[1]] = second
    return table
