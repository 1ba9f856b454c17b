"""Reference case of one training step: anchors to loss, and the loss to gradients."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from draft_node.training import losses
from draft_node.training.block_model import BlockModel
from draft_node.training.block_objective import BlockObjective, ObjectiveConfig, gather_rows
from draft_node.training.blocks import Blocks, BlockShape, cut_blocks
from draft_node.training.frozen_target import FrozenTarget
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.spec import BlockSpec
from specserve.drafters.weights import EMBEDDING, LM_HEAD
from tests.golden_case import FIXTURES, Case, NotACase, find_target

_TERMS = {"ce": (1.0, 0.0, 0.0), "l1": (0.0, 1.0, 0.0), "confidence": (0.0, 0.0, 1.0)}


def weights_of(case: Path) -> Path | None:
    """The drafter whose training step the case is, beside it or among fixtures; None for others."""
    with safe_open(case / "io.safetensors", framework="pt") as file:
        name = (file.metadata() or {}).get("weights")
    if name is None:
        return None
    for folder in (case.resolve().parent / name, FIXTURES / name):
        if (folder / "config.json").is_file():
            return folder
    raise NotACase(f"{case}: drafter {name} is neither beside it nor in {FIXTURES}")


def compare_training_step(case: Case, drafter_folder: Path) -> None:
    """Features, blocks, logits, every term of the loss and every gradient."""
    spec = read_draft_spec(drafter_folder)
    assert isinstance(spec, BlockSpec)
    target = FrozenTarget(find_target(case.folder))
    objective = _objective(spec, drafter_folder, target)
    drafter = objective.drafter

    tokens = case.input("input_ids")
    features, last_hidden = target.read(tokens, spec.feature_layers)
    case.compare("target_features", features)
    case.compare("target_last_hidden", last_hidden)
    blocks = _blocks(case, spec, tokens)
    hidden = drafter.hidden(case.expected["target_features"], target.embedding, blocks)
    aligned = gather_rows(case.expected["target_last_hidden"], blocks.sources)
    target_logits = aligned @ target.lm_head.T
    case.compare("aligned_target_logits", target_logits)
    logits, confidence_logits = drafter.heads(
        hidden.flatten(0, 1), target.lm_head, blocks.previous_ids.flatten(0, 1)
    )
    shape = blocks.labels.shape
    case.compare("draft_logits", logits.view(*shape, -1).detach())
    assert confidence_logits is not None
    case.compare("confidence_logits", confidence_logits.view(shape).detach())
    target_probs = target_logits.flatten(0, 1).softmax(-1)
    l1 = losses.l1_distance(logits.log_softmax(-1), target_probs)
    case.compare("accept_rate", losses.acceptance(l1).view(shape).detach())

    weights = losses.slot_weights(blocks.valid).flatten(0, 1)
    slots = losses.slot_losses(logits, blocks.labels.flatten(0, 1), target_probs, confidence_logits)
    for name, terms in _TERMS.items():
        numerator = losses.weighted_sum(slots, weights, losses.LossWeights(*terms))
        case.compare(f"terms.{name}_loss_num", numerator[None].detach())
        case.compare(f"terms.{name}_loss_den", weights.sum()[None])
    loss = objective.block_loss(hidden, aligned, blocks)
    case.compare("loss", loss[None].detach())
    loss.backward()
    _compare_gradients(case, drafter)


def _objective(spec: BlockSpec, folder: Path, target: FrozenTarget) -> BlockObjective:
    drafter = BlockModel(spec)
    weights = load_file(folder / "model.safetensors")
    drafter.load_state_dict({n: w for n, w in weights.items() if n not in (EMBEDDING, LM_HEAD)})
    return BlockObjective(drafter, target, ObjectiveConfig(losses.DSPARK))


def _blocks(case: Case, spec: BlockSpec, tokens: torch.Tensor) -> Blocks:
    anchors, kept = case.input("anchor_positions"), case.input("block_keep_mask")
    shape = BlockShape(spec.block_size, spec.mask_token_id)
    supervised = case.input("loss_mask").bool()
    blocks = cut_blocks(tokens, anchors, torch.zeros_like(anchors), shape, supervised)
    blocks = replace(blocks, valid=blocks.valid & kept[..., None])
    case.compare("eval_mask", blocks.valid)
    case.compare("target_ids", blocks.labels)
    return blocks


def _compare_gradients(case: Case, drafter: BlockModel) -> None:
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None
        case.check(f"grad.{name}", parameter.grad)
        case.compare(f"grad_norm.{name}", parameter.grad.norm()[None])
