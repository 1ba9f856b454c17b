"""Fields of a wrong type, or of no body, are refused in words: what may be, and what was sent."""

import json
import random
import re

import msgspec
import pytest

from specserve.api.http.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    read_body,
)
from specserve.api.http.wrong_fields import RANGES
from specserve.errors import InvalidField
from specserve.types import SamplingParams
from specserve.validation import Limits, validate_sampling

USER = {"role": "user", "content": "fox"}
PROMPTS = "text or a list of texts, whole numbers or lists of whole numbers"


def refusal(kind: type, fields: dict) -> str:
    with pytest.raises(InvalidField) as caught:
        read_body(json.dumps(fields).encode(), kind, is_lenient=False)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n": "x"}, 'n: must be a whole number from 1 to 64 or null, not the text "x"'),
        ({"n": 1.5}, "n: must be a whole number from 1 to 64 or null, not the number 1.5"),
        ({"logprobs": True}, "logprobs: must be a whole number from 0 to 20 or null, not true"),
        ({"stream": "yes"}, 'stream: must be true or false, not the text "yes"'),
        ({"stop": 3}, "stop: must be text, a list of texts or null, not the number 3"),
        ({"stop": ["a", 3]}, "stop[1]: must be text, not the number 3"),
        ({"logit_bias": {"5": 1, "6": "x"}}, 'logit_bias[6]: must be a number, not the text "x"'),
        ({"logit_bias": [1]}, "logit_bias: must be an object or null, not a list"),
        ({"model": {}}, "model: must be text or null, not an object"),
        ({"prompt": 5}, f"prompt: must be {PROMPTS}, not the number 5"),
        ({"prompt": [None]}, "prompt[0]: must be text, a whole number or a list of whole numbers, "
         "not null"),
        ({"prompt": [[1, "a"]]}, 'prompt[0][1]: must be a whole number, not the text "a"'),
        ({"prompt": None}, f"prompt: is missing; it must be {PROMPTS}"),
        ({"spec": {"max_verify_len": -1}}, "spec.max_verify_len: must be a whole number from 0 to "
         "4294967295 or null, not the number -1"),
        ({"spec": {"mode": "off", "moed": 1}}, "spec.moed: is no field of spec; its fields are "
         "max_verify_len, mode"),
        ({"stream_options": {"include_usge": 1}}, "stream_options.include_usge: is no field of "
         "stream_options; did you mean include_usage?"),
        ({"stream_options": {"a` - at `$.n": 1}}, "stream_options.a` - at `$.n: is no field of "
         "stream_options; its fields are continuous_usage_stats, include_usage"),
        ({"spec": {"max_verify_len": 2**99}}, "spec.max_verify_len: must be a whole number from 0 "
         "to 4294967295 or null, not a number that long"),
        ({"logit_bias": {"5": 2**70, "6": 10**400}}, "logit_bias[6]: is out of range; it must be a "
         "number"),
        ({"temperature": 10**400}, "temperature: is out of range; it must be a number from 0 to "
         "100 or null"),
        ({"max_token": 5}, "max_token: is no field of a completion; did you mean max_tokens? "
         "(launch --lenient ignores unknown fields)"),
        ({"best_of": 2}, "best_of: is not served here; leave it out, or send 1 (launch --lenient "
         "ignores it)"),
    ],
)  # fmt: skip
def test_a_completion_that_cannot_be(fields: dict, says: str):
    assert refusal(CompletionBody, {"prompt": "fox"} | fields) == says


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (5, "messages[1]: must be an object, not the number 5"),
        ({"content": "x"}, "messages[1].role: is missing; it must be text"),
        (
            {"role": "user", "content": 5},
            "messages[1].content: must be text, a list of objects or null, not the number 5",
        ),
        (
            {"role": "user", "contents": "x"},
            "messages[1].contents: is no field of messages[1]; did you mean content?",
        ),
        (
            {"role": "user", "content": [5]},
            "messages[1].content[0]: must be an object, not the number 5",
        ),
    ],
)
def test_a_message_that_cannot_be(message: object, says: str):
    assert refusal(ChatBody, {"messages": [USER, message]}) == says


