"""Features of a position are read as they were written, wherever its block lies."""

import numpy as np
import torch

from specserve.drafters.protocol import FeatureSpec
from specserve.models.attention import AttentionBatch
from target_node.speculation.feature_cache import FeatureCache

SIZE = 4


def test_what_was_written_of_a_position_is_read_of_it():
    spec = FeatureSpec(layers=(0, 1), project=lambda residuals: residuals.sum(dim=1, keepdim=True))
    cache = FeatureCache(
        spec,
        feature_size=1,
        num_blocks=9,
        block_size=SIZE,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    tables = [np.array([5, 2, 7]), np.array([1, 8])]
    for starts, ends in [((0, 0), (6, 3)), ((6, 3), (10, 8))]:  # in chunks
        counts = np.array(ends) - np.array(starts)
        positions = np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)])
        features = torch.from_numpy(100 * np.repeat([1, 2], counts) + positions).float()[:, None]
        batch = AttentionBatch(counts, np.array(ends), tables)
        cache.write(batch, [features - 0.5, torch.full_like(features, 0.5)])
    found = cache.read([([5, 2, 7], 3, 9), ([1, 8], 0, 8), ([1, 8], 5, 5)])
    assert found[:, 0].tolist() == [*range(103, 109), *range(200, 208)]
