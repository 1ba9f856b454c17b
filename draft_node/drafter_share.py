"""One target's part of a drafter that serves several: rows of its own, and room of its own.

Weights are there once. Streams of two targets may have the same number, so rows of the drafter are
numbered anew; and a target whose contexts fill its share has no room left, whatever is free of the
others'. Like the drafter, made for one thread.
"""

from collections.abc import Iterator
from dataclasses import replace

from specserve.drafters.context import BLOCK_SIZE
from specserve.drafters.protocol import (
    ContextUpdate,
    DraftBatch,
    Drafter,
    FeatureSpec,
    SpeculationBatch,
)
from specserve.errors import Exhausted
from specserve.sampling.draft_sampler import DraftSampler


class DrafterShare:
    """A `Drafter`, as one target's streams have it."""

    def __init__(self, drafter: Drafter, rows: Iterator[int], num_tokens: int | None) -> None:
        """`rows` gives numbers that no other share has; None: contexts take no memory."""
        self.name = drafter.name
        self.holds_pending_tokens = drafter.holds_pending_tokens
        self.stops_in_time = drafter.stops_in_time
        self._drafter = drafter
        self._new_rows = rows
        self._num_pages = None if num_tokens is None else num_tokens // BLOCK_SIZE
        self._rows: dict[int, int] = {}  # of the drafter, by stream
        self._pages: dict[int, int] = {}  # that a stream's context takes

    @property
    def gamma(self) -> int:
        return self._drafter.gamma

    @property
    def feature_size(self) -> int:
        return self._drafter.feature_size

    @property
    def features(self) -> FeatureSpec | None:
        return self._drafter.features

    def context_len(self, row: int) -> int:
        known = self._rows.get(row)
        return 0 if known is None else self._drafter.context_len(known)

    def extend(self, update: ContextUpdate) -> None:
        """See `Drafter`; `Exhausted` where the share is full."""
        spans = zip(update.rows, update.starts, update.counts, strict=True)
        pages = {row: -(-(start + count) // BLOCK_SIZE) for row, start, count in spans}
        if self._num_pages is not None:
            in_all = sum((self._pages | pages).values())
            if in_all > self._num_pages:
                problem = f"{in_all} pages needed, this target's share is {self._num_pages}"
                raise Exhausted(f"draft context: {problem}")
        rows = [self._row(row) for row in update.rows]
        self._drafter.extend(replace(update, rows=rows))
        self._pages |= pages

    def draft(self, batch: DraftBatch, sampler: DraftSampler) -> SpeculationBatch:
        rows = [self._row(row) for row in batch.rows]
        return self._drafter.draft(replace(batch, rows=rows), sampler)

    def truncate(self, row: int, length: int) -> None:
        self._drafter.truncate(self._row(row), length)
        self._pages[row] = -(-length // BLOCK_SIZE)

    def free(self, row: int) -> None:
        self._pages.pop(row, None)
        if (known := self._rows.pop(row, None)) is not None:
            self._drafter.free(known)

    def _row(self, stream: int) -> int:
        if stream not in self._rows:
            self._rows[stream] = next(self._new_rows)
        return self._rows[stream]
