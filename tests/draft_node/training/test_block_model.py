"""The trained module and the drafter that is loaded from its export compute the same."""

import json

import pytest
import torch

from draft_node.training.block_export import TrainingRecord, as_read, stored, write_drafter
from draft_node.training.block_model import BlockModel
from draft_node.training.block_objective import Figures
from draft_node.training.block_start import starting_point
from draft_node.training.blocks import BlockShape, cut_blocks
from draft_node.training.export import sha256
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.provenance import RunRecord
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import TargetWeights
from tests.draft_node.training.drafters import (
    arguments,
    make_objective,
    random_tokens,
    write_target,
)
from tests.golden_blocks import Recorder
from tests.specserve.drafters.checkpoints import options
from tests.specserve.models.checkpoints import LLAMA

RECORD = TrainingRecord(
    **vars(RunRecord("specserve train dspark", "target", 3, 3_000_000, 1.5)),
    num_anchors=32,
    max_gap=8,
)
KINDS = {
    "vanilla": ("dspark", "--markov", "vanilla"),
    "gated": ("dspark", "--markov", "gated"),
    "rnn": ("dspark", "--markov", "rnn"),
    "hidden confidence": ("dspark", "--confidence", "hidden"),
    "no confidence": ("dspark", "--confidence", "none", "--markov", "rnn"),
    "confidence alone": ("dspark", "--confidence", "hidden", "--markov", "none"),
    "dflash": ("dflash",),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def export(objective, out, figures=None, bits=16) -> None:
    """Write the drafter, and go on with the weights as they are stored."""
    drafter = objective.drafter
    tensors = stored(drafter.state_dict(), bits)
    drafter.load_state_dict(as_read(tensors))
    figures = figures or {"code": {0: Figures(2.5, [0.5] * drafter.spec.gamma, 0.1)}}
    write_drafter(tensors, drafter.spec, RECORD, figures, out)


def check_equal(objective, target: FrozenTarget, out, gap: int) -> None:
    """Logits and confidences of one block behind `gap` tokens, both ways."""
    drafter, spec = objective.drafter, objective.drafter.spec
    tokens, anchor = random_tokens(1, 40), 21
    shape = BlockShape(spec.block_size, spec.mask_token_id, max_gap=5)
    blocks = cut_blocks(tokens, torch.tensor([[anchor]]), torch.tensor([[gap]]), shape)
    features, _ = target.read(tokens, spec.feature_layers)
    with torch.no_grad():
        hidden = drafter.hidden(features, target.embedding, blocks)[0]
        logits, confidence_logits = drafter.heads(hidden, target.lm_head, blocks.previous_ids[0])

    loaded = load_drafter(out, TargetWeights.of(target.folder), options())
    assert isinstance(loaded, BlockDrafter)
    known = anchor - gap
    projected = loaded.features.project(features[0, :known])
    loaded.extend(ContextUpdate([0], [0], [known], tokens[0, :known], projected))
    recorder = Recorder(blocks.labels[0, 0])
    batch = DraftBatch([0], tokens[0, anchor : anchor + 1], [tokens[0, known:anchor].tolist()])
    speculation = loaded.draft(batch, recorder)
    torch.testing.assert_close(recorder.logits, logits[0], atol=1e-4, rtol=1e-4)
    if confidence_logits is None:
        assert speculation.confidences is None
    else:
        expected = confidence_logits.sigmoid()
        torch.testing.assert_close(speculation.confidences, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("gap", [0, 1, 3, 5])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_exported_drafter_computes_what_was_trained(kind, gap, target, tmp_path):
    objective = make_objective(target, *kind)
    export(objective, tmp_path)
    check_equal(objective, target, tmp_path, gap)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "dflash"])
def test_a_drafter_of_8_bits_computes_what_was_measured_and_takes_half_the_room(
    kind, target, tmp_path
):
    objective = make_objective(target, *KINDS[kind])
    export(objective, tmp_path / "whole")
    export(objective, tmp_path / "small", bits=8)
    check_equal(objective, target, tmp_path / "small", gap=2)
    whole, small = (
        (tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "small")
    )
    assert small < 0.7 * whole
    spec, weights = starting_point(
        arguments(KINDS[kind][0], "--init", str(tmp_path / "small")), target
    )
    BlockModel(spec).load_state_dict(weights)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("rope", [LLAMA["rope_scaling"], YARN], ids=["llama3", "yarn"])
def test_a_llama_with_scaled_rotations_and_its_own_head_gets_a_drafter(tmp_path, rope):
    changes = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}
    changes["rope_scaling"] = rope
    folder = write_target(tmp_path / "target", LLAMA, **changes)
    target = FrozenTarget(folder)
    assert target.lm_head is not target.embedding
    objective = make_objective(target, "dspark")
    export(objective, tmp_path / "draft")
    check_equal(objective, target, tmp_path / "draft", gap=2)


def test_gaps_in_one_batch_do_not_disturb_each_other(target):
    objective = make_objective(target, "dspark")
    spec, tokens = objective.drafter.spec, random_tokens(2, 40)
    shape = BlockShape(spec.block_size, spec.mask_token_id, max_gap=5)
    anchors, gaps = torch.tensor([[7, 9, 30], [1, 12, 13]]), torch.tensor([[5, 0, 2], [0, 3, 1]])
    features, _ = target.read(tokens, spec.feature_layers)

    def hidden(rows: slice, blocks: slice) -> torch.Tensor:
        cut = cut_blocks(tokens[rows], anchors[rows, blocks], gaps[rows, blocks], shape)
        return objective.drafter.hidden(features[rows], target.embedding, cut)

    with torch.no_grad():
        together = hidden(slice(None), slice(None))
        for row in range(2):
            for block in range(3):
                alone = hidden(slice(row, row + 1), slice(block, block + 1))
                torch.testing.assert_close(together[row, block], alone[0, 0], atol=1e-5, rtol=1e-5)


def test_the_folder_is_complete_and_small(target, tmp_path):
    export(make_objective(target, "dspark"), tmp_path)
    sums = (tmp_path / "SHA256SUMS").read_text().splitlines()
    listed = {name: value for value, name in (line.split("  ") for line in sums)}
    assert set(listed) == {"README.md", "config.json", "held_out.json", "model.safetensors"}
    assert all(sha256(tmp_path / name) == value for name, value in listed.items())
    card = (tmp_path / "README.md").read_text()
    assert "DSpark drafter, 2 layers, vanilla Markov head of rank 6, confidence head" in card
    assert "| code | 2.50 |" in card
    assert json.loads((tmp_path / "config.json").read_text())["max_feature_gap"] == 8
    stored = (tmp_path / "model.safetensors").stat().st_size
    weights = make_objective(target, "dspark").drafter.state_dict().values()
    assert stored < 2 * sum(weight.numel() for weight in weights) + 8192


def test_a_drafter_may_read_embeddings_and_the_last_layer(target, tmp_path):
    objective = make_objective(target, "dspark", "--feature-layers=-1,2")
    export(objective, tmp_path)
    check_equal(objective, target, tmp_path, gap=1)
