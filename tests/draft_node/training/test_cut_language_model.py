"""Language models that are a part of their target: stored, loaded, drafting, trained on."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from draft_node.training import run as training_run
from draft_node.training.__main__ import main
from draft_node.training.block_export import as_read, stored
from draft_node.training.chats.store import ChatStore, Exchange
from draft_node.training.device import compiled_loss
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.language_model_distilled import DistilledDecoder
from draft_node.training.language_model_export import write_language_model
from draft_node.training.provenance import RunRecord
from draft_node.training.pruning import cut, cut_shape
from draft_node.training.trainer import Trainer
from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import EMBEDDING, LM_HEAD, TargetWeights
from specserve.errors import Unsupported
from specserve.models.checkpoint import Checkpoint
from specserve.sampling.draft_sampler import Greedy
from tests.draft_node.training.drafters import (
    TARGETS,
    VOCAB,
    patterned_stream,
    random_tokens,
    write_chats,
    write_target,
)
from tests.specserve.drafters.checkpoints import change_tensors, options
from tests.specserve.models.checkpoints import LLAMA, load, write_checkpoint
from tests.specserve.models.gguf.files import write_gguf

IDS = torch.arange(3, 103) * 2  # a hundred even ones
RECORD = RunRecord("specserve train lm", "target", 3, 4000, 0.5)
KINDS = {"own": (True, None), "shared": (False, None), "a part": (False, IDS)}


@pytest.fixture(scope="module", params=TARGETS)
def target(request, tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target"), **TARGETS[request.param]))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("llama"), **TARGETS["llama3"]))


def make_model(target, kind, share=1.0) -> DistilledDecoder:
    """Two of the target's layers, of which every unit is kept."""
    owns, draft_ids = KINDS[kind]
    width = target.spec.intermediate_size
    shape = cut_shape(target.spec, (0, 2), width)
    model = DistilledDecoder(shape, target, share, owns_embeddings=owns, draft_ids=draft_ids)
    model.load_state_dict(cut(target, (0, 2), width, random_tokens(2, 16), with_embeddings=owns))
    return model


def export(model, out, bits=16):
    tensors = stored(model.state_dict(), bits)
    model.load_state_dict(as_read(tensors))
    write_language_model(model, tensors, RECORD, {"chat": 2.0}, out)
    return out


@pytest.mark.parametrize(("kind", "bits"), [*((kind, 16) for kind in KINDS), ("a part", 8)])
def test_the_exported_model_drafts_by_the_logits_that_were_trained(kind, bits, target, tmp_path):
    model = make_model(target, kind)
    folder = export(model, tmp_path, bits)
    drafter = load_drafter(folder, TargetWeights.of(target.folder), options())
    tokens = random_tokens(1, 20)
    drafter.extend(ContextUpdate([0], [0], [19], tokens[0, :19], None))
    found = drafter.draft(DraftBatch([0], tokens[0, 19:], keep_logits=True), Greedy())
    drafted = found.token_ids
    with torch.no_grad():
        expected = model(torch.cat([tokens, drafted], dim=1))[:, 19:-1]
    torch.testing.assert_close(found.logits, expected, atol=2e-4, rtol=1e-3)
    best = expected.argmax(-1)
    assert torch.equal(drafted, best if model.vocabulary.ids is None else IDS[best])
    assert (found.target_ids is None) == (kind != "a part")


def test_what_is_the_targets_is_not_stored(target, tmp_path):
    for kind, (owns, draft_ids) in KINDS.items():
        folder = export(make_model(target, kind), tmp_path / kind)
        config = json.loads((folder / "config.json").read_text())
        found = load_file(folder / "model.safetensors").keys()
        assert config["architectures"] == [target.spec.architecture]
        assert ("specserve" in config) == (not owns)
        assert ("model.embed_tokens.weight" in found) == owns
        assert ("lm_head.weight" in found) == (owns and not target.spec.tie_word_embeddings)
        assert ({"d2t", "t2d"} <= found) == (draft_ids is not None)
        assert (folder / "tokenizer.json").exists() == owns


