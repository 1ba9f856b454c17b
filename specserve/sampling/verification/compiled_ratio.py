"""The ratio test of `verify` in one compiled call, on a CPU.

By torch it is eighty operations on a few rows, each of which costs more than what it computes. Here
a row's walk ends where it ends: laws behind a rejected token are never made. What it finds is what
`verify` finds in the same arithmetic, float32 laws and a float64 ratio, under the same noise.

Where all rows of a round are such, `judge_rows` reads them as they are: making a batch of tensors
of them takes as long as judging them. Requests' own edits are made beforehand, by torch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specserve.noise import OnceKeys, Purpose
from specserve.sampling import law_kernels
from specserve.sampling.batch import LogitEdits
from specserve.sampling.draft_law import DraftLaw
from specserve.sampling.logit_edits import apply_edits
from specserve.sampling.verification.batch import RatioKeys, RowGroup, RowToVerify
from specserve.sampling.verification.ratio_rows import NO_LAWS, ratio_rows
from specserve.sampling.verification.rule import VerificationRule


def prepare(device: torch.device) -> None:
    """Compile now what would otherwise be compiled in the middle of a round, if it is needed."""
    if device.type == "cpu":
        law_kernels.are_usable()


def is_for(logits: Tensor, group: RowGroup) -> bool:
    """Whether all rows draw, and this machine can."""
    return group.sampling.greedy_rows is None and _can(logits)


def judge(
    logits: Tensor, group: RowGroup, ratio: RatioKeys, draft_law: DraftLaw | None
) -> law_kernels.RatioOutcomes | None:
    """`logits` [N, V] of the group's rows; ValueError where drafted tokens come without a law.

    None where rows that are edited have logits nobody can sample from: edits may hide that.
    """
    if draft_law is None and group.max_verify_len:
        raise ValueError("drafted tokens under the ratio test, but no draft law")
    edited = _edited(logits, group.sampling.edits)
    if edited is None:
        return None
    laws = np.zeros(len(group.drafted), np.int64)
    laws[ratio.law_places.numpy()] = ratio.law_rows.numpy()
    law_ids, law_probs = _entries(draft_law)
    rows = law_kernels.RatioRows(
        starts=group.starts.numpy(),
        verify_lens=group.verify_lens.numpy(),
        drafted=group.drafted.numpy(),
        laws=laws,
        law_ids=law_ids,
        law_probs=law_probs,
        temperatures=group.sampling.temperatures.numpy().astype(np.float32),
        cuts=_cuts(group),
        uniforms=ratio.once.uniform(Purpose.ACCEPTANCE).contiguous().numpy(),
        keys=_output_keys(group.rule, ratio.once, group.sampling.keys),
    )
    return _judge(edited, rows)


def judge_rows(
    logits: Tensor, rows: Sequence[RowToVerify], draft_law: DraftLaw | None
) -> law_kernels.RatioOutcomes | None:
    """The same of rows on the host; None where one of them is not for this, too.

    `logits` [N, V], row after row, and a law for each drafted token. ValueError for a round or
    branch too large for its key, and where drafted tokens come without a law.
    """
    rule = rows[0].rule
    if rule is VerificationRule.COUPLED or not _can(logits):
        return None
    if not all(row.rule is rule and not row.state.is_greedy for row in rows):
        return None
    if draft_law is None and any(row.drafted for row in rows):
        raise ValueError("drafted tokens under the ratio test, but no draft law")
    edited = _edited(logits, _edits_of(rows))
    if edited is None:
        return None
    return _judge(edited, ratio_rows(rows, *_entries(draft_law)))


def _can(logits: Tensor) -> bool:
    on_host = logits.device.type == "cpu" and logits.dtype == torch.float32
    return on_host and law_kernels.are_usable()


def _edits_of(rows: Sequence[RowToVerify]) -> LogitEdits | None:
    """Along all that was drafted: who edits nothing before it edits nothing behind it."""
    if not any(row.state.edits_logits for row in rows):
        return None
    return LogitEdits.of([each for row in rows for each in row.state.along(row.drafted)])


def _edited(logits: Tensor, edits: LogitEdits | None) -> Tensor | None:
    """None where a row was bad before."""
    if edits is None:
        return logits
    if not np.isfinite(logits.numpy().max(axis=1)).all():
        return None
    return apply_edits(logits, edits)


def _cuts(group: RowGroup) -> np.ndarray:
    """float64 [N, 3]"""
    cuts = np.tile([0.0, 1.0, 0.0], (len(group.drafted), 1))
    truncation = group.sampling.truncation
    if truncation is not None:
        columns = (truncation.top_k, truncation.top_p, truncation.min_p)
        cuts[truncation.places.numpy()] = np.stack([each.numpy() for each in columns], 1)
    return cuts


def _entries(draft_law: DraftLaw | None) -> tuple[np.ndarray, np.ndarray]:
    """Ids and probabilities of the laws."""
    if draft_law is None:
        return NO_LAWS
    ids = draft_law.ids.to(torch.int64).contiguous().numpy()
    return ids, draft_law.probs.to(torch.float32).contiguous().numpy()


def _output_keys(rule: VerificationRule, once: OnceKeys, shared: Tensor) -> np.ndarray:
    """As of `output_noise`: positions, sample words, purpose words and seeds, uint64 [4, N].

    `shared`, int64 [3, N], are the positions, sample indices and seeds that a draft knows, too.
    """
    if rule is VerificationRule.FORESEEABLE:
        positions, sample_indices, seeds = shared
        words = (positions, sample_indices, torch.full_like(seeds, int(Purpose.OUTPUT)), seeds)
    else:
        purposes = once.branch_words + int(Purpose.RECOVERY)
        words = (once.positions, once.sample_words, purposes, once.nonces)
    return np.stack([word.numpy() for word in words]).view(np.uint64)


def _judge(logits: Tensor, rows: law_kernels.RatioRows) -> law_kernels.RatioOutcomes:
    if len(logits) != len(rows.drafted):
        raise ValueError(f"{len(logits)} rows of logits, {len(rows.drafted)} are judged")
    # What follows is read by address: an index that is not there would be anybody's memory.
    ids, probs = rows.law_ids.shape, rows.law_probs.shape
    num_laws = rows.laws.max() + 1 if rows.verify_lens.any() else 0
    if ids != probs or num_laws > ids[0]:
        raise IndexError(f"laws of {ids}, {probs} for {num_laws} tokens")
    num_rows = len(rows.starts)
    found = law_kernels.RatioOutcomes(
        num_accepted=np.empty(num_rows, np.int64),
        next_tokens=np.empty(num_rows, np.int64),
        flags=np.empty((num_rows, 3), np.bool_),
    )
    law_kernels.judge_by_ratio(logits.contiguous().numpy(), rows, found)
    return found
