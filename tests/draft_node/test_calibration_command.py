"""`specserve calibrate` from command line to a drafter whose confidences have changed."""

import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from rich.console import Console

from draft_node.calibration import plot
from draft_node.calibration.run import calibrate
from draft_node.calibration.texts import name_of_prompts
from draft_node.training.chats.store import ChatStore, Exchange
from draft_node.training.export import CHECKSUMS, write_checksums
from specserve.cli import main
from specserve.commands.calibrate import Job
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.stored_calibration import FILE_NAME, Calibration
from specserve.drafters.weights import TargetWeights
from specserve.errors import InvalidField, Unsupported
from specserve.sampling.draft_sampler import Greedy
from specserve.settings.speed_files import SpeedRecord
from tests.draft_node.calibration_job import make_job, write_inputs
from tests.draft_node.training.drafters import VOCAB, write_target
from tests.specserve.drafters.checkpoints import (
    DFLASH,
    DSPARK,
    LOCAL_HEAD,
    change_tensors,
    options,
    random_weights,
    write_config,
    write_drafter,
)
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint

SIZES = {"vocab_size": VOCAB, "num_target_layers": 3}
HEAD = {
    "prefix_gru.weight_ih_l0": (36, 32),
    "prefix_gru.weight_hh_l0": (36, 12),
    "rank_proj.weight": (5, 12),
    "low_rank_lm_head.weight": (VOCAB, 5),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("calibration"))


def run(job: Job) -> tuple[Calibration, str]:
    """The calibration, and what was printed."""
    results = Console(file=io.StringIO(), width=120)
    calibration = calibrate(job, results)
    return calibration, results.file.getvalue()


def confidences(folder: Path, drafter: Path, **changes) -> torch.Tensor:
    """Of one greedy block after the same features: [1, G]."""
    loaded = load_drafter(drafter, TargetWeights.of(folder / "target"), options(**changes))
    torch.manual_seed(4)
    features = torch.randn(6, loaded.feature_size) if loaded.feature_size else None
    loaded.extend(ContextUpdate([0], [0], [6], torch.arange(6), features))
    return loaded.draft(DraftBatch([0], torch.tensor([3])), Greedy()).confidences


