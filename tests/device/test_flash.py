"""Forwards and passes that attend by flashinfer's wrappers, of which a stand-in keeps the calls."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from specserve.backends.choose import _choose, choose_backend
from specserve.backends.cuda import flash as flash_module
from specserve.backends.cuda import flash_attention as flash_attention_module
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.forward import CapturedForward
from specserve.backends.cuda.padded_blocks import BlockBatch
from specserve.backends.torch.backend import TorchBackend
from specserve.models.attention import AttentionBatch
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer
from specserve.sampling.draft_sampler import Greedy
from tests.device.both_attentions import (
    Place,
    Sizes,
    compare_batches,
    compare_blocks_of,
    random_batches,
)
from tests.device.both_drafters import Both, compare_blocks
from tests.device.flash_stand_in import StandIn
from tests.device.growing_rows import BLOCK, Rows, assert_near
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.tape import Tape
from tests.device.worlds import drafter_on_device
from tests.exactness.speculative import Models
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint

DECODE, PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
NUM_LAYERS = 2


def load(folder: Path, dtype: torch.dtype = torch.float32, **changes: object) -> Transformer:
    checkpoint = write_checkpoint(folder, QWEN3, max_position_embeddings=512, **changes)
    return load_model(
        checkpoint,
        dtype=dtype,
        backend=choose_backend(DEVICE),
        parallel=TensorParallel(),
        deterministic=False,
    )


@pytest.fixture(autouse=True)
def small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in needs none, and 256 MiB of zeros take longer than what is done with them."""
    monkeypatch.setattr(flash_module, "WORKSPACE_BYTES", 1)


@pytest.fixture
def library() -> StandIn:
    return StandIn()


@pytest.fixture
def rows(cuda: PretendedCuda, tmp_path: Path, library: StandIn) -> Rows:
    return Rows(load(tmp_path), torch.float32, Tape(cuda), library)


