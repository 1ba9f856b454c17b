"""What is kept stays within a number, a sum of bytes and a time, and each tenant's is its own."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from specserve.api.http.responses.store import Bounds, Store
from specserve.errors import Exhausted


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """`test` in a loop of its own, as pytest calls it."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def store(max_values: int = 100, max_bytes: int = 1000, ttl_s: float = 60.0) -> Store[str]:
    return Store(Bounds(max_values, max_bytes, ttl_s), Clock())


async def put(kept: Store[str], tenant: str, name: str, num_bytes: int = 1) -> None:
    """One that has ended."""
    kept.add(tenant, name, f"{tenant} {name}")
    kept.grow(tenant, name, num_bytes)
    kept.end(tenant, name)


def names(kept: Store[str], tenant: str) -> list[str]:
    return [name for name in "abcdefgh" if kept.find(tenant, name)]


@in_a_loop
async def test_the_oldest_goes_first():
    kept = store(max_values=3)
    for name in "abcd":
        await put(kept, "alice", name)
    assert names(kept, "alice") == ["b", "c", "d"]
    assert (kept.num_values, kept.num_bytes) == (3, 3)


@in_a_loop
async def test_what_ended_first_is_the_oldest():
    kept = store(max_values=2)
    kept.add("alice", "a", "first")
    await put(kept, "alice", "b")
    kept.end("alice", "a")
    await put(kept, "alice", "c")
    assert names(kept, "alice") == ["a", "c"]


@in_a_loop
async def test_bytes_are_bounded_as_well():
    kept = store(max_bytes=10)
    for name in "abc":
        await put(kept, "alice", name, 4)
    assert names(kept, "alice") == ["b", "c"]
    assert kept.num_bytes == 8


@in_a_loop
async def test_what_is_larger_than_all_that_is_kept_drives_nothing_out():
    kept = store(max_bytes=10)
    await put(kept, "alice", "a", 8)
    kept.add("alice", "b", "large")
    with pytest.raises(Exhausted, match="11 bytes are more than all that is kept"):
        kept.grow("alice", "b", 11)
    kept.drop("alice", "b")
    assert names(kept, "alice") == ["a"]
    assert kept.num_bytes == 8


@in_a_loop
async def test_each_tenant_finds_its_own():
    kept = store()
    await put(kept, "alice", "a")
    await put(kept, "bob", "a")
    assert kept.find("alice", "a") == "alice a"
    assert kept.find("", "a") is None
    kept.drop("bob", "a")
    assert kept.find("alice", "a") == "alice a"
    assert kept.find("bob", "a") is None


@pytest.mark.parametrize("bounds", [{"max_values": 5}, {"max_bytes": 5}])
@in_a_loop
async def test_who_keeps_most_makes_room(bounds):
    kept = store(**bounds)
    await put(kept, "bob", "a")
    for name in "abcdefgh":
        await put(kept, "alice", name)
    assert names(kept, "bob") == ["a"]
    assert names(kept, "alice") == ["e", "f", "g", "h"]
    await put(kept, "bob", "b")
    assert names(kept, "bob") == ["a", "b"]
    assert names(kept, "alice") == ["f", "g", "h"]


@in_a_loop
async def test_what_runs_stays():
    kept = store(max_values=2, max_bytes=10)
    kept.add("alice", "a", "runs")
    kept.add("alice", "b", "runs")
    with pytest.raises(Exhausted, match="max_stored_responses"):
        kept.add("alice", "c", "one more")
    with pytest.raises(Exhausted, match="max_stored_responses"):
        kept.add("bob", "c", "one more")
    kept.grow("alice", "a", 6)
    with pytest.raises(Exhausted, match="stored_responses_memory"):
        kept.grow("alice", "b", 6)
    kept.end("alice", "a")
    kept.add("bob", "c", "one more")
    assert names(kept, "alice") == ["b"]
    assert kept.num_bytes == 6


@in_a_loop
async def test_who_has_most_never_drives_out_others():
    kept = store(max_bytes=10)
    await put(kept, "bob", "a", 3)
    kept.add("alice", "a", "runs")
    kept.grow("alice", "a", 7)
    with pytest.raises(Exhausted):
        kept.grow("alice", "a", 1)
    assert names(kept, "bob") == ["a"]


@in_a_loop
async def test_everything_has_its_time():
    kept = store(ttl_s=60)
    clock = kept._clock
    await put(kept, "alice", "a")
    kept.add("alice", "b", "runs")
    clock.now_s = 30
    await put(kept, "bob", "c")
    clock.now_s = 61
    assert names(kept, "alice") == ["b"]
    assert names(kept, "bob") == ["c"]
    kept.end("alice", "b")
    clock.now_s = 120
    assert names(kept, "alice") == ["b"]
    assert kept.num_values == 1
    clock.now_s = 122
    assert (names(kept, "alice"), kept.num_values, kept.num_bytes) == ([], 0, 0)


@in_a_loop
async def test_what_nobody_asks_for_goes_as_well():
    kept: Store[str] = Store(Bounds(10, 10, 0.05))
    await put(kept, "alice", "a")
    await asyncio.sleep(0.03)
    await put(kept, "alice", "b")
    for _ in range(200):
        if not kept.num_values:
            break
        await asyncio.sleep(0.01)
    assert (kept.num_values, kept.num_bytes) == (0, 0)


@in_a_loop
async def test_what_has_gone_may_grow_and_end_without_harm():
    kept = store()
    kept.add("alice", "a", "runs")
    kept.drop("alice", "a")
    kept.grow("alice", "a", 5)
    kept.end("alice", "a")
    kept.drop("alice", "a")
    assert (kept.num_values, kept.num_bytes) == (0, 0)
