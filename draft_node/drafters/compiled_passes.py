"""Passes of chains on a CPU with everything between two matrix products in one compiled function.

A pass of few tokens costs what its weights take to read, and by torch as much again for dispatching
some forty small operations a layer: eight calls take their place. The same law as `TorchPasses`, to
the last few bits.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_node import kernels
from draft_node.branch_attention import Entering
from draft_node.context import BLOCK_SIZE, Context
from specserve.model.kv_cache import NULL_BLOCK
from specserve.model.layers import DecoderLayer, RMSNorm
from specserve.model.transformer import Transformer

Floats = NDArray[np.float32]


class CompiledPasses:
    """`ChainPasses` of a model in float32, whole on one CPU."""

    @staticmethod
    def suit(model: Transformer) -> bool:
        """Whether they can make this model's passes here."""
        embedding = model.embedding
        is_plain = embedding.device.type == "cpu" and embedding.dtype == torch.float32
        return is_plain and model.parallel.size == 1 and kernels.are_usable()

    def __init__(self, model: Transformer, context: Context) -> None:
        spec, cache = model.config, context.cache
        self._context = context
        self._heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        self._embedding: Floats = model.embedding.numpy()
        self._rotary: Floats = model.rotary.table.numpy()
        self._num_positions = model.num_positions
        self._layers = model.layers
        self._caches = list(zip(cache.keys.numpy(), cache.values.numpy(), strict=True))
        self._qk_norms = [_qk_norm(layer, spec.head_dim) for layer in model.layers]
        self._input_norm, *self._norms_after = (
            _norm(norm)
            for norm in (*(layer.input_norm for layer in model.layers), model.final_norm)
        )
        self._mlp_norms = [_norm(layer.mlp_norm) for layer in model.layers]
        self._own_room = np.empty(0, np.float32)

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_passes: int,
        entering: Entering | None,
    ) -> None:
        order = list(dict.fromkeys([*rows, *(entering.rows if entering else ())]))
        place_of = {row: place for place, row in enumerate(order)}
        self._pages = self._pages_of(order)
        chains = np.zeros((4, len(rows)), dtype=np.int64)
        chains[kernels.SEEN] = chains[kernels.POSITION] = lengths
        chains[kernels.PLACE] = [place_of[row] for row in rows]
        if chains[kernels.SEEN].max() > self._pages.shape[1] * BLOCK_SIZE:
            raise ValueError(f"chains behind {list(lengths)} positions, which are not there")
        self._chains = self._first = chains
        self._entering_ids = np.empty(0, dtype=np.int64)
        if entering is not None:
            self._entering_ids = np.array(entering.token_ids, dtype=np.int64)
            self._first = np.concatenate([self._entering(entering, place_of), chains], axis=1)
        for tokens in (self._first, chains):
            self._clamp(tokens)
        self._own = self._room(len(rows), num_passes)
        self._num_passes = 0

    def _room(self, num_chains: int, num_passes: int) -> Floats:
        """Of the chains' own keys and values, with anything in it.

        Kept from call to call, because fresh pages of memory cost more than what is written.
        """
        _, num_kv_heads, head_dim = self._heads
        shape = (len(self._layers), 2, num_chains, num_kv_heads, num_passes, head_dim)
        size = math.prod(shape)
        if len(self._own_room) < size:
            self._own_room = np.empty(size, np.float32)
        return self._own_room[:size].reshape(shape)

    def _clamp(self, tokens: NDArray[np.int64]) -> None:
        """Drafts past the model's last position are never used, but must not fail."""
        positions = tokens[kernels.POSITION]
        np.minimum(positions, self._num_positions - 1, out=positions)

    def _pages_of(self, rows: Sequence[int]) -> NDArray[np.int64]:
        tables = [self._context.rows.table(row) for row in rows]
        pages = np.full((len(rows), max(map(len, tables))), NULL_BLOCK, dtype=np.int64)
        for place, table in enumerate(tables):
            pages[place, : len(table)] = table
        return pages

    def _entering(self, entering: Entering, place_of: dict[int, int]) -> NDArray[np.int64]:
        tokens = np.empty((4, len(entering.token_ids)), dtype=np.int64)
        spans = zip(entering.rows, entering.starts, entering.counts, strict=True)
        slots = [self._context.rows.slots(row, start, start + count) for row, start, count in spans]
        tokens[kernels.SEEN] = entering.ends()  # itself included
        tokens[kernels.POSITION] = tokens[kernels.SEEN] - 1
        tokens[kernels.PLACE] = entering.each([place_of[row] for row in entering.rows])
        tokens[kernels.SLOT] = np.concatenate(slots)
        return tokens

    def run(self, token_ids: Tensor) -> Tensor:
        ids, tokens = token_ids.numpy(), self._chains
        if self._num_passes == 0:
            ids, tokens = np.concatenate([self._entering_ids, ids]), self._first
        x = self._embedding[ids]
        hidden = np.empty_like(x)
        kernels.normed(x, *self._input_norm, hidden)
        for index, layer in enumerate(self._layers):
            attended = self._attend(index, hidden, tokens)
            kernels.add_normed(x, _product(layer.o_proj, attended), *self._mlp_norms[index], hidden)
            gate_up = _product(layer.gate_up, hidden)
            gated = np.empty((len(x), gate_up.shape[1] // 2), np.float32)
            kernels.gated(gate_up, gated)
            kernels.add_normed(
                x, _product(layer.down_proj, gated), *self._norms_after[index], hidden
            )
        self._advance()
        return torch.from_numpy(hidden)[-len(token_ids) :]

    def _advance(self) -> None:
        """To the chains' next tokens."""
        self._chains[kernels.POSITION] += 1
        self._chains[kernels.SLOT] += 1
        self._clamp(self._chains)
        self._num_passes += 1

    def _attend(self, index: int, hidden: Floats, tokens: NDArray[np.int64]) -> Floats:
        """Attention of one layer, before its projection: [N, heads * head_dim]."""
        num_heads, _, head_dim = self._heads
        qkv = _product(self._layers[index].qkv, hidden)
        cache, own, norm = self._caches[index], self._own[index], self._qk_norms[index]
        queries = np.empty((len(hidden), num_heads, head_dim), np.float32)
        kernels.place_heads(qkv, norm, self._rotary, tokens, cache, own, queries)
        attended = np.empty_like(queries)
        kernels.attend(queries, tokens, self._pages, BLOCK_SIZE, cache, own, attended)
        return attended.reshape(len(hidden), -1)


def _product(linear: Callable[[Tensor], Tensor], x: Floats) -> Floats:
    return linear(torch.from_numpy(x)).numpy()


def _norm(norm: RMSNorm) -> tuple[Floats, np.float32]:
    return norm.weight.numpy(), np.float32(norm.eps)


def _qk_norm(layer: DecoderLayer, head_dim: int) -> tuple[Floats, np.float32]:
    if layer.qk_norm is None:
        return np.empty((0, head_dim), np.float32), np.float32(0)
    return _norm(layer.qk_norm)
