"""What tests/gpu asks of a real device, asked of the pretended one: the tests themselves run."""

import pytest
import torch

from specserve.backends.choose import choose_backend
from specserve.drafters.block_drafter import BlockDrafter
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.worlds import drafter_on_device
from tests.exactness.speculative import DRAFTERS, Models
from tests.gpu.parity import LENGTHS, METHODS, assert_close, drafted

QUICK = ["dspark vanilla", "eagle3", "dflash with a local head", "speculators"]
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DRAFTERS]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_those_of_the_cpu(cuda: PretendedCuda, models: Models, name: str, method: str):
    here = torch.device("cpu")
    expected = drafted(drafter_on_device(models, name, backend=choose_backend(here)), here, method)
    found = drafted(drafter_on_device(models, name), DEVICE, method)
    assert_close(found, expected, atol=1e-4)


@pytest.mark.slow
def test_entries_of_a_context_are_read_where_they_are(cuda: PretendedCuda, models: Models):
    drafter = drafter_on_device(models, "dspark vanilla")
    drafted(drafter, DEVICE, "greedy")
    assert isinstance(drafter, BlockDrafter)
    keys, values = drafter.context.read(1, 0)
    assert keys.device == values.device == DEVICE
    assert keys.shape[1] == LENGTHS[1]
