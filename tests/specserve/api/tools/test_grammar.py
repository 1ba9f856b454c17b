"""A forced call is of a function that was offered, with arguments of its schema, and no more."""

import asyncio
import json

import pytest

from specserve.api.tools.formats import FORMATS, HERMES, LLAMA3_JSON, ToolCallFormat
from specserve.api.tools.grammar import arguments_schema, check_calls, grammar_of
from specserve.api.tools.tool import Tool, ToolCall, ToolUse
from specserve.errors import InvalidField, Unsupported
from specserve.grammars.compiler import compiled
from specserve.types import Grammar, GrammarKind
from tests.specserve.grammars.bytes_vocabulary import BytesVocabulary

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "required": ["city"]}
CITY |= {"$defs": {"City": {"type": "string", "description": 'a "::=" b\n'}}}
TOOLS = (
    Tool(name="weather", parameters=CITY),
    Tool(name='now "é"'),
    Tool(name="no", parameters={}),
)
PARIS = ("weather", '{"city": "Paris"}')
NOW = ('now "é"', "{}")
REQUIRED = ToolUse(tools=TOOLS, is_required=True)
OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"properties": {"a": {"type": "integer"}}}', "form")


@pytest.fixture(scope="module", params=["marks are tokens", "marks are spelt"])
def vocabulary(request, tmp_path_factory) -> BytesVocabulary:
    marks = [HERMES.opening, HERMES.closing] if request.param == "marks are tokens" else []
    return BytesVocabulary(tmp_path_factory.mktemp("model"), marks)


def made(form: ToolCallFormat, use: ToolUse, wanted: Grammar | None = None) -> Grammar:
    grammar = grammar_of(form, use, wanted)
    assert grammar is not None
    return grammar


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_calls_as_the_format_writes_them_are_allowed_and_nothing_else(form, vocabulary):
    grammar = made(form, REQUIRED)

    def allows(*calls: tuple[str, str], is_whole: bool = True) -> bool:
        written = form.written([ToolCall("", *call) for call in calls])
        return vocabulary.allows(grammar, written, is_whole=is_whole)

    assert all(allows(call) for call in (PARIS, NOW, ("no", "{}")))
    assert allows(PARIS, NOW) == form.is_parallel
    assert not allows(("nobody", "{}"))
    assert not allows(("weather", "{}"))
    assert not allows(("weather", '{"city": 5}'))
    assert not allows(("weather", '{"city": "Paris", "more": 1}'))
    assert not allows(("no", '{"more": 1}'))
    written = form.written([ToolCall("", *PARIS)])
    assert not vocabulary.allows(grammar, written[:-1])
    assert not vocabulary.allows(grammar, "Let me see. " + written, is_whole=False)
    assert not vocabulary.allows(grammar, written + " So.", is_whole=False)


def test_one_call_is_one(vocabulary):
    once, twice = (HERMES.written([ToolCall("", *PARIS)] * n) for n in (1, 2))
    for use in (
        ToolUse(tools=TOOLS, is_required=True, is_parallel=False),
        ToolUse(tools=TOOLS, is_required=True, only="weather"),
    ):
        assert vocabulary.allows(made(HERMES, use), once)
        assert not vocabulary.allows(made(HERMES, use), twice, is_whole=False)


def test_a_named_function_is_the_only_one(vocabulary):
    use = ToolUse(tools=TOOLS, is_required=True, only="weather")
    assert vocabulary.allows(made(LLAMA3_JSON, use), '{"name": "w', is_whole=False)
    assert not vocabulary.allows(made(LLAMA3_JSON, use), '{"name": "no', is_whole=False)


STRICT = (Tool(name="weather", parameters=CITY, strict=True), Tool(name="loose", parameters=CITY))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_who_is_free_to_call_keeps_to_the_schemas_of_strict_functions(form, vocabulary):
    grammar = made(form, ToolUse(tools=STRICT))

    def allows(name: str, arguments: str) -> bool:
        return vocabulary.allows(grammar, form.written([ToolCall("", name, arguments)]))

    assert allows(*PARIS)
    assert not allows("weather", '{"city": 5}')
    assert allows("loose", '{"city": 5}')
    assert vocabulary.allows(grammar, "It is warm <more> in Paris.\n")
    assert vocabulary.allows(grammar, "")
    if form.opening:
        assert vocabulary.allows(grammar, f"So: {form.written([ToolCall('', *PARIS)] * 2)} So.")
        alone = made(form, ToolUse(tools=STRICT, is_parallel=False))
        assert vocabulary.allows(alone, f"So: {form.written([ToolCall('', *PARIS)])}")
        assert not vocabulary.allows(alone, form.written([ToolCall("", *PARIS)] * 2))
    assert grammar_of(form, ToolUse(tools=TOOLS), None) is None


def test_an_answer_in_a_form_may_be_calls_instead(vocabulary):
    grammar = made(HERMES, ToolUse(tools=TOOLS), OBJECT)
    assert vocabulary.allows(grammar, '{"a": 5}')
    assert vocabulary.allows(grammar, HERMES.written([ToolCall("", *PARIS)]))
    assert vocabulary.allows(grammar, HERMES.written([ToolCall("", "weather", '{"city": 5}')]))
    assert not vocabulary.allows(grammar, "So", is_whole=False)
    assert made(HERMES, REQUIRED, OBJECT) == made(HERMES, REQUIRED)
    for form, wanted in ((LLAMA3_JSON, OBJECT), (HERMES, Grammar(GrammarKind.REGEX, "a", "form"))):
        with pytest.raises(
            Unsupported, match=r"^form: goes with no tools that may be called; leave"
        ):
            grammar_of(form, ToolUse(tools=TOOLS), wanted)


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


def test_what_is_at_fault_is_named(vocabulary):
    odd = {"type": "object", "properties": {"a": {"type": "strin"}}}
    tools = (*TOOLS, Tool(name="odd", parameters=odd, field="tools[3].function"))
    wrong = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(odd), "response_format.json_schema.schema")

    async def check(grammar: Grammar) -> None:
        compiled(grammar, vocabulary.tokens)

    def checked(use: ToolUse, wanted: Grammar | None = None) -> None:
        grammar = made(HERMES, use, wanted)
        asyncio.run(check_calls(grammar, use, wanted, check))

    checked(REQUIRED)
    checked(ToolUse(tools=tools, is_required=True, only="weather"))
    checked(ToolUse(tools=tools), OBJECT)  # a model that is free to call keeps to no schema
    with pytest.raises(InvalidField, match=r"^tools\[3\]\.function\.parameters: .*strin") as caught:
        checked(ToolUse(tools=tools, is_required=True))
    assert "x-guidance" in caught.value.problem
    with pytest.raises(InvalidField, match=r"^response_format.json_schema.schema: .*strin"):
        checked(ToolUse(tools=TOOLS), wrong)
