"""Ten times as many requests as a service can answer, for a while: an open loop over either API.

    python -m tests.reliability.overload --target smollm2 --seconds 30

first asks as many at a time as there are places, which is the peak, then sends ten times as many
requests a second, whatever comes of them. Prints one JSON object an API. A client of this kind
never waits for answers: who is refused does not come back.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import grpc.aio

from tests.reliability.apis import GRPC, HTTP, Answer, ask, places_of
from tests.reliability.loop import run
from tests.reliability.measured import rss_mb
from tests.reliability.streams import quantile
from tests.service.chaos import end
from tests.service.launched import Launched

PLACES, ROWS = 32, 8  # requests in flight, and samples that run at once
FACTOR = 10.0
_OPTIONS = {"ignore_eos": True, "temperature": 0.0}
_CHANNELS = 4  # of gRPC


@dataclass
class Overload:
    """What one API did with it. Rates are tokens of finished answers a second."""

    peak: float = 0.0
    goodput: float = 0.0  # meanwhile
    sent_per_s: float = 0.0
    num_finished: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # by code
    refused_s: list[float] = field(default_factory=list)  # from sending to the refusal
    waits_s: list[int] = field(default_factory=list)  # Retry-After of each refusal
    without_wait: int = 0
    memory_mb: dict[str, tuple[float, float]] = field(default_factory=dict)  # before and after

    def report(self) -> dict[str, object]:
        """For people."""
        return {
            "peak": round(self.peak, 1),
            "goodput": round(self.goodput, 1),
            "sent_per_s": round(self.sent_per_s, 1),
            "finished": self.num_finished,
            "errors": dict(self.errors),
            "refused_p50_s": round(quantile(self.refused_s, 0.5), 4),
            "refused_p99_s": round(quantile(self.refused_s, 0.99), 4),
            "retry_after_s": [min(self.waits_s, default=0), max(self.waits_s, default=0)],
            "memory_mb": {
                name: [round(mb) for mb in both] for name, both in self.memory_mb.items()
            },
        }


def overloaded_service(*flags: str) -> Launched:
    """One whose places are few."""
    rows = ("--max-batch-rows", str(ROWS), "--speculation", "off", "--oversubscribe")
    return Launched("--max-queued-requests", str(PLACES), *rows, *flags)


def overload(api: str, service: Launched, *, seconds: float, max_tokens: int) -> Overload:
    """Peak for `seconds`, then ten times as much for as long."""
    return run(_Load(api, service, max_tokens).run(seconds))


class _Load:
    def __init__(self, api: str, service: Launched, max_tokens: int) -> None:
        self._api, self._places = api, places_of(service)
        self._options = {**_OPTIONS, "max_tokens": max_tokens}
        self._pids = {
            name: next(iter(service.children(module)))
            for name, module in (("api", "specserve.api"), ("target", "target_node"))
        }
        self._num_sent = 0

    async def run(self, seconds: float) -> Overload:
        found = Overload()
        self._channels = [grpc.aio.insecure_channel(self._places.grpc) for _ in range(_CHANNELS)]
        await self._closed(seconds / 4, Overload())  # what is first, takes longer
        found.peak = await self._closed(seconds, found)
        found.errors.clear()
        memory = {name: rss_mb(pid) for name, pid in self._pids.items()}
        per_s = FACTOR * found.peak / self._options["max_tokens"]
        await self._open(seconds, per_s, found)
        for name, before in memory.items():
            found.memory_mb[name] = before, rss_mb(self._pids[name])
        for channel in self._channels:
            await channel.close()
        return found

    async def _one(self) -> Answer:
        self._num_sent += 1
        channel = self._channels[self._num_sent % _CHANNELS]
        prompt = f"def function_{self._num_sent}(a, b):"
        return await ask(self._api, self._places, prompt, channel=channel, **self._options)

    async def _closed(self, seconds: float, found: Overload) -> float:
        """Tokens a second where as many ask as run at once, and some more."""
        until_s, num_tokens = time.monotonic() + seconds, 0

        async def client() -> None:
            nonlocal num_tokens
            while time.monotonic() < until_s:
                answer = await self._one()
                found.errors[answer.error] += 1
                num_tokens += sum(at < until_s for at in answer.piece_s)

        await asyncio.gather(*(client() for _ in range(2 * ROWS)))
        return num_tokens / seconds

    async def _open(self, seconds: float, per_s: float, found: Overload) -> None:
        """As many a second, come what may."""
        begin_s, tasks = time.monotonic(), []
        while (now_s := time.monotonic()) < begin_s + seconds:
            while len(tasks) < (now_s - begin_s) * per_s:
                tasks.append(asyncio.create_task(self._one()))
            await asyncio.sleep(1 / per_s)
        answers = await asyncio.gather(*tasks)
        until_s = begin_s + seconds
        found.sent_per_s = len(answers) / seconds
        for answer in answers:
            if not answer.error:
                found.num_finished += 1
            found.errors[answer.error] += 1
            # Of those that end later, too: the peak counts these likewise.
            found.goodput += sum(at < until_s for at in answer.piece_s) / seconds
            if answer.error == "RESOURCE_EXHAUSTED":
                found.refused_s.append(answer.ended_s - answer.sent_s)
                if answer.retry_after_s is None:
                    found.without_wait += 1
                else:
                    found.waits_s.append(answer.retry_after_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--max-tokens", type=int, default=32)
    options = parser.parse_args()
    service = overloaded_service("--target", options.target)
    try:
        for api in (GRPC, HTTP):
            found = overload(api, service, seconds=options.seconds, max_tokens=options.max_tokens)
            sys.stdout.write(json.dumps({"api": api, **found.report()}, indent=1) + "\n")
    finally:
        end(service)
    return 0


if __name__ == "__main__":
    sys.exit(main())
