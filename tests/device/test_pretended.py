"""The detector detects: what CUDA refuses is refused here, and what waits for it is counted."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import sample
from tests.device.pretended import DEVICE, Mixed, PretendedCuda, pretended_cuda
from tests.specserve.sampling.test_sampling import state

# Each gets a tensor [2, 3] of the device and one of the CPU.
FORBIDDEN: dict[str, Callable[[Tensor, Tensor], object]] = {
    "sum": lambda there, here: there + here,
    "product": lambda there, here: there @ here.T,
    "joined": lambda there, here: torch.cat([there, here]),
    "indexed the wrong way": lambda there, here: here[there.long()],
    "set by index": lambda there, here: there.__setitem__([0, 1], here),
    "another device": lambda there, here: there + here.to(torch.device("cuda", 0)),
    "no device named": lambda there, here: there + torch.arange(3),
    "no index named": lambda there, here: there.index_select(0, torch.zeros(1).long()),
    "written to": lambda there, here: torch.add(there, 1, out=here),
}
ALLOWED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "number of the CPU": lambda there, here: there + here[0, 0],
    "index of the CPU": lambda there, here: there[torch.tensor([0, 1])],
    "copied": lambda there, here: there.copy_(here),
    "current device": lambda there, here: there + torch.ones(3, device="cuda"),
}
# By what they do: kind of wait, how often.
WAITING: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "tolist": (lambda there: there.tolist(), "read"),
    "item": (lambda there: there[0, 0].item(), "read"),
    "condition": (lambda there: bool(there.any()), "read"),
    "cpu": (lambda there: there.cpu(), "read"),
    "equal": (lambda there: torch.equal(there, there), "read"),
    "upload": (lambda there: torch.tensor([1, 2], device=DEVICE), "upload"),
    "list as index": (lambda there: there[[0, 1]], "upload"),
    "nonzero": (lambda there: there.nonzero(), "shape"),
    "mask as index": (lambda there: there[there > 1], "shape"),
    "repeats": (lambda there: there.repeat_interleave(there[0].long().abs(), dim=1), "shape"),
}


def two() -> tuple[Tensor, Tensor]:
    here = torch.arange(6.0).view(2, 3)
    return here.to(DEVICE), here


def survives_a_mix() -> None:
    there, here = two()
    try:
        there + here
    except RuntimeError:
        there.zero_()


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_planted_mix_is_refused_and_remembered(cuda: PretendedCuda, name: str):
    there, here = two()
    with pytest.raises(Mixed, match="Expected all tensors to be on the same device"):
        FORBIDDEN[name](there, here)
    assert len(cuda.mixes) == 1
    cuda.mixes.clear()


@pytest.mark.parametrize("name", ALLOWED)
def test_what_torch_allows_is_allowed(cuda: PretendedCuda, name: str):
    found = ALLOWED[name](*two())
    assert found.device == DEVICE


@pytest.mark.parametrize("name", WAITING)
def test_every_wait_is_counted_once(cuda: PretendedCuda, name: str):
    there, _ = two()
    cuda.forget()
    action, kind = WAITING[name]
    action(there)
    assert {found for found, _ in cuda.waits} == {kind}
    assert cuda.num_waits() == 1


def test_nothing_else_waits(cuda: PretendedCuda):
    there, _ = two()
    cuda.forget()
    there.mul_(2).softmax(dim=1).topk(2).values[:, 0].masked_fill(there[:, 0] > 1, 0.0)
    assert cuda.num_waits() == 0
    assert cuda.num_operations > 5


def test_values_and_views_are_those_of_the_cpu(cuda: PretendedCuda):
    there, here = two()
    there[:, 1:].mul_(3)
    here[:, 1:].mul_(3)
    there[1] = here[1] = torch.tensor(7.0)
    assert there.device == DEVICE
    assert torch.equal(there.cpu(), here)
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\) first"):
        np.asarray(there)


def test_a_mix_that_somebody_catches_still_fails_the_test():
    if torch.cuda.is_available():
        pytest.skip("there is a real device")
    with pytest.raises(AssertionError, match=r"aten\.add"), pretended_cuda():
        survives_a_mix()


def test_a_sampler_that_forgets_the_device_is_caught(cuda: PretendedCuda):
    logits = torch.randn(2, 64).to(DEVICE)
    states = [state(seed=row, top_p=0.9) for row in range(2)]
    assert sample(logits, SamplingBatch.build(states, DEVICE)).token_ids.device == DEVICE
    with pytest.raises(Mixed):
        sample(logits, SamplingBatch.build(states, "cpu"))
    cuda.mixes.clear()
