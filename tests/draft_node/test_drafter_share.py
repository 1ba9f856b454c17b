"""One drafter for two: rows and room of each, with real contexts."""

import itertools

import pytest
import torch

from draft_node.drafter_share import DrafterShare
from specserve.drafters.context import BLOCK_SIZE
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.errors import Exhausted
from specserve.sampling.draft_sampler import Greedy
from tests.draft_node.prespeculation.rounds import features_of, tokens

PAGES = 3


@pytest.fixture
def shares(drafter) -> list[DrafterShare]:
    rows = itertools.count()
    return [DrafterShare(drafter, rows, PAGES * BLOCK_SIZE) for _ in range(2)]


def update_of(drafter, stream: int, token_ids: list[int], start: int = 0) -> ContextUpdate:
    features = None
    if drafter.feature_size:
        features = torch.from_numpy(features_of(token_ids, start, drafter.feature_size))
    return ContextUpdate([stream], [start], [len(token_ids)], torch.tensor(token_ids), features)


def drafted(drafter, stream: int, anchor: int) -> list[int]:
    batch = DraftBatch([stream], torch.tensor([anchor]))
    return drafter.draft(batch, Greedy()).token_ids[0].tolist()


def test_streams_of_the_same_number_are_two_rows(drafter, shares):
    first, second = tokens(20).tolist(), tokens(33).tolist()[13:]
    alone = []
    for text in (first, second):
        drafter.extend(update_of(drafter, 7, text))
        alone.append(drafted(drafter, 7, 5))
        drafter.free(7)
    for share, text in zip(shares, (first, second), strict=True):
        share.extend(update_of(share, 7, text))
    assert [drafted(share, 7, 5) for share in shares] == alone
    shares[0].free(7)
    assert (shares[0].context_len(7), shares[1].context_len(7)) == (0, 20)


def test_one_that_has_filled_its_share_gets_none_of_the_others(drafter, shares):
    text = tokens(PAGES * BLOCK_SIZE + 1).tolist()
    greedy, modest = shares
    greedy.extend(update_of(greedy, 1, text[:-1]))
    with pytest.raises(Exhausted, match="this target's share is 3"):
        greedy.extend(update_of(greedy, 1, text[-1:], len(text) - 1))
    with pytest.raises(Exhausted):
        greedy.extend(update_of(greedy, 2, text[:1]))
    modest.extend(update_of(modest, 1, text[:-1]))
    assert modest.context_len(1) == PAGES * BLOCK_SIZE
    greedy.truncate(1, BLOCK_SIZE + 1)
    greedy.extend(update_of(greedy, 2, text[:BLOCK_SIZE]))
    greedy.free(1)
    greedy.free(2)
    greedy.extend(update_of(greedy, 3, text[:-1]))


def test_a_refused_update_leaves_the_share_as_it_was(drafter, shares):
    text = tokens(2 * BLOCK_SIZE).tolist()
    share = shares[0]
    share.extend(update_of(share, 1, text))
    with pytest.raises(ValueError, match="not at 40"):
        share.extend(update_of(share, 1, text[:8], 40))
    share.extend(update_of(share, 2, text[:BLOCK_SIZE]))
