"""Draft processes that die, stand still, spin, crawl or never come: text as without them.

Rows 1, 2, 3, 4 and 7 of tests/reliability/rows.py, over both APIs, with streams that never cease.
"""

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest

from specserve.client import Client
from tests.reliability import faults
from tests.reliability.apis import GRPC, HTTP, Answer, apis, places_of
from tests.reliability.measured import Measured, measured, num_files, rss_mb
from tests.reliability.scale import is_long, scaled
from tests.reliability.streams import Crowd, Seeded, pause, plainly, quantile, seeded
from tests.service.blows import DRAFT_TIMEOUT_S
from tests.service.chaos import end, launch_async
from tests.service.draft_watch import DraftWatch, draft_pids, eventually
from tests.service.launched import Launched

REQUESTS = seeded(24)
STREAMS = 8
WINDOW_S = 10.0 if is_long() else 0.5  # of throughput
FLAP_S = 3.0 if is_long() else 0.0  # between two kills
RSS_GROWTH_MB = 32.0  # what allocators may keep of a run

pytestmark = pytest.mark.slow


class Attacked:
    """A `1+1` under blows, and who watches it."""

    def __init__(self, launched: Launched) -> None:
        self.launched = launched
        self.places = places_of(launched)
        self.watch = DraftWatch(self.places.grpc)

    def draft(self) -> int:
        assert self.watch.wait_until_serving()
        return draft_pids(self.launched.process.pid)[0]

    def strike(self, signum: int) -> tuple[float, float]:
        """Seconds until it was noticed, and until all drafts were at work again."""
        pid, since_s = self.draft(), time.monotonic()
        os.kill(pid, signum)
        noticed_s = self.watch.seconds_until(False, since_s, timeout_s=20)
        assert noticed_s is not None, "nobody noticed"
        back_s = self.watch.seconds_until(True, since_s + noticed_s, timeout_s=30)
        assert back_s is not None, "never back"
        return noticed_s, noticed_s + back_s

    def footprint(self) -> dict[str, tuple[int, float]]:
        """Open files and megabytes of those processes that live as long as the service."""
        pids = {"launcher": self.launched.process.pid}
        for name, module in (("api", "specserve.api"), ("target", "target_node")):
            (pids[name],) = self.launched.children(module)
        return {name: (num_files(pid), rss_mb(pid)) for name, pid in pids.items()}

    def num_blocks_held(self) -> int:
        """Once nothing runs."""
        with Client(self.places.grpc) as client:

            def is_idle() -> bool:
                load = client.load()
                return load.num_running == load.num_waiting == 0

            assert eventually(is_idle, 20)
            time.sleep(0.3)  # a report that was made after the last request has ended
            load = client.load()
            return load.num_blocks - load.num_free_blocks


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with pytest.MonkeyPatch.context() as patch:
        faults.prepare(patch, tmp_path_factory.mktemp("first"), seconds=30)
        drafter = () if is_long() else ("speculation.drafter=ngram",)  # which starts at once
        launched = launch_async("1+1", *drafter)
        try:
            found = Attacked(launched)
            yield found
            found.watch.close()
        finally:
            end(launched)


PLAIN = [Seeded(one.prompt, one.options | {"mode": "off"}) for one in REQUESTS]  # gRPC alone


@pytest.fixture(scope="module")
def plain(attacked: Attacked) -> list[Answer]:
    """The same requests, for which nothing is drafted."""
    return plainly(GRPC, attacked.places, PLAIN)


def crowd_of(api: str, attacked: Attacked, plain: list[Answer]) -> Crowd:
    return Crowd(api, attacked.places, REQUESTS, plain, size=STREAMS)


def judge(found: Measured, crowd: Crowd) -> None:
    found.note(requests=len(crowd.answers))
    found.none(failed=crowd.failed, wrong=crowd.wrong)


