"""When a draft process is started again and when its silence is a hang, by a clock of our own."""

import pytest

from specserve.processes.restart_back_off import (
    FIRST_HEARTBEAT_S,
    LEAVING_S,
    LONG_LIFE_S,
    LONGEST_PAUSE_S,
    RestartBackOff,
)


@pytest.fixture
def back_off() -> RestartBackOff:
    """A draft that was started at 100 s and is ready at 102 s; silent for a second is hung."""
    back_off = RestartBackOff(silence_limit_s=1.0)
    back_off.started(100.0)
    back_off.ready(102.0)
    return back_off


def pauses(back_off: RestartBackOff, num_deaths: int, life_s: float) -> list[float]:
    now_s, found = 200.0, []
    for _ in range(num_deaths):
        back_off.started(now_s)
        now_s += life_s
        found.append(back_off.died(now_s))
    return found


def test_pauses_double_up_to_the_longest_and_never_end(back_off):
    found = pauses(back_off, 2000, life_s=0.1)
    assert found[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0]
    assert set(found[6:]) == {LONGEST_PAUSE_S}
    assert back_off.num_deaths == 2000


@pytest.mark.parametrize("start_s", [4.5, 7.5, 20.0])
def test_where_starts_take_long_pauses_are_short(start_s):
    back_off = RestartBackOff(silence_limit_s=1.0)
    back_off.started(100.0)
    back_off.ready(100.0 + start_s)
    found = pauses(back_off, 10, life_s=0.1)
    assert found[0] == found[-1] == 0.25 if start_s > 7.75 else found[-1] == 8 - start_s


def test_after_a_silence_the_pause_is_so_much_shorter():
    back_off = RestartBackOff(silence_limit_s=1.0)
    back_off.started(100.0)
    back_off.ready(104.0)
    pauses(back_off, 10, life_s=0.1)
    for silent_s, pause_s in ((1.5, 8 - 1.5 - 4), (0.0, 8 - 4), (60.0, 0.25)):
        back_off.started(300.0)
        assert back_off.died(310.0, silent_s) == pause_s


def test_a_long_life_forgives_earlier_deaths(back_off):
    pauses(back_off, 5, life_s=LONG_LIFE_S - 1)
    assert pauses(back_off, 1, life_s=LONG_LIFE_S) == [0.25]
    assert back_off.num_deaths == 1


def is_hung(back_off: RestartBackOff, heartbeat_s: float, now_s: float) -> bool:
    """By the looks that the restart back-off itself asks for, up to `now_s`."""
    look_s = back_off.next_look_s(heartbeat_s, now_s)
    while look_s <= now_s:
        if back_off.is_hung(heartbeat_s, look_s):
            return True
        look_s = back_off.next_look_s(heartbeat_s, look_s)
    return False


def test_a_silent_draft_is_hung_soon_after_its_limit(back_off):
    assert not is_hung(back_off, heartbeat_s=110.0, now_s=111.0)
    assert is_hung(back_off, heartbeat_s=110.0, now_s=111.11)


def test_who_leaves_has_longer_to_end(back_off):
    assert not back_off.is_hung(110.0, 114.9, is_leaving=True)
    assert back_off.next_look_s(110.0, 114.9, is_leaving=True) == 110.0 + LEAVING_S
    assert not back_off.is_hung(110.0, 115.0, is_leaving=True)
    assert back_off.is_hung(110.0, 115.1, is_leaving=True)


def test_a_heartbeat_clears_the_suspicion(back_off):
    assert not back_off.is_hung(110.0, 111.05)
    assert not back_off.is_hung(111.1, 111.15)
    assert not back_off.is_hung(111.1, 112.15)


def test_a_machine_that_stood_still_does_not_cost_the_draft_its_life(back_off):
    assert not back_off.is_hung(110.0, 170.0)
    assert not back_off.is_hung(170.05, 170.1)


def test_a_draft_that_is_ready_has_longer_for_its_first_heartbeat(back_off):
    assert not is_hung(back_off, 0.0, 102.0 + FIRST_HEARTBEAT_S)
    assert is_hung(back_off, 0.0, 102.2 + FIRST_HEARTBEAT_S)


@pytest.mark.parametrize("heartbeat_s", [99.0, 1e12])
def test_heartbeats_of_another_life_and_of_the_future_are_none(back_off, heartbeat_s):
    assert not is_hung(back_off, heartbeat_s, 102.0 + FIRST_HEARTBEAT_S)
    assert is_hung(back_off, heartbeat_s, 102.2 + FIRST_HEARTBEAT_S)


def test_loading_is_limited_by_how_long_it_took_the_first_time(back_off):
    back_off.started(200.0)
    limit_s = 200.0 + FIRST_HEARTBEAT_S + 4 * 2.0
    assert back_off.next_look_s(0.0, limit_s - 0.1) == limit_s
    assert not is_hung(back_off, 0.0, limit_s)
    assert is_hung(back_off, 0.0, limit_s + 0.2)


def test_the_first_start_is_not_limited_here():
    back_off = RestartBackOff(silence_limit_s=1.0)
    back_off.started(100.0)
    assert not back_off.is_hung(0.0, 10_000.0)


def test_a_draft_that_hangs_just_behind_its_start_is_found_as_soon_as_any_other(back_off):
    """When it is ready nothing has been heard of it, and no event tells of its first heartbeat."""
    look_s, heartbeat_s = back_off.next_look_s(0.0, 102.0), 102.1
    while not back_off.is_hung(heartbeat_s, look_s):
        look_s = back_off.next_look_s(heartbeat_s, look_s)
    assert look_s <= 103.3
