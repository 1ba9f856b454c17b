"""Draft nodes that two services share, as users start them: equal texts, deaths of either side."""

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.exactness.workload import Outcome, differing, run, seeded_requests, undrafted, varied
from tests.service.draft_watch import DraftWatch, draft_pids, eventually
from tests.service.launched import Launched

pytestmark = pytest.mark.slow

REQUESTS = varied(seeded_requests(40, seed=23))[:12]
COMMON = ("--oversubscribe", "--set", "model.max_model_len=512")
BACK_S = 60.0  # for a process to start on a machine with much to do


def draft_node(*places: str, flags: Sequence[str] = ()) -> Launched:
    command = ("draft", "--attach-to", ",".join(places))
    return Launched(*COMMON, *flags, command=command)


class Pair:
    """Two services with room for one draft node each, and that node."""

    def __init__(self) -> None:
        self.places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.services = [self.serve(place) for place in self.places]
        self.node = draft_node(*self.places)
        self.watches = [DraftWatch(each.address()) for each in self.services]

    def serve(self, place: str) -> Launched:
        mode = ("--topology", "1+1", "--speculation", "async", "--draft-address", place)
        return Launched(*COMMON, *mode)

    def run_both(self) -> list[list[Outcome]]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(self._run, self.services))

    @staticmethod
    def _run(service: Launched) -> list[Outcome]:
        return run(service.address(), REQUESTS, concurrency=4)

    def draft_pid(self) -> int:
        return draft_pids(self.node.process.pid)[0]

    def close(self) -> None:
        for watch in self.watches:
            watch.close()
        for each in (self.node, *self.services):
            kill(each)


def kill(launched: Launched) -> None:
    launched.process.kill()
    launched.exit_code()
    assert launched.process.stdout
    launched.process.stdout.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def accepted(watch: DraftWatch) -> int:
    return watch.statistics().num_accepted_tokens


def test_two_services_share_a_draft_that_dies_and_comes_back(pair: Pair, service: str):
    plain = run(service, undrafted(REQUESTS), concurrency=8)
    for watch in pair.watches:
        assert watch.wait_until_serving()
    assert [differing(plain, found) for found in pair.run_both()] == [[], []]
    assert min(accepted(watch) for watch in pair.watches) > 0
    other = draft_node(*pair.places, flags=["--drafter", "ngram"])
    assert other.exit_code() == 2
    assert "speculation.drafter: ngram on the draft node" in other.lines[-1]
    kill(other)
    os.kill(pair.draft_pid(), signal.SIGKILL)
    assert [differing(plain, found) for found in pair.run_both()] == [[], []]
    for watch in pair.watches:  # its supervisor has started it again
        assert eventually(lambda watch=watch: watch.statistics().num_drafts_attached == 1, BACK_S)
    before = [accepted(watch) for watch in pair.watches]
    assert [differing(plain, found) for found in pair.run_both()] == [[], []]
    assert all(now > then for now, then in zip(map(accepted, pair.watches), before, strict=True))


def test_a_service_that_dies_disturbs_no_other_and_comes_back(pair: Pair, service: str):
    plain = run(service, undrafted(REQUESTS), concurrency=8)
    for watch in pair.watches:
        assert watch.wait_until_serving()
    first, second = pair.services
    pid = pair.draft_pid()
    kill(first)
    before = accepted(pair.watches[1])
    assert differing(plain, pair._run(second)) == []
    assert accepted(pair.watches[1]) > before
    pair.watches[0].close()
    pair.services[0] = pair.serve(pair.places[0])
    pair.watches[0] = DraftWatch(pair.services[0].address())
    assert pair.watches[0].wait_until_serving(BACK_S)
    assert [differing(plain, found) for found in pair.run_both()] == [[], []]
    assert accepted(pair.watches[0]) > 0
    assert pair.draft_pid() == pid  # the same all along
    pair.node.process.send_signal(signal.SIGTERM)
    assert pair.node.exit_code() == 0
