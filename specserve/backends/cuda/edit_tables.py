"""Changes to logits as tables of fixed size, which a graph applies: see `apply_edits`.

A row of a table that has fewer entries than its size repeats its first one: what is written twice
is written alike. A row that has none holds an entry that changes nothing.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cuda.packed import Place
from specserve.backends.cuda.round_shape import RoundShape
from specserve.sampling.batch import offsets_of_bits
from specserve.sampling.state import PenaltyState, SamplingState
from specserve.sampling.verification.batch import RowToVerify

Table = TypeVar("Table", np.ndarray, Tensor)

_UNCHANGED = -1  # in place of a count
_ADDS_NOTHING = -0.0  # for 0.0 turns -0.0 into 0.0
_ANY_TOKEN = 0  # the mask of rows that nothing is kept from, which is never written again


class EditTables(NamedTuple, Generic[Table]):
    """Of B rows with N rows of logits; views of packed words, as arrays on the host."""

    presence: Table  # float64 [B]
    frequency: Table  # float64 [B]
    repetition: Table  # float64 [B]
    seen_ids: Table  # int32 [B, P], tokens that a row has seen before this round
    seen_counts: Table  # int32 [B, P], how often it generated them
    path_ids: Table  # int32 [N, G], those among drafted tokens before, whom they count for
    path_counts: Table  # int32 [N, G], with those of before the round
    bias_ids: Table  # int32 [B, Q]
    bias_values: Table  # float64 [B, Q]
    forbidden_ids: Table  # int32 [B, E]
    is_forbidden: Table  # int64 [N], 1 where they are
    masks: Table  # uint8 [1 + M, W], bits as of `GrammarState.allowed`
    mask_of: Table  # int64 [N], which of these is a row's

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


# --- on the host ---------------------------------------------------------------------------------


def fill_edits(
    tables: EditTables[np.ndarray], rows: Sequence[RowToVerify], starts: Sequence[int]
) -> None:
    """From rows whose logits begin at `starts`; what is behind them is nobody's."""
    for table, nothing in (
        *((tables.seen_ids, 0), (tables.seen_counts, _UNCHANGED)),
        *((tables.path_ids, 0), (tables.path_counts, _UNCHANGED)),
        *((tables.presence, 0), (tables.frequency, 0), (tables.repetition, 1)),
        *((tables.bias_ids, 0), (tables.bias_values, _ADDS_NOTHING)),
        *((tables.forbidden_ids, 0), (tables.is_forbidden, 0), (tables.mask_of, _ANY_TOKEN)),
    ):
        table.fill(nothing)
    tables.masks[:1] = 0xFF
    num_masks = 0
    for place, (row, start) in enumerate(zip(rows, starts, strict=True)):
        state = row.state
        if state.penalties is not None:
            _fill_penalties(tables, place, state, state.penalties)
            _fill_path(tables, place, start, row.drafted, state.penalties)
        if state.has_bias:
            _fill_row(tables.bias_ids[place], state.bias_ids)
            _fill_row(tables.bias_values[place], state.bias_values)
        if state.forbidden_ids:
            _fill_row(tables.forbidden_ids[place], state.forbidden_ids)
            left = state.params.min_tokens - state.num_generated
            tables.is_forbidden[start : start + min(left, len(row.drafted) + 1)] = 1
        if state.grammar is not None:
            num_masks = _fill_masks(tables, start, state.along(row.drafted), num_masks)


def _fill_penalties(
    tables: EditTables[np.ndarray], row: int, state: SamplingState, penalties: PenaltyState
) -> None:
    tables.presence[row] = state.params.presence_penalty
    tables.frequency[row] = state.params.frequency_penalty
    tables.repetition[row] = state.params.repetition_penalty
    ids = penalties.ids
    if len(ids):
        _fill_row(tables.seen_ids[row], ids)
        _fill_row(tables.seen_counts[row], penalties.counts)


