"""The real model, served: it answers sensibly, and speculation changes nothing of what it says."""

import json
from collections.abc import Callable

import pytest

from specserve.api.call import ChatMessage
from specserve.client import Client
from specserve.settings.target_source import find_smollm2
from specserve.types import Grammar, GrammarKind
from tests.exactness.real_model import SERVICES, plainly, with_drafts
from tests.exactness.workload import Outcome, SeededRequest, chat_requests, differing

QUESTION = [ChatMessage("user", "What is the capital of France?")]
COUNTRY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "capital": {"type": "string", "maxLength": 16},
        "millions": {"type": "integer", "minimum": 1, "maximum": 2000},
    },
    "required": ["name", "capital", "millions"],
    "additionalProperties": False,
}
AS_JSON = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(COUNTRY))
IN_A_FORM = [
    SeededRequest(
        [ChatMessage("user", f"Tell me about {name}, as JSON.")],
        {"seed": seed, "temperature": seed % 3 / 2, "max_tokens": 64, "grammar": AS_JSON},
    )
    for seed, name in enumerate(("France", "Japan", "Peru"))
]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 16}, "days": {"enum": [1, 3, 7]}},
        "required": ["city", "days"],
    },
}
FORCED = {
    "tools": [{"type": "function", "function": WEATHER}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 64,
}
CALLS = [
    SeededRequest(
        [ChatMessage("user", "How will the weather be in Paris this week?")],
        FORCED | {"seed": seed, "temperature": temperature},
    )
    for seed, temperature in enumerate((0, 1))
]
REQUESTS = [
    SeededRequest(QUESTION, {"temperature": 0, "max_tokens": 32}),
    *IN_A_FORM,
    *CALLS,
    *chat_requests(16),
]
# Several ranks on few cores take their time: the question, and three that are answered shortly.
SHORT = [0, *(i for i, each in enumerate(REQUESTS) if each.options["max_tokens"] <= 16)][:4]


@pytest.fixture(scope="module")
def plain() -> list[Outcome]:
    assert find_smollm2() is not None, "`make setup` installs it"
    return plainly(REQUESTS)


@pytest.mark.slow
def test_the_capital_of_france_is_paris(plain: list[Outcome]):
    assert plain[0].texts == ("The capital of France is Paris.",)
    assert plain[0].finish_reasons == ("stop",)


@pytest.mark.slow
def test_answers_in_a_form_are_valid(plain: list[Outcome]):
    for outcome in plain[1 : 1 + len(IN_A_FORM)]:
        country = json.loads(outcome.texts[0])
        assert outcome.finish_reasons == ("stop",)
        assert list(country) == ["name", "capital", "millions"]
        assert len(country["name"]) <= 16
        assert len(country["capital"]) <= 16
        assert 1 <= country["millions"] <= 2000


@pytest.mark.slow
def test_calls_are_of_functions_and_their_schemas(plain: list[Outcome]):
    outcomes = plain[1 + len(IN_A_FORM) :][: len(CALLS)]
    for outcome in outcomes:
        ((name, arguments),) = outcome.calls
        found = json.loads(arguments)
        assert (name, outcome.texts, outcome.finish_reasons) == (
            "get_weather",
            ("",),
            ("tool_calls",),
        )
        assert list(found) == ["city", "days"]
        assert len(found["city"]) <= 16
        assert found["days"] in (1, 3, 7)
    assert "Paris" in outcomes[0].calls[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sync lm", "1+1"])
def test_speculation_changes_nothing(plain: list[Outcome], name: str):
    kills = 1 if "+" in name else 0
    found, num_killed = with_drafts(REQUESTS, SERVICES[name], kills=kills)
    assert differing(plain, found) == []
    assert num_killed == kills


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2+1", "4+1"])
def test_nor_do_ranks_that_its_heads_do_not_divide_by(plain: list[Outcome], name: str):
    """Nine query heads on three key-value heads: dealt unevenly, and one kept twice by four."""
    found, num_killed = with_drafts([REQUESTS[i] for i in SHORT], SERVICES[name], kills=0)
    assert differing([plain[i] for i in SHORT], found) == []
    assert num_killed == 0


@pytest.mark.slow
def test_it_is_what_a_launch_serves_unless_told_otherwise(start_service: Callable[..., str]):
    address = start_service("--target", "smollm2", "--max-model-len", "512")
    with Client(address) as client:
        assert client.model_info().model == "SmolLM2-135M-Instruct"
        assert "Paris" in client.generate(QUESTION, temperature=0, max_tokens=32).text
        # In the target's process it is drafted by looking up what was said before.
        assert client.spec_config().drafter == "ngram"