@pytest.mark.slow  # imports transformers
def test_transformers_has_the_same_logits_of_a_complete_model(target, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = make_model(target, "own")
    folder, ids = export(model, tmp_path), random_tokens(2, 90)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(theirs).__name__ == target.spec.architecture
    with torch.inference_mode():
        torch.testing.assert_close(theirs(ids).logits, model(ids), atol=2e-4, rtol=1e-3)


def test_beside_the_target_embedding_and_head_are_its_own_memory(target, tmp_path):
    folder, running = export(make_model(target, "shared"), tmp_path), load(target.folder)
    backend = TorchBackend(torch.device("cpu"))
    beside = load_drafter(
        folder, TargetWeights.of(target.folder, running), options(backend=backend)
    )
    assert beside.model.embedding is running.embedding
    assert beside.model.lm_head is running.lm_head
    apart = load_drafter(folder, TargetWeights.of(target.folder), options(backend=backend))
    is_one = apart.model.embedding.data_ptr() == apart.model.lm_head._weight.data_ptr()
    assert is_one == target.spec.tie_word_embeddings


def test_a_part_of_a_model_is_refused_without_the_rest_of_it(llama, tmp_path):
    folder = export(make_model(llama, "shared"), tmp_path / "part")
    with pytest.raises(Unsupported, match=f"{folder}: .* is the target's, and none is given"):
        load_drafter(folder, None, options())
    narrow = write_target(tmp_path / "narrow", TARGETS["llama3"]["config"], hidden_size=32)
    problem = "hidden_size: 64, the target, whose embeddings it reads, has 32"
    with pytest.raises(Unsupported, match=problem):
        load_drafter(folder, TargetWeights.of(narrow), options())
    config = json.loads((folder / "config.json").read_text())
    del config["specserve"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match=r"tensor embed_tokens.weight is missing \(and 1 more\)"):
        load_drafter(folder, TargetWeights.of(llama.folder), options())


@pytest.mark.parametrize(
    ("ours", "problem"),
    [
        ({"draft_vocab_size": 100}, "draft_vocab_size: 100: without target_embeddings"),
        ({"target_embeddings": True, "draft_vocab_size": 999}, "draft_vocab_size: 999 of 280"),
        ({"target_embeddings": True, "draft_vocab_size": 99}, "d2t has shape"),
        ({"target_embeddings": True}, "unknown tensor d2t"),
        ({"target_embeddings": "yes"}, "Expected `bool`, got `str`"),
    ],
)
def test_what_contradicts_itself_is_refused(ours, problem, llama, tmp_path):
    folder = export(make_model(llama, "a part"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"specserve": ours}))
    with pytest.raises(Unsupported, match=problem):
        load_drafter(folder, TargetWeights.of(llama.folder), options())


def test_tables_that_name_no_tokens_are_refused(llama, tmp_path):
    folder = export(make_model(llama, "a part"), tmp_path)
    change_tensors(folder, d2t=torch.full((100,), VOCAB))
    with pytest.raises(Unsupported, match="d2t: not offsets to distinct target ids"):
        load_drafter(folder, TargetWeights.of(llama.folder), options())


def test_the_loss_is_that_of_learned_tokens_and_knows_no_others(llama):
    tokens = random_tokens(2, 13)
    ids, labels = tokens[:, :-1], tokens[:, 1:].clone()
    labels[0, :6] = ~labels[0, :6]
    learned = labels >= 0
    model = make_model(llama, "shared", share=0.25)
    with torch.no_grad():
        log_probs = model(ids).log_softmax(-1)
        distributions, _ = model._distributions(ids)
    told = -(distributions.view(log_probs.shape) * log_probs).sum(-1)[learned].mean()
    plain = -log_probs.gather(2, tokens[:, 1:, None])[..., 0][learned].mean()
    torch.testing.assert_close(model.loss(ids, labels).detach(), 0.75 * plain + 0.25 * told)
    assert model.loss(ids, ~tokens[:, 1:]).detach() == 0


