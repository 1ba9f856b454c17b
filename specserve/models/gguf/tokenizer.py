"""The tokenizer and the chat template of a GGUF file, from its metadata. No torch, no code.

Byte-level BPE alone. How text is cut before merging is only named in the file; a name that is not
in `_PRE_TOKENIZERS` is refused, because a wrong guess would change ids here and there and nobody
would notice.
"""

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers.processors import TemplateProcessing

from specserve.errors import Unsupported
from specserve.models.gguf.container import GgufFile
from specserve.models.gguf.spec import CONTROL, TOKEN_TYPE, TOKENS, UNUSED, USER_DEFINED, Keys

_PREFIX = "tokenizer.ggml."
_WORDS = (  # contractions, words, digits, the rest, line ends, spaces
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Cut:
    """How text is cut before merging, and what goes with that."""

    pattern: str | None = None  # None: GPT-2's
    single_digits: bool = False
    composes: bool = False  # Unicode is brought to normal form C first
    keeps_words: bool = False  # a word that is a token is not merged from smaller ones
    adds_bos: bool = False  # unless the file says otherwise

    def pre_tokenizer(self) -> Any:  # noqa: ANN401 - untyped upstream
        steps: list[Any] = []
        if self.single_digits:
            steps.append(pre.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre.Split(Regex(self.pattern), behavior="isolated"))
        steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        return pre.Sequence(steps)


_GPT2 = _Cut()
_SMOLLM = _Cut(single_digits=True)
_LLAMA3 = _Cut(pattern=_WORDS % "{1,3}", keeps_words=True, adds_bos=True)
_QWEN2 = _Cut(pattern=_WORDS % "", composes=True)
_PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "smollm": _SMOLLM, "starcoder": _SMOLLM, "refact": _SMOLLM, "command-r": _SMOLLM,
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3,
    "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2,
}  # fmt: skip


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Raises `Unsupported`, naming the key, for a tokenizer that is malformed or not served."""
    keys = Keys(file)
    kind = keys.get(f"{_PREFIX}model", str)
    if kind != "gpt2":
        keys.fail(f"{_PREFIX}model: {kind!r} is not served, only byte-level BPE ('gpt2') is")
    name = keys.get(f"{_PREFIX}pre", str)
    if name not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        keys.fail(f"{_PREFIX}pre: pre-tokenizer {name!r} is not one of {known}")
    cut = _PRE_TOKENIZERS[name]
    tokens, kinds = _vocabulary(keys)
    try:
        tokenizer = Tokenizer(
            models.BPE(
                vocab={t: i for i, t in enumerate(tokens) if kinds[i] != UNUSED},
                merges=[_pair(keys, merge) for merge in keys.strings(f"{_PREFIX}merges")],
                ignore_merges=cut.keeps_words,
            )
        )
    except Unsupported:
        raise
    except Exception as error:  # of no kind of its own
        raise Unsupported(f"{file.path}: {_PREFIX}merges: {error}") from error
    tokenizer.add_special_tokens(_added(tokens, kinds, CONTROL))
    tokenizer.add_tokens(_added(tokens, kinds, USER_DEFINED))
    if cut.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = cut.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    _add_ends(tokenizer, keys, tokens, cut)
    return tokenizer


def gguf_chat_template(file: GgufFile) -> tuple[str | None, dict[str, str]]:
    """The template's source, if the file has one, and the texts of the tokens it may name."""
    keys = Keys(file)
    source = keys.get("tokenizer.chat_template", str, "")
    tokens = keys.strings(TOKENS)
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    special: dict[str, str] = {}
    for short, long in names.items():
        token_id = keys.get(f"{_PREFIX}{long}_token_id", int, -1)
        is_there = 0 <= token_id < len(tokens)
        special[f"{short}_token"] = tokens[token_id] if is_there else ""
    return source or None, special


def _vocabulary(keys: Keys) -> tuple[list[str], list[int]]:
    """Tokens and their types, by id."""
    tokens = keys.strings(TOKENS)
    kinds = keys.integers(TOKEN_TYPE) or [1] * len(tokens)
    if len(kinds) != len(tokens):
        keys.fail(f"{TOKEN_TYPE} has {len(kinds)} entries for {len(tokens)} tokens")
    return tokens, kinds


def _pair(keys: Keys, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right) or " " in right:
        keys.fail(f"{_PREFIX}merges: {merge[:80]!r} is no pair of tokens")
    return left, right


def _added(tokens: list[str], kinds: list[int], wanted: int) -> list[AddedToken]:
    return [
        AddedToken(token, special=wanted == CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == wanted and token
    ]


def _add_ends(tokenizer: Tokenizer, keys: Keys, tokens: list[str], cut: _Cut) -> None:
    """What is put before and behind a text that is no conversation."""
    first = keys.get(f"{_PREFIX}add_bos_token", bool, cut.adds_bos)
    last = keys.get(f"{_PREFIX}add_eos_token", bool, False)
    ids = {
        name: keys.get(f"{_PREFIX}{name}_token_id", int)
        for name, is_added in (("bos", first), ("eos", last))
        if is_added
    }
    for name, token_id in ids.items():
        if not 0 <= token_id < len(tokens):
            keys.fail(f"{_PREFIX}{name}_token_id: {token_id} is no token")
    if ids:
        tokenizer.post_processor = TemplateProcessing(
            single=("bos " if first else "") + "$A" + (" eos" if last else ""),
            special_tokens=list(ids.items()),
        )
