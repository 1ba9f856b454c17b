"""Grammars over the vocabulary of the tiny random models, and requests that ask for them."""

import json
import random
import re

import llguidance
import msgspec

from specserve.api.tools.formats import LLAMA3_JSON
from specserve.api.tools.grammar import grammar_of
from specserve.api.tools.tool import Tool, ToolUse
from specserve.grammars.compiler import GrammarCompiler
from specserve.types import Grammar, GrammarKind, Request
from tests.exactness.speculative import MIXTURES, VOCAB_SIZE, requests

END = 1
_TEXTS = [
    *"abcdefghijklmnopqrstuvwxyz0123456789", *'{}":, []-.', "ab", "the", '{"', '": ', '", "',
    '"}', "12", "00", " a", "}]", "true", "null", "[[", "]]", "e ",
]  # fmt: skip
TOKENS = [b"<0>", b"<end>", *(text.encode() for text in _TEXTS)]
TOKENS += [b"<%d>" % number for number in range(len(TOKENS), VOCAB_SIZE)]


class _Tokenizer:
    """As llguidance wants one that is written in Python."""

    eos_token_id, bos_token_id, tokens = END, None, TOKENS
    special_token_ids = (0, END, *range(2 + len(_TEXTS), VOCAB_SIZE))

    def __call__(self, text: bytes) -> list[int]:
        return [TOKENS.index(bytes([byte])) for byte in text]


def compiler() -> GrammarCompiler:
    wrapper = llguidance.TokenizerWrapper(_Tokenizer())
    return GrammarCompiler(lambda: llguidance.LLTokenizer(wrapper, n_vocab=VOCAB_SIZE))


SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string", "maxLength": 4},
        "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
REGEX = "[a-e]{2,6}( [0-9]{1,3}){0,3}"
NESTED = 'start: "[" start "]" | /[0-9]{1,2}/'
CHOICES = ["true", "the", "12", "null"]
# Functions that have to be called, of which one is called in a few tokens.
TOOLS = (Tool(name="go"), Tool(name="f", parameters=SCHEMA))
# Any text, special tokens as well, in which a bracket begins a truth value.
TAGGED = {
    "type": "triggered_tags",
    "triggers": ["["],
    "tags": [
        {
            "type": "tag",
            "begin": "[",
            "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
            "end": "]",
        }
    ],
}


def forced_calls() -> Grammar:
    grammar = grammar_of(LLAMA3_JSON, ToolUse(tools=TOOLS, is_required=True), None)
    assert grammar is not None
    return grammar


GRAMMARS = [
    Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
    Grammar(GrammarKind.REGEX, REGEX),
    Grammar(GrammarKind.GRAMMAR, NESTED),
    Grammar(GrammarKind.CHOICE, json.dumps(CHOICES)),
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"format": TAGGED})),
    forced_calls(),
]


def structured(count: int, *, seed: int = 0) -> list[Request]:
    """Requests of every kind, two in three of them with a grammar; some run out of tokens."""
    rng = random.Random(seed)
    # What ends at some token may end before it is complete.
    mixtures = [each | {"max_tokens": 32} for each in MIXTURES if "stop_token_ids" not in each]
    replace = msgspec.structs.replace
    return [
        replace(each, grammar=rng.choice(GRAMMARS)) if rng.random() < 2 / 3 else each
        for each in requests(count, seed=seed, mixtures=mixtures)
    ]


def text_of(token_ids: list[int]) -> str:
    return b"".join(TOKENS[token_id] for token_id in token_ids if token_id != END).decode()


def is_valid(text: str, grammar: Grammar) -> bool:
    """By another judge than the library that made it."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return _is_instance(json.loads(text))
        case GrammarKind.REGEX:
            return re.fullmatch(REGEX, text) is not None
        case GrammarKind.GRAMMAR:
            depth = len(text) - len(text.lstrip("["))
            return re.fullmatch(rf"\[{{{depth}}}[0-9]{{1,2}}\]{{{depth}}}", text) is not None
        case GrammarKind.CHOICE:
            return text in CHOICES
        case GrammarKind.STRUCTURAL_TAG if grammar == forced_calls():
            return _is_call(text)
        case GrammarKind.STRUCTURAL_TAG:
            return all(re.match(r"(true|false)\]", part) for part in text.split("[")[1:])


def _is_call(text: str) -> bool:
    call = json.loads(text)
    arguments = call.pop("parameters")
    return arguments == {} if call == {"name": "go"} else _is_instance(arguments)


def _is_instance(value: dict) -> bool:
    flags = value.pop("c", [])
    is_list = len(flags) <= 2 and all(isinstance(flag, bool) for flag in flags)
    whole = isinstance(value["a"], int) and isinstance(value["b"], str) and len(value["b"]) <= 4
    return is_list and whole and value.keys() == {"a", "b"}
