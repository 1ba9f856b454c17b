"""Rounds that travel through a process group: gloo stands in for NCCL, all else is the same."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exactness.workload import Outcome, differing, run, seeded_requests, undrafted
from tests.run_first import run_first
from tests.service.chaos import launched_async
from tests.service.draft_watch import DraftWatch, draft_pids
from tests.service.launched import Launched

pytestmark = pytest.mark.slow

BACK_S = 20.0
REQUESTS = seeded_requests(30, seed=12)


@pytest.fixture(scope="module")
def plain(service: str) -> list[Outcome]:
    return run(service, undrafted(REQUESTS), concurrency=8)


PROCESSES = ("specserve", "specserve.processes.forkserver", "target_node", "draft_node")
GLOO_FOR_NCCL = """
from specserve.settings import resolve
from specserve.transport.group_link import ends
from tests.specserve.transport.group_link.gloo import GlooMeeting
resolve.resolve_link = lambda wish, device, *, shares_devices: wish
ends.Meeting = GlooMeeting
"""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Launched]:
    run_first(monkeypatch, tmp_path, PROCESSES, GLOO_FOR_NCCL)
    # Light enough to be in time beside a bare target even on a machine that does other things.
    with launched_async("speculation.link=nccl", "speculation.drafter=dspark") as made:
        yield made


def strike(launched: Launched, signum: int) -> None:
    (pid,) = draft_pids(launched.process.pid).values()
    os.kill(pid, signum)


def test_text_is_that_of_plain_decoding_whether_the_draft_lives_or_dies(
    launched: Launched, plain: list[Outcome]
):
    address = launched.address()
    watch = DraftWatch(address)
    num_hits, num_bytes = [], []
    try:
        for life in range(3):
            assert watch.wait_until_serving(BACK_S)
            found = run(address, REQUESTS, concurrency=8, shuffle_seed=life)
            assert differing(plain, found) == []
            stats = watch.statistics()
            num_hits.append(stats.num_hits)
            num_bytes.append(stats.bytes_received)
            strike(launched, signal.SIGKILL)
            found = run(address, REQUESTS[:8], concurrency=8)
            assert differing(plain[:8], found) == []
    finally:
        watch.close()
    assert 0 < num_bytes[0] < num_bytes[1] < num_bytes[2]
    assert 10 < num_hits[0] < num_hits[2]


def test_a_service_whose_draft_is_stopped_ends_as_it_should(launched: Launched):
    run(launched.address(), REQUESTS[:8], concurrency=8)
    strike(launched, signal.SIGSTOP)
    run(launched.address(), REQUESTS[:8], concurrency=8)
