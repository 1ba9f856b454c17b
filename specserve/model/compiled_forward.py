"""Forwards of a target on a CPU, each of them one compiled call: see `layer_kernels`.

With several ranks it is one call a part of the model, and between two parts the ranks close their
shares of a product as they always do.
"""

import ctypes
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.model import compiled_weights, layer_kernels
from specserve.model.attention import AttentionBatch
from specserve.model.attention_kernels import attention_kernels
from specserve.model.forward_job import Batch, Cache, Code, Room, Sizes, Weights
from specserve.model.forward_record import Record
from specserve.model.kv_cache import NULL_BLOCK, TiledKVCache
from specserve.model.machine_code import Team
from specserve.model.transformer import EMBEDDING_TAP, Transformer

Floats = NDArray[np.float32]

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_SPARE = 8  # times the room needed that is kept from a forward before


class CompiledForward:
    """A model of compiled products, over a cache of its own."""

    @staticmethod
    def suits(model: Transformer) -> bool:
        """Whether the model is one that it can run."""
        is_on_cpu = model.embedding.device.type == "cpu"
        is_single = model.embedding.dtype == torch.float32
        return is_on_cpu and is_single and compiled_weights.are_compiled(model)

    def __init__(self, model: Transformer, *, num_blocks: int, block_size: int) -> None:
        spec, num_ranks = model.config, model.parallel.size
        self._model = model  # which owns what the weights are views of
        self._num_heads = spec.num_heads // num_ranks
        self.cache = TiledKVCache(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads // num_ranks,
            head_dim=spec.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
        )
        team = Team.of_torch()
        assert team is not None, "`suits` has asked"
        self._team = team
        self._memory = _Memory()
        attention = attention_kernels(spec.head_dim, self.cache.tile)
        self._most_rows = attention.most_rows
        self._run = _ENTRY(layer_kernels.entry())
        products, rows = compiled_weights.products(model.layers)
        self._products = products
        self._panel = rows[0].panel
        self._record = Record(layer_kernels.entry())
        norms = compiled_weights.norms(model)
        widths = [spec.layer_width(index) // num_ranks for index in range(spec.num_layers)]
        self._widths = np.array(widths)
        rotary = model.rotary.table.numpy()
        self._record.set_arrays(Weights(*norms, rotary, products, self._widths))
        others = np.array([attention.soften, team.barrier])
        functions = np.array([kernels.addresses for kernels in rows])
        self._record.set_arrays(Code(functions, attention.by_size, others))
        kept = Cache(self.cache.keys.numpy(), self.cache.values.numpy())
        self._record.set_arrays(kept)

    def plan(self, batch: AttentionBatch) -> None:
        """Lay out one forward of `batch`."""
        lens = [len(table) for table in batch.block_tables]
        pages = np.full((len(lens), max(lens)), NULL_BLOCK, dtype=np.int64)
        for row, table in zip(pages, batch.block_tables, strict=True):
            row[: len(table)] = table
        rows = np.stack([batch.num_tokens, batch.context_lens], axis=1)
        self._most_keys = int(batch.context_lens.max())
        self._record.set_arrays(Batch(rows, pages))

    def run(
        self, token_ids: Tensor, positions: Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        x = self._model.embedding.index_select(0, token_ids)
        layers = [tap for tap in taps if tap != EMBEDDING_TAP]
        found = {EMBEDDING_TAP: x.clone()} if EMBEDDING_TAP in taps else {}
        room = self._make_room(x.numpy(), layers)
        if torch.autograd._profiler_enabled():  # pyright: ignore[reportPrivateImportUsage]
            with torch.profiler.record_function("specserve::layers"):
                self._run_parts(room)
        else:
            self._run_parts(room)
        found |= zip(layers, torch.from_numpy(room.tapped), strict=True)
        return torch.from_numpy(room.hidden), [found[tap] for tap in taps]

    def _make_room(self, x: Floats, layers: Sequence[int]) -> Room:
        num_tokens, hidden_size = x.shape
        num_kv_heads, head_dim = self.cache.keys.shape[1], self.cache.keys.shape[3]
        openings, closings = self._products[:, ::2], self._products[:, 1::2]
        lanes = layer_kernels.LANES
        num_keys = -(-self._most_keys // lanes) * lanes
        take = self._memory.take
        room = Room(
            x=x,
            hidden=np.empty_like(x),
            added=take(
                "added", num_tokens, max(hidden_size, int(closings[..., 2].max()) * self._panel)
            ),
            inner=take("inner", num_tokens * max(self._widths.max(), self._num_heads * head_dim)),
            wide=take("wide", num_tokens * int(openings[..., 2].max()) * self._panel),
            queries=take(
                "queries", num_kv_heads, num_tokens, self._num_heads // num_kv_heads, head_dim
            ),
            scores=take("scores", torch.get_num_threads(), self._most_rows, num_keys),
            places=np.empty((2, num_tokens), np.int64),
            taps=np.array(layers, dtype=np.int64),
            tapped=np.empty((len(layers), *x.shape), np.float32),
        )
        room.added[:] = 0  # nothing leads to the first part
        self._record.set_arrays(room)
        return room

    def _run_parts(self, room: Room) -> None:
        num_parts = 2 * len(self._products) + 1
        if self._model.parallel.size == 1:
            return self._call(0, num_parts)
        num_tokens, hidden_size = room.x.shape
        for part in range(num_parts):
            self._call(part, part + 1)
            if part + 1 < num_parts:
                layer = self._model.layers[part // 2]
                close = layer.down_proj if part % 2 else layer.o_proj
                width = self._widths[part // 2] if part % 2 else room.queries.size // num_tokens
                inner = torch.from_numpy(room.inner[: num_tokens * width].reshape(num_tokens, -1))
                room.added[:, :hidden_size] = close(inner).numpy()

    def _call(self, first_part: int, end_part: int) -> None:
        block_size, num_threads = self.cache.block_size, torch.get_num_threads()
        record = self._record
        record.set_sizes(Sizes(first_part, end_part, block_size, self._panel))
        if num_threads == 1:
            self._run(record.address, 0, 1)
        else:
            self._team.run(record.address, num_threads)


class _Memory:
    """Kept from forward to forward, because fresh pages cost more than what is written there."""

    def __init__(self) -> None:
        self._kept: dict[str, Floats] = {}

    def take(self, name: str, *shape: int) -> Floats:
        """With anything in it, until `name` is taken again."""
        size, kept = math.prod(shape), self._kept.get(name)
        if kept is None or not size <= len(kept) <= _SPARE * size:
            kept = self._kept[name] = np.empty(size, np.float32)
        return kept[:size].reshape(shape)
