"""The ratio test of `verify` as one graph, on a device: by itself it is a hundred kernels.

Logits rows and their distributions are padded to `graphs.BUCKETS`, as tokens of a forward are, and
rows to powers of two; what tells rounds of a shape apart is one tensor of 64-bit words beside them.
Every step is a row's own, so that what pads them shows in no bit.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specserve.backends.base import VerifiedRows
from specserve.backends.cuda.graphs import CapturedGraphs, bucket_of, padded
from specserve.backends.cuda.ratio_rows import RatioRows, ratio_rows
from specserve.backends.cuda.sampling import MOST_CAPTURED, padded_top_k
from specserve.noise import exponential_noise_of
from specserve.sampling.batch import SamplingBatch, Truncation
from specserve.sampling.draft_probs import PAD_ID, DraftProbs
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod
from specserve.sampling.verification.verify import by_ratio


def verify_captured(
    logits: Tensor, rows: Sequence[RowToVerify], draft_probs: DraftProbs | None
) -> VerifiedRows | None:
    """What `verify` finds; None where not all rows are verified so, or some are edited.

    `logits` [N, V], row after row, and a distribution for each drafted token, all on the device.
    ValueError for a round or branch too large for its key, and where there are not as many of
    either.
    """
    if not _are_plain(rows):
        return None
    num_probs = sum(len(row.drafted) for row in rows)
    if draft_probs is None and num_probs:
        raise ValueError("drafted tokens under the ratio test, but no draft distribution")
    if draft_probs is not None and len(draft_probs.ids) != num_probs:
        raise ValueError(f"{len(draft_probs.ids)} distributions for {num_probs} drafted tokens")
    if len(logits) != num_probs + len(rows):
        raise ValueError(f"{len(logits)} rows of logits, {num_probs + len(rows)} are verified")
    shape = _Shape(
        num_rows=padded(len(rows)),
        num_logits=bucket_of(len(logits)),
        num_kept=1 if draft_probs is None else draft_probs.ids.shape[1],
        cuts=_Cuts.of(rows),
        vocab_size=logits.shape[1],
        device=logits.device,
    )
    if shape.num_logits * shape.vocab_size > MOST_CAPTURED:
        return None
    given = ratio_rows(rows)
    made = _graphs().run(shape, lambda each: each.fill(logits, given, draft_probs))
    if made is None:
        return None
    num_accepted, next_tokens, broken, spoiled = made.found[:, : len(rows)].tolist()
    return VerifiedRows(
        num_accepted, next_tokens, list(map(bool, spoiled)), list(map(bool, broken))
    )


def _are_plain(rows: Sequence[RowToVerify]) -> bool:
    method = rows[0].method
    return method is not VerificationMethod.COUPLED and all(
        row.method is method and not row.state.is_greedy and not row.state.edits_logits
        for row in rows
    )


class _Shape(NamedTuple):
    num_rows: int  # B
    num_logits: int  # N
    num_kept: int  # M, of distributions
    cuts: "_Cuts | None"
    vocab_size: int
    device: torch.device


class _Spans(NamedTuple):
    """As `BlockSpans`."""

    drafted: Tensor
    starts: Tensor
    verify_lens: Tensor
    max_verify_len: int


class _Cuts(NamedTuple):
    """What has to be done for some row that truncates."""

    max_top_k: int  # padded
    any_top_p: bool

    @classmethod
    def of(cls, rows: Sequence[RowToVerify]) -> "_Cuts | None":
        params = [row.state.params for row in rows if row.state.is_truncated]
        if not params:
            return None
        return cls(padded_top_k(max(p.top_k for p in params)), any(p.top_p < 1 for p in params))


class _CapturedRatio:
    """What is captured: the test of one shape."""

    def __init__(self, shape: _Shape) -> None:
        self._shape = shape
        size = {"dtype": torch.float32, "device": shape.device}
        self._logits = torch.zeros(shape.num_logits, shape.vocab_size, **size)
        self._kept_probs = torch.zeros(shape.num_logits, shape.num_kept, **size)
        self._kept_ids = self._kept_probs.new_full(
            self._kept_probs.shape, PAD_ID, dtype=torch.int64
        )
        self._words = _Packed.empty(shape.num_rows, shape.num_logits)
        self._numbers = self._words.numbers.to(shape.device)

    def fill(self, logits: Tensor, given: RatioRows, draft_probs: DraftProbs | None) -> None:
        """What is behind them are those of some round before, verified for nobody."""
        self._logits[: len(logits)].copy_(logits)
        if draft_probs is not None:
            self._kept_ids[: len(draft_probs.ids)].copy_(draft_probs.ids)
            self._kept_probs[: len(draft_probs.ids)].copy_(draft_probs.probs)
        self._words.fill(given)
        # Not pinned: the copy has left this memory when the call returns.
        self._numbers.copy_(self._words.numbers, non_blocking=True)

    def __call__(self) -> None:
        words = self._words.over(self._numbers)
        sampling = SamplingBatch(
            num_rows=self._shape.num_logits,
            greedy_rows=None,
            random_rows=words.drafted,  # any tensor: there are some
            temperatures=words.temperatures.view(torch.float64),
            keys=words.keys[:3],
            edits=None,
            truncation=self._truncation(words),
        )
        found = by_ratio(
            self._logits,
            sampling,
            _Spans(words.drafted, words.starts, words.verify_lens, self._shape.num_logits - 1),
            DraftProbs(self._kept_ids, self._kept_probs).rows(words.probs_rows),
            uniforms=words.uniforms.view(torch.float64),
            noise_at=lambda ends: exponential_noise_of(words.keys[:, ends], self._shape.vocab_size),
        )
        flags = found.broken_probs, found.spoiled_rows
        self.found = torch.stack((found.num_accepted, found.next_tokens, *map(Tensor.long, flags)))

    def _truncation(self, words: "_Packed") -> Truncation | None:
        if self._shape.cuts is None:
            return None
        return Truncation(
            places=words.drafted,  # all rows
            top_k=words.top_k,
            top_p=words.top_p.view(torch.float64),
            min_p=words.min_p.view(torch.float64),
            max_top_k=self._shape.cuts.max_top_k,
            any_top_p=self._shape.cuts.any_top_p,
            any_min_p=True,
            may_wait=False,
        )


_NUM_COLUMNS = 11  # of `_Packed` that logits rows have


class _Packed(NamedTuple):
    """All that a round's rows bring besides, in one tensor of 64-bit words: views of it."""

    numbers: Tensor  # int64
    starts: Tensor  # [B]
    verify_lens: Tensor  # [B]
    drafted: Tensor  # [N]
    probs_rows: Tensor  # [N]
    temperatures: Tensor  # [N] bits of float64
    uniforms: Tensor  # [N] bits of float64
    top_k: Tensor  # [N]
    top_p: Tensor  # [N] bits of float64
    min_p: Tensor  # [N] bits of float64
    keys: Tensor  # [4, N]

    @classmethod
    def empty(cls, num_rows: int, num_logits: int) -> "_Packed":
        numbers = torch.zeros(2 * num_rows + _NUM_COLUMNS * num_logits, dtype=torch.int64)
        return cls._of(numbers, num_rows)

    @classmethod
    def _of(cls, numbers: Tensor, num_rows: int) -> "_Packed":
        of_rows, of_logits = numbers.tensor_split([2 * num_rows])
        columns = of_logits.view(_NUM_COLUMNS, -1)
        return cls._make((numbers, *of_rows.view(2, -1), *columns[:-4], columns[-4:]))

    def over(self, numbers: Tensor) -> "_Packed":
        """The same of such a tensor elsewhere."""
        return self._of(numbers, len(self.starts))

    def fill(self, given: RatioRows) -> None:
        top_k, top_p, min_p = given.cuts.T
        for own, numbers in (
            (self.starts, given.starts),
            (self.verify_lens, given.verify_lens),
            (self.drafted, given.drafted),
            (self.probs_rows, given.probs_rows),
            (self.temperatures.view(torch.float64), given.temperatures),
            (self.uniforms.view(torch.float64), given.uniforms),
            (self.top_k, top_k),
            (self.top_p.view(torch.float64), top_p),
            (self.min_p.view(torch.float64), min_p),
        ):
            own.numpy()[: len(numbers)] = numbers
        num_logits = len(given.drafted)
        self.keys.numpy()[:, :num_logits] = given.keys


@functools.cache
def _graphs() -> CapturedGraphs[_Shape, _CapturedRatio]:
    return CapturedGraphs(_CapturedRatio)
