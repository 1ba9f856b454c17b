"""Seeded requests of every kind, run against a real service, and what came back of each."""

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from specserve.api.call import ChatMessage, SpecOptions
from specserve.client import AsyncClient, Prompt

MAX_MODEL_LEN = 288  # prompts and answers below stay inside


@dataclass(frozen=True)
class SeededRequest:
    """A prompt and its options; always with a seed."""

    prompt: Prompt
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """All of an answer that must not depend on the company: tokens, texts, calls and the like."""

    token_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    logprobs: tuple[object, ...]
    calls: tuple[tuple[str, str], ...] = ()  # names and arguments, of all samples


def prompts() -> list[str]:
    """Held-out prompts of both domains."""
    folder = files("specserve") / "assets" / "prompts"
    lines = [
        line
        for name in ("code.jsonl", "prose.jsonl")
        for line in (folder / name).read_text().splitlines()
    ]
    return [json.loads(line)["text"] for line in lines]


def seeded_requests(count: int, seed: int = 2026) -> list[SeededRequest]:
    """`count` requests: temperature 0 to 1.5, mixed sampling fields, mixed lengths."""
    rng = random.Random(seed)
    texts = prompts()
    requests = []
    for _ in range(count):
        text = rng.choice(texts)
        options: dict[str, Any] = {
            "seed": rng.randrange(2**64),
            "temperature": rng.choice([0.0, 0.5, 0.8, 1.0, 1.0, 1.2, 1.5]),
            "max_tokens": rng.choice([1, 4, 16, 32, 64]),
        }
        if rng.random() < 0.5:
            options |= rng.choice(_MIXTURES)
        requests.append(SeededRequest(text[: rng.choice([8, 60, 200, 400])], options))
    return requests


def varied(requests: list[SeededRequest]) -> list[SeededRequest]:
    """The same, the first of every mixture of fields first, then the second of each, and so on.

    So a beginning of the list has all mixtures.
    """
    found: Counter[frozenset[str]] = Counter()

    def turn(request: SeededRequest) -> int:
        kind = frozenset(request.options)
        found[kind] += 1
        return found[kind]

    return sorted(requests, key=turn)


def undrafted(requests: list[SeededRequest]) -> list[SeededRequest]:
    """The same, decoded plainly by whatever service is asked."""
    plain = {"spec": SpecOptions(mode="off")}
    return [replace(request, options=request.options | plain) for request in requests]


def chat_requests(count: int, seed: int = 2026) -> list[SeededRequest]:
    """As `seeded_requests`, of a model that chats: two of three prompts are conversations."""
    rng = random.Random(seed)

    def asked(request: SeededRequest, number: int) -> SeededRequest:
        if number % 3 == 0:
            return request
        turns = [ChatMessage("user", rng.choice(_QUESTIONS))]
        if number % 3 == 1:
            turns = [ChatMessage("system", rng.choice(_MANNERS)), *turns]
        return SeededRequest(turns, request.options)

    return [asked(request, i) for i, request in enumerate(seeded_requests(count, seed))]


_MANNERS = ("Answer in one sentence.", "You are a pirate.", "Answer with a list.")
_QUESTIONS = (
    "What is the capital of France?",
    "Repeat after me: one, two, three, one, two, three, one, two, three.",
    "Write a Python function that reverses a string.",
    "Why is the sky blue?",
    "Translate to German: The house is small, the garden is large.",
    "If I have 3 apples and buy 4 more, how many do I have?",
    "Name five animals that live in the sea.",
    "Tell me a very short story about a dragon and a clock.",
    "Summarise: Rain fell all day. The river rose. By night the bridge was gone.",
    "Which is larger, 17 or 71, and why?",
)
_MIXTURES: list[dict[str, Any]] = [
    {"top_p": 0.9},
    {"top_k": 20},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.01},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.3},
    {"logit_bias": {40: 3.0, 41: -100.0, 200: 5.0}},
    {"stop": ["\n\n", "return"]},
    {"stop_token_ids": [200, 201, 202], "min_tokens": 5, "max_tokens": 30},
    {"ignore_eos": True, "min_tokens": 8, "max_tokens": 24},
    {"n": 3},
    {"logprobs": 3},
    {"prompt_logprobs": 2, "logprobs": 0},
    {"n": 2, "top_p": 0.8, "frequency_penalty": 0.5, "logprobs": 1},
]


async def _run(
    address: str, requests: list[SeededRequest], order: list[int], concurrency: int
) -> list[Outcome]:
    gate = asyncio.Semaphore(concurrency)
    outcomes: dict[int, Outcome] = {}

    async def one(index: int) -> None:
        async with gate:
            request = requests[index]
            answer = await client.generate(request.prompt, **request.options)
        outcomes[index] = Outcome(
            token_ids=tuple(tuple(sample.token_ids) for sample in answer.samples),
            texts=tuple(sample.text for sample in answer.samples),
            finish_reasons=tuple(str(sample.finish_reason) for sample in answer.samples),
            logprobs=(
                *(sample.logprobs for sample in answer.samples),
                answer.prompt.prompt_logprobs,
            ),
            calls=tuple(
                (call.name, call.arguments)
                for sample in answer.samples
                for call in sample.tool_calls
            ),
        )

    async with AsyncClient(address) as client:
        await asyncio.gather(*(one(index) for index in order))
    return [outcomes[index] for index in range(len(requests))]


def run(
    address: str,
    requests: list[SeededRequest],
    *,
    concurrency: int,
    shuffle_seed: int | None = None,
) -> list[Outcome]:
    """The outcome of every request, in the order of `requests`, sent `concurrency` at a time."""
    order = list(range(len(requests)))
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(order)
    return asyncio.run(_run(address, requests, order, concurrency))


def differing(first: list[Outcome], second: list[Outcome]) -> list[int]:
    """The indices at which two runs differ."""
    return [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
