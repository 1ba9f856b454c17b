"""Tools over gRPC: offered by the Python client, called in answers and streams, and answered."""

import json

import pytest

from specserve.api.call import ChatMessage
from specserve.api.from_proto import call_of
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.tools.tool import Tool, ToolCall, ToolUse, calls_of
from specserve.client import Client
from specserve.errors import InvalidField
from specserve.types import FinishReason, GrammarKind, SamplingParams, Submit
from specserve.validation import Limits
from tests.specserve.api.http.test_tools import CALL, NOW, PARAMETERS, PARIS, TOOLS
from tests.specserve.api.http.test_tools import rig as rig
from tests.specserve.api.http.test_tools import roomy_rig as roomy_rig

ASK = [ChatMessage("user", "fox")]
OURS = [Tool(name="weather", description="Of a city.", parameters=PARAMETERS), Tool(name="now")]


def submitted(rig):
    return [m.request for _, m in rig.target.messages if isinstance(m, Submit)][-1]


@pytest.mark.parametrize("tools", [TOOLS, OURS], ids=["as OpenAI has them", "ours"])
def test_an_answer_has_its_calls_beside_its_text(rig, tools):
    rig.script(f"Let me see.\n{CALL}{NOW}")
    with Client(rig.address) as client:
        (sample,) = client.generate(ASK, tools=tools).samples
        prompt = rig.tokenizer.decode(submitted(rig).prompt_token_ids)
        assert json.dumps(OURS[0].shown()) in prompt
        assert (sample.text, sample.finish_reason) == ("Let me see.", FinishReason.TOOL_CALLS)
        calls = [(call.name, call.arguments) for call in sample.tool_calls]
        assert calls == [("weather", PARIS), ("now", "{}")]
        stream = client.stream(ASK, tools=tools)
        deltas = list(stream)
    assert "".join(delta.text for delta in deltas) == "Let me see."
    pieces = [piece for delta in deltas for piece in delta.calls]
    assert [(call.name, call.arguments) for call in calls_of(pieces)] == calls
    assert len(pieces) > 10
    assert stream.finished.samples[0].finish_reason is FinishReason.TOOL_CALLS


def test_calls_come_back_with_what_they_returned(rig):
    back = ChatMessage("assistant", "", (ToolCall("call_1", "weather", PARIS),))
    returned = ChatMessage("tool", "21 degrees", tool_call_id="call_1", name="weather")
    called = {"id": "call_1", "function": {"name": "weather", "arguments": PARIS}}
    as_openai_has_it = [
        {"role": "user", "content": "fox"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "content": "21 degrees", "tool_call_id": "call_1", "name": "weather"},
    ]
    with Client(rig.address) as client:
        for chat in ([*ASK, back, returned], as_openai_has_it):
            client.generate(chat)
            prompt = rig.tokenizer.decode(submitted(rig).prompt_token_ids)
            assert prompt == (
                f"user: fox\nassistant: {CALL}\n"
                "user: <tool_response>\n21 degrees\n</tool_response>\nassistant:"
            )


def test_what_must_be_called_is_forced(rig):
    rig.script(CALL)
    named = {"type": "function", "function": {"name": "now"}}
    with Client(rig.address) as client:
        for choice, names in (("required", ["weather", "now"]), (named, ["now"])):
            client.generate(ASK, tools=TOOLS, tool_choice=choice)
            grammar = submitted(rig).grammar
            assert (grammar.kind, grammar.field) == (GrammarKind.STRUCTURAL_TAG, "tools")
            assert [name for name in ("weather", "now") if f'"{name}\\"' in grammar.text] == names
        client.generate(ASK, tools=TOOLS, tool_choice="none")
        assert submitted(rig).grammar is None
        odd = Tool(name="odd", parameters={"properties": {"a": {"type": "strin"}}})
        with pytest.raises(
            InvalidField, match=r"^tools: cannot be used|^tools\[1\].parameters: .*st"
        ):
            client.generate(ASK, tools=[OURS[0], odd], tool_choice="required")
        with pytest.raises(
            InvalidField, match=r"tool_choice.function.name: 'nobody' is none of to"
        ):
            client.generate(ASK, tools=TOOLS, tool_choice={"function": {"name": "nobody"}})
        with pytest.raises(InvalidField, match=r"tools\[1\].name: is no field of"):
            client.generate(ASK, tools=[*TOOLS[:1], {"name": "f"}])


def test_a_strict_function_is_one_over_the_wire(rig):
    """Calls that the model decides on keep to its schema, of which a grammar has to be made."""
    strict = Tool(name="weather", parameters=PARAMETERS, strict=True)
    function = {"name": "weather", "parameters": PARAMETERS, "strict": True}
    with Client(rig.address) as client:
        for tools in ([strict, OURS[1]], [{"type": "function", "function": function}, TOOLS[1]]):
            client.generate(ASK, tools=tools)
            grammar = submitted(rig).grammar
            assert (grammar.kind, grammar.field) == (GrammarKind.STRUCTURAL_TAG, "tools")
            form = json.loads(grammar.text)["format"]
            kept_to = [tag["content"]["json_schema"] for tag in form["tags"]]
            assert form["type"] == "triggered_tags"
            assert kept_to == [PARAMETERS | {"additionalProperties": False}, {"type": "object"}]
        client.generate(ASK, tools=OURS)
        assert submitted(rig).grammar is None
        odd = {"properties": {"a": {"type": "strin"}}}
        client.generate(ASK, tools=[OURS[0], Tool(name="odd", parameters=odd)])
        with pytest.raises(InvalidField, match=r"^tools\[1\].parameters: cannot be used: .*strin"):
            client.generate(ASK, tools=[OURS[0], Tool(name="odd", parameters=odd, strict=True)])


def call_for(**fields: object):
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="fox")])
    request = pb.GenerateRequest(chat=chat, **fields)  # type: ignore[arg-type]
    return call_of(request, None, Limits(vocab_size=9, max_model_len=99), SamplingParams())


def test_a_message_says_what_may_be_called():
    tool = pb.Tool(name="f", parameters="{}", strict=True)
    ours = Tool(name="f", parameters={}, strict=True, field="tools[0]")
    found = call_for(tools=[tool], parallel_tool_calls=False)
    assert found.tools == ToolUse(tools=(ours,), is_parallel=False)
    assert found.chat.tools == (ours,)
    forced = call_for(tools=[tool], tool_choice=pb.ToolChoice(function="f")).tools
    assert forced == ToolUse(tools=(ours,), is_required=True, only="f")
    nothing = call_for(tools=[tool], tool_choice=pb.ToolChoice(mode="none"))
    assert (nothing.tools, nothing.chat.tools) == (None, ())


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tools": [pb.Tool()]}, r"^tools\[0\].name: has 0 characters"),
        (
            {"tools": [pb.Tool(name="f", parameters="[]")]},
            r"^tools\[0\].parameters: is no JSON obje",
        ),
        ({"tools": [pb.Tool(name="f")] * 2}, "^tools: |tools.1..name: 'f' is the name of"),
        ({"tool_choice": pb.ToolChoice(mode="required")}, "^tool_choice: needs tools"),
        ({"tool_choice": pb.ToolChoice()}, "^tool_choice: is empty; send one of mode, function"),
        (
            {"tools": [pb.Tool(name="f")], "tool_choice": pb.ToolChoice(function="g")},
            "^tool_choice.function: 'g' is none of tools; they are f",
        ),
    ],
    ids=lambda each: str(each)[:24],
)
def test_what_cannot_be_is_refused_by_name(fields, problem):
    with pytest.raises(InvalidField, match=problem):
        call_for(**fields)
