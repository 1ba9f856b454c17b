"""Functions over /v1/responses: offered, called in items and events, answered by their results."""

from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from specserve.types import GrammarKind
from tests.specserve.api.http.conftest import send
from tests.specserve.api.http.responses.test_responses import events_in
from tests.specserve.api.http.test_tools import (
    CALL,
    FUNCTION,
    NOW,
    PARIS,
    prompt_of,
    rig,
    roomy_rig,
    submitted,
)

__all__ = ["rig", "roomy_rig"]

TOOLS = [{"type": "function", **FUNCTION}, {"type": "function", "name": "now"}]
ASK: dict[str, Any] = {"model": "scripted", "input": "fox", "tools": TOOLS}
ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseItem)


def called(output: list[Any]) -> list[tuple[str, str, str]]:
    return [(each.name, each.arguments, each.status) for each in output]


def test_a_call_is_an_item_of_its_own(rig, client: OpenAI):
    rig.script(f"Let me see.\n{CALL}\n{NOW}")
    found = client.responses.create(**ASK)
    message, *calls = found.output
    assert (found.output_text, message.type) == ("Let me see.", "message")
    assert called(calls) == [("weather", PARIS, "completed"), ("now", "{}", "completed")]
    assert len({each.call_id for each in calls}) == len({each.id for each in calls}) == 2
    assert (found.status, found.tool_choice, len(found.tools)) == ("completed", "auto", 2)
    rig.script(CALL)
    answer = send(rig.url, "POST", "/v1/responses", ASK)
    assert [each.type for each in Response.model_validate(answer.body).output] == ["function_call"]


@pytest.mark.parametrize("per_round", [1, 3, 50])
def test_a_stream_has_a_call_piece_by_piece(rig, per_round: int):
    rig.script(f"So: {CALL}\n{NOW}")
    rig.target.per_round = per_round
    events = events_in(send(rig.url, "POST", "/v1/responses", ASK | {"stream": True}).body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [each for each in events if each["type"] == "response.output_item.added"]
    done = [each for each in events if each["type"] == "response.output_item.done"]
    assert [each["item"]["type"] for each in added] == ["message", *["function_call"] * 2]
    for index, (begun, ended) in enumerate(zip(added, done, strict=True)):
        assert begun["output_index"] == ended["output_index"] == index
        assert begun["item"]["id"] == ended["item"]["id"]
        assert begun["item"]["status"] == "in_progress"
        own = [each for each in events if each.get("item_id") == begun["item"]["id"]]
        assert {each["output_index"] for each in own} == {index}
        text = "".join(each.get("delta", "") for each in own)
        if index:
            assert begun["item"]["arguments"] == ""
            last = own[-1]
            assert last["type"] == "response.function_call_arguments.done"
            assert text == last["arguments"] == ended["item"]["arguments"]
            assert begun["item"]["call_id"] == ended["item"]["call_id"] != ""
        else:
            assert text == "So:"
    assert [each["item"] for each in done] == events[-1]["response"]["output"]
    assert events[-1]["type"] == "response.completed"


def test_the_client_puts_calls_together(rig, client: OpenAI):
    rig.script(f"So: {CALL}\nand {NOW}")
    with client.responses.stream(**ASK) as stream:
        final = stream.get_final_response()
    kinds = [each.type for each in final.output]
    assert kinds == ["message", "function_call", "message", "function_call"]
    assert final.output[1].arguments == PARIS


def test_a_call_that_is_cut_is_incomplete(rig):
    rig.script(CALL)
    num_tokens = len(rig.encode(CALL[: CALL.index("Paris")]))
    body = ASK | {"stream": True, "max_output_tokens": num_tokens}
    events = events_in(send(rig.url, "POST", "/v1/responses", body).body)
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["status"]) == ("function_call", "incomplete")
    assert PARIS.startswith(item["arguments"])
    assert item["arguments"]
    assert events[-1]["type"] == "response.incomplete"


