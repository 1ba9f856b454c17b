"""`--speculation async` through real processes: the text of plain decoding, whatever drafts suffer.

The full figures are those of `python -m tests.service.chaos`; here is a short version of it.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from specserve.client import Client
from specserve.drafters.load import USUAL_HIDDEN_TOKENS
from specserve.types import TokenOrigin
from tests.conftest import left_behind
from tests.exactness.workload import Outcome, differing, run, seeded_requests, undrafted, varied
from tests.reliability.scale import is_long
from tests.service.blows import DRAFT_TIMEOUT_S
from tests.service.chaos import attack, end, launch_async
from tests.service.draft_watch import DraftWatch, draft_pids
from tests.service.launched import Launched

BACK_S = 10.0  # within which a draft has to be at work again
REQUESTS = varied(seeded_requests(60, seed=11))[: 60 if is_long() else 40]
SOME = REQUESTS if is_long() else REQUESTS[:24]  # of a service that is asked once
ATTACKS = [
    ("1+1", {"kills": 3, "stops": 1, "garbage": 300, "seed": 3}),
    ("1+2", {"kills": 1, "stops": 1, "garbage": 200, "seed": 4}),
]
if is_long():
    ATTACKS[0][1].update(kills=4, stops=2, garbage=500)
    ATTACKS[1][1].update(kills=2)
# Beside whose rounds there is time for drafts even on a machine that does other things.
SLOW_TARGET = "model.ballast=200M"


@pytest.fixture(scope="module", autouse=True)
def _no_litter(service: str) -> Iterator[None]:
    """Of the module, whose drafts come and go; a service that all modules share is there before."""
    with left_behind():
        yield


@contextmanager
def asynchronous(topology: str = "1+1", *settings: str) -> Iterator[Launched]:
    launched = launch_async(topology, *settings)
    try:
        launched.address()
        yield launched
    finally:
        end(launched)


@contextmanager
def watching(launched: Launched) -> Iterator[DraftWatch]:
    watch = DraftWatch(launched.address())
    try:
        assert watch.wait_until_serving()
        yield watch
    finally:
        watch.close()


@pytest.fixture(scope="module")
def plain(service: str) -> list[Outcome]:
    return run(service, undrafted(REQUESTS), concurrency=8)


@pytest.fixture(scope="module")
def pair() -> Iterator[Launched]:
    with asynchronous("1+1", SLOW_TARGET) as launched:
        yield launched


@pytest.fixture(scope="module")
def struck() -> Iterator[Launched]:
    """For tests after which the draft is another."""
    with asynchronous() as launched:
        yield launched


def assert_equal(launched: Launched, plain: list[Outcome], requests: list = REQUESTS) -> None:
    found = run(launched.address(), requests, concurrency=8, shuffle_seed=1)
    assert differing(plain[: len(requests)], found) == []


@pytest.mark.slow
def test_blocks_from_a_draft_process_are_longer_where_text_is_predictable(struck: Launched):
    """With misses skipped every block is pushed."""

    def num_far() -> int:
        accepted = watch.statistics().num_accepted_tokens_per_pos
        return sum(accepted[USUAL_HIDDEN_TOKENS - 1 :])

    with watching(struck) as watch:
        before = num_far()
        with Client(struck.address()) as client:
            client.generate("a a a a a a a a", max_tokens=300, temperature=0, ignore_eos=True)
        assert num_far() > before


@pytest.mark.slow
def test_seeded_requests_have_the_text_of_plain_decoding(pair: Launched, plain: list[Outcome]):
    assert_equal(pair, plain)
    with watching(pair) as watch:
        stats = watch.statistics()
    assert stats.num_hits > 20
    assert stats.num_accepted_tokens > 20
    assert (stats.speculation_regime, stats.num_drafts_attached) == ("async", 1)
    assert stats.bytes_sent > 0
    assert stats.bytes_received > 0


@pytest.mark.slow
def test_an_answer_says_what_was_drafted_elsewhere(pair: Launched):
    with watching(pair), Client(pair.address()) as client:
        answer = client.generate("def main(", temperature=0, max_tokens=60, ignore_eos=True)
    (sample,) = answer.samples
    assert sample.origins.count(TokenOrigin.DRAFTED) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "settings"),
    [
        ("1+1", ("speculation.miss_policy=draft_now",)),
        ("1+1", ("speculation.miss_policy=auto",)),
        ("1+1", ("speculation.miss_policy=ngram", "speculation.drafter=lm")),
        ("1+1", ("speculation.mode=auto", "speculation.miss_policy=auto")),
        ("1+2", ()),  # attacked below
        ("2+1", ()),  # in test_hosts.py on two of them
        ("4+1", ("model.ballast=30M",)),
    ],
)
def test_equal_in_every_topology(plain: list[Outcome], topology: str, settings: tuple[str, ...]):
    with asynchronous(topology, *settings) as launched:
        assert_equal(launched, plain, SOME)
        with watching(launched) as watch:
            stats = watch.statistics()
    assert stats.num_accepted_tokens > 20
    assert stats.num_drafts_attached == int(topology[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "schedule"), ATTACKS)
def test_equal_while_drafts_are_killed_stopped_and_lied_to(
    plain: list[Outcome], topology: str, schedule: dict[str, int]
):
    with asynchronous(topology, SLOW_TARGET, "speculation.drafter=dspark") as launched:
        total, damage = attack(launched, plain[: len(SOME)], SOME, **schedule)
    assert (total.num_failed, total.num_wrong) == (0, 0)
    assert total.num_hits > 20
    assert damage.is_complete(**schedule), damage
    assert (damage.num_unnoticed, damage.num_never_back) == (0, 0)
    assert len(damage.kills_logged_s) == len(damage.kills_noticed_s) > 0
    assert "dropped malformed link frame" in launched.output


# --- death and silence -----------------------------------------------------------------------


def strike(launched: Launched, signum: int) -> tuple[int, float]:
    """The draft process, and when it was struck."""
    (pid,) = draft_pids(launched.process.pid).values()
    since_s = time.monotonic()
    os.kill(pid, signum)
    return pid, since_s


@pytest.fixture
def finish(struck: Launched) -> Iterator[Callable[[], None]]:
    """An answer has begun, with drafts; the call waits for the rest of it, which has to come."""
    with watching(struck), Client(struck.address()) as client:
        stream = client.stream("import", max_tokens=200, ignore_eos=True, temperature=0)
        deltas = iter(stream)
        next(deltas)

        def finish() -> None:
            for _ in deltas:
                pass
            assert stream.finished is not None

        yield finish


@pytest.mark.slow
def test_a_killed_draft_is_noticed_at_once_and_soon_back(pair: Launched):
    noticed: list[float] = []
    with watching(pair) as watch:
        for _ in range(3):
            assert watch.wait_until_serving()
            _, since_s = strike(pair, signal.SIGKILL)
            seconds = watch.seconds_until(False, since_s)
            assert seconds is not None
            noticed.append(seconds)
            back_s = watch.seconds_until(True, since_s + seconds)
            assert back_s is not None
            assert seconds + back_s < BACK_S
    assert sorted(noticed)[1] < 0.1
    assert max(noticed) < 0.5


@pytest.mark.slow
def test_a_killed_draft_costs_a_running_request_nothing(struck: Launched, finish):
    strike(struck, signal.SIGKILL)
    finish()


@pytest.mark.slow
def test_a_hung_draft_is_noticed_within_its_deadline_and_soon_back(struck: Launched, finish):
    with watching(struck) as watch:
        pid, since_s = strike(struck, signal.SIGSTOP)
        seconds = watch.seconds_until(False, since_s)
        assert seconds is not None
        assert seconds < DRAFT_TIMEOUT_S + 0.3
        back_s = watch.seconds_until(True, since_s + seconds)
        assert back_s is not None
        assert back_s < BACK_S
    assert pid not in draft_pids(struck.process.pid).values()
    finish()


@pytest.mark.slow
def test_a_short_stop_is_not_noticed(pair: Launched):
    with watching(pair) as watch:
        pid, since_s = strike(pair, signal.SIGSTOP)
        time.sleep(0.4 * DRAFT_TIMEOUT_S)
        os.kill(pid, signal.SIGCONT)
        assert watch.seconds_until(False, since_s, timeout_s=2 * DRAFT_TIMEOUT_S) is None
        assert list(draft_pids(pair.process.pid).values()) == [pid]


@pytest.mark.slow
def test_a_draft_that_goes_on_just_after_its_deadline_is_back_at_work(struck: Launched):
    """The target has given it up, but nobody has killed it yet."""
    with watching(struck) as watch:
        pid, since_s = strike(struck, signal.SIGSTOP)
        seconds = watch.seconds_until(False, since_s)
        os.kill(pid, signal.SIGCONT)
        assert seconds is not None
        assert watch.seconds_until(True, since_s + seconds, timeout_s=BACK_S) is not None


@pytest.mark.slow
def test_a_service_whose_draft_hangs_ends_as_it_should():
    with asynchronous() as launched:
        with Client(launched.address()) as client:
            client.generate("x", max_tokens=4)
        strike(launched, signal.SIGSTOP)
        launched.process.send_signal(signal.SIGTERM)
        assert launched.exit_code(60) == 0, launched.output
