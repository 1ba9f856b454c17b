"""Which heads and columns each rank holds, of many models and numbers of ranks."""

from dataclasses import replace

import pytest

from specserve.errors import Unsupported
from specserve.models.dealing import check_ranks, deal, deal_heads
from tests.specserve.settings.resolving import SPEC

HEADS = [(9, 3), (4, 2), (8, 4), (8, 8), (6, 1), (15, 5), (14, 2), (32, 8), (40, 8), (64, 8)]
SIZES = [1, 3, 7, 64, 67, 100, 576, 1536, 4864, 5696, 32001, 49152, 151936]


def covers(shares) -> bool:
    """Whether they follow each other through the whole dimension, none of them empty."""
    size, end = shares[0].size, 0
    for share in shares:
        assert (share.start, share.size) == (end, size)
        assert len(share) > 0
        end = share.stop
    return end == size


@pytest.mark.parametrize("size", SIZES)
def test_columns_are_dealt_evenly_and_in_order(size):
    for num_ranks in range(1, min(size, 64) + 1):
        shares = deal(size, num_ranks)
        assert len(shares) == num_ranks
        assert covers(shares)
        widths = [len(share) for share in shares]
        if size % num_ranks == 0:
            assert set(widths) == {size // num_ranks}
        else:  # but for one step
            assert max(widths) - size / num_ranks < min(64, max(32, size / num_ranks / 4))


def test_columns_are_dealt_in_steps_that_products_like():
    assert [len(share) for share in deal(49152, 5)] == [9792, 9856, 9792, 9856, 9856]
    assert [len(share) for share in deal(576, 5)] == [96, 128, 96, 128, 128]
    assert [len(share) for share in deal(256, 7)] == [32, 32, 32, 32, 32, 32, 64]
    assert [len(share) for share in deal(32001, 2)] == [16000, 16001]
    assert [len(share) for share in deal(5, 3)] == [1, 2, 2]


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), HEADS)
def test_every_rank_has_whole_or_partial_groups_of_heads(num_heads, num_kv_heads):
    per_kv = num_heads // num_kv_heads
    for num_ranks in range(1, num_heads + 1):
        dealt = deal_heads(num_heads, num_kv_heads, num_ranks)
        assert len(dealt) == num_ranks
        assert covers([heads.queries for heads in dealt])
        for heads in dealt:
            queries, kv = heads.queries, heads.kv
            assert len(queries) % len(kv) == 0  # as attention is made
            needed = {query // per_kv for query in range(queries.start, queries.stop)}
            assert needed == set(range(kv.start, kv.stop))
            before, behind = heads.missing
            assert before + len(queries) + behind == len(kv) * per_kv
            assert queries.start - before == kv.start * per_kv
        if num_ranks <= num_kv_heads:
            assert covers([heads.kv for heads in dealt])
            assert all(heads.missing == (0, 0) for heads in dealt)
            counts = {len(heads.kv) for heads in dealt}
        else:
            assert {len(heads.kv) for heads in dealt} == {1}
            kept = [heads.kv.start for heads in dealt]
            counts = {kept.count(kv) for kv in range(num_kv_heads)}
        assert max(counts) - min(counts) <= 1


def test_nine_heads_on_three_at_two_and_four_ranks():
    two, four = ([*deal_heads(9, 3, num_ranks)] for num_ranks in (2, 4))
    assert [(h.queries.entries, h.kv.entries) for h in two] == [
        (slice(0, 3), slice(0, 1)),
        (slice(3, 9), slice(1, 3)),
    ]
    assert [(h.queries.entries, h.kv.entries) for h in four] == [
        (slice(0, 3), slice(0, 1)),
        (slice(3, 6), slice(1, 2)),
        (slice(6, 7), slice(2, 3)),
        (slice(7, 9), slice(2, 3)),
    ]
    assert [h.missing for h in four] == [(0, 0), (0, 0), (0, 2), (1, 0)]
    assert [(s.start, s.stop, s.size) for s in four[3].columns(64)] == [
        (448, 576, 576), (128, 192, 192), (128, 192, 192),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field", "most"),
    [
        ({}, "num_attention_heads", 8),
        ({"num_heads": 9, "num_kv_heads": 3}, "num_attention_heads", 9),
        ({"num_kv_heads": 1}, "num_attention_heads", 8),
        ({"vocab_size": 5}, "vocab_size", 5),
        ({"intermediate_size": 3, "hidden_size": 7}, "intermediate_size", 3),
        ({"hidden_size": 7}, "hidden_size", 7),
    ],
)
def test_more_ranks_than_there_is_to_deal_are_refused(changes, field, most):
    spec = replace(SPEC, **changes)
    for num_ranks in range(1, most + 1):
        check_ranks(spec, num_ranks)
    with pytest.raises(
        Unsupported,
        match=rf"^topology\.topology: {most + 1} target ranks, but {field} is {most}: at most "
        rf"{most} ranks work, as in --topology {most}\+0$",
    ):
        check_ranks(spec, most + 1)