@pytest.mark.slow
def test_chats_that_no_training_learns_are_calibrated_on(folder, tmp_path):
    drafter = write_drafter(tmp_path / "draft", DSPARK, **SIZES)
    store = ChatStore(tmp_path / "chats")
    store.folder.mkdir()
    chats = [Exchange(n, 1.0, (9, 10 + n % 100, 11 + n // 100), (12, 13)) for n in range(300)]
    store.add(300, chats, VOCAB)
    calibration, said = run(make_job(folder, drafter, data=store.folder))
    assert calibration.num_texts == 8
    assert calibration.asked == name_of_prompts(store.folder)
    assert "accept length" in said
    command = [
        sys.executable,
        "-P",
        "-m",
        "specserve",
        "calibrate",
        "--data",
        "a",
        "--prompts",
        "b",
    ]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "not allowed with argument --data" in refused.stderr


@pytest.mark.slow
def test_the_command_writes_a_calibration_that_the_drafter_is_loaded_with(folder, tmp_path):
    drafter = write_drafter(tmp_path / "draft", DSPARK, **SIZES)
    raw = confidences(folder, drafter)
    words = [
        "calibrate", "--target", folder / "target", "--drafter", drafter,
        "--prompts", folder / "prompts", "--num-prompts", "8", "--num-tokens", "12",
        "--threads", "1", "--plot", tmp_path / "plots" / "diagram.png", "--speed-prompts", "2",
    ]  # fmt: skip
    command = [sys.executable, "-m", "specserve", *map(str, words)]
    environment = {**os.environ, "SPECSERVE_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "ECE" in ended.stdout
    assert "mean" in ended.stdout
    assert str(drafter / FILE_NAME) in ended.stdout
    assert (tmp_path / "plots" / "diagram.png").read_bytes().startswith(b"\x89PNG")

    stored = json.loads((drafter / FILE_NAME).read_text())
    assert stored["law"] is None
    assert (stored["rule"], stored["temperature"]) == ("foreseeable", 1.0)
    temperatures = torch.tensor(stored["temperatures"])
    assert len(temperatures) == 4
    calibrated = confidences(folder, drafter)
    torch.testing.assert_close(calibrated, (raw.logit() / temperatures).sigmoid())
    assert not torch.allclose(calibrated, raw)
    assert torch.equal(confidences(folder, drafter, calibrated=False), raw)

    number = r"\d+\.\d\d"
    line = rf"({number} \[{number}, {number}\]) times as fast as plain decoding on this machine "
    said = re.search(line + r"\(one request, temperature 1, 2 pairs\)\n", ended.stdout)
    assert said, ended.stdout
    (path,) = (tmp_path / "cache" / "speeds").iterdir()
    speed = msgspec.json.decode(path.read_bytes(), type=SpeedRecord)
    assert speed.figure == said[1]
    assert (speed.drafter, speed.asked.num_tokens) == (str(drafter), 12)


@pytest.mark.slow
def test_a_drafter_without_a_head_gets_confidences_from_its_distributions(folder, tmp_path):
    drafter = write_drafter(tmp_path / "draft", DFLASH, **SIZES)
    assert confidences(folder, drafter) is None
    calibration, printed = run(make_job(folder, drafter))
    assert calibration.confidence_model is not None
    assert len(calibration.evaluation.after) == 4
    assert "mean" in printed
    found = confidences(folder, drafter)
    assert found.shape == (1, 4)
    assert ((found > 0) & (found < 1)).all()


@pytest.mark.slow
def test_a_language_model_is_calibrated_under_coupled_and_greedy_methods_too(folder, tmp_path):
    drafter = write_checkpoint(
        tmp_path / "lm", QWEN3, vocab_size=VOCAB, num_hidden_layers=1, eos_token_id=0
    )
    coupled, _ = run(make_job(folder, drafter, verification="coupled", gamma=3))
    greedy, _ = run(make_job(folder, drafter, temperature=0.0, gamma=3, out=tmp_path / "elsewhere"))
    assert len(coupled.temperatures) == len(greedy.temperatures) == 3
    assert (tmp_path / "elsewhere" / FILE_NAME).is_file()
    # Blocks may be longer than those that were calibrated.
    assert confidences(folder, drafter, gamma=5).shape == (1, 5)


@pytest.mark.slow
def test_the_calibration_of_a_local_head_is_beside_the_head_and_for_its_dflash(
    folder, tmp_path, caplog
):
    drafter = write_drafter(tmp_path / "draft", DFLASH, **SIZES)
    head = write_config(tmp_path / "head", LOCAL_HEAD, vocab_size=VOCAB)
    weights = {**random_weights(HEAD), "unigram_counts": torch.arange(VOCAB)}
    from safetensors.torch import save_file

    save_file(weights, head / "model.safetensors")
    run(make_job(folder, drafter, local_head=head, out=head))
    assert confidences(folder, drafter) is None
    assert confidences(folder, drafter, local_head=head) is not None
    assert caplog.text == ""
    write_config(head, LOCAL_HEAD, vocab_size=VOCAB, alpha=0.5)
    assert confidences(folder, drafter, local_head=head) is None
    assert "made for another drafter" in caplog.text


def test_a_drafter_that_computes_no_numbers_is_refused_in_one_line(folder, tmp_path):
    drafter = write_drafter(tmp_path / "draft", DSPARK, **SIZES)
    change_tensors(drafter, **{"norm.weight": torch.full((32,), 3e38)})
    with pytest.raises(Unsupported, match=r"the drafter \(dspark\): its confidences are NaN"):
        run(make_job(folder, drafter))
    change_tensors(drafter, **{"norm.weight": torch.full((32,), float("nan"))})
    with pytest.raises(Unsupported, match=r"draft: tensor norm\.weight: NaN or infinity"):
        run(make_job(folder, drafter))
    assert not (drafter / FILE_NAME).exists()


@pytest.mark.slow
def test_a_calibration_made_for_other_weights_is_left_out_with_a_warning(folder, tmp_path, caplog):
    drafter = write_drafter(tmp_path / "draft", DSPARK, **SIZES)
    raw = confidences(folder, drafter)
    run(make_job(folder, drafter))
    with caplog.at_level(logging.WARNING):
        assert not torch.equal(confidences(folder, drafter), raw)
    assert caplog.text == ""

    stored = json.loads((drafter / FILE_NAME).read_text())
    (drafter / FILE_NAME).write_text(json.dumps({**stored, "target_hash": "0"}))
    assert torch.equal(confidences(folder, drafter), raw)
    assert "not used: it was made for another target" in caplog.text

    (drafter / FILE_NAME).write_text(json.dumps(stored))
    change_tensors(drafter, **{"norm.weight": torch.ones(32)})
    confidences(folder, drafter)
    assert "not used: it was made for another drafter" in caplog.text

    (drafter / FILE_NAME).write_text(json.dumps({**stored, "temperatures": [1, 0, 1, 1]}))
    confidences(folder, drafter)
    assert "Expected `float` > 0.0" in caplog.text


@pytest.mark.slow
def test_a_calibration_of_another_kind_of_drafter_is_left_out(folder, tmp_path, caplog):
    drafter = write_drafter(tmp_path / "draft", DSPARK, **SIZES)
    calibration, _ = run(make_job(folder, drafter))
    short = msgspec.structs.replace(calibration, temperatures=[1.0])
    (drafter / FILE_NAME).unlink()
    raw = confidences(folder, drafter)
    (drafter / FILE_NAME).write_bytes(msgspec.json.encode(short))
    assert torch.equal(confidences(folder, drafter), raw)
    assert "not that of this confidence head" in caplog.text


def test_without_matplotlib_only_the_diagram_is_missing(folder, tmp_path, monkeypatch, caplog):
    drafter = write_drafter(tmp_path / "draft", DFLASH, **SIZES)
    monkeypatch.setattr(plot, "can_draw", lambda: False)
    run(make_job(folder, drafter))
    assert (drafter / FILE_NAME).is_file()
    assert not (drafter / "reliability.png").exists()
    assert "matplotlib is missing" in caplog.text
    with pytest.raises(Unsupported, match="--plot: matplotlib is missing"):
        run(make_job(folder, drafter, plot=tmp_path / "plot.png"))


@pytest.mark.slow
def test_checksums_of_the_folder_stay_complete(folder, tmp_path):
    drafter = write_drafter(tmp_path / "draft", DFLASH, **SIZES)
    write_checksums(drafter)
    run(make_job(folder, drafter))
    listed = {line.split("  ")[1] for line in (drafter / CHECKSUMS).read_text().splitlines()}
    assert listed == {path.name for path in drafter.iterdir()} - {CHECKSUMS}
    assert FILE_NAME in listed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("--target", "smollm2"),
            "--drafter: prompt lookup has no distributions and no "
            "confidences; name dspark, lm, a folder, or ngram to time it alone",
        ),
        (("--drafter", "ngram", "--no-speed"), "--no-speed: ngram has no confidences to calibrate"),
        (("--drafter", "ngram", "--out", "."), "--out: ngram has no confidences to calibrate"),
        (("--drafter", "/nowhere/at/all"), "speculation.drafter: '/nowhere/at/all'"),
        (("--target", "TARGET"), "speculation.drafter: is needed for a target of your own"),
        (("--target", "/nowhere"), "model.target: '/nowhere'"),
        (("--temperature", "-1"), "argument --temperature: has to be between 0 and 100"),
        (("--num-prompts", "1"), "argument --num-prompts: has to be at least 2"),
        (("--stride", "x"), "argument --stride: invalid whole value: 'x'"),
        (("--verification", "greedy"), "argument --verification: invalid choice"),
        (("--out", "/proc/nope"), "--out: /proc/nope: No such file or directory"),
        (("--plot", "/proc/nope/a.png"), "--plot: /proc/nope: No such file or directory"),
    ],
)
def test_bad_usage_is_one_line_naming_the_flag(words, problem, folder, capsys):
    words = [str(folder / "target") if word == "TARGET" else word for word in words]
    try:
        code = main(["calibrate", *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"specserve: {problem}")


def test_texts_that_do_not_fit_are_refused(folder, tmp_path):
    drafter = write_drafter(tmp_path / "draft", DFLASH, **SIZES)
    with pytest.raises(InvalidField, match="--num-tokens: 100 leave no room"):
        run(make_job(folder, drafter, num_tokens=100))


def test_a_block_is_at_most_as_long_as_the_drafters(folder, tmp_path):
    drafter = write_drafter(tmp_path / "draft", DSPARK, **SIZES)
    with pytest.raises(InvalidField, match="--gamma: 5: the drafter drafts at most 4 tokens"):
        run(make_job(folder, drafter, gamma=5))


@pytest.mark.slow
def test_there_is_room_for_the_longest_chains_and_no_longer_ones(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "can_draw", lambda: False)
    longer = write_target(tmp_path / "target", max_position_embeddings=512)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text((json.dumps({"text": "def f(x): return x"}) + "\n") * 16)
    settings = {"target": longer, "prompts": prompts, "num_prompts": 16, "num_tokens": 3}
    calibration, _ = run(make_job(folder, longer, gamma=64, **settings))
    assert len(calibration.temperatures) == 64
    with pytest.raises(InvalidField, match="--gamma: 65: the drafter drafts at most 64 tokens"):
        run(make_job(folder, longer, gamma=65, **settings))


def test_a_job_survives_its_way_to_the_process(tmp_path):
    job = make_job(tmp_path, tmp_path / "draft", local_head=tmp_path / "head")
    assert Job.decode(job.encode()) == job
