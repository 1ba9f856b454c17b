"""Draws of blocks behind a vanilla Markov head, all slots in one compiled call."""

import functools

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cpu import block_kernels, compiled
from specserve.backends.cpu.block_kernels import Markov
from specserve.backends.cpu.step_kernels import Drawn, Head
from specserve.drafters.markov_head import VanillaHead
from specserve.drafters.serial_head import SerialHead
from specserve.models import compiled_weights
from specserve.models.linear import CompiledLinear, Kernels, can_compile
from specserve.noise import OnceKeys
from specserve.sampling.draft_law import DraftLaw
from specserve.sampling.drawing import BlockLayout, Coupled, Drawing, DrawingRule, Greedy, Sampled
from specserve.sampling.race import SAMPLED

_TOLERANCE = 1e-4
_NO_FLOATS = np.empty((0, 0), np.float32), np.empty((0, 0, 0), np.float32)


class CompiledDraws:
    """Of one head."""

    @staticmethod
    def of(head: SerialHead | None) -> "CompiledDraws | None":
        """None for a head, or on a machine, that has none."""
        if not isinstance(head, VanillaHead) or not isinstance(head.output, CompiledLinear):
            return None
        is_alone = torch.get_num_threads() == 1  # draws are one thread's, and so is their trial
        return CompiledDraws(head, head.output) if is_alone and are_usable() else None

    def __init__(self, head: VanillaHead, output: CompiledLinear) -> None:
        width = output.weight.shape[0] * output.kernels.panel
        product = Head(*compiled_weights.alone(output))
        self._markov = Markov(np.ascontiguousarray(head.embedding.numpy()), product, width)
        self._owner = head  # of what is read by address

    def draw(self, base_logits: Tensor, anchor_ids: Tensor, drawing: Drawing) -> Tensor | None:
        """Tokens [B, S] of the first slots, all if nothing is wrong; None where only torch can.

        base_logits [B, G, V] become those that the tokens are drawn from, those of the slot after
        them too.
        """
        race = drawing.race()
        if race is None or torch.get_num_threads() != 1 or not base_logits.is_contiguous():
            return None
        num_blocks, num_slots, _ = base_logits.shape
        num_kept = race.noise.shape[1] if race.kind == SAMPLED else 0
        laws = np.empty((num_slots, num_blocks, num_kept), np.int64)
        drawn = Drawn(
            np.empty((num_slots, num_blocks), np.int64),
            *_NO_FLOATS,
            laws,
            np.empty(laws.shape, np.float32),
        )
        count = block_kernels.draw_slots(
            base_logits.numpy(), np.ascontiguousarray(anchor_ids.numpy()), self._markov, race, drawn
        )
        if num_kept:
            for ids, probs in zip(drawn.law_ids[:count], drawn.law_probs[:count], strict=True):
                drawing.take(DraftLaw(torch.from_numpy(ids), torch.from_numpy(probs)))
        return torch.from_numpy(np.ascontiguousarray(drawn.token_ids[:count].T))


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles everything, unless that was done before."""
    if not can_compile():
        return False
    return compiled.works("blocks are drawn", block_kernels.draw_slots, _check)


@torch.inference_mode()
def _check() -> None:
    """Every kind of draw by a very small head. ArithmeticError if they differ from torch's."""
    cpu, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    kernels = Kernels(dtype=torch.float32, device=cpu, deterministic=False)
    weight, embedding = torch.randn(2, 40, 8, generator=generator)
    output, anchors = kernels.linear([weight]), torch.tensor([3, 14, 15])
    assert isinstance(output, CompiledLinear)
    head = VanillaHead(embedding, output)
    draws = CompiledDraws(head, output)
    base, layout = torch.randn(3, 4, 40, generator=generator), BlockLayout(anchors, 4, 40, None)
    zeros = [0] * len(anchors)
    temperatures = torch.tensor([1.0, 0.5, 0.0])
    rules: list[DrawingRule] = [
        Greedy(),
        Coupled(temperatures, anchors, anchors),
        Sampled(temperatures, OnceKeys.build(zeros, zeros, zeros, [1, 2, 3], zeros, cpu), 20),
    ]
    for rule in rules:
        ours, theirs = base.clone(), base.clone()
        found = draws.draw(ours, anchors, rule.begin(layout))
        run, drawing, previous = head.begin(ours, theirs), rule.begin(layout), anchors
        for slot in range(4):
            previous = drawing.draw(slot, run.logits(slot, previous)[:, None])[:, 0]
            if found is None or not torch.equal(found[:, slot], previous):
                raise ArithmeticError(f"{type(rule).__name__}: {found} instead of {previous}")
        if not torch.allclose(ours, theirs, rtol=0, atol=_TOLERANCE):
            raise ArithmeticError(f"{type(rule).__name__}: other logits than torch's")
