"""How requests come."""

import asyncio
import itertools
import statistics

import pytest

from bench.sweep.arrivals import BURSTY, KINDS, POISSON, arrival_times, in_closed_loop, in_open_loop


def gaps(kind: str, rate: float = 4.0) -> list[float]:
    times = arrival_times(kind, rate, 20_000, seed=1)
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize("kind", KINDS)
def test_arrivals_begin_at_0_rise_and_come_at_their_rate(kind):
    assert arrival_times(kind, 4.0, 5, seed=1)[0] == 0.0
    assert all(gap >= 0 for gap in gaps(kind))
    assert statistics.mean(gaps(kind)) == pytest.approx(0.25, rel=0.05)


@pytest.mark.parametrize(("kind", "variation"), [(POISSON, 1.0), (BURSTY, 2.0)])
def test_bursts_spread_twice_as_much(kind, variation):
    found = gaps(kind)
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(variation, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_arrivals_are_those_of_their_seed_and_a_larger_count_begins_with_the_smaller(kind):
    times = arrival_times(kind, 2.0, 10, seed=7)
    assert times == arrival_times(kind, 2.0, 10, seed=7)
    assert times != arrival_times(kind, 2.0, 10, seed=8)
    assert times[:4] == arrival_times(kind, 2.0, 4, seed=7)
    assert arrival_times(kind, 4.0, 10, seed=7) == pytest.approx([at / 2 for at in times])


class Asked:
    """Notes how many are in flight; answers take as many turns of the loop as their number says."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.seen: list[int] = []
        self.order: list[int] = []

    async def ask(self, number: int) -> int:
        self.order.append(number)
        self.in_flight += 1
        self.seen.append(self.in_flight)
        for _ in range(1 + 7 * number % 5):
            await asyncio.sleep(0)
        self.in_flight -= 1
        return 10 * number


def test_a_closed_loop_keeps_so_many_in_flight_and_gives_answers_in_order():
    asked = Asked()
    assert asyncio.run(in_closed_loop(9, 3, asked.ask)) == [10 * n for n in range(9)]
    assert asked.order == list(range(9))
    assert asked.seen == [1, 2, *[3] * 7]


def test_a_closed_loop_of_one_is_one_after_the_other():
    asked = Asked()
    asyncio.run(in_closed_loop(4, 1, asked.ask))
    assert asked.seen == [1] * 4


def test_an_open_loop_asks_at_the_times_whatever_is_in_flight():
    started: dict[int, float] = {}

    async def run() -> list[int]:
        loop = asyncio.get_running_loop()
        start_s = loop.time()

        async def ask(number: int) -> int:
            started[number] = loop.time() - start_s
            await asyncio.sleep(0.2)
            return number

        return await in_open_loop([0.0, 0.02, 0.05], ask)

    assert asyncio.run(run()) == [0, 1, 2]
    assert started[0] < started[1] < started[2] < 0.2  # none waited for another
    assert started[1] >= 0.02
    assert started[2] >= 0.05
