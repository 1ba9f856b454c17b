"""How often a decode round of the target makes the host wait for the device, as it stands today.

Every wait lets the device run dry once. The bounds may only be lowered: a change that waits more
often per round, or once a row instead of once a round, fails here without any GPU.
"""

import sys
from collections import Counter
from unittest import mock

import pytest

from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.sampling.verification.method import VerificationMethod
from target_node.speculation.miss_policy import Miss
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.worlds import pair_on_device, target_on_device
from tests.exactness.speculative import Models
from tests.target_node.in_process import InProcessTarget, request
from tests.target_node.scripted_drafts import Drafting

NUM_ROUNDS = 6
NUM_ROWS = (2, 6)
FIELDS: dict[str, dict] = {
    "temperature alone": {},
    "greedy": {"temperature": 0.0},
    "truncated": {"top_p": 0.9, "top_k": 30, "min_p": 0.01},
    "penalties, bias and logprobs": {
        "presence_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {4: 3.0},
        "logprobs": 2,
    },
}
# Per round: reads, uploads, shapes. And what every row adds to the first two.
Bound = tuple[int, int, int]
PLAIN: dict[str, Bound] = {
    "temperature alone": (2, 13, 0),
    "greedy": (2, 11, 0),
    "truncated": (3, 17, 0),
    "penalties, bias and logprobs": (5, 24, 0),
}
SYNCHRONOUS: dict[VerificationMethod, Bound] = {
    VerificationMethod.COUPLED: (6, 27, 0),
    VerificationMethod.FORESEEABLE: (6, 31, 0),
    VerificationMethod.REJECTION: (6, 31, 0),
}
A_ROW_BESIDE_A_DRAFTER = (0, 1, 0)
ASYNCHRONOUS: dict[VerificationMethod, Bound] = {
    VerificationMethod.COUPLED: (4, 23, 0),
    VerificationMethod.FORESEEABLE: (4, 24, 0),
    VerificationMethod.REJECTION: (4, 24, 0),
}
# Its features are read; with a distribution it brings two tensors more.
A_ROW_WITH_A_DRAFT_PROCESS: dict[VerificationMethod, Bound] = dict.fromkeys(
    VerificationMethod, (1, 3, 0)
)
A_ROW_WITH_A_DRAFT_PROCESS[VerificationMethod.COUPLED] = (1, 1, 0)
# With all that the CUDA backend captures, a drafter beside the target or none. Whatever requests
# ask for, and however many there are: one read of what was found, two more with drafts. A real
# device makes its host wait at most so often (tests/gpu/test_cuda_waits.py).
CAPTURED: dict[str, Bound] = dict.fromkeys(FIELDS, (1, 5, 0))
CAPTURED_BESIDE_A_DRAFTER: dict[VerificationMethod, Bound] = dict.fromkeys(
    VerificationMethod, (3, 16, 0)
)
KINDS = ("read", "upload", "shape")


def decoding(target: InProcessTarget, num_rows: int, fields: dict) -> None:
    """`num_rows` requests beyond their prompts."""
    for row in range(num_rows):
        prompt = [3 + row, 14, 15, 9, 26, 5, 35, 8]
        target.submit(
            request(f"r{row}", prompt, seed=row, max_tokens=64, ignore_eos=True, **fields)
        )
    target.turn(4)


def waits_of(cuda: PretendedCuda, target: InProcessTarget, title: str) -> Bound:
    """Most waits of one round of the target, by kind; prints where they come from."""
    turn, most = target.node.turn, Counter[str]()
    where: Counter[tuple[str, str]] = Counter()

    def counted_turn() -> None:
        cuda.forget()  # what draft processes did before
        turn()
        for kind in KINDS:
            most[kind] = max(most[kind], cuda.num_waits(kind))
        where.update(cuda.waits - where)

    with mock.patch.object(target.node, "turn", counted_turn):
        target.turn(NUM_ROUNDS)
    lines = [f"  {count:3} {kind:6} {line}" for (kind, line), count in sorted(where.items())]
    sys.stdout.write("\n".join([f"{title}: {dict(most)} a round", *lines, ""]))
    assert target.node.num_requests, "the rounds counted were no decode rounds"
    return most["read"], most["upload"], most["shape"]


def within(found: Bound, bound: Bound, per_row: Bound, num_rows: int) -> bool:
    limits = (fixed + each * num_rows for fixed, each in zip(bound, per_row, strict=True))
    return all(count <= limit for count, limit in zip(found, limits, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_plain_decoding(cuda: PretendedCuda, models: Models, name: str):
    found = []
    for num_rows in NUM_ROWS:
        target = target_on_device(models)
        decoding(target, num_rows, FIELDS[name])
        found.append(waits_of(cuda, target, f"plain, {name}, {num_rows} rows"))
    assert found[0] == found[1], "a row adds waits"
    assert within(found[1], PLAIN[name], (0, 0, 0), NUM_ROWS[1])


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("method", list(VerificationMethod))
def test_a_drafter_beside_the_target(
    cuda: PretendedCuda, models: Models, method: VerificationMethod, num_rows: int
):
    target = target_on_device(models, "dspark vanilla", default_method=method)
    decoding(target, num_rows, {})
    found = waits_of(cuda, target, f"synchronous, {method.value}, {num_rows} rows")
    assert within(found, SYNCHRONOUS[method], A_ROW_BESIDE_A_DRAFTER, num_rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["truncated", "penalties, bias and logprobs"])
def test_captured_plain_decoding(cuda: PretendedCuda, models: Models, name: str):
    num_rows, backend = NUM_ROWS[1], CudaGraphBackend(DEVICE)
    target = target_on_device(models, backend=backend, captures_forwards=True)
    decoding(target, num_rows, FIELDS[name])
    target.turn(2)  # in which graphs are captured
    found = waits_of(cuda, target, f"captured, {name}, {num_rows} rows")
    assert within(found, CAPTURED[name], (0, 0, 0), num_rows)


@pytest.mark.slow
def test_captured_rounds_of_a_drafter_beside_the_target(cuda: PretendedCuda, models: Models):
    method, backend = VerificationMethod.REJECTION, CudaGraphBackend(DEVICE)
    settings = {"default_method": method, "captures_forwards": True}
    target = target_on_device(models, "dspark vanilla", backend=backend, **settings)
    decoding(target, NUM_ROWS[0], {})
    target.turn(4)
    found = waits_of(cuda, target, f"captured, synchronous, {method.value}")
    assert within(found, CAPTURED_BESIDE_A_DRAFTER[method], (0, 0, 0), NUM_ROWS[0])


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("method", list(VerificationMethod))
def test_blocks_from_a_draft_process(
    cuda: PretendedCuda, models: Models, method: VerificationMethod, num_rows: int
):
    drafting = Drafting(draft_batch=4, fan_out=8, pace=(8,))
    settings = {"default_method": method, "miss": Miss.SKIP}
    with pair_on_device(models, "dspark vanilla", drafting, **settings) as pair:
        decoding(pair, num_rows, {})
        found = waits_of(cuda, pair, f"asynchronous, {method.value}, {num_rows} rows")
        assert pair.asynchronous.status().num_hits > 0
    assert within(found, ASYNCHRONOUS[method], A_ROW_WITH_A_DRAFT_PROCESS[method], num_rows)
