"""Forwards replayed as CUDA graphs: those of torch's own operations, in any company."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from specserve import noise
from specserve.backends.choose import choose_backend
from specserve.backends.cuda import graphs as cuda_graphs
from specserve.backends.cuda import noise as cuda_noise
from specserve.backends.cuda import triton_noise
from specserve.backends.cuda.graphs import GraphCapture
from specserve.client import Client
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from tests.backends.cuda.test_triton_noise import random_words
from tests.device.both_chains import compare_chains
from tests.device.both_drafters import compare_blocks, compare_cuts, compare_noise
from tests.device.growing_rows import Rows, assert_near
from tests.device.random_rounds import compare_rounds
from tests.device.worlds import drafter_on_device
from tests.exactness.speculative import Models, make_models
from tests.gpu.test_cuda_service import NCCL_ON_ONE_DEVICE, SMALL, model_info
from tests.run_first import run_first
from tests.service.launched import Launched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda", 0)
PROMPTS = ("def add(a, b):", "Once upon a time", "import os\n", "The sun is")


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "near"),
    [
        (torch.float32, torch.float32, 2e-3),
        (torch.bfloat16, torch.bfloat16, 0.2),
        (torch.float32, torch.bfloat16, 0.05),
    ],
)
def test_what_is_replayed_is_what_would_have_been_run(
    embedded_target: Path, dtype: torch.dtype, kv_dtype: torch.dtype, near: float
):
    model = load_model(
        embedded_target,
        dtype=dtype,
        backend=choose_backend(DEVICE),
        parallel=TensorParallel(),
        deterministic=False,
    )
    with torch.inference_mode():
        rows, rng = Rows(model, kv_dtype, GraphCapture()), np.random.default_rng(1)
        for _ in range(40):
            chosen = rng.permutation(9)[: rng.integers(1, 10)]
            counts = {f"r{row}": int(rng.integers(1, 9)) for row in chosen}
            assert_near(rows.forward(**counts), near)
        torch.testing.assert_close(*rows.kept(), atol=near, rtol=near)
    assert 3 <= rows.captured.num_graphs <= 30


def test_tokens_of_a_ragged_round_are_computed_as_one_list(embedded_target: Path):
    """And rows of two tiles are captured, too."""
    model = load_model(
        embedded_target,
        dtype=torch.float32,
        backend=choose_backend(DEVICE),
        parallel=TensorParallel(),
        deterministic=False,
    )
    with torch.inference_mode():
        rows = Rows(model, torch.float32, GraphCapture())
        for first, others, num_computed in ((8, 1, 16), (6, 1, 16), (1, 1, 8), (17, 2, 32)):
            counts = {"r0": first} | {f"r{row}": others for row in range(1, 8)}
            assert_near(rows.forward(**counts), 2e-3)
            assert rows.captured.num_computed == num_computed
    assert rows.captured.num_graphs == 3


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    """Of tests in which graph begins."""
    yield make_models(tmp_path)
    cuda_graphs._process.uses = False


def test_captured_noise_has_the_bits_of_other_noise(models: Models):
    compare_noise(DEVICE)


@pytest.mark.skipif(triton_noise.triton is None, reason="Triton is not installed")
def test_noise_of_triton_has_the_bits_of_other_noise(models: Models):
    """Begun by itself, and within a graph of a round."""
    try:
        assert cuda_noise.choose(DEVICE).startswith("triton")
        for share_blocks in (False, True):
            given = [x.to(DEVICE) for x in random_words(5, 700, share_blocks=share_blocks)]
            assert torch.equal(cuda_noise.philox_floats(*given), noise.philox_floats(*given))
        assert compare_rounds(DEVICE, random.Random(5), 30) > 20
    finally:
        cuda_noise._KERNELS.clear()


@pytest.mark.parametrize("seed", range(4))
def test_captured_rounds_have_the_outcomes_of_others(models: Models, seed: int):
    """Of requests that edit logits, cut, keep to a grammar, list log probabilities, or none."""
    assert compare_rounds(DEVICE, random.Random(seed), 60) > 60


def test_cuts_are_captured_with_the_draws(models: Models):
    compare_cuts(partial(drafter_on_device, models, "dspark vanilla"), DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["dspark vanilla", "dspark rnn", "dflash fill in"])
def test_blocks_are_those_of_a_pass_that_is_not_captured(
    models: Models, name: str, dtype: torch.dtype
):
    near = 2e-3 if dtype is torch.float32 else 0.3
    compare_blocks(partial(drafter_on_device, models, name), dtype, DEVICE, near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["language model", "eagle3", "eagle3 of SGLang"])
def test_chains_are_those_of_passes_that_are_not_captured(
    models: Models, name: str, dtype: torch.dtype
):
    near = 2e-3 if dtype is torch.float32 else 0.3
    both = compare_chains(partial(drafter_on_device, models, name), dtype, DEVICE, near)
    assert both.chains.num_graphs > 4


def greedy(address: str) -> list[list[int]]:
    with Client(address) as client:
        return [
            client.generate(prompt, temperature=0, max_tokens=32, ignore_eos=True)
            .samples[0]
            .token_ids
            for prompt in PROMPTS
        ]


@pytest.mark.slow
@pytest.mark.parametrize("drafter", [None, "dspark", "lm"])
def test_services_say_what_they_say_without(start_service: Callable[..., str], drafter: str | None):
    """In float32, where two tokens are hardly ever so near that the order of a sum decides."""
    flags = ("--speculation", "off") if drafter is None else ("--speculation", "sync")
    flags = (*SMALL, "--dtype", "float32", *flags, *(("--drafter", drafter) if drafter else ()))
    captured, plain = start_service(*flags), start_service(*flags, "--no-cuda-graphs")
    assert model_info(captured).cuda_graphs
    assert not model_info(plain).cuda_graphs
    assert greedy(captured) == greedy(plain)


@pytest.mark.slow
def test_two_ranks_record_their_collectives_and_stop_at_once(
    start_service: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """NCCL does not end a group whose collectives are still in a graph."""
    flags = (*SMALL, "--dtype", "float32", "--speculation", "off")
    plain = start_service(*flags, "--no-cuda-graphs")
    run_first(monkeypatch, tmp_path, ["specserve"], NCCL_ON_ONE_DEVICE)
    launched = Launched(*flags, "--topology", "2+0", "--oversubscribe")
    try:
        captured = launched.address()
        assert model_info(captured).cuda_graphs
        assert greedy(captured) == greedy(plain)
    finally:
        launched.process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        code = launched.exit_code(60)
        assert launched.process.stdout
        launched.process.stdout.close()
    assert code == 0, launched.output
    assert time.monotonic() - began_s < 9
    assert "did not stop" not in launched.output
    assert "without CUDA graphs" not in launched.output
