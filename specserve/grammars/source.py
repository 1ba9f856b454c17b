# pyright: strict
"""Grammars in the words of llguidance, the library that runs them, and its limits.

Knows no requests.
"""

import json
import re
from typing import TYPE_CHECKING

import llguidance
import msgspec
from llguidance.gbnf_to_lark import any_to_lark

from specserve.errors import InvalidField
from specserve.grammars.structural_tags import lark_of
from specserve.types import Grammar, GrammarKind

MAX_CHARS = 64 * 1024  # of a grammar
MAX_STATES = 50_000  # of its lexer, of 1 to 2 KiB
_MAX_PROBLEM_CHARS = 300
# As Python's json writes it, and therefore most of what models have read. Blanks of any number are
# what a model that knows nothing to say goes on with.
JSON_STYLE: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}

if TYPE_CHECKING:  # of which there is nothing else
    from llguidance._lib import JsonCompileOptions

LIMITS = llguidance.LLParserLimits(max_lexer_states=MAX_STATES, verbose_errors=False)


def source_of(grammar: Grammar, tokens: llguidance.LLTokenizer) -> str:
    """What llguidance compiles for `tokens`. Raises ValueError where it is not even that."""
    text = grammar.text
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            _require_object(text)
            return llguidance.LLMatcher.grammar_from_json_schema(text, defaults=JSON_STYLE)
        case GrammarKind.REGEX:
            return llguidance.LLMatcher.grammar_from_regex(text)
        case GrammarKind.GRAMMAR:
            return llguidance.LLMatcher.grammar_from_lark(_as_lark(text))
        case GrammarKind.CHOICE:
            choices: list[str] = json.loads(text)
            lark = "start: " + " | ".join(map(json.dumps, choices))
            return llguidance.LLMatcher.grammar_from_lark(lark)
        case GrammarKind.STRUCTURAL_TAG:
            return llguidance.LLMatcher.grammar_from_lark(lark_of(text, tokens, {**JSON_STYLE}))


def unusable(grammar: Grammar, problem: str) -> InvalidField:
    """The refusal of a grammar, with what the library says of it."""
    said = _EXCERPT.split(problem.rpartition("error: ")[2])[0]
    said = " ".join(said.replace("<non-verbose/>", "").split())[:_MAX_PROBLEM_CHARS]
    if said.startswith("NoExtension"):
        said = "there is no text that it allows"
    hint = "" if said.startswith(_NO_SCHEMA) else _HINTS.get(grammar.kind, "")
    return InvalidField(grammar.field, f"cannot be used: {said}{hint}")


_NO_SCHEMA = "a schema is a JSON object"
_EXCERPT = re.compile(r"\s\d+ \| ")  # of a grammar, with the number of a line
_HINTS = {
    GrammarKind.JSON_SCHEMA: "; change the schema, or add "
    '"x-guidance": {"lenient": true} to it, which leaves out what is not supported',
    GrammarKind.GRAMMAR: "; it has to be in Lark's EBNF (start: ...) or in GBNF (root ::= ...)",
}


def _require_object(text: str) -> None:
    """Raise ValueError for what is no JSON, and for a schema that is true or false."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        problem = str(error).replace("`", "")
        raise ValueError(f"{_NO_SCHEMA}, which this is not: {problem}") from error


def _as_lark(text: str) -> str:
    try:
        return any_to_lark(text)
    except Exception as error:  # a converter in Python, which fails in every way
        raise ValueError(str(error) or type(error).__name__) from error
