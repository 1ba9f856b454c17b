"""Captured sampling and ratio tests: the outcomes of those that are not captured, bit for bit."""

import random

import pytest
import torch
from msgspec.structs import replace

from specserve.backends.cuda import graphs as cuda_graphs
from specserve.backends.cuda import sampling as captured_sampling
from specserve.backends.cuda import verification as captured_ratio
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.graphs import CapturedRows
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod
from tests.device.both_samplers import compare_samples, compare_tests, random_probs, random_rows
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.test_target import finished
from tests.device.workload import PROMPT
from tests.device.worlds import target_on_device
from tests.exactness.speculative import Models
from tests.specserve.sampling.test_sampling import state
from tests.target_node.in_process import request

RATIO_METHODS = [VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE]
METHOD = VerificationMethod.FORESEEABLE
LOGITS = torch.zeros(4, 8)


def test_samples(cuda: PretendedCuda):
    compare_samples(DEVICE, 40)


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_the_ratio_test(cuda: PretendedCuda, method: VerificationMethod):
    assert compare_tests(DEVICE, method, 30) > 50


@pytest.mark.slow
@pytest.mark.parametrize("method", RATIO_METHODS)
def test_many_ratio_tests(cuda: PretendedCuda, method: VerificationMethod):
    assert compare_tests(DEVICE, method, 70) > 115


def on_device(draft_probs: DraftProbs) -> DraftProbs:
    return DraftProbs(draft_probs.ids.to(DEVICE), draft_probs.probs.to(DEVICE))


def test_a_round_waits_for_the_device_once(cuda: PretendedCuda):
    cuda_graphs.use()
    rows = random_rows(random.Random(3), METHOD)
    draft_probs, logits = random_probs(rows, torch.Generator().manual_seed(0))
    draft_probs, logits = on_device(draft_probs), logits.to(DEVICE)
    captured_ratio.verify_captured(logits, rows, draft_probs)
    before = cuda.waits.copy()
    captured_ratio.verify_captured(logits, rows, draft_probs)
    waits = cuda.waits - before
    assert sorted(kind for kind, _ in waits.elements()) == ["read", "upload"]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "other",
    [
        RowToVerify(VerificationMethod.COUPLED, state(), [3]),
        RowToVerify(VerificationMethod.REJECTION, state(), [3]),
        RowToVerify(METHOD, state(temperature=0.0), [3]),
        RowToVerify(METHOD, state(frequency_penalty=0.5), [3]),
    ],
)
def test_rows_of_another_kind_are_left_to_verify(
    cuda: PretendedCuda, other: RowToVerify, place: int
):
    cuda_graphs.use()
    rows = [RowToVerify(METHOD, state(), [3])] * 2
    rows[place] = other
    draft_probs = on_device(DraftProbs.certain(torch.tensor([3, 3])))
    logits = LOGITS.to(DEVICE)
    assert captured_ratio.verify_captured(logits, rows, draft_probs) is None
    twice = [rows[1 - place]] * 2
    assert captured_ratio.verify_captured(logits, twice, draft_probs) is not None


def test_many_logits_are_not_captured(cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch):
    cuda_graphs.use()
    rows = [RowToVerify(METHOD, state(), [3])] * 2
    draft_probs = on_device(DraftProbs.certain(torch.tensor([3, 3])))
    monkeypatch.setattr(captured_ratio, "MOST_CAPTURED", 4 * 8 - 1)
    assert captured_ratio.verify_captured(LOGITS.to(DEVICE), rows, draft_probs) is None
    assert captured_ratio.verify_captured(LOGITS[:, :7].to(DEVICE), rows, draft_probs) is not None


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.999}])
@pytest.mark.parametrize("other", [{"top_k": 7}, {"top_p": 0.99}, {"min_p": 0.01}])
def test_every_row_is_cut_as_it_asks_for(cuda: PretendedCuda, cut: dict, other: dict):
    """Whichever stands first: all but the likeliest token are cut of every other one."""
    cuda_graphs.use()
    rows = [
        RowToVerify(METHOD, state(seed=seed, **(other, cut)[seed % 2]), []) for seed in range(16)
    ]
    are_cut = [bool(place % 2) for place in range(16)]
    logits = torch.linspace(0, 0.1, 8).expand(16, 8).to(DEVICE)
    for given, only_it in ((rows, are_cut), (rows[::-1], are_cut[::-1])):
        found = captured_ratio.verify_captured(logits, given, None)
        assert found is not None
        likeliest = [token == 7 for token in found.next_tokens]
        assert all(each for each, only in zip(likeliest, only_it, strict=True) if only)
        assert not all(likeliest)


