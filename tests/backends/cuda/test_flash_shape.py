"""Shapes of forwards that attend by pages: by tokens and rows, whatever contexts are."""

import random

import numpy as np
import pytest

from specserve.backends.cuda.flash_shape import MOST_PAGES, FlashShape, graph_bytes, padded_rows
from specserve.backends.cuda.graphs import BUCKETS, bucket_of
from specserve.models.attention import AttentionBatch


def shape_of(counts: list[int], ends: list[int]) -> FlashShape | None:
    return FlashShape.of(AttentionBatch(np.array(counts), np.array(ends), []), 16)


@pytest.mark.parametrize(
    ("counts", "ends", "shape"),
    [
        ([1], [1], (1, 1, True)),
        ([1], [100_000], (1, 1, True)),
        ([1] * 5, [90] * 5, (8, 8, True)),
        ([2], [2], (2, 2, False)),
        ([8] + [1] * 7, [90] * 8, (16, 9, False)),
        ([7, 1, 1], [90] * 3, (16, 5, False)),
        ([3, 1, 1, 1], [90] * 4, (8, 5, False)),
        ([32], [40], (32, 2, False)),
        ([33], [40], None),
        ([16] * 64, [16] * 64, (1024, 65, False)),
        ([16] * 64 + [1], [16] * 65, None),
        ([1], [16 * MOST_PAGES], (1, 1, True)),
        ([1], [16 * MOST_PAGES + 1], None),
        ([1] * 5, [16 * (MOST_PAGES - 7)] + [16] * 4, (8, 8, True)),
        ([1] * 5, [16 * (MOST_PAGES - 6)] + [16] * 4, None),  # three rows pad
    ],
)
def test_the_least_shape_of_few(counts: list, ends: list, shape: tuple | None):
    assert shape_of(counts, ends) == (None if shape is None else FlashShape(*shape))


def test_rows_are_no_more_than_queries_and_one_is_spare_where_any_pad():
    source = random.Random(2)
    for _ in range(3000):
        counts = [source.randint(1, 6) for _ in range(source.randint(1, 150))]
        num_tokens = bucket_of(sum(counts))
        rows = padded_rows(len(counts), num_tokens)
        assert len(counts) <= rows <= num_tokens
        assert sum(counts) == num_tokens or rows > len(counts)


def test_memory_of_a_captured_kernel():
    """64 rows of 8 tokens of Qwen3-8B: tiles of 128 queries, one for each row and 16 between."""
    sizes = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    assert graph_bytes(512, 65, **sizes) == 32 * (16 + 64) * 128 * (128 + 1) * 4
    assert graph_bytes(64, 64, **sizes) == 32 * (16 + 63) * 16 * (128 + 1) * 4  # decoding
    assert graph_bytes(1, 1, **sizes) == 32 * 40 * 16 * (128 + 1) * 4  # cut into parts at least
    assert graph_bytes(8, 2, **sizes) == 32 * 40 * 64 * (128 + 1) * 4
    assert graph_bytes(64, 2, **{**sizes, "head_dim": 256}) == 32 * 40 * 64 * (256 + 1) * 4
    assert max(graph_bytes(n, n, **sizes) for n in BUCKETS if n <= 512) < 256 << 20
