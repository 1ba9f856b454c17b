# pyright: strict
"""How requests come: so many always in flight (closed loop), or at seeded times (open loop).

Both hand requests to somebody who asks for an answer, and know nothing of services.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

POISSON, BURSTY = "poisson", "bursty"
KINDS = (POISSON, BURSTY)
_SHAPES = {POISSON: 1.0, BURSTY: 0.25}

Answer = TypeVar("Answer")


def arrival_times(kind: str, rate: float, count: int, seed: int) -> list[float]:
    """Of `count` requests, in seconds, rising; the first arrives at 0.

    `kind`: one of `KINDS`; `rate`: in requests a second. Times between two arrivals are drawn from
    a gamma distribution of mean 1 / rate: with shape 1 it is the exponential one, of a Poisson
    process; with a quarter they spread twice as much, and requests come in bursts. A larger count
    begins with the smaller one's.
    """
    shape = _SHAPES[kind]
    generator = random.Random(seed)
    at_s = 0.0
    times: list[float] = []
    for _ in range(count):
        times.append(at_s)
        at_s += generator.gammavariate(shape, 1 / shape) / rate
    return times


async def in_closed_loop(
    count: int, in_flight: int, ask: Callable[[int], Awaitable[Answer]]
) -> list[Answer]:
    """`ask` for each number below `count`, in order, the next as soon as one is answered."""
    waiting = iter(range(count))
    found: dict[int, Answer] = {}

    async def go_on() -> None:
        for number in waiting:
            found[number] = await ask(number)

    await asyncio.gather(*(go_on() for _ in range(in_flight)))
    return [found[number] for number in range(count)]


async def in_open_loop(
    times_s: Sequence[float], ask: Callable[[int], Awaitable[Answer]]
) -> list[Answer]:
    """`ask` for each number at its time from now, however many are in flight then."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    async def wait(number: int, at_s: float) -> Answer:
        await asyncio.sleep(max(0.0, start_s + at_s - loop.time()))
        return await ask(number)

    return list(await asyncio.gather(*(wait(n, at_s) for n, at_s in enumerate(times_s))))
