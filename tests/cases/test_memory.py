"""Cases 23 and 24: rows that give up their blocks while drafts are on their way, prefixes kept.

Case 21, a drafter with fewer positions than its target, is tests/service/test_drafter_positions.py.
"""

import json
import random

import pytest
import torch

from specserve.settings.target_source import EMBEDDED_TARGET
from tests.cases.apis import GRPC, HTTP, Answer, Service, ask, ask_all, ask_plainly, posted
from tests.cases.model_folders import reference_logits
from tests.cases.parts import case
from tests.cases.serving import CHUNK, NUM_BLOCKS
from tests.reliability.scale import is_long

PREFIX_LEN, PROMPT_LEN, VOCAB_SIZE = 80, 200, 4096
NUM_REQUESTS = 8 if is_long() else 6
SEEDED = {"temperature": 1, "ignore_eos": True, "max_tokens": 120 if is_long() else 56}


def prompts(count: int, *, seed: int) -> list[list[int]]:
    """Token ids that begin alike."""
    rng = random.Random(seed)
    ids = [rng.randrange(8, VOCAB_SIZE) for _ in range(PREFIX_LEN)]
    tail_len = PROMPT_LEN - PREFIX_LEN
    return [ids + [rng.randrange(8, VOCAB_SIZE) for _ in range(tail_len)] for _ in range(count)]


def requests(salt: str) -> list[tuple[list[int], dict]]:
    """Six, or eight, of which the pool does not hold all while they run."""
    rng = random.Random(salt)
    return [
        (prompt, SEEDED | {"seed": place, "priority": rng.randrange(-2, 3), "cache_salt": salt})
        for place, prompt in enumerate(prompts(NUM_REQUESTS, seed=3))
    ]


@pytest.mark.slow
@case(23)
def test_rows_that_gave_up_their_blocks_go_on_as_if_alone(api: str, service: Service):
    assert service.client.load().num_blocks == NUM_BLOCKS
    alone = [ask_plainly(service, prompt, **fields) for prompt, fields in requests("alone")]
    before = service.client.load()
    for salt in ("a", "a", "b"):  # without what the cache keeps, with it, and without it again
        found = ask_all(
            lambda prompt, **fields: ask(api, service, prompt, **fields),
            requests(salt),
            at_once=NUM_REQUESTS,
        )
        assert found == alone
    after = service.client.load()
    assert after.num_preemptions - before.num_preemptions > 0
    assert after.num_cached_tokens > before.num_cached_tokens


@pytest.mark.slow
@case(23)
def test_what_the_cache_keeps_is_for_the_same_salt_alone(api: str, service: Service):
    (prompt,) = prompts(1, seed=4)
    fields = {**SEEDED, "seed": 9, "max_tokens": 12}
    first, again, other = (
        ask(api, service, prompt, **fields, cache_salt=f"{salt}, {api}")
        for salt in ("here", "here", "there")
    )
    assert first == again == other
    num_whole = PROMPT_LEN // 16 * 16
    assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 0)
    assert num_whole - 16 <= again.num_cached_tokens <= num_whole


# --- case 24 ---------------------------------------------------------------------------------


def expected(prompt: list[int]) -> torch.Tensor:
    """Log probabilities of every prompt token but the first, by the reference."""
    logprobs = reference_logits(EMBEDDED_TARGET, prompt)[:-1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(prompt)[1:, None])[:, 0]


@pytest.mark.slow
@case(24)
def test_log_probabilities_of_a_prompt_do_not_depend_on_the_cache(api: str, service: Service):
    """Three blocks and five tokens; prompts that share two of them; one of several chunks."""
    rng = random.Random(6)
    short = [rng.randrange(8, VOCAB_SIZE) for _ in range(3 * 16 + 5)]
    sibling = short[:32] + [rng.randrange(8, VOCAB_SIZE) for _ in range(21)]
    long = [rng.randrange(8, VOCAB_SIZE) for _ in range(2 * CHUNK + 45)]
    found: dict[str, list[Answer]] = {}
    for salt, order in (
        ("one", [short, short, sibling]),
        ("two", [sibling, short]),
        ("three", [long, long[:CHUNK], long]),
    ):
        for prompt in order:
            fields = {"temperature": 0, "max_tokens": 2, "cache_salt": salt, "prompt_logprobs": 3}
            answer = ask(api, service, prompt, **fields, n=2)
            assert len(answer.prompt_logprobs) == len(prompt) - 1
            found.setdefault(str(prompt), []).append(answer)
    for answers in found.values():
        assert answers == [answers[0]] * len(answers)
    for prompt in (short, sibling, long):
        told = torch.tensor(found[str(prompt)][0].prompt_logprobs)
        torch.testing.assert_close(told, expected(prompt), atol=2e-3, rtol=0)


@pytest.mark.slow
@case(24, apis=[GRPC])
def test_log_probabilities_of_a_prompt_have_the_likeliest_tokens(api: str, service: Service):
    (prompt,) = prompts(1, seed=5)
    answer = ask(api, service, prompt, max_tokens=1, prompt_logprobs=3)
    assert answer.completion is not None
    entries = answer.completion.prompt.prompt_logprobs
    assert [entry.token_id for entry in entries] == prompt[1:]
    for entry in entries:
        assert entry.top_logprobs == sorted(entry.top_logprobs, reverse=True)
        assert len(set(entry.top_ids)) == 3
        assert (entry.rank <= 3) is (entry.token_id in entry.top_ids)


@pytest.mark.slow
@case(24, apis=[HTTP])
def test_log_probabilities_of_a_prompt_come_with_its_answers(api: str, service: Service):
    turn = {"role": "user", "content": "What is this?"}
    wishes = {"max_tokens": 2, "prompt_logprobs": 3, "return_token_ids": True, "n": 2}
    chat = {"messages": [turn], **wishes}
    echo = {"prompt": "import os", "echo": True, "logprobs": 1, **wishes}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", echo)):
        with posted(service, body, path) as response:
            answer = json.loads(response.read())
        # A chat has one prompt, and says this of it once.
        one, other = answer["choices"] if "prompt" in body else (answer, answer)
        first, *others = one["prompt_logprobs"]
        assert first is None
        assert other["prompt_logprobs"] == one["prompt_logprobs"]
        for token_id, entry in zip(one["prompt_token_ids"][1:], others, strict=True):
            own, *_ = entry
            assert own == str(token_id)
            ranks = [each["rank"] for each in entry.values()]
            assert sorted(set(ranks) | {1, 2, 3}) == sorted(ranks)
