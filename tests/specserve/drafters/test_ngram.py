import pytest
import torch

from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.sampling.draft_sampler import Greedy


@pytest.fixture
def drafter():
    return NgramDrafter(gamma=4, longest=3, shortest=2)


def extend(drafter, row, token_ids):
    start = drafter.context_len(row)
    drafter.extend(ContextUpdate([row], [start], [len(token_ids)], torch.tensor(token_ids), None))


def drafts(drafter, text, anchor, row=0):
    drafter.free(row)
    extend(drafter, row, text)
    speculation = drafter.draft(DraftBatch([row], torch.tensor([anchor])), Greedy())
    return speculation.token_ids[0].tolist() if speculation.lengths[0] else None


@pytest.mark.parametrize(
    ("text", "anchor", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 9, 1, 2], 3, [4, 5, 6, 7]),
        ([1, 2, 8, 8, 8, 8, 1, 2, 9, 9, 9, 9, 1], 2, [9, 9, 9, 9]),  # the latest occurrence
        ([5, 1, 2, 6, 6, 6, 6, 0, 1, 2, 7, 7, 7, 7, 5, 1], 2, [6, 6, 6, 6]),  # the longest match
        ([1, 2, 3, 1, 2], 3, [1, 2, 3, 1]),  # beyond the end it repeats its period
        ([7, 7], 7, [7, 7, 7, 7]),
        ([1, 2, 3], 4, None),
        ([1], 1, None),
        ([256, 0, 5, 5, 5, 5, 1], 0, None),  # equal bytes, but not at a token's start
        ([65536, 131072, 5, 5, 5, 5, 1], 2, None),
    ],
)
def test_what_followed_the_last_occurrence_is_proposed(drafter, text, anchor, expected):
    assert drafts(drafter, text, anchor) == expected


def test_proposals_equal_a_search_token_by_token(drafter):
    def search(text):
        for size in (3, 2):
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == text[-size:]:
                    period = len(text) - size - start
                    return [text[start + size + i % period] for i in range(4)]
        return None

    # Which all have the same bytes at other places.
    ids, generator = torch.tensor([0, 1, 65536, 65537]), torch.Generator().manual_seed(3)
    found = 0
    for _ in range(300):
        size = int(torch.randint(2, 40, (), generator=generator))
        text = ids[torch.randint(4, (size,), generator=generator)].tolist()
        expected = search(text)
        found += expected is not None
        assert drafts(drafter, text[:-1], text[-1]) == expected
    assert 50 < found < 300


def test_a_proposal_is_certain_and_a_miss_has_the_empty_distribution(drafter):
    extend(drafter, 0, [1, 2, 3, 4, 5, 6, 7, 1])
    speculation = drafter.draft(DraftBatch([0, 0], torch.tensor([2, 9])), Greedy())
    assert speculation.lengths == [4, 0]
    assert speculation.draft_probs.at(speculation.token_ids.flatten()).tolist() == [1] * 4 + [0] * 4
    assert bool(speculation.draft_probs.rows(torch.arange(4)).sound(10).all())


def test_gaps_prefixes_and_truncation_count(drafter):
    extend(drafter, 0, [1, 2, 3, 4, 5, 6, 7])
    batch = DraftBatch([0, 0, 0], torch.tensor([3, 3, 5]), [[2], [], []], [7, 2, 4])
    speculation = drafter.draft(batch, Greedy())
    assert speculation.lengths == [4, 0, 0]
    assert speculation.token_ids[0].tolist() == [4, 5, 6, 7]
    drafter.truncate(0, 4)
    extend(drafter, 0, [9, 1])
    assert drafter.draft(DraftBatch([0], torch.tensor([2])), Greedy()).token_ids[0].tolist() == [
        3, 4, 9, 1,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="ends at 6"):
        drafter.extend(ContextUpdate([0], [7], [1], torch.tensor([1]), None))
    with pytest.raises(ValueError, match="has 6 positions"):
        drafter.truncate(0, 7)
