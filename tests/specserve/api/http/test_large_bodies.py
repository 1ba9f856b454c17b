"""What takes long of a large body keeps nobody else waiting."""

import json
import threading
import time

import pytest

from specserve.api.http import generation
from tests.specserve.api.http.conftest import send

MANY = 2_000_000
LARGE = {
    "an echo of ids": ("/v1/completions", {"prompt": [5] * MANY, "echo": True, "logprobs": 0}),
    "messages": ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}] * 400_000}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_others_are_answered_while_a_large_body_is_read(rig, name):
    path, fields = LARGE[name]
    body, answers = json.dumps(fields, separators=(",", ":")).encode(), []
    asking = threading.Thread(target=lambda: answers.append(send(rig.url, "POST", path, body)))
    asked_s = time.monotonic()
    asking.start()
    longest_s = 0.0
    while asking.is_alive():
        began_s = time.monotonic()
        assert send(rig.url, "GET", "/livez").status == 200
        longest_s = max(longest_s, time.monotonic() - began_s)
    asking.join()
    took_s = time.monotonic() - asked_s
    assert longest_s < max(0.5, took_s / 2)
    assert answers[0].status == 400  # it is too long, however it is looked at


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_answer_of_many_log_probabilities_is_written_beside_the_loop(
    ask, rig, monkeypatch, path
):
    body = {"n": 3, "max_tokens": 5, "prompt_logprobs": 1, "seed": 1}
    body |= {
        "/v1/completions": {"prompt": "the fox", "logprobs": 1, "echo": True},
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "fox"}],
            "logprobs": True,
            "top_logprobs": 1,
        },
    }[path]
    found, threads = [], []
    whole_of = generation._whole_of

    def seen(*words):
        threads.append(threading.current_thread().name)
        return whole_of(*words)

    monkeypatch.setattr(generation, "_whole_of", seen)
    for many in (0, 10**9):
        monkeypatch.setattr(generation, "_MANY_LOGPROBS", many)
        answer = ask("POST", path, body).body
        found.append({name: answer[name] for name in ("choices", "usage")})
    assert found[0] == found[1]
    assert [name.startswith("tokenizer") for name in threads] == [True, False]


def test_a_prompt_beyond_the_context_is_refused_before_it_is_echoed(ask, rig, monkeypatch):
    seen: list[int] = []
    decode = rig.tokenizer.decode
    monkeypatch.setattr(rig.tokenizer, "decode", lambda ids: seen.append(len(ids)) or decode(ids))
    body = {"prompt": [5] * 600, "echo": True, "logprobs": 0}
    answer = ask("POST", "/v1/completions", body)
    assert (answer.status, answer.body["error"]["param"]) == (400, "prompt")
    assert seen == []
    assert ask("POST", "/v1/completions", body | {"prompt": [5] * 6}).status == 200
    assert seen[0] == 6
