"""The embedded target as shipped."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

import specserve
from draft_node.training import export, prompts, tokenizer
from draft_node.training.corpus import Document

ASSETS = Path(specserve.__file__).parent / "assets"
TARGET = ASSETS / "target"
MAX_BYTES = 12e6


def test_folder_is_small_and_matches_its_checksums() -> None:
    files = [path for path in TARGET.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    lines = (TARGET / export.CHECKSUMS).read_text().splitlines()
    listed = {name: value for value, name in (line.split("  ") for line in lines)}
    assert set(listed) == {path.name for path in files} - {export.CHECKSUMS}
    for name, value in listed.items():
        assert export.sha256(TARGET / name) == value, name


def test_shape_can_be_split_over_four_ranks() -> None:
    config = json.loads((TARGET / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert config["num_key_value_heads"] == 4
    assert config["vocab_size"] % 8 == 0
    assert config["hidden_size"] % 64 == config["intermediate_size"] % 64 == 0


def test_weights_are_complete_and_small() -> None:
    config = json.loads((TARGET / "config.json").read_text())
    with safe_open(TARGET / "model.safetensors", framework="pt") as file:
        shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
        assert file.get_slice("model.embed_tokens.weight").get_dtype() == "BF16"
    assert len(shapes) == 2 + 11 * config["num_hidden_layers"]
    sizes = [shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes]
    assert sum(sizes) <= 6_000_000


def test_tokenizer_and_configuration_agree() -> None:
    config = json.loads((TARGET / "config.json").read_text())
    trained = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    assert trained.get_vocab_size() == config["vocab_size"] == tokenizer.VOCAB_SIZE
    assert trained.token_to_id(tokenizer.END_OF_TEXT) == config["eos_token_id"]
    assert trained.token_to_id(tokenizer.MASK) == tokenizer.SPECIAL_TOKENS.index(tokenizer.MASK)


@pytest.mark.parametrize("domain", ["code", "prose"])
def test_prompts_are_held_out_and_of_the_right_size(domain: str) -> None:
    chosen = prompts.read(ASSETS / "prompts", domain)
    assert len(chosen) >= 150
    assert len({prompt["id"] for prompt in chosen}) == len(chosen)
    for prompt in chosen:
        assert set(prompt) == {"id", "domain", "text", "source"}
        assert prompt["domain"] == domain
        assert prompts.MIN_CHARS <= len(prompt["text"]) <= prompts.MAX_CHARS
        origin = prompt["source"].split(":")[0]
        assert origin in {"stdlib", "topics"}
        assert Document(domain, origin, prompt["source"], "").held_out
    assert "Python Software Foundation" in (ASSETS / "prompts" / "NOTICE").read_text()
