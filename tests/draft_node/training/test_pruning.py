"""A model cut out of its target is the target, but for what was cut away."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_node.training.decoder import Decoder, DecoderConfig
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.pruning import cut
from specserve.errors import InvalidField
from specserve.models.transformer import EMBEDDING_TAP
from tests.draft_node.training.drafters import random_tokens, write_target

IDLE = 5  # units of every feed-forward block that write nothing


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    folder = write_target(tmp_path_factory.mktemp("target"))
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("down_proj.weight"):
            weight[:, 2 : 2 + IDLE] = 0
    save_file(weights, folder / "model.safetensors")
    return FrozenTarget(folder)


def shape(target, num_layers=3, num_idle=0) -> DecoderConfig:
    spec = target.spec
    return DecoderConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size - num_idle,
        rope_theta=spec.rope.theta,
        rms_norm_eps=spec.rms_norm_eps,
        max_position_embeddings=spec.max_position_embeddings,
    )


@torch.no_grad()
def logits_of(config, weights, token_ids):
    model = Decoder(config)
    model.load_state_dict(weights)
    return model(token_ids)


@pytest.mark.parametrize("num_idle", [0, IDLE])
def test_without_units_that_write_nothing_it_is_the_target(target, num_idle):
    config, token_ids = shape(target, num_idle=num_idle), random_tokens(4, 48)
    weights = cut(target, (0, 1, 2), config, random_tokens(8, 64, seed=9))
    _, hidden = target.read(token_ids, (EMBEDDING_TAP,))
    # The columns were fitted again, with a ridge that holds them back a little.
    tolerance = 1e-4 if num_idle == 0 else 0.1
    expected = hidden @ target.lm_head.T
    found = logits_of(config, weights, token_ids)
    assert (found - expected).abs().mean() < tolerance * expected.abs().mean()


def test_layers_come_in_the_order_given(target):
    weights = cut(target, (2, 0), shape(target, 2), random_tokens(2, 16))
    for place, layer in enumerate((2, 0)):
        for name, weight in target.layer_tensors(layer).items():
            assert torch.equal(weights[f"model.layers.{place}.{name}"], weight)


@pytest.mark.parametrize(
    ("layers", "changes", "problem"),
    [
        ((0, 3), {}, "--cut: the target has no layer 3"),
        ((0, 1, 2), {}, "--cut: 3 layers are not 2"),
        ((0, 1), {"intermediate_size": 10**6}, "--intermediate"),
        ((0, 1), {"hidden_size": 8}, "--hidden"),
        ((0, 1), {"rope_theta": 7.0}, "--cut: a target with other norms"),
    ],
)
def test_what_the_target_does_not_have_cannot_be_cut_out(target, layers, changes, problem):
    with pytest.raises(InvalidField, match=problem):
        cut(target, layers, replace(shape(target, 2), **changes), random_tokens(1, 8))
