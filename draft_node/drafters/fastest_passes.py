"""Which way to make passes of chains is the fastest, here and for so many keys."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draft_node.branch_attention import Entering
from draft_node.context import Context
from draft_node.drafters.chain_passes import ChainPasses, TorchPasses
from draft_node.drafters.compiled_passes import CompiledPasses
from specserve.model.transformer import Transformer

# Keys that the chains see together. torch multiplies queries of one row at once, which is faster
# from about here on: 8 chains behind 1,000 tokens are drafted in .86 of its time, behind 2,000 in
# 1.2 of it.
MOST_KEYS = 10_000
# A compiled pass is made by one thread. Where torch has several, it is faster from more chains on.
MOST_CHAINS = 16


def passes_of(model: Transformer, context: Context) -> ChainPasses:
    """The fastest there are for this model on this machine."""
    by_torch = TorchPasses(model, context)
    if not CompiledPasses.suit(model):
        return by_torch
    return FastestPasses(CompiledPasses(model, context), by_torch)


class FastestPasses:
    """`ChainPasses`: either of two, chosen anew for every draft call."""

    def __init__(self, of_few_keys: ChainPasses, of_many: ChainPasses) -> None:
        self._of_few_keys, self._of_many = of_few_keys, of_many
        self._chosen = of_few_keys

    def plan(
        self,
        rows: Sequence[int],
        lengths: Sequence[int],
        num_passes: int,
        entering: Entering | None,
    ) -> None:
        is_few = sum(lengths) <= MOST_KEYS
        is_few &= torch.get_num_threads() == 1 or len(rows) <= MOST_CHAINS
        self._chosen = self._of_few_keys if is_few else self._of_many
        self._chosen.plan(rows, lengths, num_passes, entering)

    def run(self, token_ids: Tensor) -> Tensor:
        return self._chosen.run(token_ids)
