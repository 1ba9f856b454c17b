"""The likely next tokens after every prefix of the pending blocks, of all rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_node.prespeculation.outcomes import (
    NO_TOKEN,
    OutcomeKind,
    SlotNoise,
    rank_all,
    rank_candidates,
)
from draft_node.prespeculation.plan import PendingBlock
from draft_node.prespeculation.speculation_cache import DraftedBlock
from specserve.drafters.slot_scores import SlotScores
from specserve.sampling.draft_sampler import BlockLayout, NoiseSource
from specserve.transport.link.messages import RowReport


@dataclass(frozen=True, slots=True)
class PendingVerification:
    """A row whose block is being verified."""

    report: RowReport
    kind: OutcomeKind
    block: DraftedBlock
    pending: PendingBlock


def candidates_of(
    verifications: Sequence[PendingVerification],
    num_candidates: int,
    source: NoiseSource,
    device: torch.device,
) -> list[NDArray[np.int64]]:
    """Of each row [S, num_candidates]; those that are ranked in the same way, together.

    `source` has the output's noise of all tokens, where blocks were drawn with it already.
    """
    ranked: dict[int, NDArray[np.int64]] = {}
    listed: list[int] = []  # places of rows of which the likeliest tokens are ranked
    sampled: list[int] = []  # and all tokens
    for place, verification in enumerate(verifications):
        scores = verification.block.scores
        if scores is None:  # no distribution at all: only the block's own next token can be told
            num_slots = verification.pending.num_slots
            ranked[place] = np.full((num_slots, num_candidates), NO_TOKEN, np.int64)
            ranked[place][-1, 0] = verification.pending.next_id
        elif scores.are_whole:
            sampled.append(place)
        else:
            listed.append(place)
    for places in filter(None, (listed, sampled)):
        chosen = [verifications[place] for place in places]
        noise, excluded_ids = _slot_keys(chosen, device)
        if places is sampled:
            every = _rank_all(chosen, noise, source, excluded_ids, num_candidates)
        else:
            slots = SlotScores.joined([_slots(verification) for verification in chosen])
            every = rank_candidates(slots, noise, excluded_ids, num_candidates)
        ends = np.cumsum([verification.pending.num_slots for verification in chosen])
        ranked.update(zip(places, np.split(every, ends[:-1]), strict=True))
    return [ranked[place] for place in range(len(verifications))]


def _slots(verification: PendingVerification) -> SlotScores:
    slots = verification.block.slots(verification.pending.num_slots)
    assert slots is not None
    return slots


def _rank_all(
    verifications: Sequence[PendingVerification],
    noise: SlotNoise,
    source: NoiseSource,
    excluded_ids: Tensor,
    num_candidates: int,
) -> NDArray[np.int64]:
    """Of rows with the logits of one drafter, whose columns are the same."""
    first = verifications[0].block.scores
    assert first is not None
    parts = [_all_scores(verification) for verification in verifications]
    scores = torch.cat(parts) if len(parts) > 1 else parts[0]
    output_noise = scores[:1], torch.zeros_like(excluded_ids)  # of greedy rows alone: none
    if any(verification.kind.shares_noise for verification in verifications):
        layout = BlockLayout(noise.positions, 1, scores.shape[1], first.target_ids)
        log_noise, places = source(noise.seeds, noise.sample_indices, layout)
        output_noise = log_noise, places[:, 0]
    return rank_all(scores, first.target_ids, output_noise, noise, excluded_ids, num_candidates)


def _all_scores(verification: PendingVerification) -> Tensor:
    block = verification.block
    assert block.scores is not None
    return block.scores.whole(block.place, verification.pending.num_slots)


def _slot_keys(
    verifications: Sequence[PendingVerification], device: torch.device
) -> tuple[SlotNoise, Tensor]:
    """The noise of every slot's next token, and the token rejected there."""
    columns: list[tuple[int, int, int, int, int]] = []
    for verification in verifications:
        report = verification.report
        for number, excluded_id in enumerate(verification.pending.excluded_ids()):
            position = report.position + 1 + number
            is_shared = int(verification.kind.shares_noise)
            columns.append((report.seed, report.sample_index, position, is_shared, excluded_id))
    # By way of numpy: torch reads a nested list ten times as slowly.
    words = torch.from_numpy(np.array(columns, dtype=np.int64).T.copy()).to(device)
    seeds, sample_indices, positions, is_shared, excluded_ids = words
    return SlotNoise(seeds, sample_indices, positions, is_shared.bool()), excluded_ids
