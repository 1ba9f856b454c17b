"""Tokenizers from GGUF metadata give the ids of the tokenizers they were made of."""

import asyncio
import json

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

from specserve.api.call import ChatMessage
from specserve.api.detokenizer import Detokenizer, TokenBytes
from specserve.api.tokenizer import TextTokenizer
from specserve.errors import Unsupported
from specserve.models.config import read_spec
from specserve.models.tokenizer_files import load_tokenizer
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint
from tests.specserve.models.gguf.files import write_gguf

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As their publishers' tokenizer.json cut text.
CUTS = {
    "gpt-2": pre.ByteLevel(add_prefix_space=False),
    "smollm": pre.Sequence([pre.Digits(True), pre.ByteLevel(add_prefix_space=False)]),
    "llama-bpe": pre.Sequence(
        [pre.Split(Regex(LLAMA3), "isolated"), pre.ByteLevel(False, use_regex=False)]
    ),
    "qwen2": pre.Sequence(
        [
            pre.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"),
            pre.ByteLevel(False, use_regex=False),
        ]
    ),
}
TEXTS = (
    "def f(x):\n        return 12345 + x  # it's 7 o'clock, we'll SEE'S",
    "Grüße aus München, 東京 and कोलकाता \r\n\r\n  12  34\t5",
    "e\u0301tude \u212b  \u00a0 x\u2028y 🙂🙃 ½ ٣٤",
    "<|im_start|>user\nhello<|im_end|>\n<tool>1</tool>",
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool>", "</tool>"]


def trained(cut: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=cut == "llama-bpe"))
    if cut == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = CUTS[cut]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in USER_DEFINED])
    return tokenizer


def metadata_of(tokenizer: Tokenizer, cut: str) -> dict:
    """As the converter writes it."""
    model = json.loads(tokenizer.to_str())["model"]
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = dict.fromkeys(CONTROL, 3) | dict.fromkeys(USER_DEFINED, 4)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": cut,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": ids["<|im_start|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.padding_token_id": ids["<|endoftext|>"],
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
        "{{ pad_token }}",
    }


@pytest.fixture
def of(tmp_path):
    """A file with such metadata, changed."""
    folder = write_checkpoint(tmp_path / "folder", QWEN3, vocab_size=700)

    def of(metadata: dict, **changes):
        named = {name.replace("__", "."): value for name, value in changes.items()}
        return write_gguf(tmp_path / "model.gguf", folder, metadata={**metadata, **named})

    return of


@pytest.mark.parametrize("cut", CUTS)
def test_ids_are_those_of_the_tokenizer_it_was_made_of(of, cut):
    theirs = trained(cut)
    ours = load_tokenizer(of(metadata_of(theirs, cut)))
    for text in (*TEXTS, *"".join(TEXTS).split("\n")):
        assert ours.encode(text).ids == theirs.encode(text).ids, text
        ids = ours.encode(text).ids
        shown = Detokenizer(TokenBytes(ours)).push(ids)
        assert shown == theirs.decode(ids).replace("\ufffd", ""), text


def test_pre_tokenizers_cut_differently():
    """So that a mix-up of two of them would show above."""
    text = "x  123456 SHE'S"
    assert len({str(cut.pre_tokenize_str(text)) for cut in CUTS.values()}) == len(CUTS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokenizer__ggml__pre": "tekken"}, "pre: pre-tokenizer 'tekken' is not one of gpt-2"),
        ({"tokenizer__ggml__pre": None}, "tokenizer.ggml.pre is missing"),
        ({"tokenizer__ggml__model": "llama"}, "model: 'llama' is not served, only byte-level"),
        ({"tokenizer__ggml__merges": ["a b c"]}, "merges: 'a b c' is no pair"),
        ({"tokenizer__ggml__merges": ["qqq zzz"]}, "merges: "),
        ({"tokenizer__ggml__token_type": [1]}, "token_type has 1 entries for"),
        (
            {"tokenizer__ggml__add_bos_token": True, "tokenizer__ggml__bos_token_id": 699},
            "bos_token_id: 699 is no token",
        ),
    ],
)
def test_what_is_malformed_or_unknown_is_refused_by_its_key(of, changes, problem):
    file = of(metadata_of(trained("gpt-2"), "gpt-2"), **changes)
    with pytest.raises(Unsupported, match=problem):
        load_tokenizer(file)


def test_a_beginning_is_added_where_the_file_or_the_kind_says_so(of):
    metadata = metadata_of(trained("llama-bpe"), "llama-bpe")
    bos = metadata["tokenizer.ggml.bos_token_id"]
    del metadata["tokenizer.ggml.add_bos_token"]
    assert load_tokenizer(of(metadata)).encode("x").ids[0] == bos
    without = of(metadata, tokenizer__ggml__add_bos_token=False)
    assert load_tokenizer(without).encode("x").ids[0] != bos
    closed = load_tokenizer(of(metadata, tokenizer__ggml__add_eos_token=True))
    assert closed.encode("x").ids[-1] == metadata["tokenizer.ggml.eos_token_id"]


def test_a_word_that_is_a_token_is_not_merged_where_the_kind_says_so(of):
    """Llama 3's vocabulary has words that its merges do not make."""
    for cut, is_whole in (("llama-bpe", True), ("gpt-2", False)):
        metadata = metadata_of(trained(cut), cut)
        tokens = [*metadata["tokenizer.ggml.tokens"], "qxqxq"]
        metadata["tokenizer.ggml.token_type"].append(1)
        file = of(metadata, tokenizer__ggml__tokens=tokens)
        assert (load_tokenizer(file).encode("qxqxq").ids == [len(tokens) - 1]) == is_whole


def test_special_tokens_are_found_before_text_is_composed(of):
    """Or one whose name has a composed form would never be."""
    metadata = metadata_of(trained("qwen2"), "qwen2")
    name = "<e\u0301>"
    tokens = [*metadata["tokenizer.ggml.tokens"], name]
    metadata["tokenizer.ggml.token_type"].append(3)
    file = of(metadata, tokenizer__ggml__tokens=tokens)
    assert load_tokenizer(file).encode(f"a{name}b").ids[1:-1] == [len(tokens) - 1]


def test_unused_tokens_stand_for_nothing(of):
    metadata = metadata_of(trained("gpt-2"), "gpt-2")
    tokens = [*metadata["tokenizer.ggml.tokens"], "[PAD605]"]
    kinds = [*metadata["tokenizer.ggml.token_type"], 5]
    file = of(metadata, tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=kinds)
    ours = load_tokenizer(file)
    assert read_spec(file).num_known_tokens == len(tokens) - 1
    assert ours.token_to_id("[PAD605]") is None
    assert TokenBytes(ours)[len(tokens) - 1] == b""


def test_the_chat_template_knows_the_special_tokens(of):
    tokenizer = TextTokenizer(of(metadata_of(trained("smollm"), "smollm")))
    try:
        ids = asyncio.run(tokenizer.encode_chat([ChatMessage("user", "x")]))
    finally:
        tokenizer.close()
    names = [tokenizer._tokenizer.id_to_token(token_id) for token_id in ids]
    assert names == ["<|im_start|>", "x", "<|im_end|>", "<|endoftext|>"]