@pytest.mark.parametrize("num_probs", [None, 1, 3])
def test_every_drafted_token_has_a_distribution(cuda: PretendedCuda, num_probs: int | None):
    cuda_graphs.use()
    rows = [RowToVerify(METHOD, state(), [3])] * 2
    draft_probs = (
        None if num_probs is None else on_device(DraftProbs.certain(torch.zeros(num_probs).long()))
    )
    with pytest.raises(ValueError, match="draft"):
        captured_ratio.verify_captured(LOGITS.to(DEVICE), rows, draft_probs)


def test_so_many_rows_are_captured_at_most(cuda: PretendedCuda):
    cuda_graphs.use()
    sums = CapturedRows(lambda x, y: x.sum(1) + y, most=16)
    for count, is_captured in ((0, False), (1, True), (3, True), (4, True), (5, False)):
        x = torch.arange(4.0 * count, device=DEVICE).view(count, 4)
        found = sums(x, x[:, 0])
        assert (found is not None) == is_captured
        if found is not None:
            assert torch.equal(found.cpu(), (x.sum(1) + x[:, 0]).cpu())
    assert len(sums) == 2


def test_within_a_graph_nothing_else_is_captured(cuda: PretendedCuda):
    cuda_graphs.use()
    found: list[bool] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        found.append(cuda_graphs.are_used(DEVICE))
        return x + 1

    CapturedRows(function, most=16)(torch.zeros(1, device=DEVICE))
    assert found
    assert not any(found)
    assert cuda_graphs.are_used(DEVICE)


def test_a_failure_leaves_other_graphs_alone(cuda: PretendedCuda, caplog):
    cuda_graphs.use()

    def function(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    assert CapturedRows(function, most=16)(torch.zeros(1, device=DEVICE)) is None
    assert cuda_graphs.are_used(DEVICE)
    assert "not permitted" in caplog.text


def test_a_sampler_judges_so(cuda: PretendedCuda, models: Models):
    """By ratio, and by equality where nothing else is asked for; text is plain decoding's."""
    asked = [
        request("any", PROMPT, seed=5, max_tokens=12),
        request("cut", PROMPT, seed=6, max_tokens=12, top_p=0.9),
        replace(request("seeded", PROMPT, seed=7, max_tokens=12), seeded_by_user=True),
    ]
    plain = finished(target_on_device(models, default_method=METHOD), asked, at_once=1)["samples"]
    backend = CudaGraphBackend(DEVICE)
    target = target_on_device(models, "dspark vanilla", default_method=METHOD, backend=backend)
    found = finished(target, asked, at_once=1)["samples"]
    assert {key.cuts is None for key in captured_ratio._graphs()._found} == {True, False}
    assert len(captured_sampling._captured_samples()) > 0
    assert found["seeded", 0][0] == plain["seeded", 0][0]


def test_so_many_logits_are_judged_as_there_are_tokens(cuda: PretendedCuda):
    cuda_graphs.use()
    rows = [RowToVerify(METHOD, state(), [3])] * 2
    draft_probs = on_device(DraftProbs.certain(torch.tensor([3, 3])))
    for count in (3, 5):
        with pytest.raises(ValueError, match="logits"):
            captured_ratio.verify_captured(torch.zeros(count, 8).to(DEVICE), rows, draft_probs)
