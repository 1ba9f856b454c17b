"""Whose checkpoint a run continues."""

import argparse
import errno
from pathlib import Path

import pytest

from draft_node.training import (
    block_drafters,
    language_model,
    local_head,
    run_folder,
    run_settings,
)
from draft_node.training.checkpoint import FILE_NAME, load
from draft_node.training.run_folder import claim
from specserve.errors import InvalidField, Unsupported
from tests.draft_node.training.drafters import write_target

MODULES = {"dspark": block_drafters, "local-head": local_head, "lm": language_model}


def arguments_of(kind: str, *flags: str, out: str = "a/drafter") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.set_defaults(kind=kind)
    MODULES[kind].add_options(parser)
    return parser.parse_args(["--target", "target", "--work", "work", "--out", out, *flags])


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Claim the folder of a run and leave a checkpoint there."""
    monkeypatch.chdir(tmp_path)
    write_target(tmp_path / "target")

    def run(kind: str, *flags: str, out: str = "a/drafter") -> Path:
        with claim(arguments_of(kind, *flags, out=out)) as folder:
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


def test_text_is_known_by_its_folder_and_what_is_in_it(begin, tmp_path):
    (tmp_path / "text" / "deep").mkdir(parents=True)
    (tmp_path / "text" / "a.txt").write_text("some text")
    folder = begin("lm", "--text", "text")
    (tmp_path / "text" / "unread.bin").write_bytes(b"\x00")
    for same in ("text", str(tmp_path / "text"), "text/../text"):
        assert begin("lm", "--text", same) == folder
    (tmp_path / "text" / "deep" / "b.md").write_text("more of it")
    with pytest.raises(InvalidField) as refused:
        begin("lm", "--text", "text")
    run = "the run that was begun into a/drafter, finished or not"
    problem = f"{tmp_path / 'text'}: {run}, was begun with other text in it"
    assert str(refused.value) == f"--text: {problem}; --restart begins anew"
    begin("lm", "--text", "text", "--restart")
    begin("lm", "--text", "text")
    (tmp_path / "text").rename(tmp_path / "moved")
    with pytest.raises(InvalidField, match=f"^--text: {run}, has another value"):
        begin("lm", "--text", "moved")
    with pytest.raises(InvalidField, match=r"^--text: text: no such file or folder"):
        begin("lm", "--text", "text")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"kind', "cannot be read (Unterminated string"),
        (b"\xff{}", "cannot be read ('utf-8' codec"),
        (b"", "cannot be read (Expecting value"),
        (b"[3]", "holds no settings"),
        (None, "No such file or directory"),
    ],
)
def test_damaged_settings_are_refused_with_the_way_out(content, problem, begin):
    path = begin("lm") / "settings.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Unsupported) as refused:
        begin("lm")
    assert str(refused.value).startswith(f"work/runs/{path.parent.name}/settings.json: {problem}")
    assert str(refused.value).endswith("; --restart forgets it")
    begin("lm", "--restart")
    begin("lm")


def test_settings_are_written_whole_and_only_when_they_change(begin, monkeypatch):
    path = begin("lm") / "settings.json"
    before = path.read_bytes()
    replaced = []
    monkeypatch.setattr(run_settings.os, "replace", lambda *paths: replaced.append(paths))
    begin("lm")
    assert replaced == []
    begin("lm", "--seed", "3", "--restart")
    assert [Path(new).name for _, new in replaced] == ["settings.json"]
    assert path.read_bytes() == before  # a crash before the last moment leaves it alone


def test_a_run_has_its_folder_alone(begin):
    begin("lm")
    with claim(arguments_of("lm")):
        for flags in ((), ("--restart",), ("--seed", "3", "--restart")):
            with pytest.raises(InvalidField) as refused:
                begin("lm", *flags)
            assert str(refused.value).startswith(
                "--out: a/drafter: another run into it is under way; wait for its end, or stop it"
            )
        begin("lm", out="b/drafter")
        begin("dspark")
    assert (begin("lm") / FILE_NAME).exists()


def test_where_locks_are_not_to_be_had_runs_do_without(begin, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_folder.fcntl, "flock", refuse)
    begin("lm")
    assert "cannot be locked (No locks available)" in caplog.text


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


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "README.md"])
def test_files_of_somebody_else_are_not_replaced_unless_asked(name, begin, tmp_path):
    (out := tmp_path / "a" / "drafter").mkdir(parents=True)
    (out / name).write_text("somebody's")
    with pytest.raises(InvalidField, match=f"--out: a/drafter has a {name} that is not of this"):
        begin("lm")
    begin("lm", "--restart")
    begin("lm")  # the run's own now


def test_nothing_is_written_into_the_targets_folder(begin):
    for flags in ((), ("--restart",), ("--init", "target")):
        with pytest.raises(InvalidField, match="--out: target is the target's folder"):
            begin("lm", *flags, out="target")


def test_a_drafter_may_be_gone_on_from_into_its_own_folder(begin, tmp_path):
    write_target(tmp_path / "a" / "drafter")
    begin("lm", "--init", "a/drafter")
