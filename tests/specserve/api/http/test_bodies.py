"""Bodies as clients write them: with nulls, with parts, and with values that are too large."""

import json
import time

import pytest

from specserve.api.http.bodies import ChatBody, CompletionBody, read_body
from specserve.errors import InvalidField

USER = {"role": "user", "content": "fox"}
# What pydantic's model_dump makes of a message that OpenAI's client was given.
DUMPED = {
    "role": "assistant", "content": "the", "refusal": None, "annotations": None, "audio": None,
    "function_call": None, "tool_calls": None,
}  # fmt: skip


def chat_of(**fields: object) -> ChatBody:
    body, unknown = read_body(json.dumps(fields).encode(), ChatBody, is_lenient=False)
    assert unknown == []
    return body


def test_a_null_is_a_field_that_is_not_set_wherever_it_is():
    part = {"type": "text", "text": "jumps", "annotations": None}
    body = chat_of(
        messages=[USER, DUMPED, {"role": "user", "content": [part]}],
        stream=True,
        stream_options={"include_usage": None, "continuous_usage_stats": None},
        tools=None,
        tool_choice=None,
    )
    assert [message.text("") for message in body.messages] == ["fox", "the", "jumps"]
    assert body.stream_options is not None
    assert not body.stream_options.include_usage


def test_an_empty_list_in_a_message_says_nothing():
    replayed = DUMPED | {"tool_calls": [], "annotations": []}
    body = chat_of(messages=[USER, replayed, {"role": "assistant", "content": []}])
    assert [message.text("messages") for message in body.messages] == ["fox", "the", ""]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": []}])
def test_a_question_asks_something(content: dict):
    body = chat_of(messages=[USER, {"role": "user", **content}])
    with pytest.raises(InvalidField, match=r"messages\[1\].content: is missing; it must be text"):
        body.messages[1].text("messages[1]")
    assert chat_of(messages=[{"role": "user", "content": ""}]).messages[0].text("") == ""


def test_a_message_may_say_that_it_is_a_text():
    body = chat_of(messages=[USER | {"type": "text"}])
    assert body.messages[0].text("messages[0]") == "fox"
    with pytest.raises(InvalidField):
        chat_of(messages=[USER | {"type": "image"}])


def test_who_is_lenient_is_so_within_messages_too():
    part = {"type": "text", "text": "jumps", "cache_control": {"type": "ephemeral"}}
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    fields = {
        "messages": [USER | {"weight": 1}, {"role": "user", "content": [part]}],
        "stream_options": {"include_usage": True, "include_obfuscation": False},
        "stream": True,
        "effort": "high",
    }
    content = json.dumps(fields).encode()
    with pytest.raises(InvalidField):
        read_body(content, ChatBody, is_lenient=False)
    body, unknown = read_body(content, ChatBody, is_lenient=True)
    assert [message.text("messages") for message in body.messages] == ["fox", "jumps"]
    assert unknown == [
        "effort", "messages.content.cache_control", "messages.weight",
        "stream_options.include_obfuscation",
    ]  # fmt: skip
    fields = {"messages": [{"role": "user", "content": [picture]}]}
    body, _ = read_body(json.dumps(fields).encode(), ChatBody, is_lenient=True)
    with pytest.raises(InvalidField, match="'image_url' is not served"):
        body.messages[0].text("messages[0]")


@pytest.mark.parametrize("value", ["x", 5, [[[]]], [5, "x"], {"role": 5}])
def test_who_is_lenient_takes_no_nonsense(value: object):
    with pytest.raises(InvalidField):
        read_body(json.dumps({"messages": value}).encode(), ChatBody, is_lenient=True)


def test_nulls_that_a_template_reads_are_left_alone():
    body = chat_of(messages=[USER], chat_template_kwargs={"date": None})
    assert body.chat_template_kwargs == {"date": None}


@pytest.mark.parametrize(
    ("part", "field", "says"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, ".type", "'image_url'"),
        ({"image_url": {"url": "x"}, "type": "image_url"}, ".type", "'text'"),
        ({"type": "text", "txet": "a"}, ".txet", "is no field of content[0]; its fields are"),
        ({"type": "text"}, ".text", "is missing; it must be text"),
        ({"type": 5, "text": "a"}, ".type", "'5' is not served here"),
    ],
)
def test_a_part_that_is_no_text_is_refused_by_its_type(part: dict, field: str, says: str):
    body = chat_of(messages=[{"role": "user", "content": [part]}])
    with pytest.raises(InvalidField) as caught:
        body.messages[0].text("messages[0]")
    assert caught.value.field == f"messages[0].content[0]{field}"
    assert says in caught.value.problem


@pytest.mark.parametrize("depth", [5, 500, 100_000])
def test_depth_is_no_defect(depth: int):
    """Refused as what it is, or as no JSON where the parser gives up."""
    content = b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(InvalidField):
        read_body(content, ChatBody, is_lenient=False)


def test_a_name_of_megabytes_is_compared_with_none():
    content = json.dumps({"temperature" * 800_000: 1}).encode()
    began_s = time.process_time()
    with pytest.raises(InvalidField, match="is no field of a completion") as caught:
        read_body(content, CompletionBody, is_lenient=False)
    assert time.process_time() - began_s < 0.25  # a second, where all of it is looked at
    assert len(caught.value.field) == 64


def test_an_unknown_null_is_no_reason_for_a_warning():
    body, unknown = read_body(b'{"prompt": "a", "best_of": null}', CompletionBody, is_lenient=True)
    assert (body.prompt, unknown) == ("a", [])


def test_a_field_that_is_not_served_may_say_what_happens_anyway():
    same = {"best_of": 1, "use_beam_search": False, "length_penalty": 1.0, "prompt": "a"}
    _, unknown = read_body(json.dumps(same).encode(), CompletionBody, is_lenient=True)
    assert unknown == []
    assert chat_of(messages=[USER], tool_choice="none", modalities=["text"]).messages
    for other in ({"best_of": 2}, {"use_beam_search": True}, {"length_penalty": "1"}):
        with pytest.raises(InvalidField, match="is not served here; leave it out, or send"):
            read_body(
                json.dumps({"prompt": "a"} | other).encode(), CompletionBody, is_lenient=False
            )


def test_options_of_a_stream_are_for_streams():
    """As OpenAI and vLLM have it; options that say nothing are none."""
    given = {"messages": [USER], "stream_options": {"include_usage": True}}
    with pytest.raises(InvalidField, match="stream_options: are for streams; send stream: true"):
        chat_of(**given)
    with pytest.raises(InvalidField, match="stream_options: are for streams"):
        chat_of(**given, stream=False)
    assert chat_of(**given, stream=True).stream_options is not None
    assert chat_of(messages=[USER], stream_options={}).messages
