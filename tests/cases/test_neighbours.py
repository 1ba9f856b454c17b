"""Cases 25 and 28: tokens of other requests, and requests whose clients leave."""

import contextlib
import http.client
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from specserve.errors import SpecserveError
from target_node.speculation.miss_policy import Miss
from tests.cases.apis import APIS, GRPC, Service, ask, ask_all, ask_plainly, events
from tests.cases.drafter_kinds import KINDS, folder_of
from tests.cases.parts import case
from tests.cases.serving import assert_healthy, serving
from tests.exactness.speculative import make_models, requests, run
from tests.reliability.scale import is_long, scaled
from tests.target_node.in_process import InProcessTarget
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

AT_ONCE = 12


def load(count: int) -> list[tuple[str, dict]]:
    """Requests of identifiers that are nobody else's, of lengths that make them come and go."""
    rng = random.Random(25)

    def identifiers() -> str:
        return " ".join(f"{rng.randrange(16**6):06x}" for _ in range(rng.choice([1, 3, 5])))

    return [
        (
            f"echo {identifiers()}\necho ",
            {
                "temperature": rng.choice([0, 0.7, 1]),
                "seed": place,
                "max_tokens": rng.choice([2, 5, 9, 14, 30]),
                "ignore_eos": True,
            },
        )
        for place in range(count)
    ]


def assert_nobody_gets_anothers_tokens(
    apis: tuple[str, ...], service: Service, count: int, *, drafts_well: bool = True
) -> None:
    echoes = load(count)
    alone = [ask_plainly(service, prompt, **fields) for prompt, fields in echoes]
    for api in apis:
        found = ask_all(
            lambda prompt, api=api, **fields: ask(api, service, prompt, **fields),
            echoes,
            at_once=AT_ONCE,
        )
        assert found == alone
        if drafts_well:
            assert sum(answer.num_accepted for answer in found) > count // 4


@pytest.mark.slow
@case(25)
def test_nobody_gets_anothers_tokens(api: str, service: Service):
    assert_nobody_gets_anothers_tokens((api,), service, scaled(200, least=24))


# Blocks for one outcome a row, so that others are misses, which go without. In a plain run in this
# process: a service of every kind of drafter would take minutes.
MISSING = ("--topology", "1+1", "--speculation", "async", "--fan-out", "1", "--miss-policy", "skip")
HERE = ("eagle3", "ngram")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS if is_long() else HERE)
def test_nobody_gets_anothers_tokens_whoever_drafts_and_misses(tmp_path: Path, kind: str):
    if kind in HERE and not is_long():
        assert_nobody_gets_anothers_tokens_here(tmp_path, kind)
        return
    flags = ("--min-survival", "0", "--set", "model.ballast=20M")
    with serving(*MISSING, *flags, "--drafter", folder_of(kind, tmp_path)) as own:
        well = kind not in ("eagle3", "ngram")  # random weights; identifiers are no repetitions
        assert_nobody_gets_anothers_tokens(APIS, own, 100, drafts_well=well)
        stats = own.client.spec_stats()
        assert stats.num_lookups > stats.num_hits > 0
        assert stats.num_draft_tokens > 0
        assert_healthy(own)


def assert_nobody_gets_anothers_tokens_here(folder: Path, name: str) -> None:
    models = make_models(folder)
    alone = run(InProcessTarget(models.model(), max_model_len=90), requests(24), at_once=1)
    drafting = Drafting(draft_batch=8, fan_out=1, pace=(0, 6))
    settings = {"max_model_len": 90, "miss": Miss.SKIP}
    with InProcessPair(models.model(), partial(models.drafter, name), drafting, **settings) as pair:
        assert run(pair, requests(24), at_once=AT_ONCE) == alone
        status = pair.asynchronous.status()
        assert status.num_lookups > status.num_hits


# --- case 28 ---------------------------------------------------------------------------------

