"""A model cut out of its target is the target, but for what was cut away."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_node.training.decoder import Decoder, FrozenEmbeddings
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.pruning import cut, cut_shape
from specserve.errors import InvalidField
from specserve.models.transformer import EMBEDDING_TAP
from tests.draft_node.training.drafters import TARGETS, random_tokens, write_target

IDLE = 5  # units of every feed-forward block that write nothing


@pytest.fixture(scope="module", params=TARGETS)
def target(request, tmp_path_factory) -> FrozenTarget:
    folder = write_target(tmp_path_factory.mktemp("target"), **TARGETS[request.param])
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("down_proj.weight"):
            weight[:, 2 : 2 + IDLE] = 0
    save_file(weights, folder / "model.safetensors")
    return FrozenTarget(folder)


@pytest.mark.parametrize("owns", [True, False])
@pytest.mark.parametrize("num_idle", [0, IDLE])
def test_without_units_that_write_nothing_it_is_the_target(target, num_idle, owns):
    width, token_ids = target.spec.intermediate_size - num_idle, random_tokens(4, 48)
    sample = random_tokens(8, 64, seed=9)
    weights = cut(target, (0, 1, 2), width, sample, with_embeddings=owns)
    frozen = None if owns else FrozenEmbeddings(target.embedding, target.lm_head)
    model = Decoder(cut_shape(target.spec, (0, 1, 2), width), frozen)
    model.load_state_dict(weights)
    _, hidden = target.read(token_ids, (EMBEDDING_TAP,))
    # The columns were fitted again, with a ridge that holds them back a little.
    tolerance = 1e-4 if num_idle == 0 else 0.1
    expected = hidden @ target.lm_head.T
    with torch.no_grad():
        found = model(token_ids)
    assert (found - expected).abs().mean() < tolerance * expected.abs().mean()


def test_layers_come_in_the_order_given(target):
    width = target.spec.intermediate_size
    weights = cut(target, (2, 0), width, random_tokens(2, 16), with_embeddings=False)
    assert all(name.startswith(("model.layers.", "model.norm.")) for name in weights)
    for place, layer in enumerate((2, 0)):
        for name, weight in target.layer_tensors(layer).items():
            assert torch.equal(weights[f"model.layers.{place}.{name}"], weight)


def test_what_the_target_does_not_have_cannot_be_cut_out(target):
    with pytest.raises(InvalidField, match=r"--cut: 3: the target has layers 0\.\.2"):
        cut_shape(target.spec, (0, 3), 8)
    with pytest.raises(InvalidField, match="--intermediate: 65: the target has 64 units"):
        cut_shape(target.spec, (0, 1), 65)
