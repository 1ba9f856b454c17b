"""Changes to logits as tables of fixed size, which a graph applies: see `apply_edits`.

A row of a table that has fewer entries than its size repeats its first one: what is written twice
is written alike. A row that has none holds an entry that changes nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cuda.packed import Place
from specserve.backends.cuda.round_shape import RoundShape
from specserve.sampling.batch import offsets_of_bits
from specserve.sampling.state import PenaltyState, SamplingState
from specserve.sampling.verification.batch import RowToVerify

_UNCHANGED = -1  # in place of a count
_ADDS_NOTHING = -0.0  # for 0.0 turns -0.0 into 0.0
_ANY_TOKEN = 0  # the mask of rows that nothing is kept from, which is never written again


class EditTables(NamedTuple):
    """Of B rows with N rows of logits; views of packed words."""

    presence: Tensor  # float64 [B]
    frequency: Tensor  # float64 [B]
    repetition: Tensor  # float64 [B]
    seen_ids: Tensor  # int32 [B, P], tokens that a row has seen before this round
    seen_counts: Tensor  # int32 [B, P], how often it generated them
    path_ids: Tensor  # int32 [N, G], those among drafted tokens before, whom they count for
    path_counts: Tensor  # int32 [N, G], with those of before the round
    bias_ids: Tensor  # int32 [B, Q]
    bias_values: Tensor  # float64 [B, Q]
    forbidden_ids: Tensor  # int32 [B, E]
    is_forbidden: Tensor  # int64 [N], 1 where they are
    masks: Tensor  # uint8 [1 + M, W], bits as of `GrammarState.allowed`
    mask_of: Tensor  # int64 [N], which of these is a row's

    @staticmethod
    def places(shape: RoundShape) -> list[Place]:
        """Where the tables of such rounds lie, in this order."""
        edits = shape.edits
        if edits is None:
            return [Place((0,))] * len(EditTables._fields)
        rows, logits = shape.num_rows, shape.num_logits
        seen, path = (rows, edits.num_seen), (logits, edits.num_path)
        biases, forbidden = (rows, edits.num_biases), (rows, edits.num_forbidden)
        parameter = Place((rows if edits.num_seen else 0,), torch.float64)
        num_bytes = (shape.vocab_size + 63) // 64 * 8
        masks = (1 + edits.num_masks if edits.num_masks else 0, num_bytes)
        return [
            *(parameter, parameter, parameter),
            *(Place(seen, torch.int32), Place(seen, torch.int32)),
            *(Place(path, torch.int32), Place(path, torch.int32)),
            *(Place(biases, torch.int32), Place(biases, torch.float64)),
            *(Place(forbidden, torch.int32), Place((logits if edits.num_forbidden else 0,))),
            *(Place(masks, torch.uint8), Place((logits if edits.num_masks else 0,))),
        ]

    # --- on the host -----------------------------------------------------------------------------

    def fill(self, rows: Sequence[RowToVerify], starts: Sequence[int]) -> None:
        """From rows whose logits begin at `starts`; what is behind them is nobody's."""
        for table, nothing in (
            *((self.seen_ids, 0), (self.seen_counts, _UNCHANGED)),
            *((self.path_ids, 0), (self.path_counts, _UNCHANGED)),
            *((self.presence, 0), (self.frequency, 0), (self.repetition, 1)),
            *((self.bias_ids, 0), (self.bias_values, _ADDS_NOTHING)),
            *((self.forbidden_ids, 0), (self.is_forbidden, 0), (self.mask_of, _ANY_TOKEN)),
        ):
            table.numpy().fill(nothing)
        self.masks[:1].numpy().fill(0xFF)
        num_masks = 0
        for place, (row, start) in enumerate(zip(rows, starts, strict=True)):
            state = row.state
            if state.penalties is not None:
                self._fill_penalties(place, state, state.penalties)
                self._fill_path(place, start, row.drafted, state.penalties)
            if state.has_bias:
                _fill_row(self.bias_ids, place, state.bias_ids)
                _fill_row(self.bias_values, place, state.bias_values)
            if state.forbidden_ids:
                _fill_row(self.forbidden_ids, place, state.forbidden_ids)
                left = state.params.min_tokens - state.num_generated
                end = start + min(left, len(row.drafted) + 1)
                self.is_forbidden.numpy()[start:end] = 1
            if state.grammar is not None:
                num_masks = self._fill_masks(start, state.along(row.drafted), num_masks)

    def _fill_penalties(self, row: int, state: SamplingState, penalties: PenaltyState) -> None:
        self.presence.numpy()[row] = state.params.presence_penalty
        self.frequency.numpy()[row] = state.params.frequency_penalty
        self.repetition.numpy()[row] = state.params.repetition_penalty
        if len(penalties.ids):
            _fill_row(self.seen_ids, row, penalties.ids)
            _fill_row(self.seen_counts, row, penalties.counts)

    def _fill_path(
        self, row: int, start: int, drafted: Sequence[int], penalties: PenaltyState
    ) -> None:
        if not self.path_ids.shape[1]:
            return
        ids, counts = self.path_ids.numpy(), self.path_counts.numpy()
        if len(penalties.ids):  # what repeats where no token was drafted before
            ids[start] = self.seen_ids.numpy()[row, 0]
            counts[start] = self.seen_counts.numpy()[row, 0]
        generated: dict[int, int] = {}
        for place, token_id in enumerate(drafted, start + 1):
            before = generated.get(token_id)
            generated[token_id] = 1 + (penalties.count(token_id) if before is None else before)
            _fill_row(self.path_ids, place, list(generated))
            _fill_row(self.path_counts, place, list(generated.values()))

    def _fill_masks(self, start: int, states: Sequence[SamplingState], num_masks: int) -> int:
        """How many masks there are then."""
        masks, mask_of = self.masks.numpy(), self.mask_of.numpy()
        for place, state in enumerate(states, start):
            bits = state.allowed()
            if bits is not None:
                num_masks += 1
                bits = bits[: masks.shape[1]]
                masks[num_masks, : len(bits)] = bits
                masks[num_masks, len(bits) :] = 0
                mask_of[place] = num_masks
        return num_masks

    # --- on the device ---------------------------------------------------------------------------

    def applied_to(self, logits: Tensor, row_of: Tensor) -> Tensor:
        """A copy of `logits` [N, V] with the edits made; `row_of` int64 [N]: whose logits."""
        edited = logits.clone()
        if self.seen_ids.numel():
            self._penalise(edited, logits, row_of)
        if self.bias_ids.numel():
            ids = self.bias_ids.index_select(0, row_of).long()
            values = self.bias_values.to(logits.dtype).index_select(0, row_of)
            edited.scatter_(1, ids, edited.gather(1, ids) + values)
        if self.forbidden_ids.numel():
            ids = self.forbidden_ids.index_select(0, row_of).long()
            is_forbidden = (self.is_forbidden != 0).unsqueeze(1)
            kept = edited.gather(1, ids).masked_fill(is_forbidden, float("-inf"))
            edited.scatter_(1, ids, kept)
        if self.masks.numel():
            offsets = offsets_of_bits(self.masks, logits.shape[1], logits.dtype)
            edited += offsets.index_select(0, self.mask_of)
        return edited

    def _penalise(self, edited: Tensor, logits: Tensor, row_of: Tensor) -> None:
        repetition, frequency, presence = (
            of_row.to(logits.dtype).index_select(0, row_of).unsqueeze(1)
            for of_row in (self.repetition, self.frequency, self.presence)
        )
        # A drafted token counts once more, for the logits behind it: written over what it was.
        for ids, counts in (
            (self.seen_ids.index_select(0, row_of), self.seen_counts.index_select(0, row_of)),
            (self.path_ids, self.path_counts),
        ):
            if ids.numel():
                places = ids.long()
                before = logits.gather(1, places)
                values = (before / repetition).where(before > 0, before * repetition)
                values -= frequency * counts
                values -= presence * (counts > 0)
                edited.scatter_(1, places, torch.where(counts >= 0, values, before))


def _fill_row(table: Tensor, row: int, entries: Sequence[float] | np.ndarray) -> None:
    """The entries, of which there are some, and then the first of them again."""
    own = table.numpy()[row]
    own[: len(entries)] = entries
    own[len(entries) :] = entries[0]
