"""Row 23: nothing sent to a port or socket ends a process, costs memory or changes a text."""

import pytest

from tests.exactness.workload import run
from tests.reliability.figures import keep
from tests.reliability.fuzz.__main__ import harm, traceback_in
from tests.reliability.fuzz.bystander import plainly, requests_of
from tests.reliability.fuzz.campaign import Attacked, attack
from tests.reliability.fuzz.control_frames import SEEDS
from tests.reliability.fuzz.vitals import vitals
from tests.reliability.scale import is_long
from tests.service.draft_watch import eventually

_NUM_FRAMES = 100_000 if is_long() else 200  # to each port
_NUM_LIES = 10_000 if is_long() else 100
# Of memory after the first tenth. A tenth of few frames warms nothing up: then only what is out of
# all proportion shows. Of many, what is above the bar and ends by itself is told as missed: see
# bench/results/reliability/fuzz.json.
_BAR, _MOST_GROWTH = (0.02, 0.2) if is_long() else (0.25, 0.25)


@pytest.mark.slow
def test_mutated_frames_on_every_port_hurt_nobody(attacked: Attacked):
    assert attacked.listening() == set(SEEDS), "a socket that is not fuzzed"
    verdict = attack(
        attacked,
        _NUM_FRAMES,
        num_requests=60 if is_long() else 10,
        num_before=2000 if is_long() else 0,
        seed=1,
    )
    assert harm(attacked, verdict) == []
    assert all(sent.num_frames == _NUM_FRAMES for sent in verdict.sent.values())
    assert verdict.answers.num_requests >= 10
    assert max(verdict.growth.values()) <= _MOST_GROWTH, verdict.growth
    grown = {name: value for name, value in verdict.growth.items() if value > _BAR}
    said = "; ".join(
        f"{name}: +{value:.1%}, the bar is {_BAR:.0%}" for name, value in grown.items()
    )
    assert eventually(attacked.is_idle, 30)
    for api in ("gRPC", "HTTP"):
        keep(
            23,
            api,
            requests=verdict.answers.num_requests,
            failed=verdict.answers.num_failed,
            wrong=verdict.answers.num_wrong,
            frames_each_port=_NUM_FRAMES,
            ports=len(verdict.sent),
            largest_growth_of_memory=max(verdict.growth.values()),
            **({"missed": said} if said else {}),
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_lies_that_are_soundly_sealed_end_no_process(attacked: Attacked, name: str):
    """Of whoever owns the folder, and so of nobody else: streams may fail, processes may not."""
    requests = requests_of(6, seed=2)
    plain = plainly(attacked.address, requests)
    port = attacked.control_port(name, seed=3)
    try:
        port.lie(_NUM_LIES)
    finally:
        port.close()
    assert eventually(attacked.is_idle, 30)
    assert vitals(attacked.launched.process.pid).names == attacked.at_start.names
    assert run(attacked.address, requests, concurrency=2) == plain
    assert traceback_in(attacked.launched.output) == []
