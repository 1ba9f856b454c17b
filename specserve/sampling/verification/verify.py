"""Target logits and drafted tokens to outcomes: how far each row's draft stands, and what follows.

Every logits row says whether the drafted token it verifies stands; the first that does not, or the
last of the row, gives the next token. Under equality that token is what `sample` draws there, so
the text is that of plain decoding bit for bit. Under the ratio test it is drawn from the residual,
which is the target's own distribution where nothing was drafted: miss, bonus and recovery are one
case.

Nothing waits for the device (but for the short cut of top_p), and no row feels another. Where a
block came from, how confident its drafter was and how many tokens were left out is unknown here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specserve.noise import Purpose, exponential_noise
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.sampling import NO_TOKEN, sample, target_distributions
from specserve.sampling.verification.batch import RatioKeys, RowGroup, VerificationBatch
from specserve.sampling.verification.method import VerificationMethod
from specserve.sampling.verification.ratio import accept_probs, accepts, residual_probs


class BlockSpans(Protocol):
    """B rows with N logits rows: where each row's block and logits lie."""

    @property
    def drafted(self) -> Tensor:
        """int64 [N], the token each verifies; NO_TOKEN where a row ends"""
        ...

    @property
    def starts(self) -> Tensor:
        """int64 [B], where each row begins among the N"""
        ...

    @property
    def verify_lens(self) -> Tensor:
        """int64 [B]"""
        ...

    @property
    def max_verify_len(self) -> int:
        """Or more."""
        ...


@dataclass(frozen=True, slots=True)
class VerificationOutcomes:
    """One outcome a row; all [B].

    A bad row's prefix ended at logits nobody can sample from. Its accepted tokens stand all the
    same, because plain decoding would have emitted them before it failed there too.
    """

    num_accepted: Tensor  # int64, drafted tokens that stand: 0..verify_len
    next_tokens: Tensor  # int64: recovery or bonus token, NO_TOKEN in bad rows
    bad_rows: Tensor  # bool
    broken_probs: Tensor  # bool: probabilities were none, or not their token's; no draft then
    spoiled_rows: Tensor  # bool: logits nobody can sample from, the prefix's end or beyond it


def verify(
    logits: Tensor, batch: VerificationBatch, draft_probs: DraftProbs | None = None
) -> VerificationOutcomes:
    """Verify the drafted tokens of every row.

    `logits` float32 [num_logits, V], row after row of the batch. `draft_probs` has one distribution
    for each drafted token of the rows under the ratio test, in the same order (num_probs in all);
    it may be left out when there are none.
    """
    device = logits.device
    found = VerificationOutcomes(
        num_accepted=torch.zeros(batch.num_rows, dtype=torch.int64, device=device),
        next_tokens=torch.full((batch.num_rows,), NO_TOKEN, dtype=torch.int64, device=device),
        bad_rows=torch.zeros(batch.num_rows, dtype=torch.bool, device=device),
        broken_probs=torch.zeros(batch.num_rows, dtype=torch.bool, device=device),
        spoiled_rows=torch.zeros(batch.num_rows, dtype=torch.bool, device=device),
    )
    for group in batch.groups:
        rows = logits if group.logits_rows is None else logits[group.logits_rows]
        if group.ratio is None:
            verified = _by_equality(rows, group)
        else:
            verified = _by_ratio(rows, group, group.ratio, draft_probs)
        found.num_accepted[group.rows] = verified.num_accepted
        found.next_tokens[group.rows] = verified.next_tokens
        found.bad_rows[group.rows] = verified.bad_rows
        found.broken_probs[group.rows] = verified.broken_probs
        found.spoiled_rows[group.rows] = verified.spoiled_rows
    return found


def _by_equality(logits: Tensor, group: RowGroup) -> VerificationOutcomes:
    sampled = sample(logits, group.sampling)
    num_accepted = leading_accepts(sampled.token_ids == group.drafted, group)
    ends = prefix_ends(num_accepted, group)
    return VerificationOutcomes(
        num_accepted=num_accepted,
        next_tokens=sampled.token_ids[ends],
        bad_rows=sampled.bad_rows[ends],
        broken_probs=torch.zeros_like(ends, dtype=torch.bool),
        spoiled_rows=_spoiled(sampled.bad_rows, group),
    )


