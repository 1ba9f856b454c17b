"""The command that makes the embedded target, where it refuses to begin."""

import fcntl
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from draft_node.training import dataset, embedded
from draft_node.training.checkpoint import FILE_NAME
from draft_node.training.embedded import main
from draft_node.training.run_folder import LOCK
from specserve.errors import Failed
from specserve.settings.target_source import EMBEDDED_TARGET


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path, capsys):
    with (tmp_path / LOCK).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["--work", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    problem = f"specserve: --work: {tmp_path}: another run into it is under way"
    assert capsys.readouterr().err.startswith(problem)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize("flag", ["--minutes", "--decay-minutes", "--threads", "--seed"])
def test_a_senseless_number_is_named(flag: str, tmp_path: Path, capsys):
    with pytest.raises(SystemExit):
        main(["--work", str(tmp_path), "--out", str(tmp_path / "out"), flag, "-1"])
    assert f"argument {flag}: " in capsys.readouterr().err


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys):
    with pytest.raises(SystemExit):
        main(["--work", str(tmp_path)])
    assert "--out" in capsys.readouterr().err


def test_an_initial_folder_without_a_model_is_named(tmp_path: Path, capsys):
    words = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert main([*words, "--init", str(tmp_path)]) == 2
    problem = f"specserve: --init: {tmp_path}: model.safetensors is missing"
    assert capsys.readouterr().err.startswith(problem)


@pytest.fixture
def train(tmp_path: Path, monkeypatch):
    """The command, whose training leaves a checkpoint and stops; the flags of every run."""
    work = tmp_path / "work"

    def stop(arguments, console) -> bool:
        (work / FILE_NAME).touch()
        return False

    def prepare(folder: Path, tokenizer_folder: Path | None) -> None:
        (folder / "tokenizer").mkdir(exist_ok=True)
        given = (tokenizer_folder or EMBEDDED_TARGET) / "tokenizer.json"
        if not (folder / "tokenizer" / "tokenizer.json").exists():  # as it skips what is there
            shutil.copy(given, folder / "tokenizer" / "tokenizer.json")

    monkeypatch.setattr(embedded, "train", stop)
    monkeypatch.setattr(dataset, "prepare", prepare)
    return lambda *flags: main(["--work", str(work), "--out", str(tmp_path / "out"), *flags])


@pytest.mark.parametrize(
    "flags",
    [
        ("--seed", "1"),
        ("--rate", "0.5"),
        ("--tokens-per-step", "64"),
        ("--init", str(EMBEDDED_TARGET)),
    ],
)
def test_a_run_goes_on_with_what_it_was_begun_with_alone(flags, train, capsys):
    assert train() == 1
    assert train("--minutes", "3") == 1  # as long as anybody likes
    assert train(*flags) == 2
    assert f"specserve: {flags[0]}: " in capsys.readouterr().err
    assert train("--restart", *flags) == 1
    assert train(*flags) == 1


def test_a_run_that_diverges_does_not_look_like_one_that_cannot_begin(train, monkeypatch):
    def diverge(*_: object) -> bool:
        raise Failed("training diverged")

    monkeypatch.setattr(embedded, "train", diverge)
    assert train() == 1


def model_folder(path: Path, vocabulary: dict[str, int]) -> Path:
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(EMBEDDED_TARGET / name, path / name)
    Tokenizer(models.WordLevel(vocabulary, unk_token="a")).save(str(path / "tokenizer.json"))
    return path


def test_text_of_another_vocabulary_is_refused(train, tmp_path, capsys):
    first = model_folder(tmp_path / "first", {"a": 0})
    second = model_folder(tmp_path / "second", {"a": 0, "b": 1})
    assert train("--init", str(first)) == 1
    assert train("--init", str(second), "--restart") == 2
    assert "specserve: --work: " in (told := capsys.readouterr().err)
    assert "another tokenizer" in told


def test_a_run_that_began_from_its_own_output_goes_on_after_an_export(train, tmp_path):
    out = model_folder(tmp_path / "out", {"a": 0})
    assert train("--init", str(out)) == 1
    (out / "config.json").write_text("{}")  # as an export changes what is there
    assert train("--init", str(out)) == 1


def test_a_place_that_cannot_be_written_is_told_before_the_work(train, tmp_path, capsys):
    (tmp_path / "out").write_text("a file")
    assert train() == 2
    assert "specserve: --out: " in capsys.readouterr().err


def test_the_command_of_a_run_has_all_that_it_is(tmp_path):
    words = ["--seed", "3", "--rate", "0.5", "--init", "given", "--out", str(tmp_path / "mine")]
    arguments = embedded._arguments(words)
    assert embedded._command(arguments, 600.0) == (
        "python -m draft_node.training.embedded --minutes 10 --decay-minutes 27 --seed 3 "
        "--rate 0.5 --init given --out mine"
    )