def _fill_path(
    tables: EditTables[np.ndarray],
    row: int,
    start: int,
    drafted: Sequence[int],
    penalties: PenaltyState,
) -> None:
    ids, counts = tables.path_ids, tables.path_counts
    # Where no token was drafted before: an entry that is written already, or nothing. Whatever
    # comes from another row would undo what that token was penalised by.
    ids[start], counts[start] = tables.seen_ids[row, 0], tables.seen_counts[row, 0]
    if not drafted:
        return
    size = ids.shape[1]
    generated: dict[int, int] = {}
    entries: list[tuple[list[int], list[int]]] = []
    for token_id in drafted:
        before = generated.get(token_id)
        generated[token_id] = 1 + (penalties.count(token_id) if before is None else before)
        missing = size - len(generated)  # the first entry again
        own_ids, own_counts = list(generated), list(generated.values())
        entries.append((own_ids + own_ids[:1] * missing, own_counts + own_counts[:1] * missing))
    behind = slice(start + 1, start + 1 + len(drafted))
    ids[behind], counts[behind] = zip(*entries, strict=True)


def _fill_masks(
    tables: EditTables[np.ndarray], start: int, states: Sequence[SamplingState], num_masks: int
) -> int:
    """How many masks there are then."""
    masks = tables.masks
    for place, state in enumerate(states, start):
        bits = state.allowed()
        if bits is not None:
            num_masks += 1
            bits = bits[: masks.shape[1]]
            masks[num_masks, : len(bits)] = bits
            masks[num_masks, len(bits) :] = 0
            tables.mask_of[place] = num_masks
    return num_masks


def _fill_row(row: np.ndarray, entries: Sequence[float] | np.ndarray) -> None:
    """The entries, of which there are some, and then the first of them again."""
    row[: len(entries)] = entries
    row[len(entries) :] = entries[0]


# --- on the device -------------------------------------------------------------------------------


def apply_tables(logits: Tensor, tables: EditTables[Tensor], row_of: Tensor) -> Tensor:
    """A copy of `logits` [N, V] with the edits made; `row_of` int64 [N]: whose logits."""
    edited = logits.clone()
    if tables.seen_ids.numel():
        _penalise(edited, logits, tables, row_of)
    if tables.bias_ids.numel():
        ids = tables.bias_ids.index_select(0, row_of).long()
        values = tables.bias_values.to(logits.dtype).index_select(0, row_of)
        edited.scatter_(1, ids, edited.gather(1, ids) + values)
    if tables.forbidden_ids.numel():
        ids = tables.forbidden_ids.index_select(0, row_of).long()
        is_forbidden = (tables.is_forbidden != 0).unsqueeze(1)
        kept = edited.gather(1, ids).masked_fill(is_forbidden, float("-inf"))
        edited.scatter_(1, ids, kept)
    if tables.masks.numel():
        offsets = offsets_of_bits(tables.masks, logits.shape[1], logits.dtype)
        edited += offsets.index_select(0, tables.mask_of)
    return edited


def _penalise(edited: Tensor, logits: Tensor, tables: EditTables[Tensor], row_of: Tensor) -> None:
    repetition, frequency, presence = (
        of_row.to(logits.dtype).index_select(0, row_of).unsqueeze(1)
        for of_row in (tables.repetition, tables.frequency, tables.presence)
    )
    # A drafted token counts once more, for the logits behind it: written over what it was.
    for ids, counts in (
        (tables.seen_ids.index_select(0, row_of), tables.seen_counts.index_select(0, row_of)),
        (tables.path_ids, tables.path_counts),
    ):
        if ids.numel():
            places = ids.long()
            before = logits.gather(1, places)
            values = (before / repetition).where(before > 0, before * repetition)
            values -= frequency * counts
            values -= presence * (counts > 0)
            edited.scatter_(1, places, torch.where(counts >= 0, values, before))
