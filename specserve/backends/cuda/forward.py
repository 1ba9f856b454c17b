"""Forwards of few tokens a row, captured once a shape and replayed: see `forward`.

Tokens of all rows are one list, which is padded to the next of `graphs.BUCKETS`; rows are not
padded. What fits no shape (pieces of prompts, mostly) is not captured.
"""

from typing import Any, NamedTuple

import torch

from specserve.backends.cuda.graph_attention import GraphAttention, Shape, ShapedAttention
from specserve.backends.cuda.graphs import Capture, CapturedGraphs
from specserve.backends.cuda.padded_attention import PaddedGraphs
from specserve.backends.torch.forward import TorchForward
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import KVCache
from specserve.models.transformer import Transformer


class _Key(NamedTuple):
    shape: Shape
    taps: tuple[int, ...]


class CapturedForward:
    """A `TorchForward`, and a graph of every shape that was met."""

    def __init__(
        self,
        model: Transformer,
        plain: TorchForward,
        capture: Capture | None = None,
        attention: GraphAttention[Any] | None = None,
    ) -> None:
        """`attention`: of what is captured, over the cache of `plain`; None: torch's."""
        self._model = model
        self._plain = plain
        num_heads = len(model.heads.queries)
        padded = PaddedGraphs(plain.cache, num_heads=num_heads)
        self._attention: GraphAttention[Any] = attention or padded
        # A rank that went on without would not pad what it exchanges with others.
        is_alone = model.parallel.size == 1
        self._graphs = CapturedGraphs(self._make, capture, may_fail=is_alone)
        self._shape: Shape | None = None
        self.num_computed = 0

    @property
    def cache(self) -> KVCache:
        return self._plain.cache

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def plan(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._shape = self._attention.shape_of(batch)
        if self._shape is None:
            self._plain.plan(batch)

    def run(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """See `Forward`; what it returned is overwritten by the next one."""
        if self._shape is not None:
            made = self._graphs.run(
                _Key(self._shape, taps), lambda each: each.fill(self._batch, token_ids)
            )
            if made is not None:
                self.num_computed = self._shape.num_tokens
                return made.found()
            self._plain.plan(self._batch)
        self.num_computed = len(token_ids)
        return self._plain.run(token_ids, taps)

    def _make(self, key: _Key) -> "PaddedForward":
        return PaddedForward(self._model, self._attention.make(key.shape), key.taps)


class PaddedForward:
    """What is captured: a forward of one shape."""

    def __init__(
        self, model: Transformer, attention: ShapedAttention, taps: tuple[int, ...]
    ) -> None:
        self._model = model
        self._attention = attention
        self._taps = taps
        self._token_ids = torch.zeros_like(attention.positions)

    def fill(self, batch: AttentionBatch, token_ids: torch.Tensor) -> None:
        self._attention.fill(batch)
        torch.index_select(token_ids, 0, self._attention.sources, out=self._token_ids)

    def __call__(self) -> None:
        self._attention.begin()
        self._hidden, self._tapped = self._model.forward(
            self._token_ids, self._attention.positions, self._attention, self._taps
        )
        self._attention.end()

    def found(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Of the batch, without what pads it."""
        unpadded = self._attention.unpadded
        return unpadded(self._hidden), [unpadded(x) for x in self._tapped]
