"""A time of random faults on a seeded schedule, with streams over both APIs that never cease.

    python -m tests.reliability.soak --target smollm2 --minutes 30

Draft processes are killed, stopped, kept busy, slowed down and lied to; clients cancel, leave, run
out of time, stop reading, ask for too much, and for more than there are places. Whatever was asked
beside that has to be answered as by plain decoding. Prints one JSON object; exits with 1 if a
request failed, a token differs, anything was leaked, or the service was not alive at any time.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specserve.client import Client
from tests.reliability import faults
from tests.reliability.apis import GRPC, HTTP, Places, ask, open_http, places_of, probe
from tests.reliability.loop import run
from tests.reliability.measured import num_files, rss_mb
from tests.reliability.streams import Crowd, Seeded, plainly, seeded
from tests.service.blows import DRAFT_TIMEOUT_S
from tests.service.chaos import end
from tests.service.draft_watch import DraftWatch, draft_pids, eventually, open_link
from tests.service.launched import Launched
from tests.specserve.transport.link.chaos import RingInjector

PLACES = 64  # requests in flight
CLIENTS = 4  # of each API, that never cease
_PROBE_S = 0.5
_LONG = {"max_tokens": 200, "ignore_eos": True, "temperature": 0.0}

log = logging.getLogger(__name__)


@dataclass
class Soak:
    """What was done, and what became of it."""

    faults: Counter[str] = field(default_factory=Counter)
    requests: dict[str, int] = field(default_factory=dict)  # by API
    refused: dict[str, int] = field(default_factory=dict)  # for want of a place, at a crush
    failed: dict[str, list[str]] = field(default_factory=dict)
    wrong: dict[str, list[int]] = field(default_factory=dict)
    longest_gap_s: dict[str, float] = field(default_factory=dict)
    num_probes: int = 0
    dead: list[str] = field(default_factory=list)  # what /livez said when it was not 200
    blocks_held: int = 0
    grown_mb: dict[str, float] = field(default_factory=dict)
    grown_files: dict[str, int] = field(default_factory=dict)
    num_hits: int = 0  # of prepared blocks, so that drafts were at work at all
    exit_code: int | None = None
    trouble: str = ""  # of the schedule itself

    def availability(self, api: str) -> float:
        """Share of requests that were answered, those included that a crush kept out."""
        total = max(1, self.requests[api])
        return 1 - (len(self.failed[api]) + self.refused[api]) / total

    def report(self) -> dict[str, object]:
        """For people."""
        names = [name for name in self.__dataclass_fields__ if name != "failed"]
        told: dict[str, object] = {name: getattr(self, name) for name in names}
        told["failed"] = {api: [len(f), f[:3]] for api, f in self.failed.items()}
        return told | {"availability": {api: self.availability(api) for api in self.requests}}

    def violations(self) -> list[str]:
        """In words; none is as it should be."""
        found = [f"{api}: {text}" for api, texts in self.failed.items() for text in texts[:3]]
        found += [f"{api}: {len(each)} wrong" for api, each in self.wrong.items() if each]
        found += [f"/livez: {text}" for text in self.dead[:3]]
        found += [f"{self.blocks_held} blocks held"] if self.blocks_held else []
        found += [f"{n}: {more} files" for n, more in self.grown_files.items() if more > 4]
        found += [f"{n}: {mb:.0f} MB" for n, mb in self.grown_mb.items() if mb > 64]
        found += [f"exit code {self.exit_code}"] if self.exit_code else []
        found += ["no block of a draft process was used"] if not self.num_hits else []
        return found + ([self.trouble] if self.trouble else [])


class Schedule:
    """Faults one after another, drawn from a seed, until the time is over."""

    def __init__(self, launched: Launched, places: Places, seed: int, found: Soak) -> None:
        self._source = random.Random(seed)
        self._launcher, self._places, self._found = launched.process.pid, places, found
        self._watch = DraftWatch(places.grpc)
        self._kinds: list[Callable[[], None]] = [
            self.kill, self.kill, self.stop, self.busy, self.stall, self.slow, self.lie,
            self.leave, self.hurry, self.sleep, self.excess, self.crush,
        ]  # fmt: skip

    def run(self, seconds: float) -> None:
        """Every kind once in each round of them, in another order each time."""
        until_s = time.monotonic() + seconds
        try:
            while time.monotonic() < until_s:
                kinds = list(self._kinds)
                self._source.shuffle(kinds)
                for kind in kinds:
                    if time.monotonic() > until_s:
                        break
                    log.info("%s", kind.__name__)
                    kind()
                    self._found.faults[kind.__name__] += 1
                    time.sleep(self._source.uniform(0.0, min(4.0, seconds / 20)))
        except Exception as error:
            log.exception("the schedule ended early")
            self._found.trouble = repr(error)
        finally:
            self._found.num_hits = self._watch.statistics().num_hits
            self._watch.close()

    # --- draft processes ---------------------------------------------------------------------

    def _draft(self) -> int:
        """Mostly one that works, sometimes one that only starts."""
        if self._source.random() < 0.8:
            assert self._watch.wait_until_serving()
        assert eventually(lambda: bool(draft_pids(self._launcher)), 60)
        return next(iter(draft_pids(self._launcher).values()))

    def _send(self, pid: int, signum: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)

    def kill(self) -> None:
        self._send(self._draft(), signal.SIGKILL)

    def stop(self) -> None:
        pid = self._draft()
        self._send(pid, signal.SIGSTOP)
        time.sleep(self._source.uniform(1.0, 2.0) * DRAFT_TIMEOUT_S)
        self._send(pid, signal.SIGCONT)

    def stall(self) -> None:
        pid = self._draft()
        self._send(pid, signal.SIGSTOP)
        time.sleep(self._source.uniform(0.02, 0.5) * DRAFT_TIMEOUT_S)
        self._send(pid, signal.SIGCONT)

    def busy(self) -> None:
        self._send(self._serving_draft(), faults.BUSY)

    def slow(self) -> None:
        """Until its end, or until it is slowed down once more."""
        self._send(self._serving_draft(), faults.SLOW)

    def _serving_draft(self) -> int:
        """One that has been there long enough to know our signals."""
        assert self._watch.wait_until_serving()
        return next(iter(draft_pids(self._launcher).values()))

    def lie(self) -> None:
        """Bad frames into both rings."""
        with suppress(FileNotFoundError):  # it ended meanwhile
            region = open_link(self._serving_draft())
            for ring in (region.to_draft, region.to_target):
                injector = RingInjector(ring, self._source.getrandbits(32))
                for _ in range(10):
                    injector.watch()
                    injector.inject(10)
                    time.sleep(0.02)
                del injector
            region.close()

    # --- clients -----------------------------------------------------------------------------

    def _api(self) -> str:
        return self._source.choice((GRPC, HTTP))

    def _together(self, num: int, **more: object) -> list[str]:
        """What so many requests at once end with."""

        async def all_of_them() -> list[str]:
            asking = [ask(self._api(), self._places, "import", **_LONG | more) for _ in range(num)]
            return [answer.error for answer in await asyncio.gather(*asking)]

        return run(all_of_them())

    def leave(self) -> None:
        most = self._source.randrange(1, 6)
        self._together(12, on_piece=lambda answer: len(answer.piece_s) < most)

    def hurry(self) -> None:
        ends = self._together(8, timeout_s=self._source.uniform(0.001, 0.4))
        assert set(ends) <= {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", ""}, ends

    def excess(self) -> None:
        ends = self._together(4, max_tokens=10**9, stop=["x"] * 1000)
        assert set(ends) <= {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}, ends

    def crush(self) -> None:
        """More than there are places; the refused are those of this crush, or of the crowd."""
        ends = self._together(PLACES + 16, max_tokens=16)
        assert set(ends) <= {"RESOURCE_EXHAUSTED", ""}, Counter(ends)

    def sleep(self) -> None:
        """Clients that have stopped reading, for a while."""

        async def sleep() -> None:
            body = {"prompt": "import", "stream": True, **_LONG}
            path = "/v1/completions"
            sleepers = [await open_http(self._places, "POST", path, body) for _ in range(4)]
            for _, writer in sleepers:
                writer.transport.pause_reading()
            await asyncio.sleep(self._source.uniform(0.5, 2.0))
            for _, writer in sleepers:
                writer.transport.abort()

        run(sleep())


@contextmanager
def probing(places: Places, found: Soak) -> Iterator[None]:
    """Ask all the time whether the service is alive."""
    over = threading.Event()

    def ask_on() -> None:
        while not over.wait(_PROBE_S):
            found.num_probes += 1
            try:
                status, state = run(asyncio.wait_for(probe(places, "/livez"), 10))
            except (OSError, TimeoutError) as error:
                status, state = 0, repr(error)
            if status != 200:
                found.dead.append(f"{status} {state}")

    thread = threading.Thread(target=ask_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def soak(target: str, seconds: float, *, seed: int = 1, max_tokens: int = 48) -> Soak:
    """All of it, from the start of a service to its end."""
    found, requests = Soak(), seeded(24, seed, max_tokens)
    plain_requests = [Seeded(one.prompt, one.options | {"mode": "off"}) for one in requests]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        faults.prepare(patch, Path(folder), seconds=30)
        launched = launch(target)
        try:
            places = places_of(launched)
            plain = plainly(GRPC, places, plain_requests)
            crowds = [Crowd(api, places, requests, plain, size=CLIENTS) for api in (GRPC, HTTP)]
            with probing(places, found), crowds[0], crowds[1]:
                time.sleep(min(30.0, seconds / 10))  # what grows at first has grown
                before = footprint(launched)
                Schedule(launched, places, seed, found).run(seconds)
            judge(found, crowds)
            settle(found, places)
            after = footprint(launched)
        finally:
            end(launched)
    found.exit_code = launched.process.returncode
    for name, (files, megabytes) in before.items():
        found.grown_files[name] = after[name][0] - files
        found.grown_mb[name] = round(after[name][1] - megabytes, 1)
    return found


def launch(target: str) -> Launched:
    """A `1+1` with few places."""
    flags = ("--topology", "1+1", "--speculation", "async", "--drafter", "ngram")
    limits = ("--max-queued-requests", str(PLACES), "--oversubscribe", "--max-model-len", "512")
    timeout = ("--set", f"speculation.draft_timeout_s={DRAFT_TIMEOUT_S}")
    return Launched("--target", target, *flags, *limits, *timeout)


def footprint(launched: Launched) -> dict[str, tuple[int, float]]:
    """Open files and megabytes of those processes that live as long as the service."""
    pids = {"launcher": launched.process.pid}
    for name, module in (("api", "specserve.api"), ("target", "target_node")):
        (pids[name],) = launched.children(module)
    return {name: (num_files(pid), rss_mb(pid)) for name, pid in pids.items()}


def judge(found: Soak, crowds: list[Crowd]) -> None:
    for crowd in crowds:
        api, full = crowd.api, "RESOURCE_EXHAUSTED"
        found.requests[api] = len(crowd.answers)
        found.refused[api] = sum(answer.error == full for _, answer in crowd.answers)
        found.failed[api] = [text for text in crowd.failed if not text.startswith(full)]
        found.wrong[api] = crowd.wrong
        found.longest_gap_s[api] = round(crowd.longest_gap_s(), 3)


def settle(found: Soak, places: Places) -> None:
    """Nothing runs any more: nothing may be held."""
    with Client(places.grpc) as client:

        def num_held() -> int:
            load = client.load()
            is_busy = load.num_running or load.num_waiting
            return load.num_blocks - load.num_free_blocks + bool(is_busy)

        eventually(lambda: num_held() == 0, 20)
        found.blocks_held = num_held()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(asctime)s %(message)s", stream=sys.stderr)
    found = soak(options.target, 60 * options.minutes, seed=options.seed)
    violations = found.violations()
    report = found.report() | {"violations": violations}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
