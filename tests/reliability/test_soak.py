"""Random faults for a while: the tiny model for seconds, or the real one for half an hour.

Row 30 of tests/reliability/rows.py.
"""

import pytest

from tests.reliability.apis import GRPC, HTTP
from tests.reliability.measured import measured
from tests.reliability.scale import is_long
from tests.reliability.soak import Soak, soak

SECONDS = 1800.0 if is_long() else 5.0
MODEL = "smollm2" if is_long() else "tiny"


@pytest.mark.slow
def test_nothing_is_lost_or_leaked_in_a_time_of_random_faults():
    found = soak(MODEL, SECONDS, max_tokens=48 if is_long() else 24)
    for api in (GRPC, HTTP):
        with measured(30, api) as kept:
            kept.note(requests=found.requests[api], refused=found.refused[api], seconds=SECONDS)
            kept.note(availability=found.availability(api), faults=sum(found.faults.values()))
            kept.note(kinds=" ".join(f"{n} {kind}" for kind, n in sorted(found.faults.items())))
            kept.note(longest_gap_s=found.longest_gap_s[api], hits=found.num_hits)
            kept.none(failed=found.failed[api], wrong=found.wrong[api], dead=found.dead)
            kept.none(violations=found.violations())


def test_whatever_went_wrong_is_a_violation():
    kinds = {"requests": 10, "refused": 2}
    well = Soak(failed={GRPC: []}, wrong={GRPC: []}, exit_code=0, num_hits=1)
    for name, count in kinds.items():
        getattr(well, name)[GRPC] = count
    assert well.violations() == []
    assert well.availability(GRPC) == 0.8
    for changes in (
        {"failed": {GRPC: ["UNAVAILABLE: gone"]}},
        {"wrong": {GRPC: [3]}},
        {"dead": ["503 stalled"]},
        {"blocks_held": 1},
        {"grown_files": {"api": 5}},
        {"grown_mb": {"api": 65.0}},
        {"exit_code": 1},
        {"num_hits": 0},
        {"trouble": "AssertionError()"},
    ):
        bad = Soak(**{**vars(well), **changes})
        assert len(bad.violations()) == 1, changes
