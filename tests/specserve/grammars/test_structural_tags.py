"""Structural tags: text as it likes, with parts that keep to schemas where it says so."""

import json

import pytest

from specserve.errors import InvalidField
from specserve.grammars.compiler import compiled
from specserve.types import Grammar, GrammarKind
from tests.specserve.grammars.bytes_vocabulary import BytesVocabulary

INTEGER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TEXT = {"type": "any_text"}


def const(value: str) -> dict:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: dict, end: object) -> dict:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def grammar(form: dict | None = None, **fields: object) -> Grammar:
    document = fields if form is None else {"type": "structural_tag", "format": form}
    return Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(document), "tag")


@pytest.fixture(scope="module", params=["special", "spelt"])
def vocabulary(request, tmp_path_factory) -> BytesVocabulary:
    special = ["<f>", "</f>", "</think>"] if request.param == "special" else []
    return BytesVocabulary(tmp_path_factory.mktemp("model"), special)


F = tag("<f>=", INTEGER, "</f>")
G = tag("<f>g", const("x"), ["</f>", "."])
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f>"], "tags": [F, G]}
SEPARATED = {"type": "tags_with_separator", "tags": [F, G], "separator": ", "}
OBJECT = {"type": "json_schema", "json_schema": {"properties": {"a": {}, "b": {}}}}
THINK = {
    "type": "sequence",
    "elements": [tag("<think>", TEXT, "</think>"), {"type": "or", "elements": [const("a"), F]}],
}
FORMS = {
    "const": (const('a "b"\n'), ['a "b"\n'], ["a", ""]),
    "schema": (INTEGER, ["12"], ["x", "1.5"]),
    "style": (OBJECT, ['{"a": 1, "b": 2}'], ['{"a":1}', '{ "a": 1}']),
    "regex": ({"type": "regex", "pattern": "a/[b\\n]+"}, ["a/b\n"], ["a/", "ab"]),
    # As other languages have to write it, and behind a backslash that is one.
    "escaped slash": ({"type": "regex", "pattern": r"a\/b\\/[/]"}, ["a/b\\//"], [r"a\/b\//"]),
    "text": (TEXT, ["", "so <f> it <more> is\n"], []),
    "or": ({"type": "or", "elements": [const("a"), INTEGER]}, ["a", "5"], ["a5", ""]),
    "sequence": ({"type": "sequence", "elements": [const("a"), INTEGER]}, ["a5"], ["a", "5"]),
    "nothing": ({"type": "sequence", "elements": []}, [""], ["a"]),
    "tag": (F, ["<f>=5</f>"], ["<f>=5", "<f>5</f>"]),
    "ends": (G, ["<f>gx</f>", "<f>gx."], ["<f>gx"]),
    "tag of text": (tag("(", TEXT, ")"), ["(so it <more> is)"], ["(so", "(a)b"]),
    "tag to the end": (tag("(", TEXT, ""), ["(so it <more> is", "("], ["so"]),
    "think": (
        THINK,
        ["<think>so</think>a", "<think></think><f>=5</f>"],
        ["<think>so</think>", "<think>so</think>so"],
    ),
    "triggered": (
        TRIGGERED,
        ["", "so it <more> is", "so <f>=5</f> and <f>gx</f><f>gx. So", "<f>=5</f>"],
        ["<f>", "so <f>=x</f>", "<f>h", "<f>=5</f><f>"],
    ),
    "triggered once at least": (
        TRIGGERED | {"at_least_one": True},
        ["so <f>=5</f>", "<f>=5</f> so <f>gx."],
        ["", "so"],
    ),
    "triggered once at most": (
        TRIGGERED | {"stop_after_first": True},
        ["so", "so <f>=5</f>"],
        ["so <f>=5</f> so"],
    ),
    "separated": (
        SEPARATED,
        ["", "<f>=5</f>", "<f>=5</f>, <f>gx., <f>=6</f>"],
        ["so", "<f>=5</f>, ", "<f>=5</f><f>=5</f>"],
    ),
    "separated once": (
        SEPARATED | {"at_least_one": True, "stop_after_first": True},
        ["<f>=5</f>"],
        ["", "<f>=5</f>, <f>=5</f>"],
    ),
}