LONG = {"temperature": 1, "seed": 28, "ignore_eos": True, "max_tokens": 600}
MOST_ROUNDS = 80  # of a request that was left: whole it takes twice that or more


def leave_stream(api: str, service: Service, prompt: list[int], num_read: int, **fields) -> None:
    """After so many events."""
    if api == GRPC:
        stream = service.client.stream(prompt, **LONG | fields)
        deltas = iter(stream)
        for _ in range(num_read):
            next(deltas, None)
        stream.cancel()
        return
    chunks = events(service, prompt, **LONG | fields)
    for _ in range(num_read):
        next(chunks, None)
    chunks.close()


def leave_whole(api: str, service: Service, prompt: list[int], after_s: float) -> None:
    """An answer that was not streamed: its deadline passes, or its connection ends."""
    if api == GRPC:
        with pytest.raises(SpecserveError) as caught:
            service.client.generate(prompt, timeout_s=after_s, **LONG)
        assert caught.value.code == "DEADLINE_EXCEEDED"
        return
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, **LONG}))
        time.sleep(after_s)


def rounds_until_idle(service: Service, leave: Callable[[], None]) -> int:
    """Rounds that were run from before `leave` until nothing was left of what it had asked."""
    before = service.client.load()
    leave()
    assert_healthy(service)
    return service.client.load().num_rounds - before.num_rounds


@pytest.mark.slow
@case(28)
def test_requests_whose_clients_leave_end_at_once(api: str, service: Service):
    rng = random.Random(28)
    for place in range(scaled(200, least=12)):
        short, long = ([rng.randrange(8, 4096) for _ in range(n)] for n in (8, 300))
        prompt = long if place % 3 == 1 else short  # inside its chunks, if it is left at once
        num_read = [0, 1, 4][place % 3]
        assert (
            rounds_until_idle(
                service, lambda p=prompt, n=num_read: leave_stream(api, service, p, n)
            )
            < MOST_ROUNDS
        )
    answer = ask(api, service, "import os\nimport", **LONG | {"temperature": 0, "max_tokens": 32})
    assert answer.num_accepted > 3  # drafts have not run out of room for streams


@pytest.mark.slow
@case(28)
def test_whole_answers_nobody_waits_for_end_at_once(api: str, service: Service):
    rng = random.Random(29)
    for after_s in (0.001, 0.02, 0.1, 0.3):
        prompt = [rng.randrange(8, 4096) for _ in range(300)]
        assert (
            rounds_until_idle(service, lambda p=prompt, s=after_s: leave_whole(api, service, p, s))
            < MOST_ROUNDS + 200 * after_s
        )


@pytest.mark.slow
@case(28)
def test_leaving_in_the_last_round_is_no_error(api: str, service: Service):
    for num_read in (1, 2, 3, 4):
        leave_stream(api, service, [9, 8, 7], num_read, max_tokens=4)
    assert_healthy(service)


@pytest.mark.slow
@case(28, apis=[GRPC])
def test_aborts_of_nobody_are_no_error(api: str, service: Service):
    for _ in range(2):
        service.client.abort("never heard of")
    stream = service.client.stream([9, 8, 7], **LONG, request_id="mine")
    deltas = iter(stream)
    next(deltas)
    for _ in range(2):
        service.client.abort("mine")
    with pytest.raises(SpecserveError) as caught:
        list(deltas)
    assert caught.value.code == "CANCELLED"


@pytest.mark.slow
@case(28)
def test_whoever_comes_after_those_who_left_waits_no_longer(api: str, service: Service):
    def first_token_s() -> float:
        times = []
        for seed in range(7):
            since_s = time.monotonic()
            ask(api, service, [9, 8, 7, seed + 8], **LONG | {"max_tokens": 1})
            times.append(time.monotonic() - since_s)
        return statistics.median(times)

    before_s = first_token_s()
    for _ in range(8):
        leave_stream(api, service, list(range(8, 108)), 1)
    assert first_token_s() < 3 * before_s + 0.05
