"""Passes of a language model's chains, captured once a shape and replayed: see `chain_passes`.

A pass is a forward of one token a chain over pages (`chain_tables`), and is captured as a target's
decoding is; contexts are not copied, but for the page that a chain begins in. Pending tokens are
computed by a graph of their own before the chains. Where too few pages are free, or positions run
out, torch's own passes do it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.backends.cuda.forward import PaddedForward
from specserve.backends.cuda.graph_attention import Shape
from specserve.backends.cuda.graphs import CapturedGraphs
from specserve.backends.cuda.paged_chains import PagedAttention, PagedChains
from specserve.backends.torch.chain_passes import TorchChainPasses
from specserve.drafters.branch_attention import Entering
from specserve.drafters.chain_passes import entering_tokens
from specserve.drafters.context import TorchContext
from specserve.models.attention import AttentionBatch
from specserve.models.transformer import Transformer


class CapturedChainPasses:
    """`TorchChainPasses`, and a graph of every shape that was met."""

    def __init__(self, model: Transformer, attention: PagedAttention) -> None:
        self._model, self._attention = model, attention
        self._plain = TorchChainPasses(model, attention.context)
        self._chains = PagedChains(attention.context)
        self._graphs = CapturedGraphs(self._make)

    @property
    def context(self) -> TorchContext:
        return self._attention.context

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def enter(self, entering: Entering) -> None:
        batch = self.context.causal_batch(entering.rows, entering.counts)
        token_ids, _ = entering_tokens(entering, self._model.embedding.device)
        if self._captured(batch, token_ids) is None:
            self._plain.enter(entering)

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_passes: int,
        entering: Entering | None,
    ) -> None:
        has_positions = max(lengths) + num_passes <= self._model.num_positions
        if not (has_positions and self._chains.plan(rows, lengths, num_passes)):
            self._chains.forget()
            self._plain.plan(rows, lengths, num_passes, entering)
            return
        if entering is not None:
            self.enter(entering)
        self._chains.begin()

    def run(self, token_ids: Tensor) -> Tensor:
        """What it returned is overwritten by the next one."""
        if not self._chains.are_planned:
            return self._plain.run(token_ids)
        batch = self._chains.next_batch()
        hidden = self._captured(batch, token_ids)
        if hidden is not None:
            return hidden
        eager = self._attention.eager
        eager.plan(batch)
        # Not pinned: the copy has left this memory when the call returns.
        positions = torch.from_numpy(batch.positions()).to(token_ids.device, non_blocking=True)
        hidden, _ = self._model.forward(token_ids, positions, eager)
        return hidden

    def _captured(self, batch: AttentionBatch, token_ids: Tensor) -> Tensor | None:
        """Final hidden states of the batch's tokens; None where no graph has its shape."""
        shape = self._attention.graphs.shape_of(batch)
        if shape is None:
            return None
        made = self._graphs.run(shape, lambda each: each.fill(batch, token_ids))
        return None if made is None else made.found()[0]

    def _make(self, shape: Shape) -> PaddedForward:
        return PaddedForward(self._model, self._attention.graphs.make(shape), taps=())
