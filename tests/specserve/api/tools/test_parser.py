"""Calls are found in a text however it is cut into pieces, and what is no call stays text."""

import json
import random

import pytest

from specserve.api.tools.formats import HERMES, LLAMA3_JSON
from specserve.api.tools.tool import ToolCall
from tests.specserve.api.tools.reading import cut, read_all, read_in

PARIS = '{"city": "Paris"}'
TRICKY = '{"city": "a } \\" </tool_call> {", "n": [1, {"x": null}], "é": "\\u00e9"}'
WEATHER = ("weather", PARIS)
OPEN, CLOSE = "<tool_call>", "</tool_call>"


def call(arguments: str = PARIS, name: str = "weather") -> str:
    return f'{OPEN}\n{{"name": "{name}", "arguments": {arguments}}}\n{CLOSE}'


# Of hermes: a text, what is no call of it, and the calls.
MARKED = {
    "a call": (call(), "", [WEATHER]),
    "tricky strings": (call(TRICKY), "", [("weather", TRICKY)]),
    "two": (call() + "\n" + call("{}", "now"), "", [WEATHER, ("now", "{}")]),
    "text before": (f"Let me see.\n\n{call()}", "Let me see.", [WEATHER]),
    "text around": (f"One.\n{call()}\n\nTwo. ", "One.Two.", [WEATHER]),
    "blanks alone": (f"\n\n{call()}\n", "", [WEATHER]),
    "no mark behind it": (call().removesuffix("\n" + CLOSE), "", [WEATHER]),
    "no brace at the end": (call().replace("}}", "}"), "", [WEATHER]),
    "between one pair of marks": (
        call().replace(f"\n{CLOSE}", '\n{"name": "now", "arguments": {}}' + CLOSE),
        "",
        [WEATHER, ("now", "{}")],
    ),
    "arguments first": (
        f'{OPEN}{{"arguments": {PARIS}, "name": "weather"}}{CLOSE}',
        "",
        [("weather", PARIS.replace(" ", ""))],
    ),
    "no arguments": (f'{OPEN}{{"name": "now"}}{CLOSE}', "", [("now", "{}")]),
    "arguments as text": (
        f'{OPEN}{{"name": "weather", "arguments": {json.dumps(PARIS)}}}{CLOSE}',
        "",
        [("weather", PARIS.replace(" ", ""))],
    ),
    "its type first": (
        call().replace('{"name"', '{"type": "function", "name"').replace("arguments", "parameters"),
        "",
        [WEATHER],
    ),
}
# Texts without a call.
PLAIN = {
    "nothing": "",
    "text": "The capital of France is Paris.\n",
    "blanks": " \n ",
    "a beginning of a mark": "a < b, and <tool_",
    "a mark": f"It writes {OPEN} first, and {CLOSE}.",
    "a mark at the end": f"It writes {OPEN}\n",
    "unknown name": f"Well.\n{call(name='nobody')} So.",
    "no JSON": f"{OPEN}{{weather: Paris}}{CLOSE}",
    "no object": f"{OPEN}[1, 2]{CLOSE}",
    "an object that is no call": f'{OPEN}{{"city": "Paris", "arguments": {{}}}}{CLOSE}',
    "arguments are a list": call("[1]"),
    "arguments are no JSON": call('{"city": tru}'),
    "cut": call()[:-22],
    "cut in a string": call()[:60],
    "deep": call('{"a": ' * 5000 + "1" + "}" * 5000),
}
# Of llama3_json: the same.
BARE = {
    "a call": ('{"name": "weather", "parameters": {"city": "Paris"}}', "", [WEATHER]),
    "behind a tag": (
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}',
        "",
        [WEATHER],
    ),
    "two": (
        ' {"name": "now", "parameters": {}}; {"name": "weather", "parameters": {"city": "Paris"}} ',
        "",
        [("now", "{}"), WEATHER],
    ),
    "text behind": ('{"name": "now", "parameters": {}}\n\nDone. ', "\n\nDone. ", [("now", "{}")]),
    "text": ('Use {"name": "now", "parameters": {}}', None, []),
    "a tag": ("<|python_tag|>print(1)", None, []),
    "an object": ('{"city": "Paris", "name": "now"}', None, []),
    "unknown": ('{"name": "nobody", "parameters": {}} ', None, []),
    "cut": ('{"name": "now", "parameters": {', None, []),
    "nothing": ("", None, []),
    "blanks": (" \n", None, []),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", MARKED)
