"""Features of a position are read as they were written, wherever its block lies."""

import numpy as np
import pytest
import torch

from specserve.drafters.protocol import FeatureSpec
from specserve.models.attention import AttentionBatch
from target_node.speculation.feature_cache import FeatureCache

SIZE = 4


def make_cache(
    project=lambda residuals: residuals.sum(dim=1, keepdim=True), *, is_deferred=True
) -> FeatureCache:
    return FeatureCache(
        FeatureSpec(layers=(0, 1), project=project),
        feature_size=1,
        num_blocks=9,
        block_size=SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
        is_deferred=is_deferred,
    )


def write(cache: FeatureCache, position: int, feature: float) -> None:
    """Of one row, in block 3."""
    batch = AttentionBatch(np.array([1]), np.array([position + 1]), [np.array([3])])
    cache.write(batch, [torch.tensor([[feature]]), torch.zeros(1, 1)])


@pytest.mark.parametrize("is_deferred", [True, False])
def test_of_a_slot_that_was_written_twice_the_last_counts(is_deferred):
    """The first was of a token that was rejected."""
    cache = make_cache(is_deferred=is_deferred)
    for position, feature in ((0, 1.0), (1, 2.0), (1, 3.0), (2, 4.0)):
        write(cache, position, feature)
    assert cache.read([([3], 0, 3)])[:, 0].tolist() == [1.0, 3.0, 4.0]
    write(cache, 1, 5.0)
    assert cache.read([([3], 0, 3)])[:, 0].tolist() == [1.0, 5.0, 4.0]


def test_rounds_that_nobody_reads_are_projected_together():
    calls: list[int] = []

    def project(residuals):
        calls.append(len(residuals))
        return residuals.sum(dim=1, keepdim=True)

    cache = make_cache(project)
    for number in range(64):
        write(cache, number % SIZE, float(number))
    assert calls == [SIZE]  # of 64 tokens in four slots
    assert cache.read([([3], 0, 4)])[:, 0].tolist() == [60.0, 61.0, 62.0, 63.0]
    assert calls == [SIZE]


def test_what_was_written_of_a_position_is_read_of_it():
    cache = make_cache()
    tables = [np.array([5, 2, 7]), np.array([1, 8])]
    for starts, ends in [((0, 0), (6, 3)), ((6, 3), (10, 8))]:  # in chunks
        counts = np.array(ends) - np.array(starts)
        positions = np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)])
        features = torch.from_numpy(100 * np.repeat([1, 2], counts) + positions).float()[:, None]
        batch = AttentionBatch(counts, np.array(ends), tables)
        cache.write(batch, [features - 0.5, torch.full_like(features, 0.5)])
    found = cache.read([([5, 2, 7], 3, 9), ([1, 8], 0, 8), ([1, 8], 5, 5)])
    assert found[:, 0].tolist() == [*range(103, 109), *range(200, 208)]