def _by_ratio(
    logits: Tensor, group: RowGroup, ratio: RatioKeys, draft_probs: DraftProbs | None
) -> VerificationOutcomes:
    if draft_probs is None:
        if group.max_verify_len:
            raise ValueError("drafted tokens under the ratio test, but no draft distribution")
        draft_probs = DraftProbs.certain(group.drafted[:0])
    return by_ratio(
        logits,
        group.sampling,
        group,
        draft_probs.rows(ratio.probs_rows).spread(ratio.probs_places, len(group.drafted)),
        uniforms=ratio.once.uniform(Purpose.ACCEPTANCE),
        noise_at=lambda ends: output_noise(group, ratio, ends, logits.shape[1]),
    )


def by_ratio(
    logits: Tensor,
    sampling: SamplingBatch,
    spans: BlockSpans,
    draft_probs: DraftProbs,
    *,
    uniforms: Tensor,
    noise_at: Callable[[Tensor], Tensor],
) -> VerificationOutcomes:
    """The test itself, of rows with logits [N, V] in all; waits for nothing.

    `draft_probs` are N distributions, empty ones where nothing was drafted; `uniforms` [N] decide
    what stands; `noise_at` gives the noise of the tokens drawn at logits rows: int64 [B] to float32
    [B, V].
    """
    target = target_distributions(logits, sampling)
    # A token that its own distribution calls impossible was not drawn from it, and is dropped with
    # the distribution. That is exact as long as what breaks a distribution is blind to the token.
    sound = draft_probs.sound(logits.shape[1]) & (draft_probs.at(spans.drafted) > 0)
    draft_probs = draft_probs.only(sound)
    # What the clamp changes, no distribution covers.
    drafted = spans.drafted.clamp(0, logits.shape[1] - 1)
    standing = accept_probs(target.at(drafted), draft_probs.at(drafted))
    num_accepted = leading_accepts(accepts(uniforms, standing), spans)
    ends = prefix_ends(num_accepted, spans)
    weights = residual_probs(target.rows(ends), draft_probs.rows(ends))
    bad_rows = target.bad_rows[ends]
    return VerificationOutcomes(
        num_accepted=num_accepted,
        next_tokens=exponential_sample(noise_at(ends), weights).masked_fill(bad_rows, NO_TOKEN),
        bad_rows=bad_rows,
        broken_probs=_any_in_row(~sound, spans),
        spoiled_rows=_spoiled(target.bad_rows, spans),
    )


def exponential_sample(noise: Tensor, weights: Tensor) -> Tensor:
    """The token with the least noise / weight in each row, int64 [B]; a zero weight never wins."""
    return (noise / weights).argmin(dim=1)


def output_noise(group: RowGroup, ratio: RatioKeys, places: Tensor, num_tokens: int) -> Tensor:
    """The noise of the tokens drawn at these logits rows, float32 [B, V].

    Foreseeable: keyed by nonce and position alone, so that the draft can have it beforehand. Plain
    rejection: keyed by round and branch too, because nobody needs to know it.
    """
    if group.method is VerificationMethod.FORESEEABLE:
        keys = group.sampling
        return exponential_noise(
            keys.seeds[places],
            keys.sample_indices[places],
            keys.positions[places],
            Purpose.OUTPUT,
            num_tokens,
        )
    return ratio.once.at(places).exponential(Purpose.RECOVERY, num_tokens)


def leading_accepts(accepted: Tensor, spans: BlockSpans) -> Tensor:
    """How many tokens stand before the first that does not, int64 [B]; `accepted` is bool [N]."""
    return _row_by_row(accepted, spans).cumprod(dim=1).sum(dim=1)


def prefix_ends(num_accepted: Tensor, spans: BlockSpans) -> Tensor:
    """The logits row that gives each row's next token, int64 [B]: what follows the last accept."""
    return spans.starts + num_accepted


def _spoiled(bad_rows: Tensor, spans: BlockSpans) -> Tensor:
    last = spans.starts + spans.verify_lens
    return _any_in_row(bad_rows, spans) | bad_rows[last]


def _any_in_row(flags: Tensor, spans: BlockSpans) -> Tensor:
    return _row_by_row(flags, spans).any(dim=1)


def _row_by_row(flags: Tensor, spans: BlockSpans) -> Tensor:
    """Flags of logits rows, bool [N], as those of drafted tokens [B, G], false beyond a row's."""
    offsets = torch.arange(spans.max_verify_len, device=flags.device)
    places = (spans.starts.unsqueeze(1) + offsets).clamp(max=len(flags) - 1)
    return flags[places] & (offsets < spans.verify_lens.unsqueeze(1))
