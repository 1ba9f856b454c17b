"""What a device must compute as the CPU does: blocks of every drafter, under every way to draw."""

from dataclasses import dataclass

import torch

from specserve.drafters.protocol import ContextUpdate, DraftBatch, Drafter, SpeculationBatch
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Coupled, DraftSampler, Greedy, Sampled

LENGTHS = (9, 21)  # of two contexts
ROWS = [0, 0, 1]  # of three blocks
METHODS = ("greedy", "coupled", "sampled")


@dataclass(frozen=True)
class Drafted:
    """A batch of blocks on the CPU."""

    token_ids: torch.Tensor
    confidences: torch.Tensor | None
    logits: torch.Tensor | None
    draft_probs: torch.Tensor | None


def drafted(
    drafter: Drafter, device: torch.device, method: str, dtype: torch.dtype = torch.float32
) -> Drafted:
    """Blocks behind two contexts of fixed tokens and features; behind pending tokens, too.

    `dtype` is what the drafter computes in, and its target, whose the features are.
    """
    generator = torch.Generator().manual_seed(0)
    total = sum(LENGTHS)
    token_ids = torch.randint(1, 60, (total,), generator=generator)
    features = torch.randn(total, drafter.feature_size, generator=generator)
    drafter.extend(
        ContextUpdate(
            rows=[0, 1],
            starts=[0, 0],
            counts=list(LENGTHS),
            token_ids=token_ids.to(device),
            features=features.to(device, dtype) if drafter.feature_size else None,
        )
    )
    batch = DraftBatch(
        rows=ROWS,
        anchor_ids=torch.tensor([5, 6, 7], device=device),
        gap_ids=None if drafter.holds_pending_tokens else [[], [8, 9], [10]],
        keep_logits=True,
    )
    return _on_host(drafter.draft(batch, _method(method, device)))


def _method(name: str, device: torch.device) -> DraftSampler:
    temperatures = torch.tensor([1.0, 0.7, 0.0], device=device)
    seeds, samples = torch.tensor([[11, 12, 13], [0, 1, 0]], device=device)
    if name == "coupled":
        return Coupled(temperatures, seeds, samples)
    if name == "greedy":
        return Greedy()
    keys = OnceKeys.build([11, 12, 13], [0, 1, 0], [1, 2, 3], [1, 2, 3], [0, 0, 0], device)
    return Sampled(temperatures, keys, 16)


def _on_host(drawn: SpeculationBatch) -> Drafted:
    def dense(batch: SpeculationBatch) -> torch.Tensor | None:
        if batch.draft_probs is None:
            return None
        ids, probs = batch.draft_probs.ids.cpu(), batch.draft_probs.probs.cpu()
        return torch.zeros(len(ids), 64).scatter_add(1, ids.clamp(max=63), probs)

    return Drafted(
        token_ids=drawn.token_ids.cpu(),
        confidences=None if drawn.confidences is None else drawn.confidences.cpu(),
        logits=None if drawn.logits is None else drawn.logits.cpu(),
        draft_probs=dense(drawn),
    )


def assert_close(found: Drafted, expected: Drafted, *, atol: float) -> None:
    """The same tokens, and what they were drawn from within `atol`."""
    assert torch.equal(found.token_ids, expected.token_ids)
    for name in ("confidences", "logits", "draft_probs"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=atol, rtol=0, msg=name)
