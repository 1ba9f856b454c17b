"""Row 28: another salt learns nothing of what was asked before, by counts or by time."""

import http.client
import json
import random
import time

import pytest

from specserve.client import Client
from tests.reliability.figures import keep
from tests.reliability.fuzz.campaign import Attacked
from tests.reliability.scale import is_long, scaled

_PROMPT_LEN = 160  # ten blocks
_NUM_TIMED = scaled(200)  # of each kind
_VOCABULARY = range(10, 400)


def _prompt(source: random.Random) -> list[int]:
    return source.choices(_VOCABULARY, k=_PROMPT_LEN)


def _num_cached(attacked: Attacked, api: str, prompt: list[int], salt: str) -> int:
    """Tokens of `prompt` that were served by the prefix cache."""
    if api == "gRPC":
        with Client(attacked.address) as client:
            answer = client.generate(prompt, max_tokens=1, cache_salt=salt, temperature=0)
        return answer.usage.num_cached_tokens
    body = {"prompt": prompt, "max_tokens": 1, "cache_salt": salt, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", attacked.http_port, timeout=30)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body))
        usage = json.loads(connection.getresponse().read())["usage"]
    finally:
        connection.close()
    return usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("api", ["gRPC", "HTTP"] if is_long() else ["HTTP"])
def test_prefixes_of_different_salts_are_never_shared(attacked: Attacked, api: str):
    source = random.Random(28)
    salts = ["", "a", "b", "a ", "A", "\0", "a" * 256, "ä", "a\u0308"]
    for _ in range(scaled(50)):
        prompt = _prompt(source)
        first, second = source.sample(salts, 2)
        assert _num_cached(attacked, api, prompt, first) == 0
        assert _num_cached(attacked, api, prompt, second) == 0, (first, second)
        # The canary: the same salt does find it, and so would have the other.
        assert _num_cached(attacked, api, prompt, first) >= 128
    keep(28, api, requests=3 * scaled(50), hits_across_salts=0)


def _seconds(client: Client, prompt: list[int], salt: str) -> float:
    began_s = time.perf_counter()
    client.generate(prompt, max_tokens=1, cache_salt=salt, temperature=0)
    return time.perf_counter() - began_s


def _auc(known: list[float], new: list[float]) -> float:
    """How often a known one was faster than a new one; .5: nobody can tell them apart."""
    faster = sum((a < b) + 0.5 * (a == b) for a in known for b in new)
    return faster / (len(known) * len(new))


@pytest.mark.slow
@pytest.mark.skipif(not is_long(), reason="times of a few requests say nothing")
def test_time_does_not_tell_whether_another_salt_has_asked_before(attacked: Attacked):
    source = random.Random(29)
    known: list[float] = []
    new: list[float] = []
    own: list[float] = []
    with Client(attacked.address) as client:
        for _ in range(_NUM_TIMED):
            prompt, other = _prompt(source), _prompt(source)
            _seconds(client, prompt, "victim")
            asked = [(known, prompt, "attacker"), (new, other, "attacker"), (own, prompt, "victim")]
            source.shuffle(asked)
            for seconds, tokens, salt in asked:
                seconds.append(_seconds(client, tokens, salt))
    auc = _auc(known, new)
    assert 0.4 <= auc <= 0.6
    assert _auc(own, new) > 0.7, "where a salt does share, time shows it: the test can see"
    keep(28, "gRPC", latency_auc=auc, latency_auc_of_the_own_salt=_auc(own, new))
