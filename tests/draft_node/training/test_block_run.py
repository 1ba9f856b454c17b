"""Whole runs of the training command, in this process, on a target of a few thousand weights."""

import csv
import json

import pytest
import torch
from safetensors.torch import load_file

from draft_node.training import curves, text_source
from draft_node.training import run as training_run
from draft_node.training.__main__ import main
from draft_node.training.block_start import default_feature_layers
from draft_node.training.checkpoint import load
from draft_node.training.export import CHECKSUMS
from draft_node.training.self_text import SelfTextConfig
from draft_node.training.trainer import Trainer
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.eagle3 import Eagle3Drafter
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import TargetWeights
from specserve.sampling.draft_sampler import Greedy
from tests.draft_node.training.drafters import TEXT, VOCAB, write_target
from tests.specserve.drafters.checkpoints import DSPARK, EAGLE3, options, write_drafter

SMALL_POOL = SelfTextConfig(rows=512, length=32, shortest_prompt=2, longest_prompt=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target and text to train on, which no test changes."""
    folder = tmp_path_factory.mktemp("run")
    write_target(folder / "target")
    (folder / "text.txt").write_text("\n".join(TEXT))
    return folder


@pytest.fixture
def train(folder, tmp_path, monkeypatch):
    """Run the command on that target for a few seconds."""
    monkeypatch.setattr(text_source, "SelfTextConfig", lambda **_: SMALL_POOL)

    def run(kind: str, *flags: str, minutes: float = 0.02, out: str = "out") -> int:
        words = ["--target", str(folder / "target"), "--text", str(folder / "text.txt")]
        words += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / out)]
        words += ["--threads", "1", "--tokens-per-step", "512", "--anchors", "16", "--gamma", "3"]
        budget = [] if "--steps" in flags else ["--minutes", str(minutes)]
        words += ["--self-tokens", "1000", *budget, *flags]
        return main([kind, *words])

    return run


def loaded(folder, out) -> BlockDrafter:
    drafter = load_drafter(out, TargetWeights.of(folder / "target"), options())
    assert isinstance(drafter, BlockDrafter)
    return drafter


@pytest.mark.slow
def test_a_run_ends_in_a_folder_that_drafts(folder, train, tmp_path):
    assert train("dspark", "--rank", "8") == 0
    drafter = loaded(folder, tmp_path / "out")
    assert drafter.gamma == 3
    assert drafter.confidence_head is not None
    held_out = json.loads((tmp_path / "out" / "held_out.json").read_text())
    assert set(held_out["held_out"]) == {"text", "self-text"}
    assert held_out["training"]["steps"] >= 1
    assert "specserve train dspark --minutes 0.02" in (tmp_path / "out" / "README.md").read_text()
    with (tmp_path / "out" / curves.TABLE).open() as file:
        *_, last = csv.DictReader(file)
    assert float(last["self-text"]) > 1
    assert (tmp_path / "out" / curves.PICTURE).read_bytes().startswith(b"\x89PNG")
    listed = (tmp_path / "out" / CHECKSUMS).read_text()
    assert all(
        path.name in listed for path in (tmp_path / "out").iterdir() if path.name != CHECKSUMS
    )


@pytest.mark.slow
def test_a_dflash_has_no_heads(folder, train, tmp_path):
    assert train("dflash", "--self-text", "0", "--layers", "1") == 0
    drafter = loaded(folder, tmp_path / "out")
    assert drafter.head is None
    assert drafter.confidence_head is None
    assert len(drafter.backbone.layers) == 1


@pytest.mark.slow
def test_a_drafter_can_be_tuned_for_gaps_and_shorter_blocks(folder, train, tmp_path, capsys):
    assert train("dspark", "--rank", "8", "--markov", "gated") == 0
    shorter = ("--init", str(tmp_path / "out"), "--max-gap", "4", "--gamma", "2")
    assert train("dspark", *shorter, out="gap") == 0
    assert loaded(folder, tmp_path / "gap").gamma == 2
    assert json.loads((tmp_path / "gap" / "config.json").read_text())["max_feature_gap"] == 4
    before, after = (loaded(folder, tmp_path / name).head.embedding for name in ("out", "gap"))
    assert 0 < (after - before).norm() < before.norm()

    assert train("dspark", "--init", str(tmp_path / "out"), "--rank", "6", out="c") == 2
    assert "specserve: --rank: 6:" in capsys.readouterr().err
    assert train("dflash", "--init", str(tmp_path / "out"), out="c") == 2
    assert "specserve: --init:" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stopped_run_is_resumed_and_another_refused(train, tmp_path, monkeypatch, capsys):
    steps = []

    def stop_soon(trainer: Trainer, *arguments: object) -> bool:
        trainer.stop = True
        return Trainer.run(trainer, *arguments)

    def note(trainer: Trainer, *arguments: object) -> bool:
        steps.append(trainer.progress.step)
        return Trainer.run(trainer, *arguments)

    def through(run):
        return lambda trainer, schedule, console: run(trainer, schedule, lambda *_: None)

    monkeypatch.setattr(training_run, "run_until_stopped", through(stop_soon))
    assert train("dspark", "--rank", "8") == 130
    (saved,) = (tmp_path / "work" / "runs").glob("dspark-out-*/checkpoint.safetensors")
    assert load(saved)[2].step == 0
    assert not (tmp_path / "out" / "model.safetensors").exists()

    assert train("dspark", "--rank", "4") == 2
    assert "specserve: --rank:" in capsys.readouterr().err
    monkeypatch.setattr(training_run, "run_until_stopped", through(note))
    assert train("dspark", "--rank", "8") == 0
    assert train("dspark", "--rank", "8") == 0
    assert train("dspark", "--rank", "4", "--restart") == 0
    assert steps[0] == steps[2] == 0
    assert steps[1] >= 1


@pytest.mark.slow
def test_two_processes_write_one_drafter(folder, train, tmp_path):
    flags = ("--rank", "8", "--self-text", "0", "--steps", "6")
    assert train("dspark", *flags, "--processes", "2") == 0
    drafter = loaded(folder, tmp_path / "out")
    assert drafter.gamma == 3
    held_out = json.loads((tmp_path / "out" / "held_out.json").read_text())
    assert held_out["training"]["steps"] == 6
    assert held_out["training"]["tokens"] == 6 * 512
    assert held_out["training"]["epochs"]["text"] > 0
    assert "--processes" not in held_out["training"]["command"]  # it is the same run
    # It is resumed by one alone, too, and has nothing left to do.
    assert train("dspark", *flags) == 0


@pytest.mark.parametrize(
    "flags",
    [
        ("--mask-token-id", "999"), ("--feature-layers", "9"), ("--draft-vocab", "999"),
        ("--init", "/proc"), ("--anchors", "9999"), ("--processes", "3"), ("--text", "/nowhere"),
        ("--out", "/proc/nope"), ("--work", "/proc/nope"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_a_weight_is_read(flags, train, monkeypatch, capsys):
    def load(*_: object) -> None:
        pytest.fail("the target was loaded")

    monkeypatch.setattr(training_run, "load_target", load)
    assert train("dspark", *flags) == 2
    assert f"specserve: {flags[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--minutes", "0"), "argument --minutes: '0' is not a positive number"),
        (("--steps", "0"), "argument --steps: '0' is not a positive whole number"),
        (("--steps", "-3"), "argument --steps: '-3' is not a positive whole number"),
        (("--steps", "1.5"), "argument --steps: '1.5' is not a positive whole number"),
        (("--steps", "9", "--minutes", "1"), "--minutes: not allowed with argument --steps"),
        (("--self-text", "2"), "argument --self-text: '2' is not between 0 and 1"),
        (("--feature-layers", "0,7"), "--feature-layers: 0,7: the target has layers 0..2"),
        (("--feature-layers", "1,1"), "--feature-layers: 1,1: a layer comes twice"),
        (("--seed", "-5"), "argument --seed: '-5' is not a whole number in 0..4294967295"),
        (("--seed", "4294967296"), "--seed: '4294967296' is not a whole number in 0..4294967295"),
        (("--max-gap", "65"), "argument --max-gap: '65' is not a whole number in 0..64"),
        (("--max-gap", "x"), "argument --max-gap: 'x' is not a whole number in 0..64"),
        (("--feature-layers", "x"), "argument --feature-layers: 'x' is not of the form"),
        (("--anchors", "9999"), "--anchors: 9999: at most 253 blocks of 3 begin in 256"),
        (("--gamma", "65"), "argument --gamma: '65' is not a whole number in 1..64"),
        (("--gamma", "0"), "argument --gamma: '0' is not a whole number in 1..64"),
        (("--mask-token-id", "999"), "--mask-token-id: 999: the target's vocabulary is 0.."),
        (("--markov", "none"), "--confidence: markov: there is no Markov head"),
        (("--markov", "none", "--confidence", "none"), "--markov: none: a DSpark without heads"),
        (("--target", "/proc"), "--target: model.target: /proc is no model folder"),
        (("--target", "smollm"), "--target: 'smollm' is none of: a folder, a .gguf file, a hub"),
        (("--device", "tpu"), "--device: tpu:"),
        (("--init", "/proc"), "--init: /proc is no model folder, config.json is missing"),
        (("--text", "/nowhere"), "--text: /nowhere: no such file or folder"),
    ],
)
def test_errors_name_the_flag(flags, problem, train, capsys):
    try:
        code = train("dspark", *flags)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("specserve: ")
    assert problem in line


@pytest.mark.parametrize("kind", ["dspark", "eagle3"])
def test_a_drafter_that_cannot_be_gone_on_from_is_refused_naming_init(
    kind, train, tmp_path, capsys
):
    given = tmp_path / "given"
    config = {"dspark": DSPARK, "eagle3": EAGLE3}[kind]
    for changes, problem in (
        ({"vocab_size": 96}, f"{given}: vocab_size: 96, the target has {VOCAB}"),
        ({"hidden_size": 64}, f"{given}: hidden_size: 64, the target has 32"),
    ):
        write_drafter(given, config, **{"vocab_size": VOCAB, "num_target_layers": 3, **changes})
        assert train(kind, "--init", str(given)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"specserve: --init: {problem}")
    (given / "model.safetensors").write_bytes(b"torn")
    assert train(kind, "--init", str(given)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"specserve: --init: {given}")


def test_blocks_are_shorter_than_the_targets_rows(tmp_path, capsys):
    target = write_target(tmp_path / "target", max_position_embeddings=32)
    words = ["--target", str(target), "--out", str(tmp_path / "out"), "--gamma", "32"]
    assert main(["eagle3", *words, "--feature-layers", "0,0,1,1,2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "specserve: --gamma: 32: rows of this target have 32 tokens"


def stored(out) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


@pytest.mark.slow
def test_a_number_of_steps_is_the_same_run_again(train, tmp_path):
    flags = ("--self-text", "0", "--layers", "1", "--steps", "4")
    assert train("dflash", *flags) == 0
    assert train("dflash", *flags, "--work", str(tmp_path / "elsewhere"), out="again") == 0
    assert train("dflash", *flags, "--seed", "1", out="seed-1/out") == 0
    one, again, other = (stored(tmp_path / name) for name in ("out", "again", "seed-1/out"))
    assert all(torch.equal(weight, again[name]) for name, weight in one.items())
    assert not all(torch.equal(weight, other[name]) for name, weight in one.items())
    held_out = json.loads((tmp_path / "out" / "held_out.json").read_text())
    assert held_out["training"]["steps"] == 4
    assert "specserve train dflash --steps 4" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
def test_the_largest_seed_trains(train):
    flags = ("--self-text", "0", "--layers", "1", "--steps", "1")
    assert train("dflash", "--seed", "4294967295", *flags) == 0


def test_a_run_goes_on_to_more_steps_and_never_back(train, tmp_path, capsys):
    flags = ("--self-text", "0", "--layers", "1", "--steps")
    assert train("dflash", *flags, "2") == 0
    assert train("dflash", *flags, "3") == 0
    held_out = json.loads((tmp_path / "out" / "held_out.json").read_text())
    assert held_out["training"]["steps"] == 3
    capsys.readouterr()
    assert train("dflash", *flags, "1") == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == "specserve: --steps: 1: the run has taken 3; --restart forgets it"
    assert train("dflash", *flags, "1", "--restart") == 0


@pytest.mark.slow
def test_an_eagle3_is_trained_tuned_and_drafts(folder, train, tmp_path, capsys):
    assert train("eagle3", "--self-text", "0", "--steps", "3") == 0
    weights = stored(tmp_path / "out")
    assert not {"embed_tokens.weight", "lm_head.weight"} & set(weights)
    drafter = load_drafter(tmp_path / "out", TargetWeights.of(folder / "target"), options())
    assert isinstance(drafter, Eagle3Drafter)
    assert drafter.gamma == 3
    drafter.extend(ContextUpdate([0], [0], [6], torch.arange(6), torch.randn(6, 32)))
    drafted = drafter.draft(DraftBatch([0], torch.tensor([3])), Greedy())
    assert drafted.token_ids.shape == (1, 3)

    tuned = ("--init", str(tmp_path / "out"), "--max-gap", "2", "--steps", "2", "--self-text", "0")
    assert train("eagle3", *tuned, out="tuned") == 0
    after = stored(tmp_path / "tuned")
    assert set(after) == set(weights)
    assert 0 < (after["fc.weight"] - weights["fc.weight"]).norm() < weights["fc.weight"].norm()

    capsys.readouterr()
    for flags, problem in (
        (("--init", str(tmp_path / "out"), "--gamma", "5"), "--gamma: 5:"),
        (("--feature-layers", "0,1"), "--feature-layers: (0, 1): the format wants 5"),
        (("--feature-layers", "0,0,1,1,3"), "the target has layers 0..2"),
        (("--init", str(folder / "target")), "--init:"),
    ):
        assert train("eagle3", *flags, out="refused") == 2
        assert problem in capsys.readouterr().err
    assert train("dspark", "--init", str(tmp_path / "out"), out="refused") == 2
    assert "--init:" in capsys.readouterr().err


def test_an_unknown_kind_is_refused(capsys):
    assert main(["dspork"]) == 2
    assert (
        "kind: 'dspork' is not one of data, dspark, dflash, eagle3, local-head, lm"
        in capsys.readouterr().err
    )


def test_features_are_spread_as_published():
    assert default_feature_layers(36) == (1, 9, 17, 25, 33)
    assert default_feature_layers(40) == (1, 10, 19, 28, 37)
    assert default_feature_layers(5) == (1, 2, 3)
    assert default_feature_layers(1) == (0,)


def test_threads_are_given_back(train):
    before = torch.get_num_threads()
    assert train("dspark", "--device", "tpu") == 2
    assert torch.get_num_threads() == before


def test_arguments_of_another_kind_are_unknown(train, capsys):
    with pytest.raises(SystemExit):
        train("dflash", "--rank", "3")
    assert "unrecognized arguments: --rank 3" in capsys.readouterr().err
