"""Chains of language models and EAGLE-3 that are captured: those of torch's own passes."""

from functools import partial

import pytest
import torch

from specserve.backends.cuda import flash as flash_module
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.drafters.context import ContextRows
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.sampling.verification.method import VerificationMethod
from tests.device.both_chains import BothChains, compare_chains
from tests.device.flash_stand_in import StandIn
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.test_captured_drafts import ASKED, near, plain, texts
from tests.device.test_target import finished
from tests.device.worlds import drafter_on_device, target_on_device
from tests.exactness.speculative import Models

__all__ = ["plain"]

NAMES = ["language model", "eagle3", "eagle3 of SGLang"]
DTYPES = [
    torch.float32,
    pytest.param(torch.bfloat16, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_chains_are_those_of_passes_that_are_not_captured(
    cuda: PretendedCuda, models: Models, name: str, dtype: torch.dtype
):
    make = partial(drafter_on_device, models, name)
    both = compare_chains(make, dtype, DEVICE, near(dtype))
    # Numbers of chains and lengths of contexts; entering tokens, or steps that draw nothing.
    assert 4 < both.chains.num_graphs < 40


@pytest.mark.parametrize("name", NAMES[:2])
def test_chains_read_pages_where_they_lie(
    cuda: PretendedCuda, models: Models, name: str, monkeypatch: pytest.MonkeyPatch
):
    """By flashinfer's wrappers, of which a stand-in computes: one decoding kernel a layer."""
    monkeypatch.setattr(flash_module, "WORKSPACE_BYTES", 1)
    monkeypatch.setattr(flash_module, "HEAD_DIMS", (8, 16, 64))
    monkeypatch.setattr(flash_module, "DTYPES", (torch.float32,))
    library = StandIn()
    make = partial(drafter_on_device, models, name)
    both = compare_chains(make, torch.float32, DEVICE, 1e-4, library, num_steps=14)
    assert library.count("BatchDecodeWithPagedKVCacheWrapper.run") > 4
    with monkeypatch.context() as patch:  # what has no graph reads pages, too
        patch.setattr(type(both.chains._attention.graphs), "shape_of", lambda *_: None)
        both.assert_drafts_are_near([0, 3, 3], 1e-4, context_lens=[4, 40, 21])


@pytest.mark.parametrize("name", NAMES[:2])
def test_without_pages_of_their_own_chains_are_torch_s(
    cuda: PretendedCuda, models: Models, name: str, monkeypatch: pytest.MonkeyPatch
):
    both = BothChains(partial(drafter_on_device, models, name), torch.float32, DEVICE)
    both.extend(0, 20)
    both.assert_drafts_are_near([0, 0], 1e-4)
    num_graphs = both.chains.num_graphs
    with monkeypatch.context() as patch:
        patch.setattr(ContextRows, "unused", lambda *_: None)
        both.extend(0, 3)
        both.assert_drafts_are_near([0, 0, 0], 1e-4)
    assert both.chains.num_graphs == num_graphs
    both.extend(0, 3)
    both.assert_drafts_are_near([0, 0, 0], 1e-4)
    assert both.chains.num_graphs > num_graphs


def test_tokens_past_the_last_position_are_drafted_for_nobody(cuda: PretendedCuda, models: Models):
    make = partial(drafter_on_device, models, "language model")
    both = BothChains(make, torch.float32, DEVICE)
    assert isinstance(both.captured, LanguageModelDrafter)
    num_positions, gamma = both.captured.model.num_positions, both.captured.gamma
    both.extend(0, num_positions - gamma - 1)
    both.assert_drafts_are_near([0], 1e-4)
    num_graphs = both.chains.num_graphs
    for _ in range(2):
        both.extend(0, 2)
        both.assert_drafts_are_near([0], 1e-4)
    assert both.chains.num_graphs == num_graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[:2])
def test_a_target_whose_chains_are_captured(
    cuda: PretendedCuda, models: Models, plain: dict, name: str
):
    """Seeded requests say what they say without drafts, others end well."""
    method = VerificationMethod.REJECTION
    target = target_on_device(models, name, default_method=method, backend=CudaGraphBackend(DEVICE))
    found = texts(finished(target, ASKED()))
    assert target.sampler.num_broken_laws == 0
    seeded = [key for key in found if key[0].startswith("seeded")]
    assert len(seeded) >= 3
    assert {key: found[key] for key in seeded} == {key: plain[key] for key in seeded}
