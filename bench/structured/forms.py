# pyright: strict
"""Forms of answers, and a judge of each that knows nothing of the library that keeps to it.

JSON is decoded by msgspec into the types that its schema was made of, texts are matched by `re`,
expressions read by Python's own parser.
"""

import ast
import functools
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from specserve.api.call import ANY_OBJECT
from specserve.api.tools.formats import HERMES, LLAMA3_JSON, ToolCallFormat
from specserve.api.tools.grammar import grammar_of
from specserve.api.tools.tool import Tool, ToolUse
from specserve.types import Grammar, GrammarKind

Judge = Callable[[str], bool]  # of a whole answer; may raise ValueError

Word = Annotated[str, Meta(min_length=1, max_length=12)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Code = Annotated[str, Meta(pattern="^[A-Z]{2}-[0-9]{4}$")]


class Person(msgspec.Struct, forbid_unknown_fields=True):
    name: Word
    age: Percent
    is_member: bool


class Item(msgspec.Struct, forbid_unknown_fields=True):
    code: Code
    size: Literal["small", "medium", "large"]
    count: Annotated[int, Meta(ge=1, le=99)]


class Order(msgspec.Struct, forbid_unknown_fields=True):
    id: uuid.UUID
    items: Annotated[list[Item], Meta(min_length=1, max_length=2)]
    note: Word | None


class Circle(msgspec.Struct, tag="circle", forbid_unknown_fields=True):
    radius: Percent


class Box(msgspec.Struct, tag="box", forbid_unknown_fields=True):
    width: Percent
    height: Percent


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    value: Percent
    left: "Tree | None"
    right: "Tree | None"


Rows = Annotated[list[tuple[Percent, Word, bool]], Meta(max_length=3)]
Size = Literal["small", "medium", "large", 7, None]


@dataclass(frozen=True)
class Form:
    """What an answer has to be, and what the model is told of it."""

    name: str
    told: str
    grammar: Grammar
    judge: Judge

    def problem(self, text: str) -> str | None:
        """What is wrong with a whole answer; None: nothing."""
        try:
            return None if self.judge(text) else "not of the form"
        except (ValueError, SyntaxError) as error:
            return f"{type(error).__name__}: {error}"


def _json(name: str, told: str, kind: Any) -> Form:  # noqa: ANN401 - any type of msgspec's
    schema = msgspec.json.encode(msgspec.json.schema(kind)).decode()
    decoder = msgspec.json.Decoder[Any](kind)

    def judge(text: str) -> bool:
        decoder.decode(text)
        return True

    return Form(name, told, Grammar(GrammarKind.JSON_SCHEMA, schema), judge)


def _matched(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def _regex(name: str, told: str, pattern: str) -> Form:
    judge = functools.partial(_matched, pattern)
    return Form(name, told, Grammar(GrammarKind.REGEX, pattern), judge)


def _is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


_DATE = "(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_ADDRESS = "[a-z]{1,10}([.][a-z]{1,10}){0,2}@[a-z]{2,10}[.](org|net)"
_EXPRESSION = """
start: term (" + " term)*
term: NUMBER | "(" start ")"
NUMBER: /[1-9][0-9]{0,2}/
"""
_TABLE = 'root ::= line line\nline ::= [a-z] [a-z]? [a-z]? "," [0-9] [0-9]? "\\n"'


def _is_expression(text: str) -> bool:
    parts = ast.walk(ast.parse(text, mode="eval"))
    return all(
        isinstance(part, ast.Expression | ast.BinOp | ast.Add | ast.Constant) for part in parts
    )


CHOICES = ["yes", "no", "I do not know", 'the "other" one', "peut-être", "多分"]


def _is_choice(text: str) -> bool:
    return text in CHOICES


_TAGGED = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "Answer: "},
        {
            "type": "tag",
            "begin": "<value>",
            "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
            "end": "</value>",
        },
        {"type": "regex", "pattern": "( [a-z]{1,8}){1,3}[.]"},
    ],
}

_TOOLS = (
    Tool(name="find", parameters=msgspec.json.schema(Person)),
    Tool(name="find_shape", parameters=msgspec.json.schema(Box)),
    Tool(name="now"),
)


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: Literal["find", "find_shape", "now"]
    arguments: dict[str, Any]


_ARGUMENTS: dict[str, Any] = {"find": Person, "find_shape": Box, "now": dict[str, Any]}


def _are_calls(form: ToolCallFormat, text: str) -> bool:
    """One call or more, and nothing else, of offered functions with arguments of their schemas."""
    whole = text.removeprefix(form.before).removesuffix(form.behind)
    if form.before + whole + form.behind != text:
        return False
    between = form.behind + form.separator + form.before
    for part in whole.split(between) if form.is_parallel else [whole]:
        said: dict[str, Any] = msgspec.json.decode(part, type=dict[str, Any])
        if form.arguments_key not in said:
            return False
        said["arguments"] = said.pop(form.arguments_key)
        call = msgspec.convert(said, _Call)
        found = msgspec.convert(call.arguments, _ARGUMENTS[call.name])
        if call.name == "now" and found:
            return False
    return True


def _calls(form: ToolCallFormat) -> Form:
    grammar = grammar_of(form, ToolUse(tools=_TOOLS, is_required=True), None)
    assert grammar is not None  # since something has to be called
    told = "Call a function."
    return Form(f"calls, {form.name}", told, grammar, functools.partial(_are_calls, form))


FORMS = (
    _json("object", "Describe a member of a club as JSON.", Person),
    _json("nested object", "Write an order as JSON.", Order),
    _json("one of two shapes", "Describe a circle or a box as JSON.", Circle | Box),
    _json("recursive", "Write a binary tree as JSON.", Tree),
    _json("list of tuples", "Write rows of a table as JSON.", Rows),
    _json("enumeration", "Which size? Answer as JSON.", Size),
    Form("any object", "Answer with a short JSON object.",
         Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT), _is_object),
    _regex("date", "Which day was it?", _DATE),
    _regex("address", "What is the address?", _ADDRESS),
    _regex("few words", "Answer in a few words.", "[A-Z][a-z]{0,9}( [a-zäöü]{1,10}){1,5}[.!?]"),
    Form("expression (Lark)", "Write a sum.",
         Grammar(GrammarKind.GRAMMAR, _EXPRESSION), _is_expression),
    Form("table (GBNF)", "Write two lines of a table.", Grammar(GrammarKind.GRAMMAR, _TABLE),
         functools.partial(_matched, "([a-z]{1,3},[0-9]{1,2}\n){2}")),
    Form("choice", "Is it raining?",
         Grammar(GrammarKind.CHOICE, json.dumps(CHOICES)), _is_choice),
    Form("structural tag", "Is it true, and why?",
         Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"format": _TAGGED})),
         functools.partial(
             _matched, r"Answer: <value>(true|false)</value>( [a-z]{1,8}){1,3}[.]")),
    _calls(HERMES),
    _calls(LLAMA3_JSON),
)  # fmt: skip
