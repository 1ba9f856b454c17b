"""Captured rounds: outcomes of those that are not captured, bit for bit; what is captured."""

import logging
import random

import pytest
import torch
from msgspec.structs import replace

from specserve.backends.cuda import graphs as cuda_graphs
from specserve.backends.cuda import round_shape
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.round_shape import RoundShape
from specserve.backends.cuda.verification import CapturedVerification
from specserve.backends.torch.backend import TorchBackend
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.random_rounds import Kinds, compare_rounds, random_round
from tests.device.test_target import finished
from tests.device.workload import PROMPT, both_kinds
from tests.device.worlds import target_on_device
from tests.exactness.speculative import Models
from tests.specserve.sampling.test_sampling import state
from tests.target_node.in_process import request

METHOD = VerificationMethod.FORESEEABLE
LOGITS = torch.zeros(4, 8)


def test_random_rounds(cuda: PretendedCuda):
    """Each twice, with other rows the second time: a replay knows nothing but its memory."""
    backend, reference = CudaGraphBackend(DEVICE), TorchBackend(DEVICE)
    everything = Kinds(greedy=True, cuts=True, edits=True, grammars=True, logprobs=True)
    for kinds in (everything, Kinds(), Kinds((METHOD,)), everything._replace(methods=(METHOD,))):
        source = random.Random(len(kinds.methods))
        given = [random_round(source, kinds, most_rows=3).on(DEVICE) for _ in range(2)]
        for each in (*given, given[0]):
            assert backend.verify(*each) == reference.verify(*each)


@pytest.mark.slow
def test_many_random_rounds(cuda: PretendedCuda):
    assert compare_rounds(DEVICE, random.Random(9), 20, most_rows=5) > 5


def on_device(draft_probs: DraftProbs) -> DraftProbs:
    return DraftProbs(draft_probs.ids.to(DEVICE), draft_probs.probs.to(DEVICE))


def test_a_round_is_one_copy_to_the_device_and_one_back(cuda: PretendedCuda):
    """Whatever its rows ask for."""
    verify = CapturedVerification()
    kinds = Kinds(greedy=True, cuts=True, edits=True, grammars=True, logprobs=True)
    given = random_round(random.Random(3), kinds).on(DEVICE)
    assert verify(*given) is not None
    before = cuda.waits.copy()
    verify(*given)
    waits = cuda.waits - before
    assert sorted(kind for kind, _ in waits.elements()) == ["read", "upload"]


def test_many_logits_are_not_captured_and_the_log_says_so(
    cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    rows, verify = [RowToVerify(METHOD, state(), [3])] * 2, CapturedVerification()
    draft_probs = on_device(DraftProbs.certain(torch.tensor([3, 3])))
    monkeypatch.setattr(round_shape, "MOST_LOGITS", 4 * 8 - 1)
    round_shape.say_once.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert verify(LOGITS.to(DEVICE), rows, draft_probs) is None
    assert verify(LOGITS[:, :7].to(DEVICE), rows, draft_probs) is not None
    assert caplog.text.count("verified kernel by kernel, which is slower: more than 31 logits") == 1


@pytest.mark.parametrize(
    ("fields", "num_rows", "why_not"),
    [
        ({}, 64, ""),
        ({"top_k": 20}, 64, ""),
        ({}, 128, "more than 16777216 logits a round"),
        ({"top_p": 0.9}, 24, ""),
        ({"top_p": 0.9}, 25, "more than 4194304 logits a round with top_p"),
    ],
)
def test_rounds_of_large_vocabularies(fields: dict, num_rows: int, why_not: str):
    rows = [RowToVerify(METHOD, state(**fields))] * num_rows
    logits = torch.empty(num_rows, 151_936, device="meta")
    assert RoundShape.of(logits, rows, [False] * num_rows, None).why_not() == why_not


@pytest.mark.parametrize(("num_seen", "is_captured"), [(3, True), (5, False)])
def test_a_row_that_has_seen_more_tokens_than_its_table_has_is_the_reference_s(
    cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch, num_seen: int, is_captured: bool
):
    monkeypatch.setattr(round_shape, "SEEN_SIZES", (2, 4))
    made = state(prompt=range(num_seen), repetition_penalty=1.5, temperature=0.0)
    logits, rows = torch.ones(1, 8, device=DEVICE), [RowToVerify(METHOD, made)]
    found = CapturedVerification()(logits, rows, None)
    assert (found is not None) == is_captured
    assert CudaGraphBackend(DEVICE).verify(logits, rows, None).next_tokens == [num_seen]


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.999}])
@pytest.mark.parametrize("other", [{"top_k": 7}, {"top_p": 0.99}, {"min_p": 0.01}])
def test_every_row_is_cut_as_it_asks_for(cuda: PretendedCuda, cut: dict, other: dict):
    """Whichever stands first: all but the likeliest token are cut of every other one."""
    verify = CapturedVerification()
    rows = [
        RowToVerify(METHOD, state(seed=seed, **(other, cut)[seed % 2]), []) for seed in range(16)
    ]
    are_cut = [bool(place % 2) for place in range(16)]
    logits = torch.linspace(0, 0.1, 8).expand(16, 8).to(DEVICE)
    for given, only_it in ((rows, are_cut), (rows[::-1], are_cut[::-1])):
        found = verify(logits, given, None)
        assert found is not None
        likeliest = [token == 7 for token in found.next_tokens]
        assert all(each for each, only in zip(likeliest, only_it, strict=True) if only)
        assert not all(likeliest)


