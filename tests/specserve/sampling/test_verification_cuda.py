"""Verification on a GPU: the outcomes of the CPU, and no wait for the device."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from specserve.sampling.verification.batch import RowToVerify, VerificationBatch
from specserve.sampling.verification.method import VerificationMethod
from specserve.sampling.verification.verify import verify
from tests.specserve.sampling.random_probs import likeliest_probs
from tests.specserve.sampling.test_sampling import state

NUM_TOKENS = 4000


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def random_round(num_rows, device):
    rng = random.Random(0)
    rows = []
    for seed in range(num_rows):
        drafted = [rng.randrange(8) for _ in range(rng.randint(0, 5))]
        fields = {"temperature": rng.choice([0.0, 1.0]), "top_k": rng.choice([0, 9])}
        fields["frequency_penalty"] = rng.choice([0.0, 0.5])
        method = rng.choice(list(VerificationMethod))
        rows.append(RowToVerify(method, state(seed=seed, **fields), drafted))
    batch = VerificationBatch.build(rows, device)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch.num_logits, NUM_TOKENS, generator=generator)
    logits[:, :8] += 8
    weights = torch.zeros(batch.num_probs, NUM_TOKENS)
    weights[:, :8] = torch.rand(batch.num_probs, 8, generator=generator) + 0.1
    draft_probs = likeliest_probs(weights.to(device), 8)
    return logits.to(device), batch, draft_probs


@pytest.mark.gpu
def test_a_gpu_judges_as_the_cpu_does_and_nobody_waits_for_it():
    expected = verify(*random_round(300, "cpu"))
    on_gpu = random_round(300, "cuda")
    verify(*on_gpu)  # constants of the noise are copied once
    with no_waiting():
        found = verify(*on_gpu)
    same = (found.num_accepted.cpu() == expected.num_accepted) & (
        found.next_tokens.cpu() == expected.next_tokens
    )
    # Floats agree within 2 ulp, so a race in a hundred thousand may end otherwise.
    assert int((~same).sum()) <= 1
    assert not found.bad_rows.any()
    assert not found.broken_probs.any()
    assert expected.num_accepted.sum() > 100
