# pyright: strict
"""One turn: a running service under one load, asked over gRPC with a stream for each request."""

import time
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from bench.services.records import Delta
from bench.services.running import Running
from bench.sweep.arrivals import in_closed_loop, in_open_loop
from bench.sweep.plan import Load
from bench.sweep.records import Answer, Streamed, answers_of
from specserve.api.call import SpecOptions
from specserve.client import AsyncClient, Options, Prompt
from specserve.types import TokenOrigin

_DIGITS = 5


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: the same of all arms. A seed makes the text the same in every mode."""

    load: Load
    prompts: Sequence[Prompt]
    seeds: Sequence[int]
    arrivals_s: Sequence[float]  # of an open loop
    salt: str  # keeps answers from finding prompts of other turns in the prefix cache
    max_tokens: int
    temperature: float
    sampling: Mapping[str, float]
    ignore_eos: bool


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    answers: list[Answer]
    took_s: float
    counters: dict[str, float]
    foreign_share: float


def ask(service: Running, turn: Turn) -> Asked:
    """All requests of the turn, to the last token. Raises SpecserveError where one fails."""
    streamed, counters, foreign_share = service.watch(
        lambda client: _streamed(client, turn),
        lambda found: sum(len(one.token_ids) for one in found),
    )
    return Asked(
        answers=answers_of(streamed, turn.load),
        took_s=max(one.deltas[-1].at_s for one in streamed),
        counters={name: round(value, _DIGITS) for name, value in counters.items()},
        foreign_share=foreign_share,
    )


async def _streamed(client: AsyncClient, turn: Turn) -> list[Streamed]:
    start_s = time.perf_counter()

    async def stream(number: int) -> Streamed:
        return await _stream(client, turn, number, start_s)

    if turn.load.is_closed:
        return await in_closed_loop(len(turn.prompts), turn.load.in_flight, stream)
    return await in_open_loop(turn.arrivals_s, stream)


async def _stream(client: AsyncClient, turn: Turn, number: int, start_s: float) -> Streamed:
    """In an open loop a request counts from when it was to arrive: a late client is no excuse."""
    sent_s = time.perf_counter() - start_s
    found = Streamed(
        sent_s=sent_s if turn.load.is_closed else turn.arrivals_s[number], deltas=[], token_ids=[]
    )
    options: Options = {
        "max_tokens": turn.max_tokens,
        "temperature": turn.temperature,
        "ignore_eos": turn.ignore_eos,
        "seed": turn.seeds[number],
        "cache_salt": f"{turn.salt}-{number}",
        "spec": SpecOptions(return_stats=True),
    }
    options.update(cast(Options, dict(turn.sampling)))
    stream = client.stream(turn.prompts[number], **options)
    async for delta in stream:
        at_s = time.perf_counter() - start_s
        is_speculative = any(origin is not TokenOrigin.PLAIN for origin in delta.origins)
        found.deltas.append(Delta(at_s, len(delta.token_ids), is_speculative, delta.cache_hit))
        found.token_ids += delta.token_ids
    if not found.deltas:  # the model ended its answer before it began
        found.deltas.append(Delta(time.perf_counter() - start_s, 0, is_speculative=False))
    if stream.finished is not None and stream.finished.spec is not None:
        found.num_verified = stream.finished.spec.num_draft_tokens
    return found
