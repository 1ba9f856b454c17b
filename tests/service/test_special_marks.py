"""Tool calls of a model whose marks are special tokens, from end to end, strict over gRPC as well.

The tiny model has tokens that nothing uses: two of them are named as marks of calls. It calls
nothing by itself, so a bias says that it begins to.
"""

import json
import shutil
from collections.abc import Iterator

import pytest

from specserve.api.call import ChatMessage, SpecOptions
from specserve.api.events import Completion
from specserve.api.tools.tool import calls_of
from specserve.client import Client
from specserve.processes.local_service import local_service
from specserve.settings.target_source import EMBEDDED_TARGET
from specserve.types import FinishReason, Grammar, GrammarKind

pytestmark = pytest.mark.slow

NAMES = {"<|reserved_0|>": "<tool_call>", "<|reserved_1|>": "</tool_call>"}
OPENING, CLOSING = 5, 6  # their ids
ASK = [ChatMessage("user", "How is the weather in Paris?")]
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 8},
            "days": {"enum": [1, 3, 7]},
        },
        "required": ["city", "days"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}, {"function": {"name": "weather_now"}}]
STRICT = [{"type": "function", "function": WEATHER | {"strict": True}}]
LIMITS = {"max_tokens": 96, "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(EMBEDDED_TARGET, folder)
    tokenizer = folder / "tokenizer.json"
    text = tokenizer.read_text()
    for before, after in NAMES.items():
        assert text.count(before) == 2  # among added tokens and in the vocabulary
        text = text.replace(before, after)
    tokenizer.write_text(text)
    drafter = EMBEDDED_TARGET.parent / "drafters" / "lm"
    flags = ["--target", str(folder), "--speculation", "sync", "--drafter", str(drafter)]
    flags += ["--device", "cpu", "--oversubscribe"]
    with local_service(flags) as address, Client(address) as found:
        # What compiles grammars is started by the first of them, and stays.
        found.generate(ASK, max_tokens=1, grammar=Grammar(GrammarKind.REGEX, "a"))
        yield found


def check(arguments: str) -> None:
    found = json.loads(arguments)
    assert list(found) == ["city", "days"]
    assert len(found["city"]) <= 8
    assert found["days"] in (1, 3, 7)


def both(client: Client, **options: object) -> Completion:
    """With drafts, once it has been seen that they change nothing."""
    drafted, plain = (
        client.generate(ASK, **LIMITS, **options, spec=SpecOptions(return_stats=True, **spec))
        for spec in ({}, {"max_verify_len": 0})
    )
    ((one,), (other,)) = (found.samples for found in (drafted, plain))
    assert (one.token_ids, one.text, one.finish_reason) == (
        other.token_ids,
        other.text,
        other.finish_reason,
    )
    assert [(call.name, call.arguments) for call in one.tool_calls] == [
        (call.name, call.arguments) for call in other.tool_calls
    ]
    assert plain.spec.num_draft_tokens == 0
    return drafted


def test_what_must_be_called_is_called_between_the_tokens(client: Client):
    num_accepted = 0
    for seed, temperature in enumerate((0.0, 1.0, 1.0)):
        found = both(
            client, tools=TOOLS, tool_choice="required", seed=seed, temperature=temperature
        )
        (sample,) = found.samples
        ids = [each for each in sample.token_ids if each in (OPENING, CLOSING)]
        assert (ids, sample.token_ids[0]) == ([OPENING, CLOSING], OPENING)
        assert (sample.text, sample.finish_reason) == ("", FinishReason.TOOL_CALLS)
        (call,) = sample.tool_calls
        if call.name == "weather":
            check(call.arguments)
        else:
            assert (call.name, call.arguments) == ("weather_now", "{}")
        num_accepted += found.spec.num_accepted_tokens
    assert num_accepted > 0


def test_a_stream_has_the_same_call(client: Client):
    named = {"type": "function", "function": {"name": "weather"}}
    options = LIMITS | {"tools": TOOLS, "tool_choice": named, "seed": 3}
    (sample,) = client.generate(ASK, **options).samples
    deltas = list(client.stream(ASK, **options))
    (call,) = calls_of([piece for delta in deltas for piece in delta.calls])
    assert [(call.name, call.arguments)] == [(c.name, c.arguments) for c in sample.tool_calls]
    assert "".join(delta.text for delta in deltas) == ""
    assert sum(bool(delta.calls) for delta in deltas) > 2


def test_a_strict_function_is_called_with_its_schema_by_who_is_free_to(client: Client):
    begins = {"logit_bias": {OPENING: 100.0}, "seed": 5, "temperature": 1.0}
    (sample,) = both(client, tools=STRICT, **begins).samples
    assert sample.token_ids[0] == OPENING
    assert (sample.text, sample.finish_reason) == ("", FinishReason.TOOL_CALLS)
    (call,) = sample.tool_calls
    assert call.name == "weather"
    check(call.arguments)
    # Whoever is not strict writes what he likes, here his mark again and again: no call at all.
    (sample,) = both(client, tools=TOOLS[:1], **begins).samples
    assert (sample.tool_calls, sample.finish_reason) == ([], FinishReason.LENGTH)
    assert set(sample.token_ids) == {OPENING}
    assert set(sample.text.replace("<tool_call>", "").strip()) == set()
    # And who does not begin to is as free as ever.
    (sample,) = both(client, tools=STRICT, seed=5).samples
    assert (sample.tool_calls, OPENING in sample.token_ids) == ([], False)
