"""Bodies of /v1/responses that are refused, each by the name and in the words of its client."""

import json
import random
from typing import Any

import pytest

from specserve.api.http.bodies import read_body
from specserve.api.http.responses.body import READING, ResponsesBody, check_body
from specserve.api.http.responses.items import read_input
from specserve.errors import InvalidField, SpecserveError
from tests.specserve.api.http.conftest import send
from tests.specserve.api.http.test_wrong_fields import something

USER = {"role": "user", "content": "fox"}


def read(fields: dict[str, Any], *, is_lenient: bool = False) -> tuple[ResponsesBody, list[str]]:
    content = json.dumps({"input": "fox"} | fields).encode()
    body, unknown = read_body(content, ResponsesBody, is_lenient=is_lenient, reading=READING)
    check_body(body)
    read_input(body.input)
    return body, unknown


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": None}, "input: is missing; it must be text or a list of objects"),
        ({"input": []}, "input: is empty; it must be text or have at least 1 item"),
        ({"input": [5]}, "input[0]: must be an object, not the number 5"),
        ({"input": [USER, {"type": "reasoning"}]}, "input[1].type: 'reasoning' is not served here"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "previous_response_id"),
        ({"input": [{"type": "file_search_call"}]}, "items are of type message"),
        ({"input": [{"type": {}}]}, "input[0].type: '{}' is not served here"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role: 'robot' is not one of"),
        ({"input": [{"role": "user"}]}, "input[0].content: is missing; it must be text or a list"),
        ({"input": [USER | {"contents": "x"}]}, "input[0].contents: is no field of input[0]; did "
         "you mean content?"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0].type: 'input_image' is not served here; parts of a message to the "
         "model are of type 'input_text'"),
        ({"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
         "send input_text"),
        ({"input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
         "are of type 'output_text'"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
         "input[0].content[0].text: is missing; it must be text"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]},
         "input[0].content[0].text: must be text, not the number 3"),
        ({"input": [USER | {"id": "x" * 129}]}, "input[0].id: must have 1 to 128"),
        ({"messages": [USER]}, "messages: is no field of a response here; send input"),
        ({"max_tokens": 5}, "max_tokens: is no field of a response here; send max_output_tokens"),
        ({"response_format": {"type": "text"}}, 'send text: {"format"'),
        ({"reasoning": {"effort": "low"}}, "send chat_template_kwargs"),
        ({"conversation": "conv_1"}, "send previous_response_id"),
        ({"prompt": {"id": "x"}}, "send instructions and input"),
        ({"truncation": "auto"}, 'leave it out, or send "disabled"'),
        ({"max_output_token": 5}, "did you mean max_output_tokens?"),
        ({"max_output_tokens": "x"}, "max_output_tokens: must be a whole number of at least 1 or "
         'null, not the text "x"'),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type: 'xml' is not served; send text"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema: is missing"),
        ({"text": {"format": {"typ": "text"}}}, "text.format.typ: is no field of format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity: is not served here"),
        ({"metadata": {"a": 5}}, "metadata[a]: must be text of at most 512"),
        ({"metadata": {"a" * 65: "x"}}, "metadata: has a key of 65 characters; the limit is 64"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata: has 17 keys; the limit is 16"),
        ({"background": True, "store": False}, "background: needs store: true"),
        ({"include": ["x"]}, "include: 'x' is not served here; there are code_interpreter"),
        ({"top_logprobs": 3}, "top_logprobs: needs include"),
        ({"stream_options": {"include_obfuscation": True}, "stream": True}, "include_obfuscation: "
         "is not served here; leave it out, or send false"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options: are for streams"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be(fields: dict[str, Any], says: str):
    with pytest.raises(SpecserveError) as caught:
        read(fields)
    assert says in str(caught.value)


def test_what_means_nothing_here_is_accepted():
    body, unknown = read({
        "user": "x", "service_tier": "auto", "prompt_cache_key": "y", "safety_identifier": "z",
        "truncation": "disabled", "parallel_tool_calls": True, "max_tool_calls": 3,
        "include": ["reasoning.encrypted_content"], "text": {"format": None, "verbosity": "medium"},
        "metadata": None, "previous_response_id": None, "conversation": None, "stream": None,
    })  # fmt: skip
    assert unknown == []
    assert body.text.format is None


def test_who_is_lenient_is_so_within_items_too():
    fields = {
        "effort": "high",
        "input": [USER | {"weight": 1}, {"role": "user", "content": [
            {"type": "input_text", "text": "dog", "cache_control": {}}]}],
        "text": {"format": {"type": "text", "colour": "red"}},
    }  # fmt: skip
    with pytest.raises(InvalidField):
        read(fields)
    body, unknown = read(fields, is_lenient=True)
    assert unknown == [
        "effort",
        "input.content.cache_control",
        "input.weight",
        "text.format.colour",
    ]
    assert [item.text for item in read_input(body.input)] == ["fox", "dog"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "x " * 5000}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": -5}, "max_output_tokens"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"input": [{"role": "user", "content": "refuse"}]}, "input"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"model": "other"}, "model"),
        ({"n": 2}, "n"),
        ({"seed": "x"}, "seed"),
    ],
)  # fmt: skip
def test_what_the_door_refuses_is_named_as_it_was_sent(ask, fields: dict, param: str):
    answer = ask("POST", "/v1/responses", {"input": "fox"} | fields)
    assert answer.status == (404 if param == "model" else 400)
    assert answer.body["error"]["param"] == param
    assert answer.body["error"]["message"].startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "colour"}}}},
         "text.format.schema"),
        ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}},
         "text.format"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be(make_rig, fields: dict, param: str):
    answer = send(make_rig().url, "POST", "/v1/responses", {"input": "fox"} | fields)
    assert (answer.status, answer.body["error"]["param"]) == (400, param)


def test_a_lenient_service_says_what_it_has_left_out(make_rig):
    rig = make_rig(lenient=True)
    answer = send(rig.url, "POST", "/v1/responses", {"input": [USER | {"weight": 1}], "effort": 1})
    assert answer.status == 200
    assert answer.headers["x-specserve-warning"] == "ignored: effort, input.weight"


def test_whatever_is_sent_is_read_or_refused():
    """By a walk through JSON at random: an error of another kind would be told as a defect."""
    dice = random.Random(21)
    num_refused = 0
    for _ in range(3000):
        fields: dict[str, Any] = {}
        for _ in range(dice.randrange(1, 3)):
            fields[dice.choice(ResponsesBody.__struct_fields__)] = something(dice)
        item = dice.choice([USER, {"role": "assistant", "content": [{"type": "output_text"}]}])
        if dice.random() < 0.5:
            fields["input"] = [item | {dice.choice([*item, "id", "type"]): something(dice)}]
        try:
            read(fields, is_lenient=dice.random() < 0.3)
        except SpecserveError:
            num_refused += 1
    assert 1000 < num_refused < 3000
