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
MOST_TURNS = 10
BACK_S = 60.0  # for a process to start on a machine with much to do


def draft_node(*places: str, flags: Sequence[str] = ()) -> Launched:
    command = ("draft", "--attach-to", ",".join(places))
    return Launched(*COMMON, *flags, command=command)


class Pair:
    """Two services with room for so many draft nodes each, and these."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self.places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.services = [self.serve(place) for place in self.places]
        self.nodes = [draft_node(*self.places) for _ in range(num_nodes)]
        self.watches = [DraftWatch(each.address()) for each in self.services]

    def serve(self, place: str) -> Launched:
        topology = f"1+{self._num_nodes}"
        mode = ("--topology", topology, "--speculation", "async", "--draft-address", place)
        return Launched(*COMMON, *mode)

    def have_attached(self, num_nodes: int) -> bool:
        """Whether both services come to have so many."""
        return all(
            eventually(lambda w=watch: w.statistics().num_drafts_attached == num_nodes, BACK_S)
            for watch in self.watches
        )

    def run_both(self) -> list[list[Outcome]]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(self._run, self.services))

    @staticmethod
    def _run(service: Launched) -> list[Outcome]:
        return run(service.address(), REQUESTS, concurrency=4)

    def draft_pid(self) -> int:
        """Of the last node."""
        return draft_pids(self.nodes[-1].process.pid)[0]

    def close(self) -> None:
        for watch in self.watches:
            watch.close()
        for each in (*self.nodes, *self.services):
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
    made = Pair(2)
    yield made
    made.close()


def accepted(watch: DraftWatch) -> int:
    return watch.statistics().num_accepted_tokens


def are_drafted_for(pair: Pair, plain: list[Outcome]) -> bool:
    """Whether both services have the texts of `plain`, and accept tokens of drafts meanwhile.

    On a busy machine most drafts are late: both are asked until some were not.
    """
    before = [accepted(watch) for watch in pair.watches]
    for _ in range(MOST_TURNS):
        if [differing(plain, found) for found in pair.run_both()] != [[], []]:
            return False
        if all(now > then for now, then in zip(map(accepted, pair.watches), before, strict=True)):
            return True
    return False


def test_two_services_share_two_draft_nodes_and_no_death_costs_text(pair: Pair, service: str):
    """One test, for both services and both nodes take half a minute to start."""
    plain = run(service, undrafted(REQUESTS), concurrency=8)
    assert pair.have_attached(2)
    assert are_drafted_for(pair, plain)
    a_stranger_is_refused_by_name(pair)
    a_draft_process_dies_and_comes_back(pair, plain)
    a_node_dies(pair, plain)
    a_service_dies_and_comes_back(pair, plain)
    (node,) = pair.nodes
    node.process.send_signal(signal.SIGTERM)
    assert node.exit_code() == 0


def a_stranger_is_refused_by_name(pair: Pair) -> None:
    other = draft_node(*pair.places, flags=["--drafter", "ngram"])
    assert other.exit_code() == 2
    assert "speculation.drafter: ngram on the draft node" in other.lines[-1]
    kill(other)


def a_draft_process_dies_and_comes_back(pair: Pair, plain: list[Outcome]) -> None:
    os.kill(pair.draft_pid(), signal.SIGKILL)
    assert [differing(plain, found) for found in pair.run_both()] == [[], []]
    assert pair.have_attached(2)  # its supervisor has started it again


def a_node_dies(pair: Pair, plain: list[Outcome]) -> None:
    kill(pair.nodes.pop(0))
    assert pair.have_attached(1)
    assert are_drafted_for(pair, plain)


def a_service_dies_and_comes_back(pair: Pair, plain: list[Outcome]) -> None:
    first, second = pair.services
    pid = pair.draft_pid()
    kill(first)
    assert differing(plain, pair._run(second)) == []
    pair.watches[0].close()
    pair.services[0] = pair.serve(pair.places[0])
    pair.watches[0] = DraftWatch(pair.services[0].address())
    assert pair.have_attached(1)
    assert are_drafted_for(pair, plain)
    assert pair.draft_pid() == pid  # the same all along
