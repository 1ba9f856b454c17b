"""A trained EAGLE-3 and the drafter that is loaded from its export compute the same."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from draft_node.training import losses
from draft_node.training.block_objective import BlockObjective
from draft_node.training.blocks import cut_blocks
from draft_node.training.eagle3_model import Eagle3Model
from draft_node.training.eagle3_start import default_feature_layers
from draft_node.training.frozen_target import FrozenTarget
from specserve.drafters.eagle3 import Eagle3Drafter
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import TargetWeights
from tests.draft_node.training.drafters import (
    make_objective,
    patterned_stream,
    random_tokens,
    write_target,
)
from tests.draft_node.training.test_block_model import export
from tests.draft_node.training.test_block_objective import SCHEDULE, ignore, loss_of, trainer
from tests.golden_blocks import Recorder
from tests.specserve.drafters.checkpoints import options
from tests.specserve.models.checkpoints import LLAMA

LENGTH = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def make(target: FrozenTarget, **config) -> BlockObjective:
    return make_objective(target, "eagle3", terms=losses.EAGLE3, **config)


def trained_logits(objective, target, tokens, anchors, gaps, max_gap=5) -> torch.Tensor:
    """[A, G, V] of the blocks at `anchors` of one row, as the training sees them."""
    drafter = objective.drafter
    places = torch.tensor([anchors]), torch.tensor([gaps])
    blocks = cut_blocks(tokens, *places, drafter.shape(max_gap))
    features, _ = target.read(tokens[:, :-1], drafter.spec.feature_layers)
    with torch.no_grad():
        hidden = drafter.hidden(features, target.embedding, blocks)[0]
        return drafter.heads(hidden, target.lm_head, blocks.previous_ids[0])[0]


class Served:
    """The exported drafter, following one row from round to round."""

    def __init__(self, out, target: FrozenTarget, tokens: torch.Tensor) -> None:
        loaded = load_drafter(out, TargetWeights.of(target.folder), options())
        assert isinstance(loaded, Eagle3Drafter)
        self.drafter, self.tokens = loaded, tokens[0]
        features, _ = target.read(tokens, loaded.features.layers)
        self.projected = loaded.features.project(features[0])

    def logits(self, anchor: int, gap: int = 0) -> torch.Tensor:
        """[G, V] of the block at `anchor`; the row is cut or extended to what it may know."""
        known, have = anchor - gap, self.drafter.context_len(0)
        if known < have:
            self.drafter.truncate(0, known)
        elif known > have:
            new = slice(have, known)
            update = ContextUpdate(
                [0], [have], [known - have], self.tokens[new], self.projected[new]
            )
            self.drafter.extend(update)
        recorder = Recorder(self.tokens[anchor + 1 :])
        batch = DraftBatch(
            [0], self.tokens[anchor : anchor + 1], [self.tokens[known:anchor].tolist()]
        )
        self.drafter.draft(batch, recorder)
        return recorder.logits


def check_equal(objective, target, out, gap: int) -> None:
    tokens = random_tokens(1, LENGTH)
    anchors = [gap + 1, gap + 2, 9, 10, 23, 35, 12]  # forwards, as rounds go, and back again
    expected = trained_logits(objective, target, tokens, anchors, [gap] * len(anchors))
    served = Served(out, target, tokens)
    for place, anchor in enumerate(anchors):
        torch.testing.assert_close(
            served.logits(anchor, gap), expected[place], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("gap", [0, 1, 5])
def test_the_exported_drafter_computes_what_was_trained(gap, target, tmp_path):
    objective = make(target)
    export(objective, tmp_path)
    check_equal(objective, target, tmp_path, gap)


def test_of_a_target_whose_context_is_stretched_too(tmp_path):
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    rope = {**yarn, "original_max_position_embeddings": 16}
    target = FrozenTarget(write_target(tmp_path / "target", rope_parameters=rope))
    assert target.spec.rope.attention_factor > 1.1
    objective = make(target)
    export(objective, tmp_path / "out")
    check_equal(objective, target, tmp_path / "out", 1)


def test_a_llama_with_scaled_rotations_and_its_own_head_gets_a_drafter(tmp_path):
    changes = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}
    target = FrozenTarget(write_target(tmp_path / "target", LLAMA, **changes))
    objective = make(target)
    export(objective, tmp_path / "draft")
    check_equal(objective, target, tmp_path / "draft", gap=2)


def test_gaps_in_one_batch_do_not_disturb_each_other(target):
    objective, tokens = make(target), random_tokens(1, LENGTH)
    anchors, gaps = [1, 7, 9, 30], [0, 5, 0, 2]
    together = trained_logits(objective, target, tokens, anchors, gaps)
    for place, (anchor, gap) in enumerate(zip(anchors, gaps, strict=True)):
        alone = trained_logits(objective, target, tokens, [anchor], [gap], max_gap=gap)
        torch.testing.assert_close(together[place], alone[0], atol=1e-5, rtol=1e-5)


def test_the_first_step_reads_the_target_and_later_ones_the_drafter_itself(target):
    """A single step from a chain's own output is what the unrolled chain goes on with."""
    objective, tokens = make(target), random_tokens(1, LENGTH)
    drafter, anchor = objective.drafter, 11
    features, _ = target.read(tokens[:, :-1], drafter.spec.feature_layers)
    blocks = cut_blocks(tokens, torch.tensor([[anchor]]), torch.tensor([[0]]), drafter.shape(0))
    unrolled = drafter.hidden(features, target.embedding, blocks)[0, 0]

    changed = features.clone()
    changed[:, anchor:] = 7.0  # of the anchor and what follows: not known when it drafts
    assert torch.equal(drafter.hidden(changed, target.embedding, blocks)[0, 0], unrolled)
    changed[:, anchor - 1] = 7.0
    moved = drafter.hidden(changed, target.embedding, blocks)[0, 0]
    assert all(not torch.allclose(moved[step], unrolled[step]) for step in range(len(unrolled)))


