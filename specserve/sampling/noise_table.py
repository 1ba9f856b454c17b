"""Noise that was made before: branches of a round, and its rounds, sample at the same positions.

Equals `specserve.sampling.draft_sampler.log_noise` bit for bit; only who computes it when differs.
"""

from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor

from specserve.sampling.draft_sampler import BlockLayout, log_noise

_TABLE_BYTES = 64 << 20

Key = tuple[int, int, int]  # seed, sample index, position


class NoiseTable:
    """A `NoiseSource` that keeps what was used last. Columns must be the same at every call."""

    def __init__(self, num_bytes: int = _TABLE_BYTES) -> None:
        self._num_bytes = num_bytes
        self._table: Tensor | None = None  # [rows, DV]
        self._places: OrderedDict[Key, int] = OrderedDict()

    def __call__(
        self, seeds: Tensor, sample_indices: Tensor, layout: BlockLayout
    ) -> tuple[Tensor, Tensor]:
        blocks = zip(
            seeds.tolist(), sample_indices.tolist(), layout.positions.tolist(), strict=True
        )
        keys = [
            (seed, sample_index, position)
            for seed, sample_index, first in blocks
            for position in range(first, first + layout.num_slots)
        ]
        device = seeds.device
        if self._table is None:
            columns = layout.vocab_size if layout.target_ids is None else len(layout.target_ids)
            num_rows = max(1, self._num_bytes // (4 * columns))
            self._table = torch.empty(num_rows, columns, device=device)
        distinct = dict.fromkeys(keys)
        if len(distinct) <= len(self._table):
            self._fill(self._table, list(distinct), layout)
            table, place_of = self._table, self._places
        else:  # all of them at once, however many branches share one
            table = _noise_of(list(distinct), layout, device)
            place_of = {key: place for place, key in enumerate(distinct)}
        places = np.array([place_of[key] for key in keys], dtype=np.int64)
        by_slot = torch.from_numpy(places.reshape(len(seeds), layout.num_slots))
        return table, by_slot.to(device)

    def _fill(self, table: Tensor, keys: list[Key], layout: BlockLayout) -> None:
        """See to it that the table has a row of every key."""
        places = self._places
        missing: list[Key] = []
        for key in keys:
            if key in places:
                places.move_to_end(key)
            else:
                missing.append(key)
        if not missing:
            return
        # Which may fail: before anybody counts on it.
        fresh = _noise_of(missing, layout, table.device)
        for key in missing:
            free = len(places)
            if free == len(table):  # that of the one not used for longest, which is none of these
                _, free = places.popitem(last=False)
            places[key] = free
        rows = torch.tensor([places[key] for key in missing], device=table.device)
        table[rows] = fresh


def _noise_of(keys: list[Key], layout: BlockLayout, device: torch.device) -> Tensor:
    words = torch.from_numpy(np.array(keys, dtype=np.int64).T.copy()).to(device)
    return log_noise(words[0], words[1], words[2], layout)
