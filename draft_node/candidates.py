"""The likely next tokens after every prefix of the blocks in flight, of all rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_node.outcome_kind import OutcomeKind
from draft_node.outcomes import NO_TOKEN, SlotNoise, rank_candidates
from draft_node.plan import InFlight
from draft_node.speculation_cache import DraftedBlock
from specserve.link.messages import RowReport
from specserve.slot_scores import SlotScores


@dataclass(frozen=True, slots=True)
class Flight:
    """A row whose block is in flight."""

    report: RowReport
    kind: OutcomeKind
    block: DraftedBlock
    in_flight: InFlight


def candidates_of(
    flights: Sequence[Flight], num_candidates: int, device: torch.device
) -> list[NDArray[np.int64]]:
    """Of each flight [S, num_candidates], all ranked together."""
    ranked: dict[int, NDArray[np.int64]] = {}
    scored: list[tuple[int, SlotScores]] = []
    for place, flight in enumerate(flights):
        num_slots = flight.in_flight.num_slots
        slots = flight.block.slots(num_slots)
        if slots is None:  # no law at all: only the block's own next token can be told
            ranked[place] = np.full((num_slots, num_candidates), NO_TOKEN, np.int64)
            ranked[place][-1, 0] = flight.in_flight.next_id
        else:
            scored.append((place, slots))
    if scored:
        chosen = [flights[place] for place, _ in scored]
        noise, excluded_ids = _slot_keys(chosen, device)
        slots = SlotScores.joined([slots for _, slots in scored])
        every = rank_candidates(slots, noise, excluded_ids, num_candidates)
        ends = np.cumsum([flight.in_flight.num_slots for flight in chosen])
        parts = np.split(every, ends[:-1])
        ranked.update((place, part) for (place, _), part in zip(scored, parts, strict=True))
    return [ranked[place] for place in range(len(flights))]


def _slot_keys(flights: Sequence[Flight], device: torch.device) -> tuple[SlotNoise, Tensor]:
    """The noise of every slot's next token, and the token rejected there."""
    columns: list[tuple[int, int, int, int, int]] = []
    for flight in flights:
        report = flight.report
        for number, excluded_id in enumerate(flight.in_flight.excluded_ids()):
            position = report.position + 1 + number
            is_shared = int(flight.kind.shares_noise)
            columns.append((report.seed, report.sample_index, position, is_shared, excluded_id))
    words = torch.tensor(columns, dtype=torch.int64, device=device).T.contiguous()
    seeds, sample_indices, positions, is_shared, excluded_ids = words
    return SlotNoise(seeds, sample_indices, positions, is_shared.bool()), excluded_ids
