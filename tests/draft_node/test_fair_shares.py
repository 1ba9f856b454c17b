"""Whose turn it is: by hand, with work of known length."""

import itertools
from collections.abc import Callable

import pytest

from draft_node.fair_shares import FairShares


class Device:
    """Serves pieces of work in fair shares; the clock is a sum."""

    def __init__(self, number: int) -> None:
        self.shares = FairShares(number)
        self.now_s = 0.0
        self.taken_s = [0.0] * number
        self.served: list[int] = []

    def turn(self, work_of: Callable[[int], float]) -> bool:
        """`work_of` says how long a user's next piece takes; 0: it has none."""
        for user in self.shares.order():
            if seconds := work_of(user):
                self.shares.serve(user, seconds)
                self.taken_s[user] += seconds
                self.now_s += seconds
                self.served.append(user)
                return True
            self.shares.rest(user)
        return False

    def run(self, until_s: float, work_of: Callable[[int], float]) -> None:
        while self.now_s < until_s:
            assert self.turn(work_of)


@pytest.mark.parametrize("lengths", [(1.0, 1.0), (1.0, 7.0), (0.5, 2.0, 3.0)])
def test_those_who_always_have_work_get_the_same_time(lengths: tuple[float, ...]):
    device = Device(len(lengths))
    device.run(300.0, lambda user: lengths[user])
    assert max(device.taken_s) - min(device.taken_s) <= max(lengths)


def test_one_with_short_work_waits_for_one_long_piece_at_most():
    device = Device(2)
    device.run(100.0, lambda user: (10.0, 0.1)[user])
    waits = [len(list(group)) for user, group in itertools.groupby(device.served) if user == 0]
    assert max(waits) == 1


def test_time_that_nobody_wanted_is_not_owed():
    device = Device(2)
    device.run(50.0, lambda user: (1.0, 0.0)[user])  # the other has nothing to do
    device.taken_s = [0.0, 0.0]
    device.run(device.now_s + 20.0, lambda user: 1.0)
    # A piece that was under way, and one at the end.
    assert abs(device.taken_s[0] - device.taken_s[1]) <= 2.0


def test_what_one_leaves_is_the_others():
    device = Device(3)
    due_s = [0.0]

    def seldom(user: int) -> float:
        if user < 2:
            return 1.0
        if device.now_s < due_s[0]:
            return 0.0
        due_s[0] = device.now_s + 9.0  # a piece of one second, and again nine later
        return 1.0

    device.run(300.0, seldom)
    assert device.taken_s[2] == pytest.approx(30.0, abs=6.0)
    assert abs(device.taken_s[0] - device.taken_s[1]) <= 1.0


def test_who_takes_time_by_what_it_sends_gets_less_work_done():
    device = Device(2)
    for _ in range(200):
        device.shares.charge(0, 1.0)
        device.turn(lambda user: 1.0)
    assert device.taken_s[0] == pytest.approx(0.0, abs=1.0)


def test_hours_in_which_one_said_more_than_another_are_not_owed():
    device = Device(2)
    for _ in range(1000):
        device.shares.charge(0, 1.0)  # heard, and neither had anything to do
        assert not device.turn(lambda user: 0.0)
    device.run(20.0, lambda user: 1.0)
    assert abs(device.taken_s[0] - device.taken_s[1]) <= 1.0


def test_nobody_has_work():
    device = Device(2)
    assert not device.turn(lambda user: 0.0)
