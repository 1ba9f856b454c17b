"""Steps of EAGLE-3's chains, captured once a shape and replayed: see `feature_chains`.

A step is one layer over one token a chain, which attends by pages as a target's decoding does
(`chain_tables`): what comes before the token, the layer, and the head behind it are one graph.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specserve.backends.cuda.graph_attention import Shape, ShapedAttention
from specserve.backends.cuda.graphs import CapturedGraphs
from specserve.backends.cuda.paged_chains import PagedAttention, PagedChains
from specserve.backends.torch.feature_chains import TorchFeatureChains
from specserve.drafters.context import TorchContext
from specserve.drafters.eagle3 import Eagle3Decoder
from specserve.models.attention import AttentionBatch


class _Key(NamedTuple):
    shape: Shape
    has_logits: bool


class CapturedFeatureChains:
    """`TorchFeatureChains`, and a graph of every shape that was met."""

    def __init__(self, decoder: Eagle3Decoder, attention: PagedAttention) -> None:
        self._decoder, self._attention = decoder, attention
        self._plain = TorchFeatureChains(decoder, attention.context)
        self._chains = PagedChains(attention.context)
        self._graphs = CapturedGraphs(self._make)

    @property
    def context(self) -> TorchContext:
        return self._attention.context

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_steps: int,
        pads: Sequence[int] | None = None,
    ) -> None:
        if self._chains.plan(rows, lengths, num_steps, pads):
            self._chains.begin()
        else:
            self._plain.plan(rows, lengths, num_steps, pads)

    def follow(self, token_ids: Tensor, hidden: Tensor) -> Tensor:
        if not self._chains.are_planned:
            return self._plain.follow(token_ids, hidden)
        batch = self._chains.next_batch()
        made = self._replayed(batch, token_ids, hidden, has_logits=False)
        if made is None:
            return self._decoder.features(self._stepped(batch, token_ids, hidden))
        return made.features[: len(token_ids)]

    def step(self, token_ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if not self._chains.are_planned:
            return self._plain.step(token_ids, hidden)
        batch = self._chains.next_batch()
        made = self._replayed(batch, token_ids, hidden, has_logits=True)
        if made is None:
            return self._decoder.read(self._stepped(batch, token_ids, hidden))
        return made.features[: len(token_ids)], made.logits[: len(token_ids)]

    def _replayed(
        self, batch: AttentionBatch, token_ids: Tensor, hidden: Tensor, *, has_logits: bool
    ) -> "_Step | None":
        """None where no graph has the batch's shape."""
        shape = self._attention.graphs.shape_of(batch)
        if shape is None:
            return None
        key = _Key(shape, has_logits)
        return self._graphs.run(key, lambda each: each.fill(batch, token_ids, hidden))

    def _stepped(self, batch: AttentionBatch, token_ids: Tensor, hidden: Tensor) -> Tensor:
        eager = self._attention.eager
        eager.plan(batch)
        # Not pinned: the copy has left this memory when the call returns.
        positions = torch.from_numpy(batch.positions()).to(token_ids.device, non_blocking=True)
        return self._decoder.step(token_ids, hidden, positions, eager)

    def _make(self, key: _Key) -> "_Step":
        attention = self._attention.graphs.make(key.shape)
        return _Step(self._decoder, attention, has_logits=key.has_logits)


class _Step:
    """What is captured: a token of every chain, and what is read of it."""

    def __init__(
        self, decoder: Eagle3Decoder, attention: ShapedAttention, *, has_logits: bool
    ) -> None:
        self._decoder, self._attention, self._has_logits = decoder, attention, has_logits
        embedding = decoder.embedding
        self._token_ids = torch.zeros_like(attention.positions)
        self._hidden = torch.zeros(
            len(self._token_ids),
            decoder.spec.decoder.hidden_size,
            dtype=embedding.dtype,
            device=embedding.device,
        )

    def fill(self, batch: AttentionBatch, token_ids: Tensor, hidden: Tensor) -> None:
        self._attention.fill(batch)
        sources = self._attention.sources
        torch.index_select(token_ids, 0, sources, out=self._token_ids)
        torch.index_select(hidden, 0, sources, out=self._hidden)

    def __call__(self) -> None:
        attention, decoder = self._attention, self._decoder
        attention.begin()
        stepped = decoder.step(self._token_ids, self._hidden, attention.positions, attention)
        attention.end()
        if self._has_logits:
            self.features, self.logits = decoder.read(stepped)
        else:
            self.features = decoder.features(stepped)
