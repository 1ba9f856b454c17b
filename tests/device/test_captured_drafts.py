"""Captured noise and captured passes of block drafters: those of torch's own operations."""

from functools import partial
from pathlib import Path

import pytest
import torch

from specserve import noise
from specserve.backends.base import Backend
from specserve.backends.cuda import block_draws as captured_draws
from specserve.backends.cuda import noise as captured_noise
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import Drafter
from specserve.noise import Purpose
from specserve.sampling.draft_sampler import Greedy
from specserve.sampling.logits_processors import with_processors
from specserve.sampling.verification.method import VerificationMethod
from target_node.speculation.miss_policy import Miss
from tests.device.both_drafters import Both, compare_blocks, compare_cuts, compare_noise
from tests.device.pretended import DEVICE, PretendedCuda, pretended_cuda
from tests.device.test_target import finished
from tests.device.workload import both_kinds
from tests.device.worlds import drafter_on_device, pair_on_device, target_on_device
from tests.exactness.speculative import Models, confident
from tests.golden_blocks import options
from tests.specserve.sampling.test_sampling import state
from tests.target_node.scripted_drafts import Drafting

GEMMA4 = Path(__file__).parents[1] / "fixtures/golden/dspark_gemma4_b4_draftonly"
NAMES = ["dspark vanilla", "dspark gated", "dspark rnn", "dflash fill in", "speculators"]
CASES = [
    ("dspark vanilla", torch.float32),
    *(pytest.param(name, torch.float32, marks=pytest.mark.slow) for name in NAMES[1:]),
    *(pytest.param(name, torch.bfloat16, marks=pytest.mark.slow) for name in NAMES),
]


def test_captured_noise_has_the_bits_of_other_noise(cuda: PretendedCuda):
    compare_noise(DEVICE)


def test_noise_of_many_lanes_is_not_captured(cuda: PretendedCuda):
    CudaGraphBackend(DEVICE)
    rows = torch.tensor([1, 2], device=DEVICE)
    noise.exponential_noise(rows, rows, rows, Purpose.OUTPUT, captured_noise._MOST_LANES * 4)
    assert len(captured_noise._graphs()) == 0


def near(dtype: torch.dtype) -> float:
    return 1e-4 if dtype is torch.float32 else 0.1


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_blocks_are_those_of_a_pass_that_is_not_captured(
    cuda: PretendedCuda, models: Models, name: str, dtype: torch.dtype
):
    compare_blocks(partial(drafter_on_device, models, name), dtype, DEVICE, near(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dflash anchor first", "dflash with a local head"])
def test_confidences_of_distributions_are_captured_with_the_draws(
    cuda: PretendedCuda, models: Models, name: str
):
    def make(dtype: torch.dtype, backend: Backend) -> Drafter:
        return confident(drafter_on_device(models, name, dtype, backend))

    compare_blocks(make, torch.float32, DEVICE, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_gemma4(cuda: PretendedCuda, dtype: torch.dtype):
    def make(dtype: torch.dtype, backend: Backend) -> Drafter:
        given = options(backend=backend, dtype=dtype, num_context_tokens=4096, max_positions=256)
        return load_drafter(GEMMA4, None, given)

    compare_blocks(make, dtype, DEVICE, 2 * near(dtype))


def test_many_logits_are_not_captured(
    cuda: PretendedCuda, models: Models, monkeypatch: pytest.MonkeyPatch
):
    both = Both(partial(drafter_on_device, models, "dspark vanilla"), torch.float32, DEVICE)
    both.extend(0, 9)
    monkeypatch.setattr(captured_draws, "_MOST_LOGITS", 4 * 64 * both.captured.gamma)
    for count, num_graphs in ((5, 0), (4, 1)):
        both.assert_drafts_are_near([0] * count, Greedy(), 1e-4)
        assert len(both.draws) == num_graphs


def test_gaps_are_as_long_as_they_are_laid_out_at_least(cuda: PretendedCuda, models: Models):
    both = Both(partial(drafter_on_device, models, "dspark vanilla"), torch.float32, DEVICE)
    both.extend(0, 9)
    for min_gap, num_graphs in ((0, 1), (2, 2), (1, 3), (2, 3)):
        gap = [1] if min_gap else []
        both.assert_drafts_are_near([0], Greedy(), 1e-4, gap_ids=[gap], min_gap=min_gap)
        assert both.passes.num_graphs == (0, num_graphs)


def test_what_fits_no_shape_is_not_captured(cuda: PretendedCuda, models: Models):
    both = Both(partial(drafter_on_device, models, "dspark vanilla"), torch.float32, DEVICE)
    both.extend(0, 30)
    both.extend(0, 40, pending=True)  # more than a graph takes
    both.assert_drafts_are_near([0], Greedy(), 1e-4)
    assert both.passes.num_graphs == (0, 1)
    gap = list(range(1, 30))
    both.assert_drafts_are_near([0], Greedy(), 1e-4, gap_ids=[gap])
    assert both.passes.num_graphs == (0, 1)


def texts(found: dict) -> dict:
    return {key: tokens for key, (tokens, *_) in found["samples"].items()}


ASKED = partial(both_kinds, max_tokens=12)


@pytest.fixture(scope="module")
def plain(models: Models) -> dict:
    """Texts without drafts."""
    with pretended_cuda():
        return texts(finished(target_on_device(models), ASKED()))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", list(VerificationMethod))
@pytest.mark.parametrize("name", NAMES)
def test_a_target_whose_draft_is_captured(
    cuda: PretendedCuda, models: Models, plain: dict, name: str, sampler: VerificationMethod
):
    """Seeded requests say what they say without drafts, others end well."""
    backend = CudaGraphBackend(DEVICE)
    target = target_on_device(models, name, default_method=sampler, backend=backend)
    found = texts(finished(target, ASKED()))
    assert target.sampler.num_broken_laws == 0
    seeded = [key for key in found if key[0].startswith("seeded")]
    assert len(seeded) >= 3
    assert {key: found[key] for key in seeded} == {key: plain[key] for key in seeded}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dspark vanilla", "dspark rnn", "dflash fill in"])
def test_a_draft_process_whose_passes_are_captured(cuda: PretendedCuda, models: Models, name: str):
    settings = {"default_method": VerificationMethod.FORESEEABLE, "miss": Miss.DRAFT_NOW}
    settings |= {"backend": CudaGraphBackend(DEVICE)}
    with pair_on_device(
        models, name, Drafting(draft_batch=4, fan_out=8, pace=(4,)), **settings
    ) as pair:
        finished(pair, both_kinds())
        node = pair.drafts[0].node
        assert node is not None
        assert node.prespeculation.failures.total == 0
        assert pair.sampler.num_broken_laws == 0
        assert pair.asynchronous.status().num_hits > 2


def test_cuts_are_captured_with_the_draws(cuda: PretendedCuda, models: Models):
    compare_cuts(partial(drafter_on_device, models, "dspark vanilla"), DEVICE)


def test_edits_are_not_captured(cuda: PretendedCuda, models: Models):
    both = Both(partial(drafter_on_device, models, "dspark vanilla"), torch.float32, DEVICE)
    both.extend(0, 9)
    edited = with_processors(Greedy(), [state(temperature=0.0, frequency_penalty=0.5)])
    both.assert_drafts_are_near([0], edited, 1e-4, unshaped=Greedy())
    assert len(both.draws) == 0