def test_calls_between_marks_are_found(name: str, streamed: bool):
    text, content, calls = MARKED[name]
    source = random.Random(1)
    assert read_in([text], streamed=streamed) == (content, calls)
    assert read_in(list(text), streamed=streamed) == (content, calls)
    for _ in range(40):
        assert read_in(cut(text, source), streamed=streamed) == (content, calls)


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_no_call_is_text_as_it_was_written(name: str):
    text, source = PLAIN[name], random.Random(2)
    assert read_in([text]) == (text, [])
    for _ in range(3):
        assert read_in(cut(text, source)) == (text, [])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", BARE)
def test_an_answer_that_is_an_object_is_a_call(name: str, streamed: bool):
    text, content, calls = BARE[name]
    if streamed and name == "cut":
        content, calls = "", [("now", "{")]
    source = random.Random(3)
    for pieces in ([text], list(text), *(cut(text, source) for _ in range(40))):
        assert read_in(pieces, LLAMA3_JSON, streamed=streamed) == (
            text if content is None else content,
            calls,
        )


def test_a_stream_has_the_name_first_and_arguments_in_pieces():
    text = f"So: {call(TRICKY)}{call('{}', 'now')}"
    read, calls, deltas = read_all(list(text), streamed=True)
    assert (read, calls) == ("So:", [("weather", TRICKY), ("now", "{}")])
    first = [delta for delta in deltas if delta.index == 0]
    assert (first[0].name, first[0].arguments) == ("weather", "")
    assert first[0].call_id is not None
    assert first[0].call_id.startswith("call_")
    assert [delta.arguments for delta in first[1:]] == list(TRICKY)
    assert all(delta.name is delta.call_id is None for delta in first[1:])
    assert [delta.index for delta in deltas] == sorted(delta.index for delta in deltas)


def test_of_a_stream_that_is_cut_what_was_written_has_left():
    text = call()[: call().index("ris")]
    assert read_in(list(text), streamed=True) == ("", [("weather", '{"city": "Pa')])
    broken = call('{"city": <b>}')
    assert read_in(list(broken), streamed=True) == (f"<b>}}}}\n{CLOSE}", [("weather", '{"city": ')])


def test_text_leaves_before_a_call_and_as_soon_as_it_is_no_call():
    parser_text = "So it is. "
    pieces = [*parser_text, OPEN, '{"city"', " more"]
    source, _, _ = read_all(pieces[:10])
    assert source == parser_text
    text, calls, _ = read_all([OPEN, '{"city": ', '"Paris"'])
    assert (text, calls) == (f'{OPEN}{{"city": "Paris"', [])


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON])
def test_what_a_format_writes_it_reads(form):
    calls = [("weather", TRICKY), ("now", "{}"), WEATHER]
    written = form.written([ToolCall("", name, arguments) for name, arguments in calls])
    assert read_in([written], form) == ("", calls)


def test_random_text_is_never_lost():
    """Whatever it is: all of it is text, or some of it is calls."""
    source = random.Random(4)
    words = [
        OPEN,
        CLOSE,
        "{",
        "}",
        '"name"',
        ": ",
        '"weather"',
        ", ",
        '"arguments"',
        "\n",
        "a",
        "\\",
    ]
    for _ in range(2000):
        text = "".join(source.choices(words, k=source.randrange(12)))
        for form in (HERMES, LLAMA3_JSON):
            assert read_in(cut(text, source), form) == read_in([text], form)
            found, calls = read_in([text], form)
            assert calls or found == text