@pytest.mark.parametrize("num_probs", [None, 1, 3])
def test_every_drafted_token_has_a_distribution(cuda: PretendedCuda, num_probs: int | None):
    rows = [RowToVerify(METHOD, state(), [3])] * 2
    draft_probs = (
        None if num_probs is None else on_device(DraftProbs.certain(torch.zeros(num_probs).long()))
    )
    with pytest.raises(ValueError, match="draft"):
        CapturedVerification()(LOGITS.to(DEVICE), rows, draft_probs)


def test_so_many_logits_are_judged_as_there_are_tokens(cuda: PretendedCuda):
    rows = [RowToVerify(METHOD, state(), [3])] * 2
    draft_probs = on_device(DraftProbs.certain(torch.tensor([3, 3])))
    for count in (3, 5):
        with pytest.raises(ValueError, match="logits"):
            CapturedVerification()(torch.zeros(count, 8).to(DEVICE), rows, draft_probs)


def test_within_a_graph_nothing_else_is_captured(cuda: PretendedCuda):
    found: list[bool] = []

    class Made:
        def __call__(self) -> None:
            found.append(cuda_graphs.are_used(DEVICE))

    cuda_graphs.use()
    cuda_graphs.CapturedGraphs(lambda _: Made()).run("any", lambda _: None)
    assert found
    assert not any(found)
    assert cuda_graphs.are_used(DEVICE)


def test_a_failure_leaves_other_graphs_alone(cuda: PretendedCuda, caplog):
    class Fails:
        def __call__(self) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

    cuda_graphs.use()
    assert cuda_graphs.CapturedGraphs(lambda _: Fails()).run("any", lambda _: None) is None
    assert cuda_graphs.are_used(DEVICE)
    assert "not permitted" in caplog.text


def test_a_sampler_judges_so(cuda: PretendedCuda, models: Models):
    """By ratio and by equality; text is plain decoding's."""
    asked = [
        request("any", PROMPT, seed=5, max_tokens=12),
        request("cut", PROMPT, seed=6, max_tokens=12, top_p=0.9),
        replace(request("seeded", PROMPT, seed=7, max_tokens=12), seeded_by_user=True),
    ]
    plain = finished(target_on_device(models, default_method=METHOD), asked, at_once=1)["samples"]
    backend = CudaGraphBackend(DEVICE)
    target = target_on_device(models, "dspark vanilla", default_method=METHOD, backend=backend)
    found = finished(target, asked, at_once=1)["samples"]
    shapes = backend.verification.graphs._found
    assert {shape.cuts is None for shape in shapes} == {True, False}
    assert {shape.num_kept > 0 for shape in shapes} == {True, False}
    assert found["seeded", 0][0] == plain["seeded", 0][0]


def test_requests_of_every_field_are_sampled_by_graphs_alone(cuda: PretendedCuda, models: Models):
    """Beside each other, and their texts are those of kernels that are begun one by one."""
    plain = finished(target_on_device(models), both_kinds())["samples"]
    backend = CudaGraphBackend(DEVICE)
    reference = backend.verification.__class__.__call__
    answers: list[bool] = []

    def heard(self: CapturedVerification, *given):
        found = reference(self, *given)
        answers.append(found is not None)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CapturedVerification, "__call__", heard)
        found = finished(target_on_device(models, backend=backend), both_kinds())["samples"]
    assert answers
    assert all(answers)
    shapes = list(backend.verification.graphs._found)
    assert any(shape.edits and shape.edits.num_seen for shape in shapes)
    assert any(shape.num_listed for shape in shapes)
    assert found == plain
