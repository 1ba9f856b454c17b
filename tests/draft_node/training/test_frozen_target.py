import pytest
import torch

from draft_node.training.frozen_target import FrozenTarget
from tests.draft_node.training.drafters import random_tokens, write_target


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def test_features_and_distributions_do_not_depend_on_the_arithmetic_of_training(target):
    tokens = random_tokens(2, 17)
    features, hidden = target.read(tokens, (0, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast_features, cast_hidden = target.read(tokens, (0, 2))
        cast_distributions = target.probs(cast_hidden)
    assert torch.equal(cast_features, features)
    assert torch.equal(cast_hidden, hidden)
    assert torch.equal(cast_distributions, target.probs(hidden))
    assert cast_distributions.dtype == torch.float32
