"""Tools over HTTP, as OpenAI's client reads them: offered, called, forced, and answered."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from tokenizers import AddedToken, Tokenizer

from specserve.types import Grammar, GrammarKind, Submit
from tests.specserve.api.conftest import Rig, rigs_in
from tests.specserve.api.http.conftest import events_of, send

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
FUNCTION = {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {"name": "now"}},
]
ASK = {"model": "scripted", "messages": [{"role": "user", "content": "fox"}], "tools": TOOLS}
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
NO_CALLS = ["The fox is quick.", CALL.replace("weather", "nobody"), "a < b <tool_call>\n"]
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def roomy_rig(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Functions are told of in many tokens. What compiles grammars is there all the time."""
    with rigs_in(model_folder, tmp_path_factory.mktemp("rig")) as make:
        rig = make(max_model_len=4096)
        rig.call(rig.service.grammars.check(Grammar(GrammarKind.REGEX, "a")))
        yield rig
        rig.call(rig.service.grammars.close())


@pytest.fixture
def rig(roomy_rig: Rig) -> Rig:
    roomy_rig.reset()
    return roomy_rig


def submitted(rig):
    return [m.request for _, m in rig.target.messages if isinstance(m, Submit)][-1]


def prompt_of(rig) -> str:
    return rig.tokenizer.decode(submitted(rig).prompt_token_ids)


def test_a_call_is_no_content(rig, client: OpenAI):
    rig.script(f"Let me see.\n{CALL}\n{NOW}")
    (choice,) = client.chat.completions.create(**ASK).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    calls = [(c.type, c.function.name, c.function.arguments) for c in choice.message.tool_calls]
    assert calls == [("function", "weather", PARIS), ("function", "now", "{}")]
    ids = {call.id for call in choice.message.tool_calls}
    assert len(ids) == 2
    assert all(re.fullmatch("call_[0-9a-f]{24}", each) for each in ids)
    rig.script(CALL)
    (choice,) = client.chat.completions.create(**ASK).choices
    assert choice.message.content is None


@pytest.mark.parametrize("per_round", [1, 3, 50])
def test_a_stream_has_a_call_piece_by_piece(rig, per_round: int):
    rig.script(f"So: {CALL}\n{NOW}")
    rig.target.per_round = per_round
    *chunks, done = events_of(send(rig.url, "POST", PATH, ASK | {"stream": True}).body)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert done == "[DONE]"
    assert [each["finish_reason"] for each in choices[-2:]] == [None, "tool_calls"]
    deltas = [each["delta"] for each in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(each.get("content", "") for each in deltas) == "So:"
    calls = [call for each in deltas for call in each.get("tool_calls", [])]
    assert all(len(each.get("tool_calls", [0])) == 1 for each in deltas)
    first, *pieces = [call for call in calls if call["index"] == 0]
    assert first["type"] == "function"
    assert first["id"].startswith("call_")
    assert first["function"] == {"name": "weather", "arguments": ""}
    assert all(piece.keys() == {"index", "function"} for piece in pieces)
    assert all(piece["function"].keys() == {"arguments"} for piece in pieces)
    assert "".join(piece["function"]["arguments"] for piece in pieces) == PARIS
    assert len(pieces) > 3 or per_round > 1
    other = [call["function"] for call in calls if call["index"] == 1]
    assert other[0] == {"name": "now", "arguments": ""}
    assert "".join(each["arguments"] for each in other) == "{}"


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        *((text, stream) for text in NO_CALLS for stream in (False, True)),
        (CALL[:-28], False),  # of a stream what has left of it would not be taken back
    ],
)
def test_what_is_no_call_is_content(rig, client: OpenAI, text: str, stream: bool):
    rig.script(text)
    found = client.chat.completions.create(**ASK, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in found]
        assert "".join(each.delta.content or "" for each in chunks) == text
        assert not any(each.delta.tool_calls for each in chunks)
        assert chunks[-1].finish_reason == "stop"
    else:
        (choice,) = found.choices
        assert (choice.message.content, choice.finish_reason) == (text, "stop")
        assert choice.message.tool_calls is None


