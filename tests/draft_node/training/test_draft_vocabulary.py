"""Drafters that know a part of the target's tokens: what is chosen, learned, stored and served."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_node.training import draft_vocabulary, losses
from draft_node.training.block_export import as_read, stored, write_drafter
from draft_node.training.block_model import BlockModel
from draft_node.training.block_objective import Figures
from draft_node.training.block_start import starting_point
from draft_node.training.frozen_target import FrozenTarget
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import LM_HEAD, TargetWeights
from specserve.errors import InvalidField
from specserve.sampling.draft_sampler import Greedy
from tests.draft_node.training.drafters import (
    VOCAB,
    arguments,
    make_objective,
    random_tokens,
    write_target,
)
from tests.draft_node.training.test_block_model import RECORD
from tests.specserve.drafters.checkpoints import change_tensors, options

KINDS = {"dspark": ("dspark",), "dflash": ("dflash",), "eagle3": ("eagle3",)}
IDS = torch.arange(3, 103) * 2  # a hundred even ones


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def cut(target: FrozenTarget, kind: str, **config):
    return make_objective(target, kind, "--draft-vocab", "100", draft_ids=IDS, **config)


def export(objective, out, bits: int = 16) -> None:
    tensors = stored(objective.drafter.state_dict(), bits)
    objective.drafter.load_state_dict(as_read(tensors))
    tensors |= draft_vocabulary.tables(objective.vocabulary.ids, VOCAB)
    figures = {"text": {0: Figures(2.5, [0.5] * objective.drafter.spec.gamma, 0.1)}}
    write_drafter(tensors, objective.drafter.spec, RECORD, figures, out)


def test_the_most_frequent_learned_tokens_are_chosen():
    streams = [np.array([5, 5, 5, 9, 9, ~7, ~7, ~7, ~7]), np.array([9, 9, 2], dtype=np.uint16)]
    assert draft_vocabulary.most_frequent(streams, 2, 12).tolist() == [5, 9]
    assert draft_vocabulary.most_frequent(streams, 3, 12).tolist() == [2, 5, 9]
    # Nobody learned the rest: the first of them, so that every run chooses the same.
    assert draft_vocabulary.most_frequent(streams, 5, 12).tolist() == [0, 1, 2, 5, 9]
    assert draft_vocabulary.coverage(streams[0], torch.tensor([5, 7])) == 0.6


def test_what_is_not_drafted_counts_as_rejected(target):
    """The acceptance is that of the whole distributions, in which those tokens have no draft."""
    hidden = torch.randn(3, 4, target.spec.hidden_size)
    logits = torch.randn(3, 4, len(IDS))
    known, undrafted = draft_vocabulary.DraftVocabulary(target, IDS).target_probs(hidden)
    whole = torch.zeros(3, 4, VOCAB)
    whole[..., IDS] = logits.softmax(-1)
    expected = torch.minimum(whole, target.probs(hidden)).sum(-1)
    l1 = losses.l1_distance(logits.log_softmax(-1), known, undrafted)
    torch.testing.assert_close(losses.acceptance(l1), expected, atol=1e-5, rtol=1e-5)
    assert undrafted is not None
    assert (undrafted > 0.2).all()


def test_distributions_of_all_tokens_are_never_more_than_fit_at_once(target, monkeypatch):
    """However small the head is that they are for."""
    hidden, vocabulary = torch.randn(3, 4, 32), draft_vocabulary.DraftVocabulary(target, IDS)
    whole, probs, sizes = vocabulary.target_probs(hidden), target.probs, list[int]()

    def note(part: torch.Tensor) -> torch.Tensor:
        sizes.append(len(part))
        return probs(part)

    monkeypatch.setattr(target, "probs", note)
    monkeypatch.setattr(draft_vocabulary, "_MAX_PROBS", 5 * VOCAB)
    torch.testing.assert_close(vocabulary.target_probs(hidden), whole)
    assert sizes == [5, 5, 2]


def test_a_label_that_is_not_drafted_has_no_cross_entropy(target):
    vocabulary = draft_vocabulary.DraftVocabulary(target, IDS)
    labels = vocabulary.labels(torch.tensor([[6, 7, 204, 206]]))
    assert labels.tolist() == [[0, -1, 99, -1]]
    slots = losses.slot_losses(torch.zeros(1, 4, 100), labels, None, None)
    torch.testing.assert_close(
        slots.cross_entropy, torch.tensor([[1.0, 0, 1, 0]]) * np.log(100), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_learns_and_the_loss_in_parts_is_the_whole(kind, target, monkeypatch):
    terms = {"dspark": losses.DSPARK, "dflash": losses.DFLASH, "eagle3": losses.EAGLE3}[kind]
    objective, tokens = cut(target, kind, terms=terms), random_tokens(3, 33)

    def loss() -> torch.Tensor:
        torch.manual_seed(5)
        return objective.loss(tokens[:, :-1], tokens[:, 1:])

    whole = loss()
    whole.backward()
    assert all(p.grad is not None and p.grad.any() for p in objective.parameters())
    monkeypatch.setattr("draft_node.training.block_objective._MAX_LOGITS", 4 * 100 * 5)
    torch.testing.assert_close(loss(), whole)


@pytest.mark.parametrize(("kind", "bits"), [*((kind, 16) for kind in KINDS), ("dspark", 8)])
def test_the_exported_drafter_drafts_its_tokens_with_the_targets_own_head(
    kind, bits, target, tmp_path
):
    objective = cut(target, kind)
    export(objective, tmp_path, bits)
    card = (tmp_path / "README.md").read_text()
    assert "of 100 of its tokens alone, for the target" in card.replace("\n", " ")
    assert f"stored weights of {bits} bits" in card
    stored = load_file(tmp_path / "model.safetensors")
    assert LM_HEAD not in stored
    assert json.loads((tmp_path / "config.json").read_text())["draft_vocab_size"] == 100
    drafter = load_drafter(tmp_path, TargetWeights.of(target.folder), options())
    tokens, known = random_tokens(1, 20)[0], 20
    features, _ = target.read(tokens[None], drafter.features.layers)
    projected = drafter.features.project(features[0])
    drafter.extend(ContextUpdate([0], [0], [known], tokens, projected))
    anchors = torch.arange(8)
    found = drafter.draft(DraftBatch([0] * 8, anchors, keep_logits=True), Greedy())
    assert set(found.token_ids.flatten().tolist()) <= set(IDS.tolist())
    assert torch.equal(found.target_ids, IDS)
    # The first slot needs no token of the draft's own: it is what was trained, row by row.
    logits = found.logits[:, 0]
    assert torch.equal(found.token_ids[:, 0], IDS[logits.argmax(-1)])
    assert len(found.token_ids[:, 0].unique()) > 1


def test_a_drafter_is_trained_on_with_the_tokens_that_it_has(target, tmp_path):
    export(cut(target, "dspark"), tmp_path)
    spec, weights = starting_point(arguments("dspark", "--init", str(tmp_path)), target)
    assert spec.draft_vocab_size == 100
    assert torch.equal(draft_vocabulary.from_tables(weights), IDS)
    BlockModel(spec).load_state_dict(weights)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"model.{name}": w for name, w in tensors.items()}, tmp_path / "model.safetensors")
    _, again = starting_point(arguments("dspark", "--init", str(tmp_path)), target)
    assert again.keys() - {"d2t", "t2d"} == weights.keys()
    with pytest.raises(InvalidField, match=r"--draft-vocab: 50: .* was made with 100"):
        starting_point(arguments("dspark", "--init", str(tmp_path), "--draft-vocab", "50"), target)


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_whose_tables_name_no_tokens_is_not_gone_on_from(kind, target, tmp_path):
    export(cut(target, kind), tmp_path)
    change_tensors(tmp_path, d2t=torch.full((100,), VOCAB))
    with pytest.raises(InvalidField, match=r"--init: .* d2t: not offsets to distinct target ids"):
        starting_point(arguments(kind, "--init", str(tmp_path)), target)


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_tokens_are_drafted_than_there_are(kind, target):
    with pytest.raises(InvalidField, match=f"--draft-vocab: 9999: the target has {VOCAB} tokens"):
        starting_point(arguments(kind, "--draft-vocab", "9999"), target)
