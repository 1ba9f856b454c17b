"""The method of equality on host values, against the same method in tensors."""

import random
from dataclasses import replace

import pytest
import torch

from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import NO_TOKEN, sample
from specserve.sampling.verification.batch import VerificationBatch
from specserve.sampling.verification.method import (
    AcceptedPrefix,
    VerificationMethod,
    accepted_prefix,
)
from specserve.sampling.verification.verify import verify
from tests.specserve.sampling.test_sampling import state
from tests.specserve.sampling.test_verification import random_rows


def drawn_along(row, logits):
    return sample(logits, SamplingBatch.build(row.state.along(row.drafted))).token_ids.tolist()


def with_right_ones(rng, row, logits):
    """`row` with some of its drafted tokens replaced by the target's."""
    drawn = drawn_along(row, logits)
    pairs = zip(row.drafted, drawn, strict=False)
    return replace(row, drafted=[right if rng.random() < 0.7 else own for own, right in pairs])


def test_walks_are_those_of_verify():
    rng = random.Random(3)
    rows, logits, _ = random_rows(rng, 200, [VerificationMethod.COUPLED])
    flat = torch.cat(logits)
    for place in rng.sample(range(len(flat)), 40):
        flat[place, rng.randrange(flat.shape[1])] = rng.choice([torch.nan, torch.inf])
    rows = [with_right_ones(rng, row, part) for row, part in zip(rows, logits, strict=True)]
    found = verify(flat, VerificationBatch.build(rows))
    spoiled = found.spoiled_rows.tolist()
    parts = flat.split([len(row.drafted) + 1 for row in rows])
    for place, (row, part) in enumerate(zip(rows, parts, strict=True)):
        expected = int(found.num_accepted[place]), int(found.next_tokens[place]), spoiled[place]
        assert accepted_prefix(row.drafted, drawn_along(row, part)) == expected
    assert 20 < sum(spoiled) < 60
    assert found.num_accepted.sum() > 20


@pytest.mark.parametrize(
    ("drafted", "drawn", "expected"),
    [
        ([], [7], AcceptedPrefix(0, 7, False)),
        ([7, 8], [7, 8, 9], AcceptedPrefix(2, 9, False)),
        ([7, 8], [7, 5, 8], AcceptedPrefix(1, 5, False)),
        ([7, 8], [5, 8, 9], AcceptedPrefix(0, 5, False)),
        ([7, 8], [5, NO_TOKEN, 9], AcceptedPrefix(0, 5, True)),
        ([7, 8], [7, 8, NO_TOKEN], AcceptedPrefix(2, NO_TOKEN, True)),
    ],
)
def test_a_walk_ends_at_the_first_token_that_differs(drafted, drawn, expected):
    assert accepted_prefix(drafted, drawn) == expected


@pytest.mark.parametrize("drawn", [[7], [7, 8, 9, 10]])
def test_a_walk_needs_a_token_for_every_place(drawn):
    with pytest.raises(ValueError, match="drawn along 2 drafted"):
        accepted_prefix([7, 8], drawn)


def test_likeliest_tokens_are_the_first_of_equals_and_none_of_what_is_no_number():
    logits = torch.tensor(
        [
            [1.0, 3.0, 3.0, 2.0],
            [1.0, torch.nan, 9.0, 2.0],
            [1.0, torch.inf, 2.0, 3.0],
            [-torch.inf] * 4,
            [-torch.inf, -5.0, -torch.inf, -5.0],
        ]
    )
    before = logits.clone()
    batch = SamplingBatch.build([state(temperature=0.0)] * len(logits))
    found = sample(logits, batch)
    assert found.token_ids.tolist() == [1, NO_TOKEN, NO_TOKEN, NO_TOKEN, 1]
    assert found.bad_rows.tolist() == [False, True, True, True, False]
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    assert sample(logits[:, :0].new_zeros(0, 4), batch).token_ids.tolist() == []
