"""Our own measurements are come to from their parts, where these are known."""

import pytest

from bench.simulate import own, own_sweep, own_sync
from bench.simulate.results import CLOSE_TO_OURS

PAPERS = own.SOURCES[:2]


@pytest.mark.parametrize("source", PAPERS, ids=("greedy", "drawn"))
def test_the_papers_setting_on_two_cores_is_within_the_goal(source):
    found = own.compare(source, 800)
    assert [each.arm for each in found] == ["off", "sync", "async", "async"]
    assert {each.role: each.off_by for each in found if abs(each.off_by) > CLOSE_TO_OURS} == {}


def test_asynchronous_arms_are_predicted_by_plain_and_synchronous_parts_alone():
    """Nothing that the asynchronous arm measured is read."""
    source = PAPERS[0]
    off, sync = (own.row_of(source, source.arms[mode]) for mode in ("off", "sync"))
    setting = own.setting_of(source, off, sync)
    assert setting.slower == 1
    assert setting.texts.prepared == 1


def test_synchronous_rounds_add_up():
    found = own_sync.compare(400)
    assert len(found) == 16
    assert {each.arm: each.off_by for each in found if abs(each.off_by) > CLOSE_TO_OURS} == {}


def test_a_report_without_such_an_arm_is_named():
    with pytest.raises(LookupError, match="configurations: no arm 'plain' of 3 requests"):
        own.compare(PAPERS[0]._replace(batch_size=3), 100)


def test_a_sweep_is_read_load_by_load_and_its_planned_arms_are_predicted():
    sweep = own_sweep.SWEEPS[0]
    found = own_sweep.compare(sweep, 400)
    assert {each.source for each in found} == {sweep.folder}
    sizes = {each.batch_size for each in found}
    assert sizes  # with whole blocks beside planned ones
    for size in sizes:
        roles = {each.arm: each.role for each in found if each.batch_size == size}
        assert roles == {
            "off": "given",
            "sync fixed": "given",
            "sync": "predicted",
            "async": "predicted",
            "auto": "predicted",
        }
    given = {each.arm: each.off_by for each in found if each.role == "given"}
    assert max(abs(off) for off in given.values()) <= CLOSE_TO_OURS
