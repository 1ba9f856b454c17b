import logging
from collections.abc import Iterator

import pytest
import torch

from tests.device.pretended import PretendedCuda, pretended_cuda
from tests.exactness.speculative import Models, make_models


@pytest.fixture
def cuda(caplog: pytest.LogCaptureFixture) -> Iterator[PretendedCuda]:
    """Fails, too, where a node survived an error: it says so in its log."""
    if torch.cuda.is_available():
        pytest.skip("there is a real device, for which there is tests/gpu")
    with pretended_cuda() as mode:
        yield mode
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Folders of the target and of drafters, for any device."""
    return make_models(tmp_path_factory.mktemp("models"))
