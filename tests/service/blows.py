"""Blows against the draft processes of a running service, on a seeded schedule, and what they did.

Kills, stops that last longer than the deadline, shorter ones, and bad frames in every ring. Knows
processes, links and what the service says of its drafts; no requests and no text.
"""

import logging
import os
import random
import re
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

import numpy as np

from tests.service.draft_watch import DraftWatch, draft_pids, eventually, open_link
from tests.service.launched import Launched
from tests.specserve.transport.link.chaos import RingInjector

DRAFT_TIMEOUT_S = 1.0
_BATCH = 25  # frames at a time, to each side

log = logging.getLogger(__name__)


@dataclass
class Damage:
    """What was done, and how the service took it. Times in seconds."""

    num_kills: int = 0
    num_stops: int = 0
    num_stalls: int = 0  # shorter than the deadline
    num_frames: int = 0  # bad ones that found room in a ring
    kills_noticed_s: list[float] = field(default_factory=list)  # as health says it to a watcher
    kills_logged_s: list[float] = field(default_factory=list)  # by the target's own log
    stops_noticed_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)  # all drafts at work again, since the blow
    num_unnoticed: int = 0
    num_never_back: int = 0
    trouble: str = ""  # of the attacker itself

    def is_complete(self, *, kills: int, stops: int, garbage: int, **_: int) -> bool:
        """Whether all of the schedule was done, and nothing failed that is not the service's."""
        done = (self.num_kills, self.num_stops, self.num_stalls, self.num_frames)
        return done == (kills, stops, stops, garbage) and not self.trouble

    def report(self) -> dict[str, object]:
        """For people: of times the median, the 95th percentile and the most."""
        fields = asdict(self)
        return {
            name: spread(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }


def spread(seconds: list[float]) -> dict[str, float]:
    """What is typical of many, and the worst of them."""
    if not seconds:
        return {"count": 0}
    median, late = (float(np.quantile(seconds, q)) for q in (0.5, 0.95))
    figures = {"median": median, "p95": late, "max": max(seconds)}
    return {"count": len(seconds), **{name: round(value, 3) for name, value in figures.items()}}


class Chaos:
    """A seeded schedule of blows against the drafts of one launch, in a thread of its own."""

    def __init__(
        self,
        launched: Launched,
        watch: DraftWatch,
        *,
        kills: int,
        stops: int,
        garbage: int,
        seed: int,
    ) -> None:
        self.damage = Damage()
        self._lines = launched.lines
        self._launcher_pid = launched.process.pid
        self._watch = watch
        self._garbage = garbage
        self._source = random.Random(seed)
        self._blows = [self._kill] * kills + [self._stop] * stops + [self._stall] * stops
        self._source.shuffle(self._blows)
        self._injectors: list[RingInjector] = []
        self._regions = [open_link(pid) for pid in draft_pids(self._launcher_pid).values()]
        for region in self._regions:
            for ring in (region.to_draft, region.to_target):
                self._injectors.append(RingInjector(ring, self._source.getrandbits(32)))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Chaos":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(3600)
        self._injectors.clear()
        for region in self._regions:
            region.close()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._strike_all()
        except Exception as error:
            log.exception("the attack ended early")
            self.damage.trouble = repr(error)

    def _strike_all(self) -> None:
        share = self._garbage / max(1, len(self._blows))
        for index, blow in enumerate(self._blows, 1):
            self._lie_until(round(share * index))
            log.info("blow %d of %d: %s", index, len(self._blows), blow.__name__.strip("_"))
            blow()
        self._lie_until(self._garbage)

    def _lie_until(self, num_frames: int) -> None:
        """Bad frames into every ring, a few at a time, until there were so many in all."""
        while self.damage.num_frames < num_frames:
            count = min(_BATCH, num_frames - self.damage.num_frames)
            self.damage.num_frames += self._source.choice(self._injectors).inject(count)
            time.sleep(0.02)

    def _victim(self) -> int:
        """Some live draft process; mostly one that works, sometimes one that only starts."""
        if self._source.random() < 0.8:
            self._watch.wait_until_serving()
        assert eventually(lambda: bool(draft_pids(self._launcher_pid)), 60)
        return self._source.choice(list(draft_pids(self._launcher_pid).values()))

    def _kill(self) -> None:
        pid, since_s = self._victim(), time.monotonic()
        since, num_lines = datetime.now(), len(self._lines)
        was_serving = self._watch.is_serving  # last: what changes from here on is noticed
        _send(pid, signal.SIGKILL)
        self.damage.num_kills += 1
        if was_serving and self._is_noticed(self.damage.kills_noticed_s, since_s):
            eventually(lambda: logged_loss(self._lines[num_lines:], since) is not None, 5)
            seconds = logged_loss(self._lines[num_lines:], since)
            if seconds is not None:
                self.damage.kills_logged_s.append(seconds)
            self._await_return(since_s)

    def _stop(self) -> None:
        """Until it is noticed, and a random time on: it may be killed for it meanwhile."""
        pid, since_s = self._victim(), time.monotonic()
        was_serving = self._watch.is_serving
        _send(pid, signal.SIGSTOP)
        self.damage.num_stops += 1
        is_noticed = was_serving and self._is_noticed(self.damage.stops_noticed_s, since_s)
        time.sleep(self._source.choice([0.0, 0.05, 0.5]))
        _send(pid, signal.SIGCONT)
        if is_noticed:
            self._await_return(since_s)

    def _stall(self) -> None:
        pid = self._victim()
        _send(pid, signal.SIGSTOP)
        time.sleep(self._source.uniform(0.02, 0.5) * DRAFT_TIMEOUT_S)
        _send(pid, signal.SIGCONT)
        self.damage.num_stalls += 1

    def _is_noticed(self, noticed_s: list[float], since_s: float) -> bool:
        seconds = self._watch.seconds_until(False, since_s, timeout_s=10.0)
        if seconds is None:
            self.damage.num_unnoticed += 1
            return False
        noticed_s.append(seconds)
        return True

    def _await_return(self, since_s: float) -> None:
        """Of all drafts: the health of now, which has been seen to fail since the blow."""
        if self._watch.wait_until_serving():
            self.damage.back_s.append(time.monotonic() - since_s)
        else:
            self.damage.num_never_back += 1


def logged_loss(lines: Sequence[str], since: datetime) -> float | None:
    """Seconds from `since` to the target's first line of a draft that is lost, within a day.

    A busy target may first hear of the silence, or of the draft's successor.
    """
    since = since.replace(microsecond=since.microsecond // 1000 * 1000)  # as in lines
    for line in lines:
        words = re.match(r"(\S+) W target 0: draft \d+ .*; decoding goes on without it", line)
        if words:
            at = datetime.strptime(words[1], "%H:%M:%S.%f").time()
            return (datetime.combine(since, at) - since) / timedelta(seconds=1) % 86400
    return None


def _send(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        log.info("process %d is gone already", pid)
