"""How this machine makes the steps of chains: compiled where that can be had, or by torch.

`python -m specserve.drafters.steps` compiles what a first start would, blocks' too, and says.
"""

import functools
import sys

import torch

from specserve.backends.cpu import compiled, outcome_kernels, rank_kernels, step_kernels
from specserve.drafters import compiled_blocks
from specserve.drafters.branch_attention import Entering
from specserve.drafters.chain_ending import ChainEnding
from specserve.drafters.chain_steps import Chains, ChainSteps, TorchSteps
from specserve.drafters.compiled_passes import CompiledPasses
from specserve.drafters.compiled_steps import CompiledSteps
from specserve.drafters.law_confidence import FittedLawConfidence, LawModel
from specserve.drafters.protocol import DraftBatch
from specserve.models.forward_trial import small_model
from specserve.models.transformer import Transformer
from specserve.noise import OnceKeys
from specserve.sampling import law_kernels, truncation_kernels
from specserve.sampling.drawing import BlockLayout, Coupled, DrawingRule, Greedy, Sampled

_TOLERANCE = 1e-4
_CONTEXT = [5, 9, 2, 30, 7]
_ANCHORS = [3, 14, 15]
_NUM_STEPS = 4


def chain_steps(chains: Chains) -> ChainSteps:
    steps = CompiledSteps.of(chains)
    return steps if steps is not None and are_usable() else TorchSteps(chains)


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles everything, unless that was done before."""
    return compiled.works("steps of chains are made", step_kernels.draft_chains, _check)


@torch.inference_mode()
def _check() -> None:
    """Every kind of draw by a very small model. ArithmeticError if they differ from torch's."""
    model, cpu = small_model(), torch.device("cpu")
    temperatures, zeros = torch.tensor([1.0, 0.5, 0.0]), [0] * len(_ANCHORS)
    seeds = torch.arange(2 * len(_ANCHORS)).view(2, -1)
    keys = OnceKeys.build(zeros, zeros, zeros, _ANCHORS, zeros, cpu)
    rules = (
        Greedy(),
        Coupled(temperatures, seeds[0], seeds[1]),
        Sampled(temperatures, keys, num_kept=model.config.vocab_size // 2),
    )
    for rule in rules:
        found, expected = (_drawn(model, rule, is_compiled=flag) for flag in (True, False))
        for ours, theirs in zip(found, expected, strict=True):
            if not torch.allclose(ours, theirs, rtol=0, atol=_TOLERANCE):
                raise ArithmeticError(f"{type(rule).__name__}: {ours} instead of {theirs}")


def _drawn(model: Transformer, rule: DrawingRule, *, is_compiled: bool) -> list[torch.Tensor]:
    passes = CompiledPasses(model, num_tokens=64, longest=_NUM_STEPS)
    rows, length = [1] * len(_ANCHORS), len(_CONTEXT)
    passes.context.rows.append([1], [0], [length])
    passes.enter(Entering([1], [0], [length], _CONTEXT))
    passes.plan(rows, [length] * len(rows), _NUM_STEPS, None)
    batch = DraftBatch(rows, torch.tensor(_ANCHORS), keep_logits=True)
    positions = torch.full((len(rows),), length + 1)
    drawing = rule.begin(BlockLayout(positions, _NUM_STEPS, model.config.vocab_size, None))
    law = LawModel(log_max_prob=1.5, entropy=-0.2, biases=[0.5, 0.2])
    confidence = FittedLawConfidence.of(law, [1.1, 0.9], torch.device("cpu"))
    chains = Chains(model, passes, confidence, drawing, batch, _NUM_STEPS)
    steps = CompiledSteps.of(chains) if is_compiled else TorchSteps(chains)
    if steps is None:
        raise RuntimeError("there are none for this model")
    ending = ChainEnding()
    ending.begin(batch, has_confidences=True)
    drawn = steps.run(ending)
    assert drawn.confidences is not None
    assert drawn.logits is not None
    law_probs = [] if drawn.law is None else [drawn.law.probs]
    return [drawn.token_ids, drawn.confidences, drawn.logits, *law_probs]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for what, can in (
        ("steps of chains", are_usable),
        ("draws of blocks", compiled_blocks.are_usable),
        ("ranks of candidates", rank_kernels.are_usable),
        ("orders of outcomes", outcome_kernels.are_usable),
        ("truncated laws", truncation_kernels.are_usable),
        ("ratio tests", law_kernels.are_usable),
    ):
        made_by = "compiled kernels" if can() else "torch"
        sys.stdout.write(f"{what} on this CPU are made by {made_by}\n")