def test_tokens_that_are_not_drafted_are_not_told_and_count_as_rejected(llama):
    model, tokens = make_model(llama, "a part", share=0.0), random_tokens(3, 65)
    ids, labels = tokens[:, :-1], tokens[:, 1:]
    drafted = torch.isin(labels, IDS)
    with torch.no_grad():
        whole = torch.zeros(*ids.shape, VOCAB)
        whole[..., IDS] = model(ids).softmax(-1)
        _, hidden = llama.read(ids, (-1,))
        overlap = torch.minimum(whole, llama.probs(hidden)).sum(-1)
        nats = -whole.gather(2, labels[..., None])[..., 0][drafted].log()
    torch.testing.assert_close(model.loss(ids, labels).detach(), nats.sum() / labels.numel())
    stream = tokens[0].numpy()
    figures = model.evaluate({"text": stream})
    assert figures["text accepted"] == pytest.approx(float(overlap[0].mean()), abs=1e-5)
    mine = nats[: int(drafted[0].sum())]
    assert figures["text"] == pytest.approx(float(mine.mean()), abs=1e-4)
    marked = stream.astype("int32")
    marked[:40] = ~marked[:40]
    few = model.evaluate({"text": marked})
    assert few["text accepted"] == pytest.approx(float(overlap[0, 39:].mean()), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss_and_leaves_the_target_as_it_is(kind, llama):
    model, tokens = make_model(llama, kind), random_tokens(8, 65)
    before = llama.embedding.clone(), llama.lm_head.clone()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    assert all(parameter.grad.any() for parameter in model.parameters() if parameter.ndim > 1)
    assert torch.equal(llama.embedding, before[0])
    assert torch.equal(llama.lm_head, before[1])


@pytest.mark.slow  # traces the step
def test_the_compiled_step_computes_the_same(llama):
    model, tokens = make_model(llama, "a part", share=0.5), random_tokens(2, 33)
    labels = torch.where(torch.arange(32) < 5, ~tokens[:, 1:], tokens[:, 1:])
    plain = model.loss(tokens[:, :-1], labels).detach()
    compiled = compiled_loss(model, backend="eager")(tokens[:, :-1], labels).detach()
    torch.testing.assert_close(compiled, plain)


@pytest.fixture
def train(llama, tmp_path):
    """Run the command on chats of that target for two steps."""
    chats = write_chats(tmp_path / "chats")

    def run(*flags: str, out: str = "lm") -> int:
        words = ["--target", llama.folder, "--data", chats, "--work", tmp_path / "work"]
        words += ["--out", tmp_path / out, "--threads", "1", "--tokens-per-step", "512"]
        return main(["lm", *map(str, words), "--steps", "2", *flags])

    return run


@pytest.mark.slow
def test_a_run_on_chats_ends_in_a_drafter_and_another_goes_on_from_it(
    llama, train, tmp_path, monkeypatch, capsys
):
    assert train("--cut", "0", "2", "--draft-vocab", "30", "--store-bits", "8") == 0
    folder = tmp_path / "lm"
    drafter = load_drafter(folder, TargetWeights.of(llama.folder), options())
    assert len(drafter.target_ids) == 30
    assert set(patterned_stream(24).tolist()) <= set(drafter.target_ids.tolist())
    held_out = json.loads((folder / "held_out.json").read_text())["held_out"]
    assert 0 < held_out["chat accepted"] < 1
    card = (folder / "README.md").read_text()
    assert "A Llama-architecture model" in card
    assert "drafts 30 of the tokens alone" in card

    begun = {}

    def note(trainer: Trainer, *_: object) -> bool:
        begun["model"] = trainer.model
        return False

    monkeypatch.setattr(training_run, "run_until_stopped", note)
    init = ("--init", str(folder))
    assert train(*init, out="more") == 130
    assert torch.equal(begun["model"].vocabulary.ids, drafter.target_ids)
    written = as_read(load_file(folder / "model.safetensors"))
    state = begun["model"].state_dict()
    assert state.keys() == written.keys() - {"d2t", "t2d"}
    assert all(torch.equal(state[name], written[name]) for name in state)
    capsys.readouterr()
    for flags, problem in (
        (("--draft-vocab", "40"), f"--draft-vocab: 40: {folder} was made with 30"),
        (("--own-embeddings",), f"--own-embeddings: {folder} has none: they are the target's"),
        (("--hidden", "32"), f"--hidden: 32: {folder} has 64"),
    ):
        assert train(*init, *flags, out="other") == 2
        assert capsys.readouterr().err == f"specserve: {problem}\n"


def test_a_resumed_run_drafts_the_tokens_that_it_was_begun_with(train, tmp_path, monkeypatch):
    begun = []

    def note(trainer: Trainer, *_: object) -> bool:
        begun.append(trainer.model.vocabulary.ids)
        trainer.save()
        return False

    monkeypatch.setattr(training_run, "run_until_stopped", note)
    flags = ("--cut", "0", "--draft-vocab", "30")
    assert train(*flags) == 130
    more = [Exchange(n, 0.0, [9], list(range(100, 140))) for n in range(240, 480)]
    ChatStore(tmp_path / "chats").add(480, more, VOCAB)
    assert train(*flags) == 130
    assert torch.equal(begun[0], begun[1])
    assert train(*flags, "--restart") == 130
    assert not torch.equal(begun[0], begun[2])


def test_all_tokens_are_no_part_and_have_no_tables(train, monkeypatch):
    begun = []
    monkeypatch.setattr(training_run, "run_until_stopped", lambda *found: begun.append(found))
    assert train("--cut", "0", "--draft-vocab", str(VOCAB)) == 130
    assert begun[0][0].model.vocabulary.ids is None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--draft-vocab", "30"), "--draft-vocab: a part of the target's own output head: --cut"),
        (("--cut", "0", "--own-embeddings", "--draft-vocab", "30"), "--draft-vocab: a part of"),
        (("--cut", "0", "--draft-vocab", "999"), f"--draft-vocab: 999: the target has {VOCAB}"),
        (("--cut", "0", "--layers", "2"), "--layers: 2: what --cut names has 1"),
        (("--cut", "0", "--kv-heads", "2"), "--kv-heads: 2: what --cut names has 4"),
        (("--cut", "0", "--intermediate", "65"), "--intermediate: 65: the target has 64 units"),
        (("--text", "t"), "--text: is not read beside --data"),
    ],
)
def test_flags_that_contradict_what_is_gone_on_from_are_refused(flags, problem, train, capsys):
    assert train(*flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"specserve: {problem}")


@pytest.mark.parametrize("kind", ["lm", "dspark"])
def test_frequencies_that_no_config_can_tell_are_refused_before_training(kind, tmp_path, capsys):
    folder = write_checkpoint(tmp_path / "folder", {**LLAMA, "rope_scaling": None})
    factors = {"rope_freqs.weight": np.array([1, 2, 4, 8], dtype=np.float32)}
    file = write_gguf(tmp_path / "m.gguf", folder, tensors=factors)
    flags = ["--cut", "0"] if kind == "lm" else []
    assert main([kind, "--target", str(file), "--out", str(tmp_path / "out"), *flags]) == 2
    problem = "--target: a drafter's config.json cannot tell the rotary frequencies of this file"
    assert problem in capsys.readouterr().err


def test_the_names_of_tensors_are_those_of_the_target(llama, tmp_path):
    """So that a part and the whole can be told apart by what is there."""
    with Checkpoint(export(make_model(llama, "shared"), tmp_path)) as part:
        names = set(part.names())
    with Checkpoint(llama.folder) as whole:
        assert names < set(whole.names())
        assert not names & {EMBEDDING, LM_HEAD}
