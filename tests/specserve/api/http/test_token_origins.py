"""Where each token of an answer came from, and wishes about speculation, over HTTP."""

import pytest

from specserve.types import Submit, TokenOrigin
from tests.specserve.api.http.conftest import events_of

DRAFTED, BONUS, RECOVERY = TokenOrigin.DRAFTED, TokenOrigin.BONUS, TokenOrigin.RECOVERY
COMPLETION = "/v1/completions", {"prompt": "fox"}
CHAT = "/v1/chat/completions", {"messages": [{"role": "user", "content": "fox"}]}
WISH = {"return_token_origins": True, "max_tokens": 100}


def text_of(choice: dict) -> str:
    found = choice.get("delta") or choice.get("message") or choice
    return found.get("content", found.get("text", ""))


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
def test_a_whole_answer_tells_the_origin_of_every_token(rig, ask, path, body):
    rig.target.per_round, rig.target.origins = 3, (DRAFTED, DRAFTED, RECOVERY)
    rig.target.cache_hit = True
    (choice,) = ask("POST", path, body | WISH).body["choices"]
    told = choice["token_origins"]
    assert len(told) == len(rig.script_ids) > 9
    assert [each["origin"] for each in told[:6]] == ["drafted", "drafted", "recovery"] * 2
    assert {each["cache_hit"] for each in told} == {True}
    # The token that ends the answer is told by its name, and is no part of the text.
    shown = b"".join(bytes(each["bytes"]) for each in told).decode()
    assert shown == text_of(choice) + "<eos>"
    assert told[-1]["token"] == "<eos>"


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
def test_a_stream_tells_them_round_by_round(rig, ask, path, body):
    rig.target.per_round, rig.target.origins = 2, (DRAFTED, BONUS)
    rig.target.cache_hit = False
    *chunks, _ = events_of(ask("POST", path, body | WISH | {"stream": True}).body)
    rounds = [found for chunk in chunks if (found := chunk["choices"][0].get("token_origins"))]
    assert len(rounds) == -(-len(rig.script_ids) // 2)
    assert [each["origin"] for each in rounds[0]] == ["drafted", "bonus"]
    assert {each["cache_hit"] for found in rounds for each in found} == {False}
    told = b"".join(bytes(each["bytes"]) for found in rounds for each in found).decode()
    assert told == rig.text + "<eos>"
    assert "".join(text_of(chunk["choices"][0]) for chunk in chunks) == rig.text


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_is_told_who_has_not_asked(ask, stream):
    content = ask("POST", "/v1/completions", {"prompt": "fox", "stream": stream}).body
    found = events_of(content)[:-1] if stream else [content]
    assert found
    assert all("token_origins" not in each["choices"][0] for each in found)


def test_a_round_that_looked_nothing_up_has_neither_hit_nor_missed(ask):
    (choice,) = ask("POST", "/v1/completions", {"prompt": "fox"} | WISH).body["choices"]
    assert {(each["origin"], each["cache_hit"]) for each in choice["token_origins"]} == {
        ("plain", None)
    }


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT])
def test_a_request_may_be_decoded_plainly(rig, ask, path, body):
    for spec in ({"mode": "off"}, {"mode": "auto"}, {"max_verify_len": 0}, None):
        assert ask("POST", path, body | {"spec": spec}).status == 200
    submitted = [message.request.max_verify_len for message in rig.target.received(Submit)]
    assert submitted == [0, None, 0, None]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"mode": "fast"}, "spec.mode"),
        ({"mode": 1}, "spec.mode"),
        ({"max_verify_len": -1}, "spec.max_verify_len"),
        ({"max_verify_len": 2**32}, "spec.max_verify_len"),
        ({"modes": "off"}, "spec.modes"),
        ("off", "spec"),
    ],
)
def test_wishes_that_are_none_are_refused_by_name(ask, spec, field):
    answer = ask("POST", "/v1/completions", {"prompt": "fox", "spec": spec})
    assert answer.status == 400
    assert answer.body["error"]["param"] == field


def test_what_this_service_does_not_do_is_refused(ask):
    answer = ask("POST", "/v1/completions", {"prompt": "fox", "spec": {"mode": "async"}})
    assert answer.status == 400
    assert "not what this service does (off)" in answer.body["error"]["message"]