@pytest.fixture
def any_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in has kernels of all sizes; the tiny models' heads are not flashinfer's."""
    monkeypatch.setattr(flash_module, "HEAD_DIMS", (8, 16, 64))
    monkeypatch.setattr(flash_module, "DTYPES", (torch.float32, torch.bfloat16))


def counted(library: StandIn, forward: Callable[[], object]) -> dict[str, int]:
    """Plans and runs of each wrapper in it."""
    library.calls.clear()
    forward()
    names = [f"{name}.{what}" for name in (DECODE, PREFILL) for what in ("plan", "run")]
    return {name: count for name in names if (count := library.count(name))}


def test_a_forward_is_that_of_torch_s_attention(rows: Rows, library: StandIn):
    forward = rows.forward
    # A piece of a prompt beside a token; not captured. Planned once, run in every layer.
    found = []
    calls = counted(library, lambda: found.append(forward(r0=40, r1=5)))
    assert_near(found[0], 1e-4)
    assert calls == {f"{PREFILL}.plan": 1, f"{PREFILL}.run": NUM_LAYERS}
    assert rows.captured.num_graphs == 0
    for _ in range(3):  # decoding
        assert_near(forward(r0=1, r1=1), 1e-4)
    assert rows.captured.num_graphs == 1
    assert library.count(f"{DECODE}.run") == 2 * NUM_LAYERS  # before a capture, and in it
    for counts in ({"r0": 4, "r1": 1}, {"r1": 3, "r0": 3}):  # verification, flat: one graph
        assert_near(forward(**counts), 1e-4)
    assert rows.captured.num_graphs == 2
    rows.forget(0, 3)
    calls = counted(library, lambda: found.append(forward(r0=3, r1=2)))
    assert calls == {f"{PREFILL}.plan": 1}  # replayed
    assert_near(found[1], 1e-4)
    assert_near(forward(r2=7, r3=1, r4=3), 1e-4)  # new rows
    assert_near(forward(r2=1, r3=1, r4=1, r0=1, r1=1), 1e-4)  # decoding, padded to eight
    assert_near(forward(r0=100), 1e-4)
    assert_near(forward(r0=3, r1=3), 1e-4)  # longer contexts need no other graph
    assert rows.captured.num_graphs == 4
    torch.testing.assert_close(*rows.kept(), atol=1e-4, rtol=1e-4)
    assert not rows.captured.cache.keys.cpu()[:, :, :BLOCK].any()  # the null block


def test_decoding_that_is_not_captured_has_its_own_kernel(
    rows: Rows, library: StandIn, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(flash_attention_module, "WORKSPACE_BYTES", 0)  # nothing fits
    assert_near(rows.forward(r0=5, r1=9), 1e-4)
    found = []
    calls = counted(library, lambda: found.append(rows.forward(r0=1, r1=1)))
    assert calls == {f"{DECODE}.plan": 1, f"{DECODE}.run": NUM_LAYERS}
    assert_near(found[0], 1e-4)
    assert rows.captured.num_graphs == 0


def test_nothing_of_the_pool_is_copied(rows: Rows, library: StandIn):
    """Every run is given the whole pool of its layer, where it lies."""
    assert_near(rows.forward(r0=17, r1=3), 1e-4)
    assert_near(rows.forward(r0=1, r1=1), 1e-4)
    cache = rows.captured.cache
    given = [args[1] for name, args, _ in library.calls if name.endswith(".run")]
    for keys, values in given:
        places = [cache.keys.values_[layer].data_ptr() for layer in range(NUM_LAYERS)]
        assert keys.values_.data_ptr() in places
        assert values.values_.untyped_storage().data_ptr() == cache.values.values_.data_ptr()


def logits(backend: TorchBackend, model: Transformer) -> list[torch.Tensor]:
    """Hidden states of a prompt, a verification and a token, one after another."""
    forward = backend.make_forward(model, num_blocks=9, block_size=16, deterministic=False)
    found = []
    for count, end in ((40, 40), (5, 45), (1, 46)):
        forward.plan(AttentionBatch(np.array([count]), np.array([end]), [np.array([3, 7, 1])]))
        ids = torch.arange(end - count, end, device=DEVICE) % 60
        found.append(forward.run(ids)[0].cpu())
    return found


def test_a_backend_with_flashinfer_attends_by_it(
    cuda: PretendedCuda, tmp_path: Path, library: StandIn
):
    """Heads of 64 in bfloat16, 8 of them to 4: of the kernels that there are."""
    model = load(tmp_path, torch.bfloat16, head_dim=64)
    backend = CudaGraphBackend(DEVICE, library)
    assert backend.attention == "flashinfer 0.6.8's where it has kernels"
    expected = logits(TorchBackend(DEVICE), model)
    for ours, theirs in zip(logits(backend, model), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0.1)
    assert library.count(f"{DECODE}.run")
    options = [kwargs for name, _, kwargs in library.calls if name == f"{DECODE}.__init__"]
    assert not any(each["use_tensor_cores"] for each in options)


@pytest.mark.parametrize(
    ("num_heads", "on_tensor_cores"), [(3, False), (4, True), (5, True), (8, True)]
)
def test_many_queries_a_key_are_decoded_on_tensor_cores(
    cuda: PretendedCuda, library: StandIn, num_heads: int, on_tensor_cores: bool
):
    heads = flash_module.Heads(num_heads, 1, 64, 16, torch.bfloat16, 0.1)
    flash_module.Flash(DEVICE, library).decode(heads)
    ((_, _, options),) = library.calls
    assert options["use_tensor_cores"] is on_tensor_cores


def test_without_flashinfer_the_line_names_the_extra(
    cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(flash_module, "flashinfer", None)
    monkeypatch.setattr(flash_module, "_WHY_NOT", "No module named 'flashinfer'")
    backend, reason = _choose(DEVICE, True)
    assert reason.startswith(
        "few rows are replayed as CUDA graphs; attention is torch's: cannot import flashinfer "
        "(No module named 'flashinfer'); pip install 'specserve[gpu]' brings it; noise is "
    )
    assert type(backend) is CudaGraphBackend
    assert _choose(DEVICE, False)[1].startswith("engine.cuda_graphs is off; noise is ")


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [("0.6.7", False), ("0.6.8", True), ("0.6.8.post1", True), ("0.6.12", True), ("0.7.0", False)],
)
def test_versions(cuda: PretendedCuda, version: str, is_taken: bool):
    obstacle = flash_module.why_not(DEVICE, StandIn(version))
    assert (obstacle == "") is is_taken
    assert is_taken or "is not from 0.6.8 to below 0.7" in obstacle


def test_old_devices_are_told(cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert (
        "compute capability 7.5 of cuda:1 is below 8.0"
        in CudaGraphBackend(DEVICE, StandIn()).attention
    )


@pytest.mark.parametrize(
    ("changes", "kept", "num_slots", "words"),
    [
        ({"head_dim": 80}, torch.bfloat16, 160, "heads of 80, and it has 64, 128, 256"),
        ({"dtype": torch.float32}, torch.float32, 160, "float32, and it has float16, bfloat16"),
        ({}, torch.float16, 160, "keys in float16 beside queries in bfloat16"),
        ({}, torch.bfloat16, 1 << 25, "a pool of 33554432 tokens is too large for it"),
        ({}, torch.bfloat16, (1 << 25) - 1, ""),
    ],
)
def test_shapes_without_kernels(changes: dict, kept: torch.dtype, num_slots: int, words: str):
    fields = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "page_size": 16, "scale": 0.1}
    heads = flash_module.Heads(**{**fields, "dtype": torch.bfloat16, **changes})
    found = flash_module.why_not_of(heads, kept, num_slots)
    assert found == (f"flashinfer: {words}" if words else "")


def test_a_model_without_kernels_is_torch_s_and_says_so_once(
    cuda: PretendedCuda, tmp_path: Path, library: StandIn, caplog: pytest.LogCaptureFixture
):
    model, backend = load(tmp_path), CudaGraphBackend(DEVICE, library)
    for _ in range(2):
        logits(backend, model)
    assert not library.calls
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line == (
        "attention is torch's, which is slower: flashinfer: heads of 8, and it has 64, 128, 256"
    )


def raise_on(_: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("Ninja build failed. Ninja output:\nsh: nvcc: not found")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (lambda found: found * 1.5, "flashinfer: its decode attention is off by"),
        (lambda found: found * torch.nan, "flashinfer: its decode attention is off by nan here"),
        (raise_on, "flashinfer: RuntimeError: Ninja build failed. Ninja output:"),
    ],
)
def test_kernels_that_are_wrong_here_are_not_used(
    cuda: PretendedCuda, tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Callable, words
):
    model = load(tmp_path, torch.bfloat16, head_dim=64)
    backend, reference = CudaGraphBackend(DEVICE, StandIn(error=error)), TorchBackend(DEVICE)
    for ours, theirs in zip(logits(backend, model), logits(reference, model), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.1, rtol=0.1)
    assert words in caplog.text
    model.parallel.size = 2
    with pytest.raises(RuntimeError, match="--no-cuda-graphs does without"):
        backend.make_forward(model, num_blocks=9, block_size=16, deterministic=False)


def test_deterministic_forwards_are_torch_s(cuda: PretendedCuda, tmp_path: Path, library: StandIn):
    model, backend = load(tmp_path), CudaGraphBackend(DEVICE, library)
    forward = backend.make_forward(model, num_blocks=9, block_size=16, deterministic=True)
    assert not isinstance(forward, CapturedForward)
    assert not library.calls


def test_what_is_compared_on_a_gpu_is_compared_here(cuda: PretendedCuda, library: StandIn):
    """By tests/gpu/test_cuda_flashinfer.py, with kernels in place of the stand-in."""
    place = Place(DEVICE, torch.float32, library, Sizes(6, 2, 8))
    compare_batches(place, random_batches(12))
    compare_blocks_of(place, 8)


@pytest.mark.slow
def test_blocks_are_those_of_torch_s_attention(
    cuda: PretendedCuda, models: Models, library: StandIn, any_heads: None
):
    """Behind contexts that grow and shrink, gaps of any lengths and pending tokens."""
    make = partial(drafter_on_device, models, "dspark vanilla")
    compare_blocks(make, torch.float32, DEVICE, 1e-4, library, num_steps=14)
    assert library.count("merge_state_in_place")


def test_branches_of_one_row_are_one_shape_whatever_their_gaps(
    cuda: PretendedCuda, models: Models, library: StandIn, any_heads: None
):
    """Four blocks behind gaps of 5 tokens together; a graph is met again by others of so many."""
    both = Both(
        partial(drafter_on_device, models, "dspark vanilla"), torch.float32, DEVICE, library
    )
    both.extend(0, 19)
    both.extend(1, 33)
    for rows, gaps in (([0, 0, 0, 1], [2, 0, 0, 3]), ([0, 1, 1, 1], [0, 4, 1, 0])):
        ids = [list(range(1, gap + 1)) for gap in gaps]
        both.assert_drafts_are_near(rows, Greedy(), 1e-4, gap_ids=ids)
        assert both.passes.num_graphs == (0, 1)
    blocks = both.passes._attention.blocks
    for count, fits in ((256, True), (257, False)):  # spare pages
        ids = torch.zeros(count, 4, dtype=torch.int64)
        batch = BlockBatch([0] * count, [19] * count, [()] * count, ids)
        assert (blocks.shape_of(batch, 0) is not None) is fits