def test_gradients_flow_back_through_every_step(target):
    objective, tokens = make(target), random_tokens(2, 33)
    drafter = objective.drafter
    features, last_hidden = target.read(tokens[:, :-1], drafter.spec.feature_layers)
    features.requires_grad_()
    anchors = torch.tensor([[9], [20]])
    blocks = cut_blocks(tokens, anchors, torch.zeros_like(anchors), drafter.shape(0))
    hidden = drafter.hidden(features, target.embedding, blocks)
    # Of the last slot alone: its only way to this feature is the chain.
    hidden[:, :, -1].sum().backward()
    for row, anchor in enumerate(anchors[:, 0].tolist()):
        assert features.grad[row, anchor - 1].any()
        assert not features.grad[row, anchor:].any()
    assert last_hidden.grad is None


def test_the_loss_is_the_cross_entropy_with_the_targets_distributions(target):
    objective, tokens = make(target), random_tokens(1, 33)
    drafter, anchors = objective.drafter, [5, 17]
    blocks = cut_blocks(
        tokens, torch.tensor([anchors]), torch.zeros(1, 2, dtype=torch.int64), drafter.shape(0)
    )
    features, last_hidden = target.read(tokens[:, :-1], drafter.spec.feature_layers)
    hidden = drafter.hidden(features, target.embedding, blocks)
    aligned = torch.stack([last_hidden[0, a : a + drafter.spec.gamma] for a in anchors])[None]
    loss = objective.block_loss(hidden, aligned, blocks)

    distributions, steps = target.probs(aligned[0]), torch.arange(drafter.spec.gamma)
    logs = trained_logits(objective, target, tokens, anchors, [0, 0]).log_softmax(-1)
    nats, weights = -(distributions * logs).sum(-1), (0.8**steps).expand(2, -1)
    torch.testing.assert_close(loss, (nats * weights).sum() / weights.sum(), atol=1e-4, rtol=1e-4)


def test_every_parameter_learns_and_the_target_is_no_parameter(target):
    objective = make(target, max_gap=2)
    loss_of(objective)
    assert all(p.grad.any() for p in objective.parameters())
    assert all(name.startswith("drafter.") for name in objective.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("bfloat16", [False, True])
def test_training_learns_what_the_target_does(bfloat16, target, tmp_path):
    objective = make(target)
    rows = torch.from_numpy(patterned_stream(264).astype(np.int64)).view(8, 33)

    def loss() -> float:
        torch.manual_seed(5)  # the same chains before and after
        with torch.no_grad():
            return float(objective.loss(rows[:, :-1], rows[:, 1:]))

    _, hidden = target.read(rows[:, :-1], (0,))
    distributions = target.probs(hidden)
    # Nats of the distributions themselves.
    least = float(-(distributions * distributions.log()).sum(-1).mean())
    run = trainer(objective, tmp_path, bfloat16=bfloat16)
    figure, before = run.evaluate()["code"], loss()
    run.run(SCHEDULE, ignore)
    assert loss() - least < 0.75 * (before - least)
    assert 1 <= figure < run.evaluate()["code"] - 0.1


@pytest.mark.slow
def test_a_resumed_run_gives_the_weights_of_an_unbroken_one(target, tmp_path):
    by_steps = replace(SCHEDULE, total=12, decay=6, in_steps=True)
    whole = trainer(make(target, max_gap=2), tmp_path / "whole")
    whole.run(by_steps, ignore)

    def interrupt(running, loss: float, tokens_per_s: float) -> None:
        running.stop = running.progress.step >= 5

    first = trainer(make(target, max_gap=2), tmp_path / "parts")
    assert not first.run(by_steps, interrupt)
    second = trainer(make(target, max_gap=2), tmp_path / "parts")
    assert second.progress.step == 5
    second.run(by_steps, ignore)
    assert second.progress.step == whole.progress.step == 12
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_a_drafter_starts_as_the_targets_last_layer(target):
    objective = make(target)
    objective.initialise(0)
    drafter, last = objective.drafter, target.layer_tensors(2)
    assert isinstance(drafter, Eagle3Model)
    layer = drafter.layers[0]
    assert torch.equal(layer.mlp.up_proj.weight, last["mlp.up_proj.weight"])
    for half in layer.self_attn.q_proj.weight.split(32, dim=1):
        assert torch.equal(half, last["self_attn.q_proj.weight"])
    assert torch.equal(layer.hidden_norm.weight, last["input_layernorm.weight"])
    assert torch.equal(drafter.norm.weight, target.final_norm())


def test_the_folder_is_deepspecs_and_says_what_it_is(target, tmp_path):
    export(make(target), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3Eagle3Model"]
    assert (config["ttt_length"], config["draft_num_hidden_layers"]) == (4, 1)
    assert config["step_loss_decay"] == 0.8
    assert "mask_token_id" not in config
    card = (tmp_path / "README.md").read_text()
    assert "EAGLE-3 drafter, unrolled over 4 steps" in card
    assert "Drafts 4 tokens, each by a step of its own, for the target" in card


def test_features_are_five_and_stay_below_the_last_layer():
    assert default_feature_layers(36) == (1, 9, 17, 25, 33)
    assert default_feature_layers(40) == (1, 10, 19, 28, 37)
    assert default_feature_layers(5) == (-1, 0, 1, 2, 3)
    for num_layers in range(2, 50):
        layers = default_feature_layers(num_layers)
        assert len(layers) == 5
        assert list(layers) == sorted(layers)
        assert -1 <= layers[0] <= layers[-1] < num_layers - 1
