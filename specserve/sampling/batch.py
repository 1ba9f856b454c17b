"""Sampling states of many rows as a few device tensors, built anew in every round.

Rows that need a stage are listed on the host, so a stage no row needs costs nothing and the common
batch (temperature only) is two small copies to the device. Knows no logits.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from specserve.sampling.state import SamplingState


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Changes to single logits as (row, token id) pairs; no pair occurs twice within a kind.

    Pair tensors are int64 or float64 [N_kind].
    """

    penalty_rows: Tensor
    penalty_ids: Tensor
    counts: Tensor  # how often the token was generated
    presence: Tensor  # float64 [R]: every row's own, as the next two
    frequency: Tensor
    repetition: Tensor
    bias_rows: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    forbidden_rows: Tensor
    forbidden_ids: Tensor
    allowed_rows: Tensor  # int64 [M]: those that a grammar has something to say of
    allowed: Tensor  # uint8 [M, W], bits as of `GrammarState.allowed`

    @staticmethod
    def of(states: Sequence[SamplingState], device: torch.device | str = "cpu") -> "LogitEdits":
        """Of every row's state."""
        penalised = [(r, s) for r, s in enumerate(states) if s.penalties is not None]
        biased = [(row, state) for row, state in enumerate(states) if state.has_bias]
        forbidding = [(row, state.forbidden_ids) for row, state in enumerate(states)]
        masks = [(row, bits) for row, s in enumerate(states) if (bits := s.allowed()) is not None]

        def concatenated(arrays: list[np.ndarray]) -> Tensor:
            joined = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
            return torch.from_numpy(joined).to(device)

        tables = [state.penalties for _, state in penalised if state.penalties is not None]
        ids = [table.ids for table in tables]
        penalised_rows = np.array([row for row, _ in penalised], np.int64)
        repeated_rows = np.repeat(penalised_rows, [len(each) for each in ids])
        return LogitEdits(
            penalty_rows=torch.from_numpy(repeated_rows).to(device),
            penalty_ids=concatenated(ids),
            counts=concatenated([table.counts for table in tables]),
            presence=_floats([state.params.presence_penalty for state in states], device),
            frequency=_floats([state.params.frequency_penalty for state in states], device),
            repetition=_floats([state.params.repetition_penalty for state in states], device),
            bias_rows=_ints([row for row, state in biased for _ in state.bias_ids], device),
            bias_ids=_ints(
                [token_id for _, state in biased for token_id in state.bias_ids], device
            ),
            bias_values=_floats([v for _, state in biased for v in state.bias_values], device),
            forbidden_rows=_ints([row for row, ids in forbidding for _ in ids], device),
            forbidden_ids=_ints([token_id for _, ids in forbidding for token_id in ids], device),
            allowed_rows=_ints([row for row, _ in masks], device),
            allowed=_stacked([bits for _, bits in masks], device),
        )


@dataclass(frozen=True, slots=True)
class Truncation:
    """The rows that truncate and how; a value that means "off" leaves its row alone."""

    places: Tensor  # int64 [R_truncated], indices among the random rows
    top_k: Tensor  # int64; 0 is off
    top_p: Tensor  # float64; 1 is off
    min_p: Tensor  # float64; 0 is off
    max_top_k: int  # or more
    any_top_p: bool
    any_min_p: bool
    all_top_k: bool = False  # whether each of these rows has a top_k
    may_wait: bool = True  # for the device, to look at no more tokens than there have to be

    def spread(self, num_random: int) -> "Truncation":
        """Of all random rows, in order; "off" for those that do not truncate."""
        if len(self.places) == num_random:
            return self
        columns = (self.top_k, 0), (self.top_p, 1), (self.min_p, 0)
        top_k, top_p, min_p = (
            each.new_full((num_random,), off).index_copy_(0, self.places, each)
            for each, off in columns
        )
        places = _all_places(num_random, self.places.device)
        # Rows are added that have no top_k.
        return replace(self, places=places, top_k=top_k, top_p=top_p, min_p=min_p, all_top_k=False)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """R rows of logits, each with its own parameters, history and noise keys."""

    num_rows: int
    greedy_rows: Tensor | None  # int64; None: no such row
    random_rows: Tensor | None
    temperatures: Tensor  # float64 [R_random]
    keys: Tensor  # int64 [3, R_random], of noise: positions, sample indices, seeds
    edits: LogitEdits | None
    truncation: Truncation | None

    @property
    def positions(self) -> Tensor:
        return self.keys[0]

    @property
    def sample_indices(self) -> Tensor:
        return self.keys[1]

    @property
    def seeds(self) -> Tensor:
        return self.keys[2]

    @staticmethod
    def build(
        states: Sequence[SamplingState], device: torch.device | str = "cpu"
    ) -> "SamplingBatch":
        """Snapshot the states of the batch's rows, in row order."""
        greedy = [row for row, state in enumerate(states) if state.is_greedy]
        rows = [row for row, state in enumerate(states) if not state.is_greedy]
        random = [states[row] for row in rows] if greedy else states
        keys, temperatures = _keys(random, device) if random else _no_keys(device)
        return SamplingBatch(
            num_rows=len(states),
            greedy_rows=_places(greedy, len(states), device),
            random_rows=_places(rows, len(states), device),
            temperatures=temperatures,
            keys=keys,
            edits=LogitEdits.of(states, device) if any(s.edits_logits for s in states) else None,
            truncation=_truncation(random, device)
            if any(state.is_truncated for state in random)
            else None,
        )


