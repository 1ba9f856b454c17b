"""What callers without a place are told, by a clock of the test's own."""

from specserve.api.pace import Pace


def test_the_refused_are_told_one_after_the_other():
    pace = Pace(num_places=4)
    for now_s in (100.0, 102.0, 104.0, 106.0):  # a place every two seconds
        pace.freed(now_s)
    waits = [pace.wait_s(106.0) for _ in range(4)]
    assert waits == [2, 3, 5, 6]  # 1.5 s apart: four places in the six seconds that are known


def test_nobody_is_told_to_wait_for_longer_than_a_minute_or_for_less_than_a_second():
    pace = Pace(num_places=4)
    pace.freed(100.0)
    pace.freed(109.0)
    waits = [pace.wait_s(109.0) for _ in range(100)]
    assert waits[0] == 5
    assert set(waits[20:]) == {60}
    quick = Pace(num_places=4)
    for number in range(1000):
        quick.freed(100 + number / 100)
    assert quick.wait_s(110.0) == 1


def test_where_nothing_ends_the_wait_grows_with_the_time_that_it_takes():
    pace = Pace(num_places=2)
    assert pace.wait_s(100.0) == 1
    assert pace.wait_s(108.0) == 4  # who has a place has had it for eight seconds: two in eight
    assert pace.wait_s(108.0) == 8


def test_promises_of_long_ago_keep_nobody_waiting():
    pace = Pace(num_places=4)
    pace.freed(100.0)
    pace.freed(104.0)
    for _ in range(50):
        pace.wait_s(104.0)
    for now_s in (300.0, 301.0):
        pace.freed(now_s)
    assert pace.wait_s(301.0) == 1