@pytest.mark.parametrize("api", apis(HTTP))
def test_a_draft_killed_again_and_again_costs_no_request_and_leaks_nothing(
    attacked: Attacked, plain: list[Answer], api: str
):
    source, noticed_s, back_s = random.Random(1), [], []
    with measured(1, api) as found, measured(7, api) as leaks:
        with crowd_of(api, attacked, plain) as crowd:
            attacked.draft()
            before = pause(WINDOW_S)
            footprint = attacked.footprint()
            begin_s = time.monotonic()
            for _ in range(scaled(50)):
                attacked.draft()
                time.sleep(source.uniform(0, 0.2) + FLAP_S)  # some phase of a round
                seconds = attacked.strike(signal.SIGKILL)
                noticed_s.append(seconds[0])
                back_s.append(seconds[1])
            during = begin_s, time.monotonic()
            after = pause(WINDOW_S)
            grown = attacked.footprint()
        judge(found, crowd)
        judge(leaks, crowd)
        for name, window in (("before", before), ("during", during), ("after", after)):
            found.note(**{name: crowd.tokens_per_s(*window)})
        found.note(kills=len(noticed_s), detection_max_s=max(noticed_s))
        found.note(longest_gap_s=crowd.longest_gap_s())
        found.at_most(0.1, detection_s=quantile(noticed_s, 0.95 if is_long() else 0.5))
        found.at_most(10.0, recovery_s=quantile(back_s, 0.95))
        leaks.note(kills=len(noticed_s))
        for name, (files, megabytes) in footprint.items():
            leaks.at_most(0, is_time=False, **{f"{name}_files": grown[name][0] - files - 2})
            leaks.at_most(
                RSS_GROWTH_MB, is_time=False, **{f"{name}_mb": grown[name][1] - megabytes}
            )
        leaks.at_most(0, is_time=False, blocks_held=attacked.num_blocks_held())


@pytest.mark.parametrize("api", apis(HTTP))
@pytest.mark.parametrize(("row", "signum"), [(2, signal.SIGSTOP), (3, faults.BUSY)])
def test_a_draft_that_stands_still_or_spins_is_given_up_within_its_deadline(
    attacked: Attacked, plain: list[Answer], api: str, row: int, signum: int
):
    noticed_s, back_s = [], []
    with measured(row, api) as found:
        with crowd_of(api, attacked, plain) as crowd:
            attacked.draft()
            before = pause(WINDOW_S)
            begin_s = time.monotonic()
            for _ in range(scaled(20) if is_long() else 1):
                seconds = attacked.strike(signum)
                noticed_s.append(seconds[0])
                back_s.append(seconds[1])
            during = begin_s, time.monotonic()
            after = pause(WINDOW_S)
        judge(found, crowd)
        for name, window in (("before", before), ("during", during), ("after", after)):
            found.note(**{name: crowd.tokens_per_s(*window)})
        found.note(blows=len(noticed_s), longest_gap_s=crowd.longest_gap_s(begin_s))
        found.at_most(1.1 * DRAFT_TIMEOUT_S, detection_s=max(noticed_s))
        found.at_most(10.0, recovery_s=quantile(back_s, 0.95))


@pytest.mark.parametrize("api", apis(GRPC))
def test_a_slow_draft_is_kept_and_costs_little(attacked: Attacked, plain: list[Answer], api: str):
    """Plain decoding can be asked for over gRPC alone, so paces are compared there."""
    pid, paces = attacked.draft(), {"before": 0.0, "during": 0.0, "plain": 0.0}
    failed, wrong, num_requests, since_s = [], [], 0, time.monotonic()
    with measured(4, api) as found:
        for _ in range(3):  # by turns, for the machine has moods
            with crowd_of(api, attacked, plain) as crowd:
                before = pause(WINDOW_S / 2)
                os.kill(pid, faults.SLOW)
                slowly = pause(WINDOW_S)
                os.kill(pid, faults.SLOW)
            with Crowd(GRPC, attacked.places, PLAIN, plain, size=STREAMS) as alone:
                plainly_decoded = pause(WINDOW_S)
            paces["before"] += crowd.tokens_per_s(*before) / 3
            paces["during"] += crowd.tokens_per_s(*slowly) / 3
            paces["plain"] += alone.tokens_per_s(*plainly_decoded) / 3
            failed, wrong = failed + crowd.failed, wrong + crowd.wrong
            num_requests += len(crowd.answers)
        is_kept = attacked.watch.seconds_until(False, since_s, timeout_s=0) is None
        found.note(requests=num_requests, **paces)
        found.none(failed=failed, wrong=wrong)
        found.none(teardowns=[] if is_kept and attacked.draft() == pid else [pid])
        if api == GRPC:
            found.at_least(0.9, share_of_plain=paces["during"] / max(1.0, paces["plain"]))
