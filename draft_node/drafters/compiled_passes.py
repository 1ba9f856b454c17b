"""Passes of chains on a CPU, each of them one compiled function.

A pass of few tokens costs what its weights take to read, and by torch more than that for
dispatching some forty small operations a layer: one call takes their place. The same law as
`TorchPasses`, to the last few bits.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_node import kernels
from draft_node.branch_attention import Entering
from draft_node.context import BLOCK_SIZE, Context
from draft_node.kernel_trial import are_usable
from specserve.model import compiled_weights
from specserve.model.kv_cache import NULL_BLOCK
from specserve.model.transformer import Transformer

Floats = NDArray[np.float32]


class CompiledPasses:
    """`ChainPasses` of a model of compiled products, whole on one CPU, by one thread."""

    @staticmethod
    def suit(model: Transformer) -> bool:
        """Whether they can make this model's passes here."""
        is_whole = model.embedding.device.type == "cpu" and model.parallel.size == 1
        return is_whole and compiled_weights.are_compiled(model) and are_usable()

    def __init__(self, model: Transformer, context: Context) -> None:
        spec, cache = model.config, context.cache
        self._context = context
        self._model = model  # which owns what the weights are views of
        self._weights = _weights(model)
        self._heads = (spec.num_layers, spec.num_kv_heads, spec.head_dim)
        self._num_positions = model.num_positions
        self._cache = (cache.keys.numpy(), cache.values.numpy())
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
        num_layers, num_kv_heads, head_dim = self._heads
        shape = (num_layers, 2, num_chains, num_kv_heads, num_passes, head_dim)
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
        hidden = kernels.make_pass(
            ids, tokens, self._weights, self._pages, BLOCK_SIZE, self._cache, self._own
        )
        self._advance()
        return torch.from_numpy(hidden)[-len(token_ids) :]

    def _advance(self) -> None:
        """To the chains' next tokens."""
        self._chains[kernels.POSITION] += 1
        self._chains[kernels.SLOT] += 1
        self._clamp(self._chains)
        self._num_passes += 1


def _weights(model: Transformer) -> kernels.Weights:
    """Views of what the model holds, where one array can be one."""
    spec = model.config
    products, used = compiled_weights.products(model.layers)
    norms = compiled_weights.norms(model)
    return kernels.Weights(
        embedding=model.embedding.numpy(),
        norms=norms.weights,
        epsilons=norms.epsilons,
        head_norms=norms.head_weights,
        head_epsilons=norms.head_epsilons,
        rotary=model.rotary.table.numpy(),
        products=products,
        blocks=np.array([kernel.addresses for kernel in used]),
        sizes=(spec.num_heads, spec.intermediate_size, used[0].panel),
    )
