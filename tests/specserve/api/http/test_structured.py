"""The form of an answer, as every API names it, is the grammar that the target gets."""

import json
import re

import pytest

from specserve.api.from_proto import call_of
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.client import Client
from specserve.errors import InvalidField
from specserve.types import Grammar, GrammarKind, SamplingParams, Submit
from tests.specserve.api.http.conftest import send

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
OPENAIS = {"name": "two", "strict": True, "schema": SCHEMA}
LARK = 'start: "a" | "b"'
JSON, REGEX, GRAMMAR, CHOICE, TAG = GrammarKind
PART = {"begin": "<a>", "schema": SCHEMA, "end": "</a>"}
LIST = {"type": "const_string", "value": "a"}


def compact(**fields: object) -> str:
    return json.dumps(fields, separators=(",", ":"))


FORMS = {
    "response_format": ({"type": "json_object"}, JSON, '{"type": "object"}', ""),
    "OpenAI's schema": (
        {"type": "json_schema", "json_schema": OPENAIS},
        JSON,
        json.dumps(SCHEMA, separators=(",", ":")),
        ".json_schema.schema",
    ),
    "json": ({"json": SCHEMA}, JSON, json.dumps(SCHEMA, separators=(",", ":")), ".json"),
    "json as text": ({"json": '{"type": "null"}'}, JSON, '{"type": "null"}', ".json"),
    "json_object": ({"json_object": True}, JSON, '{"type": "object"}', ".json_object"),
    "regex": ({"regex": "[ab]+"}, REGEX, "[ab]+", ".regex"),
    "grammar": ({"grammar": LARK}, GRAMMAR, LARK, ".grammar"),
    "choice": ({"choice": ["a", "ü"]}, CHOICE, '["a","ü"]', ".choice"),
    "structural tag": ({"type": "structural_tag", "format": LIST}, TAG, compact(format=LIST), ""),
    "its older form": (
        {"type": "structural_tag", "structures": [PART], "triggers": ["<"]},
        TAG,
        compact(structures=[PART], triggers=["<"]),
        "",
    ),
    "vLLM's": (
        {"structural_tag": json.dumps({"format": LIST})},
        TAG,
        json.dumps({"format": LIST}),
        ".structural_tag",
    ),
}
CHAT = {"messages": [{"role": "user", "content": "fox"}]}


@pytest.fixture(scope="module", autouse=True)
def _one_checker_for_all(shared_rig):
    """Which is there before the first test and not after the last."""
    shared_rig.call(shared_rig.service.grammars.check(Grammar(GRAMMAR, LARK)))
    yield
    shared_rig.call(shared_rig.service.grammars.close())


def given(rig) -> Grammar | None:
    """To the target, with the latest request."""
    return [m.request.grammar for _, m in rig.target.messages if isinstance(m, Submit)][-1]


@pytest.mark.parametrize("name", FORMS)
def test_a_body_may_name_a_form(rig, name):
    value, kind, text, below = FORMS[name]
    field = "response_format" if "type" in value else "structured_outputs"
    for path, body in (("completions", {"prompt": "fox"}), ("chat/completions", CHAT)):
        answer = send(rig.url, "POST", f"/v1/{path}", body | {field: value, "max_tokens": 2})
        assert answer.status == 200, answer.body
        assert given(rig) == Grammar(kind, text, field + below)


def test_names_of_older_clients_mean_the_same(rig):
    for name, value in (("json", SCHEMA), ("regex", "a"), ("grammar", LARK), ("choice", ["a"])):
        body = {"prompt": "fox", "max_tokens": 2, f"guided_{name}": value}
        assert send(rig.url, "POST", "/v1/completions", body).status == 200
        grammar = given(rig)
        assert grammar is not None
        assert (grammar.kind, grammar.field) == (FORMS[name][1], f"guided_{name}")


def test_text_is_no_form(rig):
    body = {"prompt": "fox", "max_tokens": 2, "response_format": {"type": "text"}}
    assert send(rig.url, "POST", "/v1/completions", body).status == 200
    assert given(rig) is None


REFUSED = [
    ({"regex": "a"}, 'regex: .* send structured_outputs: {"regex": ...}'),
    ({"ebnf": "root ::= a"}, 'ebnf: .* send structured_outputs: {"grammar": ...}'),
    ({"structured_outputs": {}}, "structured_outputs: is empty; it must have one of json, json_o"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp: .* did you mean regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "regex: is sent beside .*choice; "),
    ({"structured_outputs": {"choice": []}}, "choice: has 0 entries; it must have 1 to 1024"),
    ({"response_format": {"type": "xml"}}, "response_format.type: 'xml' is not served; send text"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: is missing"),
    ({"guided_regex": "("}, "guided_regex: cannot be used: unclosed group"),
]


@pytest.mark.parametrize(("fields", "problem"), REFUSED, ids=lambda value: str(value)[:32])
def test_a_form_that_cannot_be_is_refused_by_name(rig, fields, problem):
    answer = send(rig.url, "POST", "/v1/completions", {"prompt": "fox"} | fields)
    assert answer.status == 400
    assert re.search(problem, answer.body["error"]["message"]), answer.body


@pytest.mark.parametrize("kind", GrammarKind)
def test_a_call_over_grpc_may_name_one_too(rig, kind):
    texts = {JSON: "{}", REGEX: "a", GRAMMAR: LARK, CHOICE: '["a","b"]', TAG: compact(format=LIST)}
    text = texts[kind]
    with Client(rig.address) as client:
        client.generate("fox", max_tokens=2, grammar=Grammar(kind, text))
        field = f"structured_output.{kind}"
        assert given(rig) == Grammar(kind, text, field)
        bad = Grammar(kind, "[]" if kind is CHOICE else "(")
        with pytest.raises(InvalidField, match=f"^{field}: "):
            client.generate("fox", max_tokens=2, grammar=bad)


def test_over_grpc_any_object_is_a_form_and_none_is_not(rig):
    def grammar_of(**form: object) -> Grammar | None:
        wanted = pb.StructuredOutput(**form)
        request = pb.GenerateRequest(text="fox", structured_output=wanted)
        return call_of(request, None, rig.service.limits, SamplingParams()).grammar

    found = grammar_of(json_object=True)
    assert found == Grammar(JSON, '{"type": "object"}', "structured_output.json_object")
    for form in ({}, {"json_object": False}):
        with pytest.raises(InvalidField, match="structured_output"):
            grammar_of(**form)
