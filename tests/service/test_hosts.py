"""One service over two machines: the text of one, and what a machine's end costs the other."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from specserve.client import Client
from tests.exactness.workload import differing, run, seeded_requests, undrafted, varied
from tests.service.chaos import end
from tests.service.draft_watch import DraftWatch
from tests.service.hosts import TwoHosts, two_hosts
from tests.service.launched import Launched
from tests.service.sockets import family_of, listeners
from tests.service.test_failures import Streams, assert_told

pytestmark = pytest.mark.slow

REQUESTS = varied(seeded_requests(40, seed=17))[:16]
TOLD_S = 10.0  # of a machine that is gone; on one with nothing else to do a tenth of a second


@pytest.fixture(scope="module", params=["namespaces", "loopback"])
def hosts(request) -> Iterator[TwoHosts]:
    """Namespaces where this may be; else loopback, so that there is a test either way."""
    with two_hosts() as made:
        if request.param == "namespaces" and made.obstacle:
            pytest.skip(made.obstacle)
        if request.param == "loopback" and not made.obstacle:
            pytest.skip("namespaces are there, which stand in for machines better")
        yield made


@pytest.fixture
def launch(hosts: TwoHosts) -> Iterator[Callable[..., tuple[Launched, Launched]]]:
    started: list[Launched] = []

    def start(*flags: str) -> tuple[Launched, Launched]:
        first, second = hosts.launch(*flags)
        started.extend((first, second))
        first.address()
        second.await_ready()
        return first, second

    yield start
    for launched in started:
        if launched.process.poll() is None:
            launched.process.kill()
        launched.process.wait()
        assert launched.process.stdout
        launched.process.stdout.close()


def test_two_machines_say_what_one_says_and_end_together(hosts, launch, service: str):
    plain = run(service, undrafted(REQUESTS), concurrency=8)
    spread = ("--topology", "2+1", "--spread", "1+0,1+1", "--speculation", "async")
    first, second = launch(*spread)
    for rank, name in (("target.0", "node 0"), ("target.1", "node 1"), ("draft.0", "node 1")):
        assert f"place.{rank}" in first.output
        (line,) = [line for line in first.lines if line.startswith(f"place.{rank} ")]
        assert name in line
    # While they met it was said who is waited for.
    assert "node 1 (" in first.output.partition("has come")[0]
    assert "waiting for node 1 at " in first.output
    assert "meeting the other nodes at " in second.output
    watch = DraftWatch(first.address())
    assert watch.wait_until_serving()
    assert differing(plain, run(first.address(), REQUESTS, concurrency=8)) == []
    stats = watch.statistics()
    watch.close()
    assert (stats.num_drafts_attached, stats.speculation_regime) == (1, "async")
    assert min(stats.bytes_sent, stats.bytes_received) > 0
    # What is not for clients is on the one address that was asked for, or on loopback.
    found = {each for each in listeners(family_of(first.process.pid)) if not each.is_loopback}
    assert {each.address for each in found} <= {hosts.address}
    assert bool(found) is bool(hosts.cable)
    streams = Streams(first)
    killed_s = time.monotonic()
    second.process.kill()
    assert_told(streams, "node 1 (")
    told_s = max(each.ended_s for answers in streams.ends().values() for each in answers)
    assert told_s - killed_s < TOLD_S
    assert first.exit_code() == 1
    line = first.output.splitlines()[-1]
    assert line.startswith("specserve: node 1 (")
    assert "is gone: its launch or the connection to it has ended" in line
    assert "Traceback" not in first.output + second.output


def test_a_machine_of_drafts_costs_no_text_and_may_come_back(hosts, launch):
    flags = ("--topology", "1+1", "--speculation", "async", "--node-timeout-s", "2")
    first, second = launch(*flags)
    watch = DraftWatch(first.address())
    assert watch.wait_until_serving()
    with Client(first.address()) as client:

        def text() -> str:
            return client.generate("import", max_tokens=60, temperature=0, ignore_eos=True).text

        drafted = text()
        since_s = time.monotonic()
        if hosts.cable:
            hosts.plug("down")
            assert second.exit_code() == 1  # it cannot know that the others go on
            assert "node 0 (" in second.output.splitlines()[-1]
            assert "has been silent for 2 s" in second.output.splitlines()[-1]
        else:
            os.kill(second.process.pid, signal.SIGKILL)
        assert watch.seconds_until(False, since_s) is not None
        assert text() == drafted
        if hosts.cable:
            hosts.plug("up")
        again_s = time.monotonic()  # a busy machine may have lost and found it before
        again = hosts.launch_second()
        try:
            assert watch.seconds_until(True, again_s) is not None
            assert text() == drafted
        finally:
            watch.close()
            end(again)
        assert again.process.returncode == 0
        assert text() == drafted
    first.process.send_signal(signal.SIGTERM)
    assert first.exit_code() == 0, first.output
    assert "decoding goes on without it" in first.output
    assert "Traceback" not in first.output + second.output + again.output
