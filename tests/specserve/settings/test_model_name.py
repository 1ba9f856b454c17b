"""A model is called by what tells it from others."""

import json
from pathlib import Path

import pytest

from specserve.processes.launch import resolve_here
from specserve.settings.config import Config, ModelConfig
from specserve.settings.model_name import model_name
from specserve.settings.target_source import EMBEDDED_NAME, EMBEDDED_TARGET
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint
from tests.specserve.models.gguf.files import write_gguf

HASH = "c1899de289a04d12100db370d81485cdf75e47ca"


def folder_of(root: Path, name: str, recorded: object = None) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    content = {} if recorded is None else {"_name_or_path": recorded}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


GENERIC = (
    "hf", "HF", "model", "target", "checkpoint-500", "step_1000", "final", "bf16", "500", HASH,
    "tmpab12cd34", "v2",
)  # fmt: skip


@pytest.mark.parametrize("name", GENERIC)
def test_a_folder_called_like_any_other_is_named_by_its_config(tmp_path, name):
    assert model_name(folder_of(tmp_path, name, "org/SmolLM2-135M")) == "org/SmolLM2-135M"


@pytest.mark.parametrize("name", ["my-model", "Qwen3-0.6B", "hf-tuned", "modelling", "decade"])
def test_a_name_that_somebody_chose_stays(tmp_path, name):
    assert model_name(folder_of(tmp_path, name, "org/SmolLM2-135M")) == name


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("/home/me/models/SmolLM2-135M/", "SmolLM2-135M"),
        ("./SmolLM2-135M", "SmolLM2-135M"),
        ("C:\\models\\SmolLM2-135M", "SmolLM2-135M"),
        (f"/cache/models--org--Some-Model/snapshots/{HASH}", "org/Some-Model"),
        ("gpt2", "gpt2"),
        # What says no more than the folder does.
        ("", "hf"), ("/home/me/checkpoint-500", "hf"), ("model", "hf"), (3, "hf"), (None, "hf"),
        ("two\nlines", "hf"), ("x" * 500, "hf"),
    ],
)  # fmt: skip
def test_a_recorded_path_is_reduced_to_a_name(tmp_path, recorded, name):
    assert model_name(folder_of(tmp_path, "hf", recorded)) == name


def test_a_snapshot_of_the_hub_is_named_as_there(tmp_path):
    folder = folder_of(tmp_path, f"models--Qwen--Qwen3-0.6B/snapshots/{HASH}")
    assert model_name(folder) == "Qwen/Qwen3-0.6B"


def test_a_folder_without_a_readable_config_keeps_its_name(tmp_path):
    (tmp_path / "hf").mkdir()
    assert model_name(tmp_path / "hf") == "hf"
    (tmp_path / "hf" / "config.json").write_text("[")
    assert model_name(tmp_path / "hf") == "hf"


def test_a_file_called_like_any_other_says_in_itself_what_it_is(tmp_path):
    folder = write_checkpoint(tmp_path / "folder", QWEN3)
    for file, name in (("ggml-model-f16.gguf", "My Model"), ("Mine-7B.gguf", "Mine-7B")):
        path = write_gguf(tmp_path / file, folder, metadata={"general.name": "My Model"})
        assert model_name(path) == name
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert model_name(tmp_path / "model.gguf") == "model"


def test_a_launch_has_the_name_unless_the_user_chose_one(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    for file in EMBEDDED_TARGET.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "org/mine"}))

    def name(**model: str) -> str | None:
        wish = Config(model=ModelConfig(**model))
        return resolve_here(wish).model.name

    assert name(target=str(folder)) == "org/mine"
    assert name(target=str(folder), name="chosen") == "chosen"
    assert name(target=str(EMBEDDED_TARGET)) == EMBEDDED_NAME


def test_info_calls_it_the_same(tmp_path, specserve):
    folder = folder_of(tmp_path, "hf")
    for file in EMBEDDED_TARGET.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((EMBEDDED_TARGET / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "_name_or_path": "org/mine"}))
    document = json.loads(specserve("info", "--json", "--target", str(folder)).stdout)
    assert document["model"]["name"] == "org/mine"