def test_a_field_that_means_another_thing_in_chats_has_no_range_there():
    said = refusal(ChatBody, {"messages": [USER], "logprobs": 3})
    assert said == "logprobs: must be true or false, not the number 3"


def test_what_is_far_from_all_fields_is_told_all_of_them():
    said = refusal(ChatBody, {"messages": [USER], "colour": 3})
    assert said.startswith("colour: is no field of a chat completion; its fields are add_genera")
    assert "top_p (launch --lenient ignores unknown fields)" in said


def test_who_asks_for_thought_is_told_how_templates_are_asked():
    said = refusal(ChatBody, {"messages": [USER], "reasoning_effort": "low"})
    assert said == (
        "reasoning_effort: is no field of a chat completion here; send chat_template_kwargs, as "
        '{"enable_thinking": false}, where the model\'s template has it'
    )
    said = refusal(CompletionBody, {"prompt": "fox", "reasoning_effort": "low"})
    assert "chat_template_kwargs" not in said


def test_bodies_of_other_paths_say_it_alike():
    said = refusal(DetokenizeBody, {"token": [1]})
    assert "token: is no field of POST /detokenize; did you mean tokens?" in said
    said = refusal(DetokenizeBody, {})
    assert said == "tokens: is missing; it must be a list of whole numbers"
    said = refusal(TokenizeBody, {"messages": "x"})
    assert said == 'messages: must be a list of objects or null, not the text "x"'


def test_a_long_text_is_quoted_in_part():
    said = refusal(CompletionBody, {"prompt": "fox", "temperature": "hot\n" * 1000})
    assert said.endswith('hot\\n..."')
    assert len(said) < 150


@pytest.mark.parametrize("name", sorted(RANGES.keys() & set(SamplingParams.__struct_fields__)))
def test_a_range_is_that_of_the_door(name: str):
    """At its ends a value passes, beside them it does not."""
    ends = [float(each) for each in re.findall(r"-?[0-9.]+", RANGES[name])]
    if name == "top_k":  # of which -1 is translated before the door
        ends[0] = 0
    least, most = ends[0], (ends[1] if len(ends) > 1 else None)
    is_whole = name not in ("temperature", "top_p", "min_p") and "penalty" not in name
    step = 1 if is_whole else 1e-3

    def passes(value: float) -> bool:
        given = {name: int(value) if is_whole else value}
        try:
            validate_sampling(
                msgspec.structs.replace(SamplingParams(max_tokens=8), **given),
                Limits(vocab_size=400, max_model_len=512),
            )
        except InvalidField:
            return False
        return True

    assert passes(least) == ("above" not in RANGES[name])
    assert not passes(least - step)
    assert most is None or (passes(most) and not passes(most + step))


def test_whatever_is_sent_is_read_or_refused():
    """By a walk through JSON at random: an error of another kind would be told as a defect."""
    dice = random.Random(20)
    refused: list[InvalidField] = []
    for _ in range(2000):
        kind = dice.choice([CompletionBody, ChatBody])
        fields: dict = {"prompt": "a"} if kind is CompletionBody else {"messages": []}
        for _ in range(dice.randrange(1, 3)):
            fields[dice.choice(kind.__struct_fields__)] = something(dice)
        try:
            read_body(json.dumps(fields).encode(), kind, is_lenient=False)
        except InvalidField as error:
            refused.append(error)
    assert 500 < len(refused) < 2000
    assert all(each.problem.startswith(("must be ", "is ", "are for")) for each in refused)


def something(dice: random.Random, depth: int = 0) -> object:
    atoms = [None, True, -1, 2**70, 10**350, 1.5, "", "x", "a` - at `$.n", " - at `$"]
    names = ["a", "text", "role", "content", "mode", "max_verify_len", "5", "", "[...]", "`x`"]
    if depth > 3 or dice.random() < 0.5:
        return dice.choice(atoms)
    if dice.random() < 0.5:
        return [something(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice(names): something(dice, depth + 1) for _ in range(dice.randrange(4))}
