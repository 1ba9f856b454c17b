# pyright: strict
"""The form that a body wants its answer in: OpenAI's `response_format`, vLLM's and older names.

Decides nothing but which grammar is meant; whether it can be served is found out later.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from specserve.api.call import ANY_OBJECT, choice_of
from specserve.errors import InvalidField, Unsupported
from specserve.types import Grammar, GrammarKind

Schema = dict[str, Any] | str


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`name`, `description` and `strict` have no meaning: a schema is kept to in any case."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's; the last three are vLLM's for structural tags, in its two forms."""

    type: str  # text, json_object or json_schema
    json_schema: JsonSchema | None = None
    format: dict[str, Any] | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's; one of them."""

    json: Schema | None = None  # JSON of this schema, an object or its text
    json_object: bool | None = None  # any JSON object
    regex: str | None = None  # the whole text matches, without looking around or back
    grammar: str | None = None  # context-free, in Lark's EBNF or in GBNF
    choice: list[str] | None = None  # one of 1 to 1024 texts
    structural_tag: Schema | None = None  # text with parts of given forms, as of xgrammar


class AsksForForm(Protocol):
    """What bodies have for it."""

    @property
    def response_format(self) -> ResponseFormat | None: ...
    @property
    def structured_outputs(self) -> StructuredOutputs | None: ...
    @property
    def guided_json(self) -> Schema | None: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_grammar(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[str] | None: ...


# What other servers call it, and what to type here.
ELSEWHERE = {
    "regex": 'structured_outputs: {"regex": ...}',
    "ebnf": 'structured_outputs: {"grammar": ...}',
    "grammar": 'structured_outputs: {"grammar": ...}',
    "json_schema": 'structured_outputs: {"json": ...}, or OpenAI\'s response_format',
}


def grammar_of(body: AsksForForm) -> Grammar | None:
    """What the answer has to be; None: text. Raises InvalidField, Unsupported."""
    found = [*_of_format(body), *_of_guided(body)]
    if body.structured_outputs is not None:
        found += _of_structured_outputs(body.structured_outputs)
    if len(found) > 1:
        problem = f"is sent beside {found[1].field}; an answer has one form, send one of them"
        raise InvalidField(found[0].field, problem)
    return found[0] if found else None


def _of_format(body: AsksForForm) -> Iterator[Grammar]:
    form = body.response_format
    if form is None or form.type == "text":
        return
    if form.type == "json_object":
        yield Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT, "response_format")
    elif form.type == "json_schema":
        if form.json_schema is None:
            problem = "is missing; it must be an object with a schema"
            raise InvalidField("response_format.json_schema", problem)
        yield _json(form.json_schema.schema, "response_format.json_schema.schema")
    elif form.type == "structural_tag":
        fields = {"format": form.format, "structures": form.structures, "triggers": form.triggers}
        given = {name: value for name, value in fields.items() if value is not None}
        yield _structural_tag(given, "response_format")
    else:
        known = "text, json_object, json_schema or structural_tag"
        raise Unsupported(f"response_format.type: {form.type[:64]!r} is not served; send {known}")


def _of_structured_outputs(wanted: StructuredOutputs) -> list[Grammar]:
    forms = wanted.json, wanted.regex, wanted.grammar, wanted.choice
    found = list(_of_forms("structured_outputs.", *forms))
    if wanted.json_object:
        field = "structured_outputs.json_object"
        found.append(Grammar(GrammarKind.JSON_SCHEMA, ANY_OBJECT, field))
    if wanted.structural_tag is not None:
        field = "structured_outputs.structural_tag"
        found.append(_structural_tag(wanted.structural_tag, field))
    if not found:
        forms = "json, json_object, regex, grammar, choice, structural_tag"
        problem = f"is empty; it must have one of {forms}"
        raise InvalidField("structured_outputs", problem)
    return found


def _of_guided(body: AsksForForm) -> Iterator[Grammar]:
    forms = body.guided_json, body.guided_regex, body.guided_grammar, body.guided_choice
    return _of_forms("guided_", *forms)


def _of_forms(
    prefix: str,
    schema: Schema | None,
    regex: str | None,
    grammar: str | None,
    choice: list[str] | None,
) -> Iterator[Grammar]:
    if schema is not None:
        yield _json(schema, prefix + "json")
    if regex is not None:
        yield Grammar(GrammarKind.REGEX, regex, prefix + "regex")
    if grammar is not None:
        yield Grammar(GrammarKind.GRAMMAR, grammar, prefix + "grammar")
    if choice is not None:
        yield choice_of(choice, prefix + "choice")


def _json(schema: Schema, field: str) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, _text_of(schema), field)


def _structural_tag(document: Schema, field: str) -> Grammar:
    return Grammar(GrammarKind.STRUCTURAL_TAG, _text_of(document), field)


def _text_of(document: Schema) -> str:
    return document if isinstance(document, str) else msgspec.json.encode(document).decode()
