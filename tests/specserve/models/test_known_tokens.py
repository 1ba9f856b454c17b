import json

import pytest

from specserve.errors import Unsupported
from specserve.models.config import read_spec
from specserve.models.known_tokens import tokenizer_size
from tests.specserve.models.checkpoints import QWEN3, write_config, write_tokenizer


def write(folder, content) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(content))


CONTENTS = [
    ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}, 2),
    ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 5, "content": "<x>"}]}, 6),
    ({"model": {"vocab": {"a": 3, "b": 0}}}, 4),  # ids 1 and 2 are unused
    ({"model": {"type": "Unigram", "vocab": [["a", -1.5], ["b", -2.0], ["c", 0]]}}, 3),
    ({"model": {"type": "other"}}, 0),
]


@pytest.mark.parametrize(("content", "size"), CONTENTS)
def test_the_size_ends_behind_the_greatest_id(tmp_path, content, size):
    write(tmp_path, content)
    assert tokenizer_size(tmp_path) == size


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert tokenizer_size(tmp_path) is None
    assert read_spec(write_config(tmp_path, QWEN3)).num_known_tokens == 64


@pytest.mark.parametrize("content", [[], {"model": 3}, {"model": {"vocab": {"a": "b"}}}])
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, content):
    write(tmp_path, content)
    with pytest.raises(Unsupported, match=r"model\.target: .*tokenizer\.json is no tokenizer"):
        tokenizer_size(tmp_path)


def test_a_spec_knows_what_pads_its_vocabulary(tmp_path):
    folder = write_tokenizer(write_config(tmp_path, QWEN3), 50)
    spec = read_spec(folder)
    assert (spec.vocab_size, spec.num_known_tokens) == (64, 50)


def test_a_tokenizer_may_know_more_than_the_model(tmp_path):
    assert read_spec(write_tokenizer(write_config(tmp_path, QWEN3), 70)).num_known_tokens == 64


def test_an_end_token_that_the_tokenizer_lacks_counts(tmp_path):
    folder = write_tokenizer(write_config(tmp_path, QWEN3, eos_token_id=[1, 60]), 50)
    assert read_spec(folder).num_known_tokens == 61
