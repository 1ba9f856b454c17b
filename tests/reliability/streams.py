"""Streams that never cease while something befalls their service, and what became of them.

A `Crowd` is so many clients, each of which asks one seeded request after the other over one API
until it is told to stop; what is said to each is compared with what plain decoding said.
"""

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.exactness.workload import prompts
from tests.reliability.apis import Answer, Places, ask
from tests.reliability.loop import begin, run

_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Seeded:
    """A prompt and its options, which leave nothing to chance."""

    prompt: str
    options: dict[str, Any]


def seeded(count: int, seed: int = 7, max_tokens: int = 48) -> list[Seeded]:
    """`count` requests, greedy and sampled, of `max_tokens` at most."""
    rng, texts = random.Random(seed), prompts()
    return [
        Seeded(
            rng.choice(texts)[: rng.choice([8, 60, 200])],
            {
                "seed": rng.randrange(2**63),
                "temperature": rng.choice([0.0, 0.7, 1.0, 1.3]),
                "max_tokens": rng.randrange(max_tokens // 3, max_tokens),
                "ignore_eos": True,
            },
        )
        for _ in range(count)
    ]


async def ask_all(
    api: str, places: Places, requests: list[Seeded], concurrency: int = 8
) -> list[Answer]:
    """Every one once, in order."""
    gate = asyncio.Semaphore(concurrency)

    async def one(request: Seeded) -> Answer:
        async with gate:
            return await ask(api, places, request.prompt, **request.options)

    return await asyncio.gather(*map(one, requests))


def plainly(api: str, places: Places, requests: list[Seeded]) -> list[Answer]:
    """What a service without faults says; all of it has to be finished."""
    answers = run(ask_all(api, places, requests))
    assert [answer.message for answer in answers if answer.error] == []
    return answers


@dataclass
class Crowd:
    """`size` clients, from `with` to its end.

    `requests` are asked in turn; `plain` is what has to be said to each.
    """

    api: str
    places: Places
    requests: list[Seeded]
    plain: list[Answer]
    size: int = 8
    answers: list[tuple[int, Answer]] = field(default_factory=list)
    _next: int = 0

    def __enter__(self) -> "Crowd":
        self._over = threading.Event()
        self._ending = begin(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ending.result(120)  # one that never ends raises

    async def _run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(self.size)))

    async def _client(self) -> None:
        while not self._over.is_set():
            index, self._next = self._next, self._next + 1
            request = self.requests[index % len(self.requests)]
            answer = await ask(self.api, self.places, request.prompt, **request.options)
            self.answers.append((index % len(self.requests), answer))
            if answer.error:  # who is told when to come back does so then, or soon
                await asyncio.sleep(min(answer.retry_after_s or 0.05, _PATIENCE_S))

    # --- what became of them -----------------------------------------------------------------

    @property
    def failed(self) -> list[str]:
        return [f"{a.error}: {a.message}" for _, a in self.answers if a.error]

    @property
    def wrong(self) -> list[int]:
        """Requests that finished with another answer than plain decoding's."""
        return [i for i, a in self.answers if not a.error and a.said != self.plain[i].said]

    def tokens_per_s(self, from_s: float, until_s: float) -> float:
        """Pieces of answers that came in that time, by their tokens."""
        total = 0.0
        for _, answer in list(self.answers):
            came = [at for at in answer.piece_s if from_s <= at < until_s]
            if answer.piece_s:
                total += len(answer.token_ids) * len(came) / len(answer.piece_s)
        return total / max(1e-9, until_s - from_s)

    def longest_gap_s(self, since_s: float = 0.0) -> float:
        """The longest that one of them waited for its next tokens."""
        gaps = [
            later - earlier
            for _, answer in list(self.answers)
            for earlier, later in zip(answer.piece_s, answer.piece_s[1:], strict=False)
            if later >= since_s
        ]
        return max(gaps, default=0.0)


def pause(seconds: float) -> tuple[float, float]:
    """Wait; from when until when it was."""
    begin_s = time.monotonic()
    time.sleep(seconds)
    return begin_s, time.monotonic()


def quantile(values: list[float], share: float) -> float:
    """0 of nothing."""
    return float(np.quantile(values, share)) if values else 0.0
