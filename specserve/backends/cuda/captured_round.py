"""The verification of one round as a function of memory alone, of fixed shapes: what is captured.

Rows of all kinds beside each other: greedy ones, those that are drawn under noise both sides know,
and those under the ratio test, edited or cut or neither. Every step is a row's own, so that what
pads a round shows in no bit. It runs on any device; what it finds is what
`specserve.backends.torch.verification` finds there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specserve.backends.cuda.edit_tables import apply_tables
from specserve.backends.cuda.round_outcomes import packed_outcomes
from specserve.backends.cuda.round_shape import RoundShape
from specserve.backends.cuda.round_tables import DeviceTables, HostTables, RowTables
from specserve.noise import OnceKeys, Purpose, exponential_noise_of
from specserve.sampling.batch import SamplingBatch, Truncation
from specserve.sampling.draft_probs import PAD_ID, DraftProbs
from specserve.sampling.logprobs import logprob_columns
from specserve.sampling.sampling import sample
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.verify import VerificationOutcomes, by_ratio


class Given(NamedTuple):
    """One round."""

    logits: Tensor  # float32 [N, V]
    rows: Sequence[RowToVerify]
    by_ratio: Sequence[bool]
    draft_probs: DraftProbs | None


class _Spans(NamedTuple):
    """See `BlockSpans`."""

    drafted: Tensor
    starts: Tensor
    verify_lens: Tensor
    max_verify_len: int


class CapturedRound:
    """Of one shape: `fill`, then a call, then `found`."""

    def __init__(self, shape: RoundShape, logits: Tensor) -> None:
        """`logits` float32 [N, V] is memory that rounds of other shapes may use meanwhile."""
        self._shape = shape
        self._logits = logits
        size = shape.num_logits, shape.num_kept
        self._kept_ids = torch.full(size, PAD_ID, dtype=torch.int64, device=shape.device)
        self._kept_probs = torch.zeros(size, dtype=torch.float32, device=shape.device)
        self._on_host = HostTables(shape)
        self._tables = DeviceTables.over(self._on_host.words.to(shape.device), shape)

    def fill(self, given: Given) -> None:
        """What is behind its rows are those of some round before, verified for nobody."""
        self._logits[: len(given.logits)].copy_(given.logits)
        if self._shape.num_kept and given.draft_probs is not None:
            self._kept_ids[: len(given.draft_probs.ids)].copy_(given.draft_probs.ids)
            self._kept_probs[: len(given.draft_probs.ids)].copy_(given.draft_probs.probs)
        self._on_host.fill(given.rows, given.by_ratio)
        # Not pinned: the copy has left this memory when the call returns.
        self._tables.words.copy_(self._on_host.words, non_blocking=True)

    def __call__(self) -> None:
        tables = self._tables.rows
        edited = self._edited(tables)
        drawn = self._drawn(edited, tables)
        tested = self._tested(edited, tables) if self._shape.num_kept else None
        listed = None
        if self._shape.num_listed:
            chosen = self._chosen(drawn, tested, tables)[tables.listed]
            # Where nothing could be drawn there is nothing to be said of it.
            listed = logprob_columns(
                self._logits[tables.listed], chosen.clamp(min=0), self._shape.num_top
            )
        self.found = packed_outcomes(drawn, tested, listed)

    def _edited(self, tables: RowTables[Tensor]) -> Tensor:
        """The logits that are sampled from; none of a row whose own nobody can sample from."""
        if self._shape.edits is None:
            return self._logits
        edited = apply_tables(self._logits, self._tables.edits, tables.row_of)
        is_bad = ~self._logits.amax(dim=1).isfinite()
        edited[:, 0].masked_fill_(is_bad, torch.nan)  # whatever an edit has made of it
        return edited

    def _drawn(self, edited: Tensor, tables: RowTables[Tensor]) -> Tensor | None:
        """The target's tokens int64 [N], as far as rows stand by equality."""
        shape = self._shape
        greedy = drawn = None
        if shape.any_greedy:
            greedy = sample(edited, self._sampling(tables, None, None)).token_ids
        if shape.any_drawn:
            batch = self._sampling(tables, tables.drafted, self._truncation(tables))
            drawn = sample(edited, batch).token_ids
        if greedy is None or drawn is None:
            return drawn if greedy is None else greedy
        return torch.where(tables.is_greedy != 0, greedy, drawn)

    def _tested(self, edited: Tensor, tables: RowTables[Tensor]) -> VerificationOutcomes:
        """Outcomes of the ratio test, of all B rows."""
        positions, _, _, seeds = tables.keys
        once = OnceKeys(seeds, positions, *tables.once)
        return by_ratio(
            edited,
            self._sampling(tables, tables.drafted, self._truncation(tables)),
            _Spans(tables.drafted, tables.starts, tables.verify_lens, self._shape.num_logits - 1),
            DraftProbs(self._kept_ids, self._kept_probs).rows(tables.probs_rows),
            uniforms=once.uniform(Purpose.ACCEPTANCE),
            noise_at=lambda ends: exponential_noise_of(
                tables.keys[:, ends], self._shape.vocab_size
            ),
        )

    def _chosen(
        self, drawn: Tensor | None, tested: VerificationOutcomes | None, tables: RowTables[Tensor]
    ) -> Tensor:
        """The token that comes in the place of each row of logits, as far as rows get there."""
        if tested is None:
            assert drawn is not None
            return drawn
        row_of = tables.row_of
        offsets = torch.arange(len(row_of), device=row_of.device) - tables.starts[row_of]
        is_accepted = offsets < tested.num_accepted[row_of]
        by_test = torch.where(is_accepted, tables.drafted, tested.next_tokens[row_of])
        if drawn is None:
            return by_test
        return torch.where(tables.is_ratio[row_of] != 0, by_test, drawn)

    def _sampling(
        self, tables: RowTables[Tensor], drawn_rows: Tensor | None, truncation: Truncation | None
    ) -> SamplingBatch:
        """`drawn_rows`: any tensor if all of them are drawn, None if none is."""
        positions, sample_words, _, seeds = tables.keys
        return SamplingBatch(
            num_rows=self._shape.num_logits,
            greedy_rows=None,
            random_rows=drawn_rows,
            temperatures=tables.temperatures,
            keys=torch.stack((positions, sample_words, seeds)),
            edits=None,
            truncation=truncation,
        )

    def _truncation(self, tables: RowTables[Tensor]) -> Truncation | None:
        if self._shape.cuts is None:
            return None
        return Truncation(
            places=tables.drafted,  # all rows
            top_k=tables.top_k,
            top_p=tables.top_p,
            min_p=tables.min_p,
            max_top_k=self._shape.cuts.max_top_k,
            any_top_p=self._shape.cuts.any_top_p,
            any_min_p=True,
            may_wait=False,
        )
