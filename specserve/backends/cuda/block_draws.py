"""What follows a parallel pass, captured: logits, draws slot by slot, confidences.

A serial head makes every slot a few kernels of its own, and drawing from a distribution twenty.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from specserve.backends.base import DrawBlocks
from specserve.backends.cuda.graphs import CapturedGraphs, padded
from specserve.drafters.protocol import SpeculationBatch
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import DraftSampling, TensorSampling

_MOST_LOGITS = 1 << 24  # of a batch; beginning kernels does not count where there are more


class _Input(NamedTuple):
    name: str
    shape: tuple[int, ...]  # padded
    dtype: torch.dtype


class _Key(NamedTuple):
    kind: tuple[object, ...]
    keep_logits: bool
    inputs: tuple[_Input, ...]


class CapturedDraws:
    """Of one drafter: `draws` waits for nothing on the device."""

    def __init__(self, draws: DrawBlocks, vocab_size: int, device: torch.device) -> None:
        """`vocab_size`: columns of the logits."""
        self._draws = draws
        self._vocab_size = vocab_size
        self._device = device
        self._graphs = CapturedGraphs(self._make)

    def __len__(self) -> int:
        return len(self._graphs)

    def draw(
        self, hidden: Tensor, anchor_ids: Tensor, sampling: DraftSampling, *, keep_logits: bool
    ) -> SpeculationBatch:
        """Of B blocks: hidden [B, G, H], anchor_ids [B]."""
        num_blocks = padded(len(hidden))
        num_logits = num_blocks * hidden.shape[1] * self._vocab_size
        if not isinstance(sampling, TensorSampling) or num_logits > _MOST_LOGITS:
            return self._draws(hidden, anchor_ids, sampling)
        tensors = {"hidden": hidden, "anchor_ids": anchor_ids, **sampling.tensors()}
        inputs = (_Input(name, (num_blocks, *x.shape[1:]), x.dtype) for name, x in tensors.items())
        key = _Key(sampling.kind, keep_logits, tuple(inputs))
        made = self._graphs.run(key, lambda each: each.fill(tensors, sampling))
        if made is None:
            return self._draws(hidden, anchor_ids, sampling)
        return _first(made.found, len(hidden))

    def _make(self, key: _Key) -> "_Drawn":
        return _Drawn(self._draws, key, self._device)


class _Drawn:
    """What is captured: draws of one kind from inputs of one shape."""

    def __init__(self, draws: DrawBlocks, key: _Key, device: torch.device) -> None:
        self._draws = draws
        self._keep_logits = key.keep_logits
        self._inputs = {
            name: torch.zeros(shape, dtype=dtype, device=device)
            for name, shape, dtype in key.inputs
        }
        self._sampling: TensorSampling | None = None

    def fill(self, tensors: dict[str, Tensor], like: TensorSampling) -> None:
        """What is behind them are those of some batch before, drawn for nobody."""
        for name, x in tensors.items():
            self._inputs[name][: len(x)].copy_(x)
        if self._sampling is None:  # over tensors of its own: those of a batch need not be kept
            self._sampling = like.over({name: self._inputs[name] for name in like.tensors()})

    def __call__(self) -> None:
        assert self._sampling is not None
        others = dict(self._inputs)
        hidden, anchor_ids = others.pop("hidden"), others.pop("anchor_ids")
        self.found = self._draws(hidden, anchor_ids, self._sampling.over(others))
        if not self._keep_logits:
            self.found = replace(self.found, logits=None)


def _first(found: SpeculationBatch, num_blocks: int) -> SpeculationBatch:
    """Of so many blocks, in memory that nobody overwrites."""

    def own(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:num_blocks].clone()

    draft_probs, token_ids = found.draft_probs, found.token_ids[:num_blocks].clone()
    if draft_probs is not None:
        count = token_ids.numel()
        draft_probs = DraftProbs(draft_probs.ids[:count].clone(), draft_probs.probs[:count].clone())
    return SpeculationBatch(
        token_ids, draft_probs, own(found.confidences), logits=own(found.logits)
    )
