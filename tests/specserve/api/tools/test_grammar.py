"""A forced call is of a function that was offered, with arguments of its schema, and no more."""

import asyncio
import json
from pathlib import Path

import llguidance
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from specserve.api.tools.formats import FORMATS, HERMES, LLAMA3_JSON
from specserve.api.tools.grammar import arguments_schema, check_calls, forced_calls
from specserve.api.tools.tool import Tool, ToolCall, ToolUse
from specserve.errors import InvalidField
from specserve.grammars.compiler import Vocabulary, compiled
from specserve.types import Grammar

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "required": ["city"]}
CITY |= {"$defs": {"City": {"type": "string", "description": 'a "::=" b\n'}}}
TOOLS = (
    Tool(name="weather", parameters=CITY),
    Tool(name='now "é"'),
    Tool(name="no", parameters={}),
)
PARIS = ("weather", '{"city": "Paris"}')
NOW = ('now "é"', "{}")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    """Bytes; hermes's marks are a token each, of which a tokenizer says that they are special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=["<more>", "<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the the the"], trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False) for mark in marks()])
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Vocabulary(str(folder), tokenizer.get_vocab_size(), (1,))


def marks() -> tuple[str, str]:
    return HERMES.opening, HERMES.closing


class Grammars:
    """What a grammar allows, by the tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens()
        self.tokenizer = Tokenizer.from_file(str(Path(vocabulary.model) / "tokenizer.json"))
        self.marks = {mark: self.tokenizer.token_to_id(mark) for mark in marks()}

    def is_allowed(self, grammar: Grammar, text: str, *, is_whole: bool = True) -> bool:
        matcher: llguidance.LLMatcher = compiled(grammar, self.tokens).deep_copy()
        ids = self.tokenizer.encode(text).ids
        if matcher.try_consume_tokens(ids) != len(ids):
            return False
        return matcher.is_accepting() or not is_whole


@pytest.fixture(scope="module")
def grammars(vocabulary) -> Grammars:
    return Grammars(vocabulary)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_calls_as_the_format_writes_them_are_allowed_and_nothing_else(form, grammars):
    grammar = forced_calls(form, ToolUse(tools=TOOLS, is_required=True), grammars.marks)

    def is_allowed(*calls: tuple[str, str], is_whole: bool = True) -> bool:
        written = form.written([ToolCall("", *call) for call in calls])
        return grammars.is_allowed(grammar, written, is_whole=is_whole)

    assert all(is_allowed(call) for call in (PARIS, NOW, ("no", "{}")))
    assert is_allowed(PARIS, NOW) == form.is_parallel
    assert not is_allowed(("nobody", "{}"))
    assert not is_allowed(("weather", "{}"))
    assert not is_allowed(("weather", '{"city": 5}'))
    assert not is_allowed(("weather", '{"city": "Paris", "more": 1}'))
    assert not is_allowed(("no", '{"more": 1}'))
    written = form.written([ToolCall("", *PARIS)])
    assert not grammars.is_allowed(grammar, written[:-1])
    assert not grammars.is_allowed(grammar, "Let me see. " + written, is_whole=False)
    assert not grammars.is_allowed(grammar, written + " So.", is_whole=False)


def test_one_call_is_one(grammars):
    twice = HERMES.written([ToolCall("", *PARIS)] * 2)
    for use in (
        ToolUse(tools=TOOLS, is_required=True, is_parallel=False),
        ToolUse(tools=TOOLS, is_required=True, only="weather"),
    ):
        grammar = forced_calls(HERMES, use, grammars.marks)
        assert grammars.is_allowed(grammar, HERMES.written([ToolCall("", *PARIS)]))
        assert not grammars.is_allowed(grammar, twice, is_whole=False)


def test_a_named_function_is_the_only_one(grammars):
    use = ToolUse(tools=TOOLS, is_required=True, only="weather")
    grammar = forced_calls(LLAMA3_JSON, use, grammars.marks)
    assert not grammars.is_allowed(grammar, '{"name": "no', is_whole=False)


def test_marks_that_are_no_tokens_are_spelt(grammars):
    grammar = forced_calls(HERMES, ToolUse(tools=TOOLS, is_required=True), {})
    spelt = [grammars.tokenizer.token_to_id(char) for char in HERMES.opening]
    matcher = compiled(grammar, grammars.tokens).deep_copy()
    assert matcher.try_consume_tokens(spelt) == len(spelt)


def test_properties_without_a_name_are_for_schemas_that_say_so():
    open_ones = (
        {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
        {"required": ["a"]},
    )
    for schema in open_ones:
        found = arguments_schema(Tool(name="f", parameters=schema))
        assert found.get("additionalProperties") == schema.get("additionalProperties")
        assert found["type"] == "object"
    assert arguments_schema(Tool(name="f"))["additionalProperties"] is False
    wishes = {"lenient": True, "item_separator": ","}
    found = arguments_schema(Tool(name="f", parameters={"x-guidance": wishes}))["x-guidance"]
    assert found == {"whitespace_flexible": False, "key_separator": ": "} | wishes


def test_the_function_at_fault_is_named(grammars):
    odd = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tools = (*TOOLS, Tool(name="odd", parameters=odd, field="tools[3].function"))

    async def check(grammar: Grammar) -> None:
        compiled(grammar, grammars.tokens)

    def checked(use: ToolUse) -> None:
        asyncio.run(check_calls(forced_calls(HERMES, use, grammars.marks), use, check))

    checked(ToolUse(tools=TOOLS, is_required=True))
    checked(ToolUse(tools=tools, is_required=True, only="weather"))
    with pytest.raises(InvalidField, match=r"^tools\[3\]\.function\.parameters: .*strin") as caught:
        checked(ToolUse(tools=tools, is_required=True))
    assert "x-guidance" in caught.value.problem
    assert json.dumps(odd)
