"""Norms, sums and rotations fused: what they are, on a CPU, and layers that are made of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.flash import Flash
from specserve.backends.cuda.fused_layers import FusedReference, FusedTransformer
from specserve.backends.cuda.fused_trial import LayerSizes, trial_of_layers
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.forward import TorchForward
from specserve.models.attention import AttentionBatch
from specserve.models.config import RopeSpec
from specserve.models.layers import RMSNorm
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.models.rope import RotaryTable, rotate, turns
from specserve.models.transformer import EMBEDDING_TAP, Transformer
from tests.device.flash_stand_in import StandIn
from tests.device.pretended import DEVICE, PretendedCuda
from tests.specserve.models.checkpoints import LLAMA, QWEN3, write_checkpoint

CPU = torch.device("cpu")
OPS = FusedReference()
EPS = 1e-5
SIZES = LayerSizes(96, 6, 2, 64, torch.bfloat16)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- one by one ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 96), (5, 3, 64), (1, 7, 32)])
def test_a_norm_is_that_of_layers(shape: tuple[int, ...]):
    x, weight = 3 * random(*shape), random(shape[-1], seed=1)
    torch.testing.assert_close(OPS.norm(x, weight, EPS), RMSNorm(weight, EPS)(x))


def test_a_norm_of_a_sum_leaves_the_sum_behind():
    x, residual, weight = random(5, 96), random(5, 96, seed=1), random(96, seed=2)
    total = x + residual
    OPS.add_and_norm(x, residual, weight, EPS)
    assert torch.equal(residual, total)
    torch.testing.assert_close(x, RMSNorm(weight, EPS)(total))


@pytest.mark.parametrize(
    "rope",
    [RopeSpec(10_000.0), RopeSpec(500_000.0, "linear", 4.0), RopeSpec(1e4, attention_factor=1.2)],
)
def test_a_rotation_is_that_of_layers(rope: RopeSpec):
    positions = torch.tensor([0, 3, 99, 3])
    table = RotaryTable(rope, head_dim=64, num_positions=100, dtype=torch.float32, device=CPU)
    turning = torch.cat(turns(rope, head_dim=64, num_positions=100), dim=1)
    qkv = random(4, 10, 64)
    expected = rotate(qkv[:, :8], *table.at(positions))
    OPS.rotate(qkv[:, :6], qkv[:, 6:8], positions, turning)  # in place, where they lie
    torch.testing.assert_close(qkv[:, :8], expected)
    assert torch.equal(qkv[:, 8:], random(4, 10, 64)[:, 8:])


def test_sums_and_norms_round_once():
    """In 16 bits: the norm is of what was added, not of what is left of it."""
    x, residual, weight = (random(3, 8, seed=s, dtype=torch.bfloat16) for s in range(3))
    total = x.double() + residual.double()
    mean = total.square().mean(dim=1, keepdim=True)
    wanted = (total / (mean + EPS).sqrt() * weight[0].double()).to(torch.bfloat16)
    OPS.add_and_norm(x, residual, weight[0], EPS)
    assert (x == wanted).float().mean() > 0.9
    assert torch.equal(residual, total.to(torch.bfloat16))


# --- flashinfer's, by what stands in for it ------------------------------------------------------


def test_flashinfer_is_asked_for_the_same(cuda: PretendedCuda):
    library = StandIn()
    assert trial_of_layers(Flash(DEVICE, library), SIZES, DEVICE) == ""
    assert [name for name, *_ in library.calls] == [
        *("rmsnorm", "rmsnorm", "rmsnorm", "fused_add_rmsnorm"),
        "apply_rope_with_cos_sin_cache_inplace",
    ]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (lambda found: found * 1.5, "flashinfer: its norm is off by"),
        (lambda found: found * torch.nan, "flashinfer: its norm is off by nan here"),
        (lambda found: found[:, 99], "flashinfer: IndexError: index 99"),
    ],
)
def test_what_is_wrong_is_found_before_it_is_used(
    cuda: PretendedCuda, caplog: pytest.LogCaptureFixture, error: Callable, says: str
):
    flash = Flash(DEVICE, StandIn(error=error))
    assert trial_of_layers(flash, SIZES, DEVICE).startswith(says)


# --- layers --------------------------------------------------------------------------------------


def model_of(folder: Path, config: dict, device: torch.device, dtype: torch.dtype) -> Transformer:
    return load_model(
        write_checkpoint(folder, config, max_position_embeddings=256),
        dtype=dtype,
        backend=TorchBackend(device),
        parallel=TensorParallel(),
        deterministic=False,
        ballast=400_000,
    )


def run_rounds(forward, device: torch.device) -> list[torch.Tensor]:
    """Hidden states and tapped residuals of prompts, decoding and verification, in that order."""
    found: list[torch.Tensor] = []
    tables, rng = [np.arange(1, 6), np.arange(6, 11)], np.random.default_rng(0)
    for counts, ends in (([20, 3], [20, 3]), ([1, 1], [21, 4]), ([5, 1], [26, 5])):
        forward.plan(AttentionBatch(np.array(counts), np.array(ends), tables))
        token_ids = torch.from_numpy(rng.integers(0, 60, sum(counts))).to(device)
        for taps in ((), (EMBEDDING_TAP, 0, 1)):  # the same again, which changes nothing
            hidden, tapped = forward.run(token_ids, taps)
            found += [x.cpu().clone() for x in (hidden, *tapped)]
    return found


@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
def test_layers_compute_what_they_computed(tmp_path: Path, config: dict):
    model = model_of(tmp_path, config, CPU, torch.float32)
    sizes = {"num_blocks": 12, "block_size": 16, "deterministic": False}
    fused = TorchForward(FusedTransformer(model, OPS), **sizes)
    expected = run_rounds(TorchForward(model, **sizes), CPU)
    for ours, theirs in zip(run_rounds(fused, CPU), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [pytest.param(QWEN3, id="qwen3"), pytest.param(LLAMA, id="llama")],
)
def test_a_backend_fuses_what_flashinfer_has_kernels_for(
    cuda: PretendedCuda, tmp_path: Path, config: dict
):
    model = model_of(tmp_path, config | {"head_dim": 64}, DEVICE, torch.bfloat16)
    library = StandIn()
    sizes = {"num_blocks": 12, "block_size": 16, "deterministic": False}
    fused = CudaGraphBackend(DEVICE, library).make_forward(model, **sizes)
    expected = run_rounds(TorchBackend(DEVICE).make_forward(model, **sizes), DEVICE)
    for ours, theirs in zip(run_rounds(fused, DEVICE), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0.1)
    assert library.count("fused_add_rmsnorm") > 2 * model.config.num_layers
    library.calls.clear()
    fixed = CudaGraphBackend(DEVICE, library).make_forward(model, **sizes | {"deterministic": True})
    run_rounds(fixed, DEVICE)
    assert library.count("norm") == 0
