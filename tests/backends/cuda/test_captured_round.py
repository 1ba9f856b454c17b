"""What a graph verifies rounds by, on this CPU and not captured: the outcomes of the reference."""

import random
from collections.abc import Callable

import pytest
import torch

from specserve.backends.cuda.verification import CapturedVerification
from specserve.backends.torch.verification import verified
from specserve.sampling.verification.method import VerificationMethod
from tests.device.random_rounds import (
    METHODS,
    Kinds,
    random_kinds,
    random_round,
)


class Uncaptured:
    """Runs what it would capture, over the same memory."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        function()
        return function


def compare(source: random.Random, num_rounds: int, kinds: Kinds | None = None) -> int:
    """Of random rounds, to the last bit of their log probabilities; how many tokens stood."""
    verify, num_accepted = CapturedVerification(Uncaptured()), 0
    for _ in range(num_rounds):
        given = random_round(source, kinds or random_kinds(source))
        before = given.logits.clone()
        found = verify(*given)
        assert found == verified(*given)
        assert torch.equal(given.logits.nan_to_num(), before.nan_to_num())
        num_accepted += sum(found.num_accepted)
    assert len(verify.graphs) > 1  # and each was met by several rounds
    return num_accepted


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asks", ["nothing", "greedy", "cuts", "edits", "grammars", "logprobs"])
def test_every_kind_of_rows_under_every_rule(method: VerificationMethod, asks: str):
    kinds = Kinds((method,)) if asks == "nothing" else Kinds((method,), **{asks: True})
    assert compare(random.Random(f"{method} {asks}"), 12, kinds) > 5


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_all_kinds_beside_each_other(seed: int):
    assert compare(random.Random(seed), 60) > 60