FORMS |= {
    f"triggers within each other {triggers}": (
        TRIGGERED | {"triggers": triggers},
        ["so <f>=5</f> and <f>gx.", "<f>gx</f>"],
        ["<f>=x</f>", "<f>h", "<f>g5."],
    )
    for triggers in (["<f", "<f>g"], ["<f>g", "<f>", "<f"])
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_allows_what_it_says_and_nothing_else(vocabulary, name: str):
    form, good, bad = FORMS[name]
    assert [text for text in good if not vocabulary.allows(grammar(form), text)] == []
    assert [text for text in bad if vocabulary.allows(grammar(form), text)] == []


def test_the_older_form_means_the_same(vocabulary):
    structures = [
        {"begin": "<f>=", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f>s", "schema": '{"type": "string"}', "end": "</f>"},
    ]
    older = grammar(type="structural_tag", structures=structures, triggers=["<f>"])
    assert vocabulary.allows(older, 'so <f>=5</f> and <f>s"x"</f>.')
    assert not vocabulary.allows(older, "so <f>=x", is_whole=False)


def test_a_text_that_is_a_token_is_that_token(tmp_path):
    vocabulary = BytesVocabulary(tmp_path, ["<f>", "</f>"])
    assert vocabulary.allows(grammar(F), "<f>=5</f>")
    assert not vocabulary.allows_spelt(grammar(F), "<f>=5</f>")
    assert vocabulary.allows_spelt(grammar(TRIGGERED), "<f>x")  # which is text like any other


def test_an_answer_ends_where_text_may(vocabulary):
    end = vocabulary.tokenizer.token_to_id("<end>")
    for begun, is_end in (("so", True), ("so <f>=", False), ("so <f>=5</f>", True)):
        matcher = compiled(grammar(TRIGGERED), vocabulary.tokens).deep_copy()
        ids = vocabulary.tokenizer.encode(begun).ids
        assert matcher.try_consume_tokens(ids) == len(ids)
        assert (matcher.try_consume_tokens([end]) == 1) == is_end


DEEP = "[" * 2000 + "]" * 2000
REFUSED = [
    (grammar(), "it has neither a format nor structures with triggers"),
    (grammar({"type": "qwen_xml"}), "Invalid value 'qwen_xml'"),
    (grammar(const("a") | {"more": 1}), "unknown field more"),
    (grammar(TRIGGERED | {"triggers": ["<g>"]}), "no trigger is the beginning of the tag '<f>='"),
    (grammar({"type": "sequence", "elements": [TEXT, F]}), "any_text has to be the content of a t"),
    (grammar({"type": "sequence", "elements": [TRIGGERED, F]}), "triggered_tags have to stand las"),
    (grammar({"type": "or", "elements": []}), "of no tags or elements there is none to choose"),
    (grammar(INTEGER | {"json_schema": {"type": "strin"}}), "Invalid type: strin"),
    (Grammar(GrammarKind.STRUCTURAL_TAG, "{", "tag"), "truncated"),
    (
        Grammar(GrammarKind.STRUCTURAL_TAG, f'{{"format": {DEEP}}}', "tag"),
        "Expected `?object|recur",
    ),
]


@pytest.mark.parametrize(("wrong", "problem"), REFUSED, ids=lambda each: str(each)[-24:])
def test_what_is_none_is_refused(vocabulary, wrong: Grammar, problem: str):
    with pytest.raises(InvalidField, match=f"^tag: cannot be used: .*{problem}"):
        compiled(wrong, vocabulary.tokens)


def test_depth_is_no_defect(vocabulary):
    form: dict = const("a")
    for _ in range(20):
        form = {"type": "sequence", "elements": [form, const("")]}
    assert vocabulary.allows(grammar(form), "a")
    deep = '{"type": "or", "elements": [' * 450 + json.dumps(const("a")) + "]}" * 450
    wrong = Grammar(GrammarKind.STRUCTURAL_TAG, f'{{"format": {deep}}}', "tag")
    with pytest.raises(InvalidField, match="tag: cannot be used: its formats are nested too deep"):
        compiled(wrong, vocabulary.tokens)