def test_every_sample_has_calls_of_its_own(rig, client: OpenAI):
    texts = [CALL, "fox"]
    scripts = [[*rig.encode(text), 0] for text in texts]
    rig.target.script = lambda _, index: scripts[index]
    found = client.chat.completions.create(**ASK, n=2).choices
    assert [each.finish_reason for each in found] == ["tool_calls", "stop"]
    chunks = [c.choices[0] for c in client.chat.completions.create(**ASK, n=2, stream=True)]
    ends = {each.index: each.finish_reason for each in chunks if each.finish_reason}
    assert ends == {0: "tool_calls", 1: "stop"}
    assert {each.index for each in chunks if each.delta.tool_calls} == {0}


def test_an_answer_that_is_cut_says_so(rig, client: OpenAI):
    rig.script(CALL)
    (choice,) = client.chat.completions.create(**ASK, max_tokens=15).choices
    assert choice.finish_reason == "length"
    assert CALL.startswith(choice.message.content)
    rig.script(CALL, eos=False)
    (choice,) = client.chat.completions.create(**ASK).choices
    assert (choice.finish_reason, len(choice.message.tool_calls)) == ("length", 1)


def test_the_model_is_told_of_what_it_may_call(rig, client: OpenAI):
    client.chat.completions.create(**ASK)
    assert json.dumps({"type": "function", "function": FUNCTION}) in prompt_of(rig)
    assert submitted(rig).grammar is None
    rig.script(CALL)
    (choice,) = client.chat.completions.create(**ASK, tool_choice="none").choices
    assert choice.message.content == CALL
    assert prompt_of(rig) == "user: fox\nassistant:"
    body = {"messages": ASK["messages"], "tools": TOOLS}
    assert "weather" in rig.tokenizer.decode(
        send(rig.url, "POST", "/tokenize", body).body["tokens"]
    )


def test_what_must_be_called_is_forced(rig, client: OpenAI):
    rig.script(CALL)
    named = {"type": "function", "function": {"name": "now"}}
    for choice, rules in (("required", {"weather", "now"}), (named, {"now"})):
        client.chat.completions.create(**ASK, tool_choice=choice)
        grammar = submitted(rig).grammar
        assert (grammar.kind, grammar.field) == (GrammarKind.STRUCTURAL_TAG, "tools")
        assert set(re.findall(r'\\"name\\": \\"(\w+)\\"', grammar.text)) == rules
        assert ('"stop_after_first": false' in grammar.text) == (choice == "required")
    client.chat.completions.create(**ASK, tool_choice="required", parallel_tool_calls=False)
    assert '"stop_after_first": true' in submitted(rig).grammar.text
    form = {"type": "json_object"}  # of which nothing is left where all of an answer is calls
    client.chat.completions.create(**ASK, tool_choice="required", response_format=form)
    assert submitted(rig).grammar.kind is GrammarKind.STRUCTURAL_TAG


def test_calls_come_back_with_what_they_returned(rig, client: OpenAI):
    rig.script(f"Let me see. {CALL}{NOW}")
    message = client.chat.completions.create(**ASK).choices[0].message
    answers = [
        {"role": "tool", "tool_call_id": call.id, "content": said}
        for call, said in zip(message.tool_calls, ("21 degrees", "noon"), strict=True)
    ]
    chat = [*ASK["messages"], message.model_dump(), *answers]
    client.chat.completions.create(model="scripted", messages=chat)
    assert prompt_of(rig) == (
        f"user: fox\nassistant: Let me see.\n{CALL}\n{NOW}\n"
        "user: <tool_response>\n21 degrees\n</tool_response>\n"
        "<tool_response>\nnoon\n</tool_response>\nassistant:"
    )


NAMED = {"type": "function", "function": {"name": "nobody"}}
ODD = {"type": "object", "properties": {"a": {"type": "strin"}}}


def tool(**fields: object) -> dict:
    return {"type": "function", "function": {"name": "f"} | fields}


def said(**fields: object) -> dict:
    return {"messages": [{"role": "assistant", "content": "a"} | fields]}


