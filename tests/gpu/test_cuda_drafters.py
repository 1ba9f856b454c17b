"""Every drafter on a CUDA device: the blocks, distributions and confidences of the CPU."""

import pytest
import torch

from specserve.backends.choose import choose_backend
from tests.device.worlds import drafter_on_device
from tests.exactness.speculative import DRAFTERS, Models, make_models
from tests.gpu.parity import METHODS, assert_close, drafted

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_blocks_are_those_of_the_cpu(models: Models, name: str, method: str):
    found = {
        device: drafted(
            drafter_on_device(models, name, backend=choose_backend(torch.device(device))),
            torch.device(device),
            method,
        )
        for device in ("cpu", "cuda:0")
    }
    assert_close(found["cuda:0"], found["cpu"], atol=2e-3)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_runs_in_bfloat16(models: Models, name: str):
    device = torch.device("cuda", 0)
    drafter = drafter_on_device(models, name, torch.bfloat16, choose_backend(device))
    for method in METHODS:
        found = drafted(drafter, device, method, torch.bfloat16)
        assert ((found.token_ids >= 0) & (found.token_ids < 64)).all()
        assert found.logits is None or found.logits.isfinite().all()
        drafter.free(0)
        drafter.free(1)