def test_log_probabilities_are_those_of_texts(rig):
    rig.script(f"So: {CALL}")
    body = ASK | {"stream": True, "include": ["message.output_text.logprobs"]}
    events = events_in(send(rig.url, "POST", "/v1/responses", body).body)
    message, call = events[-1]["response"]["output"]
    told = [each["token"] for each in message["content"][0]["logprobs"]]
    assert "".join(told).startswith("So:")
    assert "logprobs" not in call


def test_results_go_back_to_the_model(rig, client: OpenAI):
    """By the previous response, or with all items of the conversation: the same prompt."""
    rig.script(f"Let me see.\n{CALL}")
    first = client.responses.create(**ASK)
    call_id = first.output[1].call_id
    result = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
    rig.script("It is sunny.")
    asked = ASK | {"input": [result]}
    second = client.responses.create(**asked, previous_response_id=first.id)
    by_name = prompt_of(rig)
    assert second.output_text == "It is sunny."
    turns = [{"role": "user", "content": "fox"}, *first.output, result]
    client.responses.create(**ASK | {"input": turns})
    assert prompt_of(rig) == by_name
    rest = by_name[by_name.index("user: fox") :]
    assert rest == (
        f"user: fox\nassistant: Let me see.\n{CALL}\n"
        "user: <tool_response>\nsunny\n</tool_response>\nassistant:"
    )
    parts = [{"type": "input_text", "text": "sunny"}]
    client.responses.create(**ASK | {"input": [*turns[:-1], result | {"output": parts}]})
    assert prompt_of(rig) == by_name
    answer = send(rig.url, "GET", f"/v1/responses/{second.id}/input_items?order=asc")
    kinds = [ITEMS.validate_python(item).type for item in answer.body["data"]]
    assert kinds == ["message", "message", "function_call", "function_call_output"]


@pytest.mark.parametrize(
    ("choice", "has_grammar", "is_told"),
    [
        ("auto", False, True),
        ("required", True, True),
        ({"type": "function", "name": "now"}, True, True),
        ("none", False, False),
    ],
)
def test_a_choice_is_kept_to(rig, choice: Any, has_grammar: bool, is_told: bool):
    rig.script(NOW)
    body = ASK | {"tool_choice": choice}
    found = send(rig.url, "POST", "/v1/responses", body)
    assert (found.status, found.body["tool_choice"]) == (200, choice)
    grammar = submitted(rig).grammar
    assert (grammar is not None) == has_grammar
    assert grammar is None or grammar.kind in (GrammarKind.GRAMMAR, *GrammarKind)
    assert ("<tools>" in prompt_of(rig)) == is_told


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "web_search"}]}, None, "tools[0].type: 'web_search' is not served"),
        ({"tools": [{"type": "function", "function": FUNCTION}]}, "tools[0].function",
         'stands flat here: send {"type": "function", "name": ...}'),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "is missing; it must be text"),
        ({"tools": [{"type": "function", "name": "a", "descriptio": "x"}]}, "tools[0].descriptio",
         "did you mean description?"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name", "has 0 characters"),
        ({"tools": [{"type": "function", "name": "a", "parameters": {"type": "array"}}]},
         "tools[0].parameters.type", "arguments are an object"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": "always"}, "tool_choice", "'always' is not one of"),
        ({"tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice.name",
         "'nobody' is none of tools"),
        ({"tool_choice": {"type": "allowed_tools"}}, None, "tool_choice.type: 'allowed_tools'"),
        ({"functions": []}, "functions", "send tools"),
        ({"input": [{"type": "function_call_output", "call_id": "call_x", "output": "a"}]},
         "input[0].call_id", "'call_x' is of no call before it"),
        ({"input": [{"type": "function_call", "call_id": "", "name": "a", "arguments": ""}]},
         "input[0].call_id", "has 0 characters"),
        ({"input": [{"type": "function_call", "call_id": "x", "arguments": ""}]},
         "input[0].name", "is missing; it must be text"),
    ],
)  # fmt: skip
def test_what_cannot_be_offered_or_returned(rig, fields: dict, param: str | None, says: str):
    answer = send(rig.url, "POST", "/v1/responses", ASK | fields)
    assert (answer.status, answer.body["error"]["param"]) == (400, param)
    assert says in answer.body["error"]["message"]
