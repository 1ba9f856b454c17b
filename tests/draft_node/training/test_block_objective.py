from itertools import count

import numpy as np
import pytest
import torch

from draft_node.training import block_objective, losses
from draft_node.training.batches import BatchSource, tokens_of
from draft_node.training.block_objective import BlockObjective
from draft_node.training.checkpoint import load
from draft_node.training.device import compiled_loss
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.optimizer import OptimizerConfig
from draft_node.training.schedule import Schedule
from draft_node.training.trainer import Trainer, TrainerConfig
from draft_node.training.warm_start import copied_layers, spread
from tests.draft_node.training.drafters import (
    make_objective,
    patterned_stream,
    random_tokens,
    write_target,
)

SCHEDULE = Schedule(total=24, decay=8, warmup=2)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def loss_of(objective: BlockObjective) -> torch.Tensor:
    torch.manual_seed(5)
    tokens = random_tokens(3, 33)
    objective.zero_grad()
    loss = objective.loss(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return loss.detach()


def trainer(objective: BlockObjective, folder, **changes) -> Trainer:
    streams = {"code": patterned_stream()}
    ticks = count()  # every step seems to take one second
    config = TrainerConfig(
        tokens_per_step=128, micro_tokens=64, length=32, long_lengths=(), compile=False,
        log_every_s=1.0, evaluate_tokens=400,
        optimizer=OptimizerConfig(muon_lr=None, adam_lr=5e-3), **changes,
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    return Trainer(
        objective, BatchSource(streams, 0, window=32), streams, folder, config,
        clock=lambda: float(next(ticks)),
    )  # fmt: skip


def ignore(*_: object) -> None:
    pass


@pytest.mark.parametrize("kind", ["dspark", "dflash"])
def test_a_loss_in_parts_equals_the_whole(kind, target, monkeypatch):
    terms = losses.DSPARK if kind == "dspark" else losses.DFLASH
    objective = make_objective(target, kind, terms=terms, max_gap=3)
    whole = loss_of(objective)
    gradients = {name: p.grad.clone() for name, p in objective.named_parameters()}
    monkeypatch.setattr(block_objective, "_MAX_LOGITS", 4 * 280 * 5)
    torch.testing.assert_close(loss_of(objective), whole)
    for name, parameter in objective.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-6, rtol=1e-4)


def test_questions_are_read_and_never_learned(target):
    objective = make_objective(target, "dspark")
    tokens = random_tokens(2, 33)
    answers = torch.zeros(2, 33, dtype=torch.bool)
    answers[:, 20:] = True

    def loss_of(answered: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        row = torch.where(answers, answered, ~tokens)
        return objective.loss(tokens_of(row[:, :-1]), row[:, 1:]).detach()

    one = loss_of(tokens)
    assert not torch.equal(one, loss_of(tokens.flip(1)))  # answers are labels
    answers[:] = False
    assert float(loss_of(tokens)) == pytest.approx(0, abs=1e-6)  # and nothing else is
    stream = torch.where(torch.arange(400) % 40 < 20, ~patterned(400), patterned(400)).numpy()
    learned = objective.measure(stream)
    assert learned.tokens_per_round > 1
    assert learned.tokens_per_round != objective.measure(patterned(400).numpy()).tokens_per_round


def test_figures_are_those_of_blocks_that_something_is_learned_of(target):
    """Whole windows of questions begin no blocks, which would else count as rejected at once."""
    objective = make_objective(target, "dspark")
    stream = torch.where(torch.arange(1025) < 768, ~patterned(1025), patterned(1025)).numpy()
    figures = objective.measure(stream)
    assert figures.tokens_per_round > 1 + figures.acceptance[0]


def patterned(length: int) -> torch.Tensor:
    return torch.from_numpy(np.resize(patterned_stream().astype(np.int64), length))


def test_every_parameter_learns_and_the_target_is_no_parameter(target):
    objective = make_objective(target, "dspark", max_gap=2)
    loss_of(objective)
    assert all(p.grad.any() for p in objective.parameters())
    assert all(name.startswith("drafter.") for name in objective.state_dict())
    assert not target.embedding.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("bfloat16", [False, True])
def test_training_learns_what_the_target_does(bfloat16, target, tmp_path):
    objective = make_objective(target, "dspark")
    run = trainer(objective, tmp_path, bfloat16=bfloat16)
    before = run.evaluate()["code"]
    run.run(SCHEDULE, ignore)
    after = run.evaluate()["code"]
    assert 1 <= before < after - 0.1
    assert after <= 5


@pytest.mark.slow
@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_resumed_run_draws_the_same_blocks(bfloat16, target, tmp_path):
    whole = trainer(
        make_objective(target, "dspark", max_gap=2), tmp_path / "whole", bfloat16=bfloat16
    )
    whole.run(SCHEDULE, ignore)

    def interrupt(running: Trainer, loss: float, tokens_per_s: float) -> None:
        running.stop = running.progress.step >= 9

    first = trainer(
        make_objective(target, "dspark", max_gap=2), tmp_path / "parts", bfloat16=bfloat16
    )
    assert not first.run(SCHEDULE, interrupt)
    second = trainer(
        make_objective(target, "dspark", max_gap=2), tmp_path / "parts", bfloat16=bfloat16
    )
    assert second.progress.step == 9
    second.run(SCHEDULE, ignore)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_figures_behind_a_gap_are_measured_for_drafters_that_trained_for_it(target):
    streams = {"code": patterned_stream(900)}
    ordinary, gap = (make_objective(target, "dspark", max_gap=g) for g in (0, 4))
    assert set(ordinary.evaluate(streams)) == {"code"}
    figures = gap.evaluate(streams)
    assert set(figures) == {"code", "code behind 4"}
    assert figures["code"] == ordinary.evaluate(streams)["code"]
    assert figures["code"] != figures["code behind 4"]


def test_figures_agree_with_each_other(target):
    figures = make_objective(target, "dspark").measure(patterned_stream(900))
    assert len(figures.acceptance) == 4
    assert all(0 < rate < 1 for rate in figures.acceptance)
    assert 1 + figures.acceptance[0] < figures.tokens_per_round < 5
    assert 0 < figures.confidence_error < 1
    assert np.isnan(
        make_objective(target, "dflash").measure(patterned_stream(900)).confidence_error
    )


def test_a_drafter_starts_as_the_targets_first_and_last_layers(target):
    objective = make_objective(target, "dspark")
    objective.initialise(0)
    drafter, own = objective.drafter, [target.layer_tensors(index) for index in range(3)]
    assert copied_layers(drafter.spec, target.spec) == [0, 2]
    for layer, index in zip(drafter.layers, (0, 2), strict=True):
        assert torch.equal(layer.mlp.up_proj.weight, own[index]["mlp.up_proj.weight"])
        assert torch.equal(layer.self_attn.k_proj.weight, own[index]["self_attn.k_proj.weight"])
    assert torch.equal(drafter.norm.weight, target.final_norm())
    tokens = random_tokens(1, 12)
    features, _ = target.read(tokens, drafter.spec.feature_layers)
    context = drafter.hidden_norm(drafter.fc(features))
    residual, _ = target.read(tokens, (1,))
    expected = torch.nn.functional.rms_norm(residual, (32,), None, 1e-6)
    expected = expected * own[2]["input_layernorm.weight"]
    assert torch.cosine_similarity(context, expected, dim=-1).min() > 0.95


def context_error(target, sample):
    """Of the first layer's values behind tokens that no fit has seen, relative."""
    objective = make_objective(target, "dspark", sample=sample)
    objective.initialise(0)
    drafter, tokens = objective.drafter, random_tokens(4, 64, seed=9)
    features, _ = target.read(tokens, drafter.spec.feature_layers)
    residual, _ = target.read(tokens, (-1,))
    layer = drafter.layers[0]
    found = layer.self_attn.v_proj(drafter.hidden_norm(drafter.fc(features)))
    weight = target.layer_tensors(0)["self_attn.v_proj.weight"]
    expected = torch.nn.functional.linear(layer.input_layernorm(residual), weight)
    return float((found - expected).norm() / expected.norm())


@pytest.mark.slow
@torch.no_grad()
def test_context_entries_are_fitted_to_the_targets_own(embedded_target):
    trained = FrozenTarget(embedded_target)  # whose residuals still tell of their tokens
    sample = random_tokens(32, 64)
    copied, fitted = (context_error(trained, given) for given in (None, sample))
    assert fitted < 0.7 < 1 < copied  # 1 is what nothing at all would give
    objective = make_objective(trained, "dspark", sample=sample)
    objective.initialise(0)
    last = objective.drafter.layers[1].self_attn
    for name in ("k_proj", "v_proj"):  # c_p is what that layer reads
        own = trained.layer_tensors(4)[f"self_attn.{name}.weight"]
        assert torch.equal(getattr(last, name).weight, own)


def test_layers_to_start_from_are_spread_over_the_target():
    assert [spread(count, 5) for count in range(1, 5)] == [[4], [0, 4], [0, 2, 4], [0, 1, 3, 4]]
    assert spread(5, 36) == [0, 9, 18, 26, 35]
    for num_layers in range(2, 50):
        for number in range(1, num_layers):
            assert len(set(spread(number, num_layers))) == number


@pytest.mark.slow
def test_the_compiled_step_computes_the_same_and_draws_as_it_is(target, monkeypatch):
    draw_anchors, traced = block_objective.draw_anchors, []

    def draw(*arguments):
        traced.append(torch.compiler.is_compiling())
        return draw_anchors(*arguments)

    monkeypatch.setattr(block_objective, "draw_anchors", draw)
    objective = make_objective(target, "dspark", max_gap=2)
    tokens = random_tokens(2, 33)
    found = []
    for loss in (objective.loss, compiled_loss(objective, backend="eager")):
        torch.manual_seed(1)
        found.append(loss(tokens[:, :-1], tokens[:, 1:]).detach())
    torch.testing.assert_close(*found)
    assert traced == [False, False]


def test_checkpoints_hold_the_drafter_alone(target, tmp_path):
    run = trainer(make_objective(target, "dflash", terms=losses.DFLASH), tmp_path)
    run.save()
    model, _, _ = load(run.path)
    assert set(model) == {f"drafter.{name}" for name in run.model.drafter.state_dict()}
