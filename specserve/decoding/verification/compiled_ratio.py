"""The ratio test of `verify` in one compiled call, on a CPU, for laws that nothing edits or cuts.

By torch it is eighty operations on a few rows, each of which costs more than what it computes. Here
a row's walk ends where it ends: laws behind a rejected token are never made. What it finds is what
`verify` finds in the same arithmetic, float32 laws and a float64 ratio, under the same noise.
"""

import numpy as np
import torch
from torch import Tensor

from specserve.decoding import law_kernels
from specserve.decoding.draft_law import DraftLaw
from specserve.decoding.verification.batch import RatioKeys, RowGroup
from specserve.decoding.verification.rule import VerificationRule
from specserve.noise import Purpose

_NO_LAWS = np.empty((0, 0), np.int64), np.empty((0, 0), np.float32)


def is_for(logits: Tensor, group: RowGroup) -> bool:
    """Whether the rows' laws are those of the logits at a temperature, and this machine can."""
    sampling = group.sampling
    is_plain = sampling.edits is None and sampling.truncation is None
    on_host = logits.device.type == "cpu" and logits.dtype == torch.float32
    return is_plain and on_host and sampling.greedy_rows is None and law_kernels.are_usable()


def judge(
    logits: Tensor, group: RowGroup, ratio: RatioKeys, draft_law: DraftLaw | None
) -> law_kernels.RatioOutcomes:
    """`logits` [N, V] of the group's rows; ValueError where drafted tokens come without a law."""
    if draft_law is None and group.max_verify_len:
        raise ValueError("drafted tokens under the ratio test, but no draft law")
    num_rows, num_logits = len(group.rows), len(group.drafted)
    if len(logits) != num_logits:
        raise ValueError(f"{len(logits)} rows of logits, {num_logits} are judged")
    laws = np.zeros(num_logits, np.int64)
    laws[ratio.law_places.numpy()] = ratio.law_rows.numpy()
    law_ids, law_probs = _NO_LAWS
    if draft_law is not None:
        law_ids = draft_law.ids.to(torch.int64).contiguous().numpy()
        law_probs = draft_law.probs.to(torch.float32).contiguous().numpy()
    # What follows is read by address: an index that is not there would be anybody's memory.
    if law_ids.shape != law_probs.shape or laws.max() >= max(1, len(law_ids)):
        raise IndexError(f"laws of {law_ids.shape}, {law_probs.shape} for {laws.max() + 1} tokens")
    rows = law_kernels.RatioRows(
        starts=group.starts.numpy(),
        verify_lens=group.verify_lens.numpy(),
        drafted=group.drafted.numpy(),
        laws=laws,
        law_ids=law_ids,
        law_probs=law_probs,
        temperatures=group.sampling.temperatures.numpy().astype(np.float32),
        uniforms=ratio.once.uniform(Purpose.ACCEPTANCE).contiguous().numpy(),
        keys=_output_keys(group, ratio),
    )
    found = law_kernels.RatioOutcomes(
        num_accepted=np.empty(num_rows, np.int64),
        next_tokens=np.empty(num_rows, np.int64),
        flags=np.empty((num_rows, 3), np.bool_),
    )
    law_kernels.judge_by_ratio(logits.contiguous().numpy(), rows, found)
    return found


def _output_keys(group: RowGroup, ratio: RatioKeys) -> np.ndarray:
    """As of `output_noise`: positions, sample words, purpose words and seeds, uint64 [4, N]."""
    if group.rule is VerificationRule.FORESEEABLE:
        keys = group.sampling
        purposes = torch.full_like(keys.seeds, int(Purpose.OUTPUT))
        words = (keys.positions, keys.sample_indices, purposes, keys.seeds)
    else:
        once = ratio.once
        purposes = once.branch_words + int(Purpose.RECOVERY)
        words = (once.positions, once.sample_words, purposes, once.nonces)
    return np.stack([word.numpy() for word in words]).view(np.uint64)
