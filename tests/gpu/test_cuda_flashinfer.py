"""flashinfer's kernels on a device against torch's: attention, every wrapper and shape; layers.

This has never run: no device was at hand when it was written. What it compares has run on the
pretended device with a stand-in for the wrappers (tests/device/test_flash.py). Kernels that were
not compiled before are compiled by the first test that asks for them, a minute or two a head size
and dtype: `python -m bench.gpu.flash_kernels --heads 9:3:64 32:8:128 16:2:256 --dtypes bfloat16
float16` does that beforehand, without a GPU.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from specserve.backends.choose import choose_backend
from specserve.backends.cuda import flash, graphs
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.flash import Flash, Heads
from specserve.backends.cuda.flash_trial import trial
from specserve.backends.cuda.forward import CapturedForward
from specserve.backends.cuda.fused_layers import FusedTransformer
from specserve.backends.cuda.fused_trial import LayerSizes, trial_of_layers
from specserve.backends.cuda.graphs import GraphCapture
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.forward import TorchForward
from specserve.drafters.context import BLOCK_SIZE
from specserve.models.attention import AttentionBatch
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from tests.backends.cuda.layouts import NUM_BLOCKS
from tests.backends.cuda.test_fused_layers import model_of, run_rounds
from tests.backends.test_operations import passes_of_chains
from tests.device.both_attentions import (
    Place,
    Sizes,
    compare_batches,
    compare_blocks_of,
    random_batches,
)
from tests.device.growing_rows import Rows, assert_near
from tests.specserve.models.checkpoints import LLAMA, QWEN3, write_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(flash.flashinfer is None, reason="flashinfer is not installed"),
]

DEVICE = torch.device("cuda", 0)
DTYPES = [torch.bfloat16, torch.float16]
# SmolLM2-135M, Qwen3-8B, Gemma-like; then ranks' shares, one query a key among them.
SIZES = [
    Sizes(9, 3, 64),
    Sizes(32, 8, 128),
    Sizes(16, 2, 256),
    Sizes(5, 1, 128),
    Sizes(4, 4, 128),
    Sizes(2, 1, 64),
]


def place(sizes: Sizes, dtype: torch.dtype = torch.bfloat16) -> Place:
    return Place(DEVICE, dtype, flash.flashinfer, sizes)


def test_nothing_is_in_its_way():
    assert flash.why_not(DEVICE) == ""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_trial_at_the_start_finds_nothing(sizes: Sizes, dtype: torch.dtype):
    heads = Heads(*sizes, BLOCK_SIZE, dtype, sizes.head_dim**-0.5)
    assert trial(Flash(DEVICE), heads) == ""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_batches_attend_as_by_torch(sizes: Sizes, dtype: torch.dtype):
    """Captured and replayed, and not: prefill, decoding, verification and what mixes them."""
    compare_batches(place(sizes, dtype), random_batches(40))


@pytest.mark.parametrize("sizes", SIZES[:2])
def test_long_contexts_attend_as_by_torch(sizes: Sizes):
    """Which kernels cut into parts; the graphs of short ones are replayed with them."""
    order = np.random.default_rng(0).permutation(np.arange(1, NUM_BLOCKS))
    batches = []
    for first, second in ((40, 9), (3000, 2500), (1, 3300)):
        tables = np.split(order, [190])
        for counts in ([1, 1], [5, 4], [1, 8]):
            ends = np.array([max(first, counts[0]), max(second, counts[1])])
            batches.append(AttentionBatch(np.array(counts), np.minimum(ends, 190 * 16), tables))
    compare_batches(place(sizes), batches)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_draft_blocks_attend_as_by_torch(sizes: Sizes, dtype: torch.dtype):
    compare_blocks_of(place(sizes, dtype), 20)


@pytest.mark.parametrize(("dtype", "near"), [(torch.bfloat16, 0.2), (torch.float16, 0.05)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_forward_is_that_of_torch_s_attention(
    tmp_path: Path, dtype: torch.dtype, near: float, head_dim: int
):
    folder = write_checkpoint(tmp_path, QWEN3, max_position_embeddings=512, head_dim=head_dim)
    model = load_model(
        folder,
        dtype=dtype,
        backend=choose_backend(DEVICE),
        parallel=TensorParallel(),
        deterministic=False,
    )
    with torch.inference_mode():
        rows, rng = Rows(model, dtype, GraphCapture(), flash.flashinfer), np.random.default_rng(1)
        assert_near(rows.forward(r0=60, r1=33), near)
        for _ in range(40):
            chosen = rng.permutation(9)[: rng.integers(1, 10)]
            counts = {f"r{row}": int(rng.integers(1, 9)) for row in chosen}
            assert_near(rows.forward(**counts), near)
        torch.testing.assert_close(*rows.kept(), atol=near, rtol=near)
    assert 3 <= rows.captured.num_graphs <= 30


# hidden size, heads, key heads and their size: SmolLM2-135M, Qwen3-8B, Llama-3.1-70B's quarter.
LAYERS = [(576, 9, 3, 64), (4096, 32, 8, 128), (8192, 16, 2, 128)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", LAYERS)
def test_norms_and_rotations_of_layers_are_their_definition(
    sizes: tuple[int, int, int, int], dtype: torch.dtype
):
    assert trial_of_layers(Flash(DEVICE), LayerSizes(*sizes, dtype), DEVICE) == ""


@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
def test_fused_layers_are_those_of_torch(tmp_path: Path, config: dict):
    """Captured and not, beside layers that are not fused, under torch's attention."""
    model = model_of(tmp_path, config | {"head_dim": 64}, DEVICE, torch.bfloat16)
    sizes = {"num_blocks": 12, "block_size": 16, "deterministic": False}
    fused = FusedTransformer(model, Flash(DEVICE))
    plain = TorchForward(fused, **sizes)
    expected = run_rounds(TorchForward(model, **sizes), DEVICE)
    for forward in (plain, CapturedForward(fused, TorchForward(fused, **sizes))):
        for ours, theirs in zip(run_rounds(forward, DEVICE), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0.1)


def test_chains_of_a_language_model_are_those_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Branches of one row and of two, behind a token that enters with them."""
    monkeypatch.setattr(graphs, "_process", graphs._Process())  # other tests capture nothing
    model = model_of(tmp_path, QWEN3 | {"head_dim": 64}, DEVICE, torch.bfloat16)
    expected, found = (
        passes_of_chains(backend, model)
        for backend in (TorchBackend(DEVICE), CudaGraphBackend(DEVICE))
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0.1)


def test_a_backend_says_whose_attention_it_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphs, "_process", graphs._Process())  # other tests capture nothing
    backend = choose_backend(DEVICE, cuda_graphs=True)
    assert f"attention is flashinfer {flash.flashinfer.__version__}'s" in backend.description
