import random

import pytest
from tokenizers import Tokenizer

from draft_node.training import tokenizer
from draft_node.training.batches import encode_stream

TEXTS = ["def f(x):\n    return x + 1\n", "The quick brown fox jumps over the lazy dog.\n"] * 50
VOCAB_SIZE = 300


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return tokenizer.train(TEXTS, VOCAB_SIZE)


def test_any_text_survives_a_round_trip(trained: Tokenizer) -> None:
    rng = random.Random(0)
    samples = ["", " ", "\n\n\t x", "naïve — 漢字 🙂\u200d", "\x00\x7f\ufeff", "if x:\r\n\ty\n"]
    samples += ["".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(50)) for _ in range(50)]
    for text in samples:
        assert trained.decode(trained.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_have_the_lowest_ids(trained: Tokenizer) -> None:
    for index, token in enumerate(tokenizer.SPECIAL_TOKENS):
        assert trained.token_to_id(token) == index


def test_too_little_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="too little text"):
        tokenizer.train(["a b c"], 4096)


def test_text_that_spells_a_special_token_does_not_become_one(trained: Tokenizer) -> None:
    copy = Tokenizer.from_str(trained.to_str())
    stream = encode_stream(copy, [f"a {tokenizer.END_OF_TEXT} b", "c"], tokenizer.END_OF_TEXT)
    assert (stream == 0).sum() == 2
    assert stream[-1] == 0
