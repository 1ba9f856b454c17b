"""Noise that was made before: the branches of a round, and its rounds, race at the same positions.

Equals `specserve.decoding.drawing.log_noise` bit for bit; only who computes it when differs.
"""

from collections import OrderedDict

import torch
from torch import Tensor

from specserve.decoding.drawing import BlockLayout, log_noise

_TABLE_BYTES = 64 << 20


class NoiseTable:
    """A `NoiseSource` that keeps what was used last. Columns must be the same at every call."""

    def __init__(self, num_bytes: int = _TABLE_BYTES) -> None:
        self._num_bytes = num_bytes
        self._table: Tensor | None = None  # [rows, DV]
        self._places: OrderedDict[tuple[int, int, int], int] = OrderedDict()

    def __call__(
        self, seeds: Tensor, sample_indices: Tensor, positions: Tensor, layout: BlockLayout
    ) -> tuple[Tensor, Tensor]:
        keys = list(zip(seeds.tolist(), sample_indices.tolist(), positions.tolist(), strict=True))
        columns = layout.vocab_size if layout.target_ids is None else len(layout.target_ids)
        if self._table is None:
            num_rows = max(1, self._num_bytes // (4 * columns))
            self._table = torch.empty(num_rows, columns, device=seeds.device)
        if len(set(keys)) > len(self._table):
            return _distinct(seeds, sample_indices, positions, layout)
        missing = self._reserve(keys, len(self._table))
        if missing:
            at = torch.tensor(missing, device=seeds.device)
            fresh = log_noise(seeds[at], sample_indices[at], positions[at], layout)
            self._table[self._rows([keys[place] for place in missing])] = fresh
        return self._table, self._rows(keys)

    def _reserve(self, keys: list[tuple[int, int, int]], num_rows: int) -> list[int]:
        """Give every key a row of the table; the first places of those whose row is empty yet."""
        missing: list[int] = []
        for key in keys:
            if key in self._places:
                self._places.move_to_end(key)
        for place, key in enumerate(keys):
            if key not in self._places:
                free = len(self._places)
                if free == num_rows:  # of the one not used for longest, which is none of these
                    _, free = self._places.popitem(last=False)
                self._places[key] = free
                missing.append(place)
        return missing

    def _rows(self, keys: list[tuple[int, int, int]]) -> Tensor:
        assert self._table is not None
        return torch.tensor([self._places[key] for key in keys], device=self._table.device)


def _distinct(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, layout: BlockLayout
) -> tuple[Tensor, Tensor]:
    """Of each key once, however many branches share it: more than the table holds."""
    keys = torch.stack((seeds, sample_indices, positions))
    distinct, rows = keys.unique(dim=1, return_inverse=True)
    seeds, sample_indices, positions = distinct.contiguous()
    return log_noise(seeds, sample_indices, positions, layout), rows
