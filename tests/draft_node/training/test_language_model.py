"""A standalone language model: what it learns of the target, and that others load the result."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F  # noqa: N812

from draft_node.training import language_model_run, report, text_source
from draft_node.training import run as training_run
from draft_node.training.__main__ import main
from draft_node.training.decoder import DecoderConfig
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.language_model_distilled import DistilledDecoder, micro_tokens
from draft_node.training.self_text import SelfTextConfig
from draft_node.training.trainer import Trainer
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import TargetWeights
from specserve.sampling.draft_sampler import Greedy
from tests.draft_node.training.drafters import TEXT, VOCAB, patterned_stream, write_target
from tests.specserve.drafters.checkpoints import options
from tests.specserve.models.checkpoints import QWEN3, write_config

SHAPE_FLAGS = (
    *("--hidden", "16", "--layers", "1", "--intermediate", "24"),
    *("--heads", "2", "--kv-heads", "1", "--head-dim", "8"),
)
SHAPE = DecoderConfig(VOCAB, 16, 1, 2, 1, 8, 24, max_position_embeddings=128)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def make_model(target, share) -> DistilledDecoder:
    model = DistilledDecoder(SHAPE, target, share)
    model.initialise(0)
    return model


def test_the_loss_is_told_by_text_and_by_the_targets_distributions_in_shares(target):
    tokens = torch.randint(8, VOCAB, (2, 13))
    ids, labels = tokens[:, :-1], tokens[:, 1:]
    losses = {share: make_model(target, share).loss(ids, labels) for share in (0.0, 0.25, 1.0)}
    torch.testing.assert_close(losses[0.25], 0.75 * losses[0.0] + 0.25 * losses[1.0])

    model = make_model(target, 1.0)
    _, hidden = target.read(ids, (-1,))
    distributions = (hidden @ target.lm_head.T).softmax(-1)
    with torch.no_grad():
        expected = -(distributions * model(ids).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(losses[1.0], expected)


def test_the_targets_distributions_do_not_depend_on_the_arithmetic_of_training(target):
    tokens = torch.randint(8, VOCAB, (2, 13))
    model = make_model(target, 1.0)
    distributions, _ = model._distributions(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model._distributions(tokens)[0], distributions)


@pytest.mark.slow
def test_distillation_brings_the_distribution_closer_to_the_targets(target):
    stream = torch.randint(8, VOCAB, (600,)).numpy()
    rows = torch.from_numpy(stream[: 8 * 65]).view(8, 65)
    found = {}
    for share in (0.0, 1.0):
        model = make_model(target, share)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            model.loss(rows[:, :-1], rows[:, 1:]).backward()
            optimizer.step()
        found[share] = model.acceptance(stream)
    assert found[1.0] > make_model(target, 0.0).acceptance(stream) + 0.02
    assert found[1.0] > found[0.0] + 0.1


def test_figures_are_nats_and_overlaps_of_distributions(target):
    model = make_model(target, 1.0)
    stream = patterned_stream(300)
    figures = model.evaluate({"text": stream})
    assert set(figures) == {"text", "text accepted"}
    assert figures["text"] == pytest.approx(np.log(VOCAB), abs=0.2)
    ids = torch.from_numpy(stream[:128].astype(np.int64))[None]
    _, hidden = target.read(ids, (-1,))
    distributions = F.linear(hidden, target.lm_head).softmax(-1)
    with torch.no_grad():
        overlap = torch.minimum(distributions, model(ids).softmax(-1)).sum(-1).mean()
    assert model.acceptance(stream[:129]) == pytest.approx(float(overlap), abs=1e-5)


def test_the_target_is_neither_trained_nor_stored(target):
    model = make_model(target, 1.0)
    assert all(name.startswith("model.") for name in model.state_dict())
    assert sum(p.numel() for p in model.parameters()) < VOCAB * 16 + 4000


def test_distributions_of_a_large_vocabulary_are_computed_in_parts():
    assert micro_tokens(4096, 8192) == 8192
    assert micro_tokens(4096, 2048) == 2048
    assert micro_tokens(151_936, 8192) == 256


@pytest.fixture
def train(target, tmp_path, monkeypatch):
    """Run the command on that target for a few seconds."""
    pool = SelfTextConfig(rows=16, length=64, shortest_prompt=2, longest_prompt=8)
    monkeypatch.setattr(text_source, "SelfTextConfig", lambda **_: pool)
    (tmp_path / "text.txt").write_text("\n".join(TEXT))

    def run(*flags: str) -> int:
        words = ["--target", target.folder, "--text", tmp_path / "text.txt"]
        words += ["--work", tmp_path / "work", "--out", tmp_path / "lm", "--threads", "1"]
        words += ["--tokens-per-step", "512", "--minutes", "0.03", "--self-text", "0"]
        shape = () if "--cut" in flags or "--init" in flags else SHAPE_FLAGS
        return main(["lm", *map(str, words), *shape, *flags])

    return run


@pytest.mark.slow  # imports transformers
def test_a_run_ends_in_a_folder_that_drafts_and_that_transformers_loads(target, train, tmp_path):
    assert train() == 0
    folder = tmp_path / "lm"
    drafter = load_drafter(folder, TargetWeights.of(target.folder), options(gamma=3))
    assert isinstance(drafter, LanguageModelDrafter)
    path = torch.tensor([9, 41, 7, 250])
    drafter.extend(ContextUpdate([0], [0], [3], path[:3], None))
    drafted = drafter.draft(DraftBatch([0], path[3:]), Greedy()).token_ids

    ours = report.load_decoder(folder)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        assert int(ours(path[None])[0, -1].argmax()) == int(drafted[0, 0])
        torch.testing.assert_close(theirs(path[None]).logits, ours(path[None]), atol=1e-4, rtol=0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (
        tokenizer.get_vocab()
        == transformers.AutoTokenizer.from_pretrained(target.folder).get_vocab()
    )
    held_out = json.loads((folder / "held_out.json").read_text())["held_out"]
    assert 0 < held_out["text accepted"] < 1
    assert "specserve train lm --minutes 0.03" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_a_run_can_go_on_from_a_model_of_the_same_shape(train, tmp_path, monkeypatch, capsys):
    assert train() == 0
    (tmp_path / "lm").rename(tmp_path / "plain")
    begun = {}

    def note(trainer: Trainer, *_: object) -> bool:
        begun.update({name: w.clone() for name, w in trainer.model.state_dict().items()})
        return False

    monkeypatch.setattr(training_run, "run_until_stopped", note)
    init = ("--init", str(tmp_path / "plain"), "--distill", "1", "--restart")
    assert train(*init) == 130
    stored = load_file(tmp_path / "plain" / "model.safetensors")
    assert begun.keys() == stored.keys()
    assert all(torch.equal(begun[name], weight.float()) for name, weight in stored.items())
    assert train(*init, "--intermediate", "32") == 2
    assert f"--intermediate: 32: {tmp_path / 'plain'} has 24" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"torn", None])
def test_weights_that_cannot_be_read_are_refused(content, train, tmp_path, capsys):
    given = write_config(tmp_path / "given", QWEN3, vocab_size=VOCAB)
    if content is not None:
        (given / "model.safetensors").write_bytes(content)
    assert train("--init", str(given)) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"specserve: --init: {given}")


def test_a_run_can_begin_as_layers_of_the_target(target, train, monkeypatch, capsys):
    begun = {}

    def note(trainer: Trainer, *_: object) -> bool:
        begun.update(trainer.model.state_dict())
        return False

    monkeypatch.setattr(training_run, "run_until_stopped", note)
    assert train("--cut", "0", "2", "--restart") == 130
    assert "model.embed_tokens.weight" not in begun
    for place, layer in enumerate((0, 2)):
        for name, weight in target.layer_tensors(layer).items():
            assert torch.equal(begun[f"model.layers.{place}.{name}"], weight)
    assert train("--cut", "0", "3", "--restart") == 2
    assert "specserve: --cut: 3: the target has layers 0..2" in capsys.readouterr().err


def test_a_resumed_run_does_not_cut_its_target_again(train, monkeypatch):
    def stop_at_once(trainer: Trainer, schedule, console) -> bool:
        trainer.stop = True
        return trainer.run(schedule, lambda *_: None)

    monkeypatch.setattr(training_run, "run_until_stopped", stop_at_once)
    assert train("--cut", "0") == 130
    monkeypatch.setattr(language_model_run, "cut", lambda *_: pytest.fail("cut again"))
    assert train("--cut", "0") == 130


def test_the_default_shape_is_small_on_disk():
    shape = DecoderConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                          num_key_value_heads=2, intermediate_size=384)  # fmt: skip
    from draft_node.training.decoder import Decoder

    num_bytes = 2 * sum(p.numel() for p in Decoder(shape).parameters())
    assert num_bytes < 2_000_000


@pytest.mark.slow
def test_a_stopped_run_is_resumed_and_another_refused(train, tmp_path, monkeypatch, capsys):
    steps = []

    def stop_soon(trainer: Trainer, schedule, console) -> bool:
        steps.append(trainer.progress.step)
        trainer.stop = len(steps) == 1
        return trainer.run(schedule, lambda *_: None)

    monkeypatch.setattr(training_run, "run_until_stopped", stop_soon)
    assert train() == 130
    assert not (tmp_path / "lm" / "model.safetensors").exists()
    assert train("--distill", "0.5") == 2
    assert "specserve: --distill:" in capsys.readouterr().err
    assert train() == 0
    assert train() == 0
    assert steps[2] > 0


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--heads", "3", "--kv-heads", "2"), "--kv-heads: 3 heads cannot share"),
        (("--head-dim", "7"), "--head-dim: has to be even"),
    ],
)
def test_shapes_that_cannot_be_are_refused(flags, problem, train, capsys):
    assert train(*flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"specserve: {problem}")