CALLED = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REFUSED = [
    ({"tool_choice": "always"}, "tool_choice: 'always' is not one of none, auto, required, nor an"),
    ({"tool_choice": NAMED}, "tool_choice.function.name: 'nobody' is none of tools; they are we"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type: 'allowed_tools' is not served"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function: is missing; it must be an obj"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice: needs tools, of which there are no"),
    (
        {"tools": [{"type": "custom", "custom": {}}]},
        r"tools\[0\].type: 'custom' is not served here",
    ),
    (
        {"tools": [{"type": "function", "function": {}}]},
        r"tools\[0\].function.name: is missing; it",
    ),
    ({"tools": [{"type": "function"}]}, r"tools\[0\].function: is missing; it must be an object"),
    ({"tools": [tool(), tool()]}, r"tools\[1\].function.name: 'f' is the name of tools\[0\].funct"),
    ({"tools": [tool(name=5)]}, r"tools\[0\].function.name: must be text, not the number 5"),
    ({"tools": [tool(parameter={})]}, r"tools\[0\].function.parameter: .* did you mean parameters"),
    (
        {"tools": [tool(parameters=[])]},
        r"tools\[0\].function.parameters: must be an object or null",
    ),
    ({"tools": "f"}, "tools: must be a list of objects"),
    (
        {"tools": [tool(parameters=ODD)], "tool_choice": "required"},
        r"tools\[0\].*parameters: .*strin",
    ),
    (
        {"functions": [{"name": "f"}]},
        "functions: is no field of a chat completion here; send tools",
    ),
    ({"function_call": "auto"}, 'function_call: .*; send tool_choice: "auto", or'),
    (said(role="user", tool_calls=[CALLED]), r"messages\[0\].tool_calls: are of assistants; this"),
    (said(tool_calls=[{"id": "x"}]), r"messages\[0\].tool_calls\[0\].function: is missing"),
    (
        said(tool_calls=[CALLED | {"type": "custom"}]),
        r"tool_calls\[0\].type: 'custom' is not served",
    ),
    (said(role="function"), "role: 'function' is not one of system, user, assistant, tool"),
]


@pytest.mark.parametrize(("fields", "problem"), REFUSED, ids=lambda each: str(each)[:40])
def test_what_cannot_be_is_refused_by_name(rig, fields: dict, problem: str):
    answer = send(rig.url, "POST", PATH, ASK | fields)
    assert answer.status == 400, answer.body
    assert re.search(problem, answer.body["error"]["message"]), answer.body


def test_a_completion_has_no_tools(rig):
    answer = send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "tools": TOOLS})
    assert answer.status == 400
    assert "POST /v1/chat/completions has tools" in answer.body["error"]["message"]


def test_who_is_lenient_is_so_within_tools(make_rig):
    rig = make_rig(max_model_len=4096, lenient=True)
    rig.script(CALL)
    odd = [{"type": "function", "cache_control": {}, "function": FUNCTION | {"more": 1}}]
    answer = send(rig.url, "POST", PATH, ASK | {"tools": odd})
    assert answer.body["choices"][0]["finish_reason"] == "tool_calls"
    assert "tools.cache_control" in answer.headers["x-specserve-warning"]
    assert "tools.function.more" in answer.headers["x-specserve-warning"]


def test_marks_that_a_tokenizer_calls_special_are_marks(model_folder, tmp_path):
    """Whose texts are otherwise left out, as those of other special tokens are."""
    for path in model_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    special = ["<tool_call>", "</tool_call>", "<other>"]
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (folder := tmp_path / "rig").mkdir()
    with rigs_in(tmp_path, folder) as make:
        rig = make(max_model_len=4096)
        rig.script(f"So<other>:{CALL}<other>")
        answer = send(rig.url, "POST", PATH, ASK)
    (choice,) = answer.body["choices"]
    assert choice["message"]["content"] == "So:"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == PARIS


def test_a_model_whose_calls_nobody_can_read_says_what_to_type(model_folder, tmp_path):
    for path in model_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ tools }}{{ messages[0].content }}")
    (folder := tmp_path / "rig").mkdir()
    with rigs_in(tmp_path, folder) as make:
        rig = make(max_model_len=4096)
        refused = send(rig.url, "POST", PATH, ASK)
        served = send(rig.url, "POST", PATH, ASK | {"tool_choice": "none"})
    assert (refused.status, served.status) == (400, 200)
    assert "--tool-call-parser hermes or llama3_json" in refused.body["error"]["message"]
