"""The ratio test of `verify` as one recording, on a device: by itself it is a hundred kernels.

Rows, logits rows and laws are padded to powers of two; what tells rounds of a shape apart is one
tensor of 64-bit words, beside logits and laws. Every step is a row's own, so that what pads them
shows in no bit. See `specserve.cuda_graphs`.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specserve import cuda_graphs, noise_kernel
from specserve.cuda_graphs import Recordings, padded
from specserve.decoding.batch import SamplingBatch
from specserve.decoding.draft_law import PAD_ID, DraftLaw
from specserve.decoding.law_kernels import RatioOutcomes, RatioRows
from specserve.decoding.sampling import MOST_RECORDED, NO_TOKEN
from specserve.decoding.verification.batch import RowGroup, RowToVerify
from specserve.decoding.verification.ratio_rows import ratio_rows
from specserve.decoding.verification.rule import VerificationRule
from specserve.decoding.verification.verify import by_ratio
from specserve.noise import exponential_noise_of


def prepare(device: torch.device) -> None:
    """Compile now what would otherwise be compiled in the middle of a round, if it is needed."""
    if device.type == "cuda":
        noise_kernel.is_usable()  # of variates on the host


def judge_rows(
    logits: Tensor, rows: Sequence[RowToVerify], draft_law: DraftLaw | None
) -> RatioOutcomes | None:
    """What `verify` finds; None where not all rows are judged so, unedited and untruncated.

    `logits` [N, V], row after row, and a law for each drafted token, all on the device. ValueError
    for a round or branch too large for its key, and where drafted tokens come without a law.
    """
    if not cuda_graphs.are_used(logits.device) or not _are_plain(rows):
        return None
    num_laws = sum(len(row.drafted) for row in rows)
    if draft_law is None and num_laws:
        raise ValueError("drafted tokens under the ratio test, but no draft law")
    if draft_law is not None and len(draft_law.ids) != num_laws:
        raise ValueError(f"{len(draft_law.ids)} laws for {num_laws} drafted tokens")
    shape = _Shape(
        rule=rows[0].rule,
        num_rows=padded(len(rows)),
        num_logits=padded(len(logits)),
        num_kept=1 if draft_law is None else draft_law.ids.shape[1],
        vocab_size=logits.shape[1],
        device=logits.device,
    )
    if shape.num_logits * shape.vocab_size > MOST_RECORDED:
        return None
    given = ratio_rows(rows)
    made = _recordings().run(shape, lambda each: each.fill(logits, given, draft_law))
    if made is None:
        return None
    found = made.found.cpu().numpy()[:, : len(rows)]
    return RatioOutcomes(found[0], found[1], found[2:].T != 0)


def _are_plain(rows: Sequence[RowToVerify]) -> bool:
    rule = rows[0].rule
    return rule is not VerificationRule.COUPLED and all(
        row.rule is rule
        and not row.state.is_greedy
        and not row.state.edits_logits
        and not row.state.is_truncated
        for row in rows
    )


class _Shape(NamedTuple):
    rule: VerificationRule
    num_rows: int  # B
    num_logits: int  # N
    num_kept: int  # M, of laws
    vocab_size: int
    device: torch.device


class _RecordedRatio:
    """What is recorded: the test of one shape."""

    def __init__(self, shape: _Shape) -> None:
        self._shape = shape
        size = {"dtype": torch.float32, "device": shape.device}
        self._logits = torch.zeros(shape.num_logits, shape.vocab_size, **size)
        # At least one logits row judges nothing: the last law is nobody's, and stays empty.
        self._law_probs = torch.zeros(shape.num_logits, shape.num_kept, **size)
        self._law_ids = self._law_probs.new_full(self._law_probs.shape, PAD_ID, dtype=torch.int64)
        self._words = _Words.empty(shape.num_rows, shape.num_logits)
        self._numbers = self._words.numbers.to(shape.device)

    def fill(self, logits: Tensor, given: RatioRows, draft_law: DraftLaw | None) -> None:
        """What is behind them are those of some round before, judged for nobody."""
        self._logits[: len(logits)].copy_(logits)
        if draft_law is not None:
            self._law_ids[: len(draft_law.ids)].copy_(draft_law.ids)
            self._law_probs[: len(draft_law.ids)].copy_(draft_law.probs)
        self._words.fill(given, no_law=len(self._law_ids) - 1)
        # Not pinned: the copy has left this memory when the call returns.
        self._numbers.copy_(self._words.numbers, non_blocking=True)

    def __call__(self) -> None:
        words = self._words.over(self._numbers)
        group = RowGroup(
            rule=self._shape.rule,
            rows=words.starts,
            logits_rows=None,
            sampling=SamplingBatch(
                num_rows=self._shape.num_logits,
                greedy_rows=None,
                random_rows=words.drafted,
                temperatures=words.temperatures.view(torch.float64),
                keys=words.keys[:3],
                edits=None,
                truncation=None,
            ),
            drafted=words.drafted,
            starts=words.starts,
            verify_lens=words.verify_lens,
            max_verify_len=self._shape.num_logits - 1,
            ratio=None,
        )
        found = by_ratio(
            self._logits,
            group,
            DraftLaw(self._law_ids, self._law_probs).rows(words.laws),
            uniforms=words.uniforms.view(torch.float64),
            noise_at=lambda ends: exponential_noise_of(words.keys[:, ends], self._shape.vocab_size),
        )
        flags = found.bad_rows, found.broken_laws, found.spoiled_rows
        self.found = torch.stack((found.num_accepted, found.next_tokens, *map(Tensor.long, flags)))


class _Words(NamedTuple):
    """All that a round's rows bring besides, in one tensor of 64-bit words: views of it."""

    numbers: Tensor  # int64
    starts: Tensor  # [B]
    verify_lens: Tensor  # [B]
    drafted: Tensor  # [N]
    laws: Tensor  # [N]
    temperatures: Tensor  # [N] bits of float64
    uniforms: Tensor  # [N] bits of float64
    keys: Tensor  # [4, N]

    @classmethod
    def empty(cls, num_rows: int, num_logits: int) -> "_Words":
        return cls._of(torch.zeros(2 * num_rows + 8 * num_logits, dtype=torch.int64), num_rows)

    @classmethod
    def _of(cls, numbers: Tensor, num_rows: int) -> "_Words":
        num_logits = (len(numbers) - 2 * num_rows) // 8
        of_rows, of_logits = numbers.split([2 * num_rows, 8 * num_logits])
        starts, verify_lens = of_rows.view(2, -1)
        drafted, laws, temperatures, uniforms, *_ = columns = of_logits.view(8, -1)
        return cls(numbers, starts, verify_lens, drafted, laws, temperatures, uniforms, columns[4:])

    def over(self, numbers: Tensor) -> "_Words":
        """The same of such a tensor elsewhere."""
        return self._of(numbers, len(self.starts))

    def fill(self, given: RatioRows, *, no_law: int) -> None:
        num_rows, num_logits = len(given.starts), len(given.drafted)
        judges = given.drafted != NO_TOKEN
        starts = self.starts.numpy(), self.verify_lens.numpy()
        for own, numbers in zip(starts, (given.starts, given.verify_lens), strict=True):
            own[:num_rows], own[num_rows:] = numbers, 0
        self.drafted.numpy()[:num_logits] = given.drafted
        self.laws.numpy()[:] = no_law
        self.laws.numpy()[:num_logits][judges] = given.laws[judges]
        self.temperatures.view(torch.float64).numpy()[:num_logits] = given.temperatures
        self.uniforms.view(torch.float64).numpy()[:num_logits] = given.uniforms
        self.keys.numpy()[:, :num_logits] = given.keys.view(np.int64)


@functools.cache
def _recordings() -> Recordings[_Shape, _RecordedRatio]:
    return Recordings(_RecordedRatio)
