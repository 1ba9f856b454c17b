"""The command that makes the embedded target, where it refuses to begin."""

import fcntl
from pathlib import Path

import pytest

from draft_node.training import dataset, embedded
from draft_node.training.checkpoint import FILE_NAME
from draft_node.training.embedded import main
from draft_node.training.run_folder import LOCK
from specserve.errors import Failed
from specserve.target_source import EMBEDDED_TARGET


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

    monkeypatch.setattr(embedded, "train", stop)
    monkeypatch.setattr(dataset, "prepare", lambda *_: None)
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
