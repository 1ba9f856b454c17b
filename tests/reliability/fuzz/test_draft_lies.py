"""Rows 5 and 6: what a draft must not send is dropped and counted, and changes no text.

Every kind by itself, over a ring and into that of a running service. Damaged frames of both
directions at once, and drafts that die meanwhile: `tests/service/chaos.py`.
"""

import os
import random
import time

import pytest

from specserve.client import Client
from specserve.transport.link.ring import RingDraftEnd, RingTargetEnd, SharedRegion
from tests.reliability.figures import keep
from tests.reliability.fuzz.__main__ import traceback_in
from tests.reliability.fuzz.bystander import Bystander, plainly, requests_of
from tests.reliability.fuzz.campaign import Attacked
from tests.reliability.fuzz.draft_lies import GARBAGE, OUT_OF_TIME, sound_frame, sound_push
from tests.reliability.fuzz.vitals import vitals
from tests.reliability.scale import scaled
from tests.service.draft_watch import draft_pids, open_link
from tests.specserve.transport.link.messages import LIMITS, same

_EACH = scaled(500)
_AT_ONCE = 25
_ROWS = {5: GARBAGE, 6: OUT_OF_TIME}


@pytest.fixture
def ends():
    fd = SharedRegion.create(64 * 1024)
    region, other = SharedRegion.attach(fd), SharedRegion.attach(fd)
    os.close(fd)
    target, draft = RingTargetEnd(region, LIMITS), RingDraftEnd(other, LIMITS)
    target.epoch = draft.epoch = 7
    yield target, draft, other.to_target
    del target, draft
    region.close()
    other.close()


@pytest.mark.parametrize(
    ("row", "kind"), [(row, kind) for row, kinds in _ROWS.items() for kind in kinds]
)
def test_a_lie_is_dropped_and_counted_and_the_next_reply_arrives(ends, row: int, kind: str):
    target, draft, ring = ends
    source = random.Random(kind)
    first, last = sound_push(source, LIMITS), sound_push(source, LIMITS)
    draft.send(first)
    assert same(target.receive()[0], first)
    for number in range(1, _EACH + 1):
        assert ring.write([_ROWS[row][kind](source, LIMITS, 7, number)])
        assert target.receive() == []
    counters = target.counters
    dropped = counters.num_malformed if row == 5 else counters.num_stale
    assert (dropped, counters.num_received) == (_EACH, _EACH + 1)
    draft.send(last)
    assert same(target.receive()[0], last)


@pytest.mark.slow
@pytest.mark.parametrize("row", _ROWS)
def test_lies_into_a_running_ring_change_no_answer(attacked: Attacked, row: int):
    source = random.Random(row)
    requests = requests_of(6, seed=row)
    plain = plainly(attacked.address, requests)
    (draft,) = draft_pids(attacked.launched.process.pid).values()
    region = open_link(draft)
    ring, num_sent = region.to_target, 0
    with Client(attacked.address) as client:
        epoch = _epoch(attacked)
        with Bystander(attacked.address, attacked.http_port, requests, plain) as bystander:
            while num_sent < _EACH * len(_ROWS[row]):
                kind = source.choice(list(_ROWS[row].values()))
                lies = [kind(source, LIMITS, epoch, 1) for _ in range(_AT_ONCE)]
                num_sent += sum(ring.write([lie]) for lie in lies)
                time.sleep(0.001)
        assert client.spec_stats().num_drafts_attached == 1
    del ring
    region.close()
    assert bystander.answers.num_requests > 0
    assert (bystander.answers.num_failed, bystander.answers.num_wrong) == (0, 0)
    assert vitals(attacked.launched.process.pid).names == attacked.at_start.names
    assert traceback_in(attacked.launched.output) == []
    for api in ("gRPC", "HTTP"):
        answers = bystander.answers
        keep(row, api, requests=answers.num_requests, failed=0, wrong=0, frames=num_sent)


def _epoch(attacked: Attacked) -> int:
    """Of the draft that is attached now, as the target has logged it."""
    said = [line for line in attacked.launched.lines if "draft 0 attached, epoch" in line]
    return int(said[-1].split()[-1])


def test_a_sound_reply_is_sound(ends):
    """What lies are made of would be taken."""
    target, _, ring = ends
    assert ring.write([sound_frame(random.Random(1), LIMITS, 7, 0)])
    assert len(target.receive()) == 1
