"""What follows a parallel pass, recorded: logits, draws slot by slot, confidences.

A serial head makes every slot a few kernels of its own, and drawing from a law twenty.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from specserve.cuda_graphs import Recordings, padded
from specserve.decoding.draft_law import DraftLaw
from specserve.decoding.drawing import Drawing, TensorDrawing
from specserve.drafting import SpeculationBatch

Draws = Callable[[Tensor, Tensor, Drawing], SpeculationBatch]  # of hidden states and anchors


class _Input(NamedTuple):
    name: str
    shape: tuple[int, ...]  # padded
    dtype: torch.dtype


class _Key(NamedTuple):
    kind: type[TensorDrawing]
    inputs: tuple[_Input, ...]


class RecordedDraws:
    """Of one drafter: `draws` waits for nothing on the device."""

    def __init__(self, draws: Draws, device: torch.device) -> None:
        self._draws = draws
        self._device = device
        self._drawing: TensorDrawing | None = None  # of the batch that is being drawn
        self._recordings = Recordings(self._make)

    def __len__(self) -> int:
        return len(self._recordings)

    def draw(self, hidden: Tensor, anchor_ids: Tensor, drawing: Drawing) -> SpeculationBatch | None:
        """Of B blocks: hidden [B, G, H], anchor_ids [B]; None where it cannot be recorded."""
        if not isinstance(drawing, TensorDrawing):
            return None
        self._drawing = drawing
        tensors = {"hidden": hidden, "anchor_ids": anchor_ids, **drawing.tensors()}
        inputs = (
            _Input(name, (padded(len(x)), *x.shape[1:]), x.dtype) for name, x in tensors.items()
        )
        key = _Key(type(drawing), tuple(inputs))
        made = self._recordings.run(key, lambda each: each.fill(tensors.values()))
        return None if made is None else _first(made.found, len(hidden))

    def _make(self, key: _Key) -> "_Drawn":
        assert self._drawing is not None
        return _Drawn(self._draws, self._drawing, key.inputs, self._device)


class _Drawn:
    """What is recorded: draws of one kind from inputs of one shape."""

    def __init__(
        self, draws: Draws, like: TensorDrawing, inputs: tuple[_Input, ...], device: torch.device
    ) -> None:
        self._draws = draws
        self._like = like
        self._inputs = {
            name: torch.zeros(shape, dtype=dtype, device=device) for name, shape, dtype in inputs
        }

    def fill(self, tensors: Iterable[Tensor]) -> None:
        """What is behind them are those of some batch before, drawn for nobody."""
        for kept, x in zip(self._inputs.values(), tensors, strict=True):
            kept[: len(x)].copy_(x)

    def __call__(self) -> None:
        others = dict(self._inputs)
        hidden, anchor_ids = others.pop("hidden"), others.pop("anchor_ids")
        self.found = self._draws(hidden, anchor_ids, self._like.over(others))


def _first(found: SpeculationBatch, num_blocks: int) -> SpeculationBatch:
    """Of so many blocks, in memory that nobody overwrites."""

    def own(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:num_blocks].clone()

    law, token_ids = found.law, found.token_ids[:num_blocks].clone()
    if law is not None:
        count = token_ids.numel()
        law = DraftLaw(law.ids[:count].clone(), law.probs[:count].clone())
    return SpeculationBatch(token_ids, law, own(found.confidences), logits=own(found.logits))
