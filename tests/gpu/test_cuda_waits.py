"""How often a round makes the host wait for the device, counted by torch on a real one.

The bounds are those of the pretended device (tests/device/test_waits.py), which counts copies to
the device as waits that a real one may not wait for: after the first run here they can be lowered.
Rounds in which something is captured do not count. This has never run.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specserve.backends.cuda import graphs as cuda_graphs
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.sampling.verification.method import VerificationMethod
from tests.device.test_waits import (
    CAPTURED,
    CAPTURED_BESIDE_A_DRAFTER,
    FIELDS,
    NUM_ROUNDS,
    decoding,
)
from tests.device.worlds import target_on_device
from tests.exactness.speculative import Models, make_models
from tests.target_node.in_process import InProcessTarget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda", 0)
NUM_ROWS = 4


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    yield make_models(tmp_path)
    cuda_graphs._process.uses = False


def waits_of(target: InProcessTarget) -> list[list[str]]:
    """Lines that waited, of each of some rounds that captured nothing."""
    found: list[list[str]] = []
    for _ in range(8 * NUM_ROUNDS):
        before = cuda_graphs.num_captured()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                target.turn()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert target.node.num_requests, "the rounds counted were no decode rounds"
        if cuda_graphs.num_captured() == before:
            waits = (w for w in heard if "synchronizing" in str(w.message))
            found.append([f"{w.filename}:{w.lineno}" for w in waits])
        if len(found) == NUM_ROUNDS:
            return found
    raise AssertionError("every round captures something")


def test_waits_are_counted():
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            torch.ones(1, device=DEVICE).item()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert any("synchronizing" in str(w.message) for w in heard)


@pytest.mark.parametrize("name", FIELDS)
def test_plain_decoding_waits_no_more_often_than_it_did(models: Models, name: str):
    target = target_on_device(models, backend=CudaGraphBackend(DEVICE), captures_forwards=True)
    decoding(target, NUM_ROWS, FIELDS[name])
    for waits in waits_of(target):
        assert 1 <= len(waits) <= sum(CAPTURED[name]), waits


@pytest.mark.parametrize("method", list(VerificationMethod))
def test_a_drafter_beside_the_target_waits_no_more_often_than_it_did(
    models: Models, method: VerificationMethod
):
    settings = {"default_method": method, "captures_forwards": True}
    backend = CudaGraphBackend(DEVICE)
    target = target_on_device(models, "dspark vanilla", backend=backend, **settings)
    decoding(target, NUM_ROWS, {})
    for waits in waits_of(target):
        assert 1 <= len(waits) <= sum(CAPTURED_BESIDE_A_DRAFTER[method]), waits