def _keys(random: Sequence[SamplingState], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Positions, sample indices and seeds of the random rows, and their temperatures."""
    keys = [
        [state.position for state in random],
        [state.sample_index for state in random],
        [state.seed_bits for state in random],
    ]
    return _ints(keys, device), _floats([state.temperature for state in random], device)


@functools.cache
def _no_keys(device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Greedy batches are common, and two copies to the device a round are not nothing."""
    return _keys([], device)


def _places(rows: Sequence[int], num_rows: int, device: torch.device | str) -> Tensor | None:
    if not rows:
        return None
    return _ints(rows, device) if len(rows) < num_rows else _all_places(num_rows, device)


@functools.lru_cache(maxsize=256)
def _all_places(num_rows: int, device: torch.device | str) -> Tensor:
    return torch.arange(num_rows, device=device)


def _ints(values: Sequence[object], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.array(values, np.int64)).to(device)  # torch reads lists slowly


def _stacked(masks: Sequence[np.ndarray], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.stack(masks) if masks else np.zeros((0, 0), np.uint8)).to(device)


def _floats(values: Sequence[float], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.array(values, np.float64)).to(device)


def _truncation(random: Sequence[SamplingState], device: torch.device | str) -> Truncation:
    places = [place for place, state in enumerate(random) if state.is_truncated]
    params = [random[place].params for place in places]
    return Truncation(
        places=_ints(places, device),
        top_k=_ints([p.top_k for p in params], device),
        top_p=_floats([p.top_p for p in params], device),
        min_p=_floats([p.min_p for p in params], device),
        max_top_k=max(p.top_k for p in params),
        any_top_p=any(p.top_p < 1 for p in params),
        any_min_p=any(p.min_p > 0 for p in params),
        all_top_k=all(p.top_k for p in params),
    )


def apply_edits(logits: Tensor, edits: LogitEdits) -> Tensor:
    """A copy of `logits` [R, V] with the edits made; in their order:

    1. repetition penalty over prompt and output: positive logits divided by it, others multiplied;
    2. frequency penalty, times the number of times generated, then presence penalty: subtracted;
    3. `logit_bias`: added;
    4. forbidden tokens, and those that a grammar does not allow: minus infinity.
    """
    edited = logits.clone()
    dtype = logits.dtype
    if edits.penalty_rows.numel():
        where = (edits.penalty_rows, edits.penalty_ids)
        values = edited[where]
        repetition, frequency, presence = (
            of_row.to(dtype)[edits.penalty_rows]
            for of_row in (edits.repetition, edits.frequency, edits.presence)
        )
        values = (values / repetition).where(values > 0, values * repetition)
        values -= frequency * edits.counts
        values -= presence * (edits.counts > 0)
        edited[where] = values
    if edits.bias_rows.numel():
        where = (edits.bias_rows, edits.bias_ids)
        edited[where] += edits.bias_values.to(dtype)
    if edits.forbidden_rows.numel():
        edited[edits.forbidden_rows, edits.forbidden_ids] = float("-inf")
    if edits.allowed_rows.numel():
        offsets = offsets_of_bits(edits.allowed, edited.shape[1], dtype)
        if len(offsets) == len(edited):  # all rows, in order
            edited += offsets
        else:
            edited[edits.allowed_rows] += offsets
    return edited


def offsets_of_bits(bits: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """0 where a bit is set, else minus infinity: bits uint8 [M, W], lowest first, to [M, count].

    Beyond the last of them, too. Looked up and added: filling in costs several times as much.
    """
    offsets = _offsets_of_bytes(bits.device, dtype).index_select(0, bits.flatten().int())
    offsets = offsets.view(len(bits), -1)
    missing = count - offsets.shape[1]
    if missing <= 0:
        return offsets[:, :count]
    return torch.nn.functional.pad(offsets, (0, missing), value=float("-inf"))


@functools.cache
def _offsets_of_bytes(device: torch.device, dtype: torch.dtype) -> Tensor:
    """[256, 8]"""
    flags = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
    return torch.zeros(256, 8, dtype=dtype).masked_fill_(flags == 0, float("-inf")).to(device)
