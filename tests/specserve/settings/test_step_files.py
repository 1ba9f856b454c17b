"""What forwards take is kept for the next start, and thrown away once it says nothing any more."""

import os
from pathlib import Path

import msgspec
import pytest

from specserve.errors import Unavailable
from specserve.settings import kept_files, step_files
from specserve.settings.config import Config, EngineConfig, ModelConfig
from specserve.settings.kept_files import cache_folder
from specserve.settings.step_files import StepCell, StepFile, StepRecord
from tests.specserve.settings.resolving import MACHINE, resolved


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def file_of(config: Config | None = None, hardware=MACHINE) -> StepFile:
    return StepFile(resolved() if config is None else resolved(config), hardware)


def kept(file: StepFile) -> StepRecord:
    record = StepRecord(
        made_for=file.made_for,
        cells=[StepCell(1, 0.01, 8), StepCell(2, 0.012, 30)],
        row_s=1e-4,
        key_s=2e-6,
        num_rounds=22,
        median_error=0.04,
    )
    file.write(record)
    return record


def test_what_is_kept_is_read_again():
    file = file_of()
    assert file.read() is None
    record = kept(file)
    assert file_of().read() == record
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    file.forget()
    file.forget()
    assert file_of().read() is None


def test_another_dtype_or_ballast_has_a_file_of_its_own():
    wishes = [{}, {"dtype": "bfloat16"}, {"ballast": "12M"}]
    paths = {file_of(Config(model=ModelConfig(**wish))).path for wish in wishes}
    assert len(paths) == 3


@pytest.mark.parametrize("changed", ["hardware", "torch", "specserve", "format", "model's files"])
def test_what_was_measured_for_something_else_is_of_no_use(changed, monkeypatch, caplog):
    record = kept(file_of())
    hardware = MACHINE
    match changed:
        case "hardware":
            hardware = msgspec.structs.replace(MACHINE, cpu_name="another")
        case "torch":
            monkeypatch.setattr(kept_files, "_version", lambda package: "0.1")
        case "specserve":
            monkeypatch.setattr(kept_files, "__version__", "0.0.0")
        case "format":
            file_of().write(msgspec.structs.replace(record, format=0))
        case _:
            monkeypatch.setattr(step_files, "mark_of", lambda model: "others")
    caplog.set_level("INFO")
    assert file_of(hardware=hardware).read() is None
    assert "timed again" in caplog.text
    assert changed == "format" or changed in caplog.text


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "[1, 2]"])
def test_a_broken_file_is_measured_again(text, caplog):
    file = file_of()
    file.path.parent.mkdir(parents=True)
    file.path.write_text(text)
    assert file.read() is None
    assert str(file.path) in caplog.text


def test_a_folder_that_takes_no_file_costs_nothing_but_a_line(folder, caplog):
    folder.write_text("a file")
    kept(file_of())
    assert "not kept for the next start" in caplog.text
    assert file_of().read() is None


def test_another_model_of_the_same_name_is_noticed(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_text("some")
    before = kept_files.mark_of(tmp_path), kept_files.mark_of(weights)
    os.utime(weights, (1, 1))
    after = kept_files.mark_of(tmp_path), kept_files.mark_of(weights)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_the_folder_is_where_caches_are(monkeypatch):
    monkeypatch.delenv("SPECSERVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/specserve")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/specserve")


GOOD = b'{"made_for": {}, "cells": [[1, 0.5, 8]], "row_s": 0, "key_s": 0, "num_rounds": 3}'


@pytest.mark.parametrize(
    "broken",
    [
        GOOD.replace(b"[1, 0.5, 8]", b""),
        GOOD.replace(b"8]", b"-1]"),
        GOOD.replace(b"0.5", b"-0.5"),
        GOOD.replace(b"0.5", b"1e999"),
        GOOD.replace(b"[1,", b"[%d," % 2**63),
        GOOD.replace(b'"row_s": 0', b'"row_s": -1'),
        GOOD.replace(b'"made_for": {}', b'"made_for": {"a": "\xff"}'),
        GOOD.replace(b'"made_for": {}', b'"made_for": {}, "x": ' + b"[" * 10**6),
    ],
)
def test_times_that_cannot_be_are_measured_again(broken, caplog):
    file = file_of()
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(broken)
    assert file.read() is None
    assert "of no use" in caplog.text


def test_a_user_without_a_home_has_a_cache_all_the_same(monkeypatch):
    monkeypatch.setenv("SPECSERVE_CACHE", "~nobody-of-this-name/cache")
    assert "specserve-" in cache_folder().name


def test_what_is_left_half_written_is_removed(folder, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    kept(file_of())
    assert list((folder / "steps").iterdir()) == []


def test_who_cannot_forget_says_so(folder):
    folder.write_text("a file")
    with pytest.raises(Unavailable, match="cannot be removed"):
        file_of().forget()


def test_smaller_limits_have_times_of_their_own():
    record = kept(file_of())
    small = Config(engine=EngineConfig(max_batch_rows=2, max_batch_tokens=4))
    assert file_of(small).read() is None
    assert file_of().read() == record


def test_a_model_that_changes_while_it_is_served_is_noticed_at_the_next_start(monkeypatch):
    served = file_of()
    monkeypatch.setattr(step_files, "mark_of", lambda model: "others")
    kept(served)  # as it ends
    assert file_of().read() is None
