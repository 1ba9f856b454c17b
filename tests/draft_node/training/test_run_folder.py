"""Whose checkpoint a run continues."""

import argparse
from pathlib import Path

import pytest

from draft_node.training import block_drafters, language_model, local_head
from draft_node.training.checkpoint import FILE_NAME, load
from draft_node.training.run_folder import claim
from specserve.errors import InvalidField, Unsupported
from tests.draft_node.training.drafters import write_target

MODULES = {"dspark": block_drafters, "local-head": local_head, "lm": language_model}


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Claim the folder of a run and leave a checkpoint there."""
    monkeypatch.chdir(tmp_path)
    write_target(tmp_path / "target")

    def run(kind: str, *flags: str, out: str = "a/drafter") -> Path:
        parser = argparse.ArgumentParser()
        parser.set_defaults(kind=kind)
        MODULES[kind].add_options(parser)
        words = ["--target", "target", "--work", "work", "--out", out, *flags]
        folder = claim(parser.parse_args(words))
        (folder / FILE_NAME).touch()
        return folder

    return run


@pytest.mark.parametrize("kind", MODULES)
def test_runs_into_folders_of_the_same_name_are_kept_apart(kind, begin, tmp_path):
    folder = begin(kind)
    assert begin(kind, "--seed", "1", out="b/drafter") != folder
    assert begin(kind) == folder
    assert begin(kind, out=str(tmp_path / "a" / "drafter")) == folder
    assert begin(kind, "--minutes", "99", "--threads", "1", "--device", "cuda") == folder


@pytest.mark.parametrize(
    ("kind", "flag", "value"),
    [
        *((kind, flag, "3") for kind in MODULES for flag in ("--seed", "--rate")),
        ("dspark", "--self-tokens", "50000"),
        ("dspark", "--feature-layers", "1,2"),
        ("local-head", "--window", "8"),
        ("lm", "--distill", "1"),
    ],
)
def test_a_run_with_another_flag_is_not_resumed(kind, flag, value, begin):
    folder = begin(kind)
    with pytest.raises(InvalidField) as refused:
        begin(kind, flag, value)
    run = "the run that was begun into a/drafter, finished or not"
    assert str(refused.value) == f"{flag}: {run}, has another value; --restart forgets it"
    assert (folder / FILE_NAME).exists()
    begin(kind, flag, value, "--restart")
    begin(kind, flag, value)  # the one that was begun last is resumed


def test_what_a_run_goes_on_from_is_known_by_its_weights(begin, tmp_path):
    for name in ("first", "copy"):
        write_target(tmp_path / name)
    begin("lm", "--init", "first")
    begin("lm", "--init", "copy")
    (tmp_path / "copy" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(InvalidField, match="--init"):
        begin("lm", "--init", "copy")
    with pytest.raises(InvalidField, match="--init: nowhere"):
        begin("lm", "--init", "nowhere", out="c")


def test_where_nothing_can_be_written_is_refused_before_training(begin, tmp_path):
    (tmp_path / "file").touch()
    for out in ("file", "file/below", "/proc/nothing"):
        with pytest.raises(InvalidField, match=f"--out: {out}: "):
            begin("lm", out=out)
    with pytest.raises(InvalidField, match="--work: /proc/nothing/runs/lm-drafter-"):
        begin("lm", "--work", "/proc/nothing")
    begin("lm", out="new/folder")
    assert (tmp_path / "new" / "folder").is_dir()


def test_a_torn_checkpoint_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / FILE_NAME
    path.write_bytes(b"torn")
    with pytest.raises(Unsupported, match=r"cannot be read .*; --restart forgets it"):
        load(path)
