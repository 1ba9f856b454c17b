# pyright: strict
"""What is kept for a while, of many tenants, within a number, a sum of bytes and a time.

Where there is no more room, what ended first goes first, of the tenant that has most: one who keeps
much makes room for others, and never others for him. What still runs stays until it has ended.
Knows values by tenant and name, and nothing of what they are.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from specserve.errors import Exhausted
from specserve.settings.config import ServerConfig
from specserve.settings.sizes import parse_bytes

Value = TypeVar("Value")

_NUMBER, _BYTES = "server.max_stored_responses", "server.stored_responses_memory"


def not_kept(name: str) -> str:
    """What is wrong with the name of a response that `Store.find` does not find."""
    return (
        f"{name[:64]!r} is not kept here: another key's, deleted, made with store: false, or gone "
        "for its age (server.stored_responses_ttl_s) or for want of room "
        f"({_NUMBER}, {_BYTES})"
    )


class Bounds(NamedTuple):
    """Of all that is kept. Seconds count from its end."""

    max_values: int
    max_bytes: int
    ttl_s: float


def bounds_of(server: ServerConfig) -> Bounds:
    """As they are set. Raises InvalidField for what is no size."""
    return Bounds(
        server.max_stored_responses,
        parse_bytes(server.stored_responses_memory, _BYTES),
        server.stored_responses_ttl_s,
    )


class _Entry(Generic[Value]):
    """One value, in the order in which they have ended; None: not yet."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.num_bytes = 0
        self.ended_s: float | None = None


class _Shelf(Generic[Value]):
    """What one tenant has: what runs, and what has ended, oldest first."""

    def __init__(self) -> None:
        self.running: dict[str, _Entry[Value]] = {}
        self.ended: dict[str, _Entry[Value]] = {}
        self.num_bytes = 0

    def find(self, name: str) -> _Entry[Value] | None:
        return self.running.get(name) or self.ended.get(name)

    @property
    def num_values(self) -> int:
        return len(self.running) + len(self.ended)

    @property
    def oldest_s(self) -> float | None:
        """When what has ended first has; None: nothing has."""
        return next((entry.ended_s for entry in self.ended.values()), None)


class Store(Generic[Value]):
    """Use inside a running loop."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds, self._clock = bounds, clock
        self._shelves: dict[str, _Shelf[Value]] = {}
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_values(self) -> int:
        return sum(shelf.num_values for shelf in self._shelves.values())

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def add(self, tenant: str, name: str, value: Value) -> None:
        """A value that runs. Raises Exhausted if nothing may make room for it."""
        while self.num_values >= self._bounds.max_values:
            self._make_room(tenant, lambda each: each.num_values, _NUMBER)
        self._shelves.setdefault(tenant, _Shelf[Value]()).running[name] = _Entry(value)

    def grow(self, tenant: str, name: str, num_bytes: int) -> None:
        """One of the tenant's values has become larger. Raises Exhausted if it may not."""
        shelf = self._shelves.get(tenant)
        if shelf is None or (entry := shelf.find(name)) is None:
            return
        entry.num_bytes += num_bytes
        shelf.num_bytes += num_bytes
        self._num_bytes += num_bytes
        if entry.num_bytes > self._bounds.max_bytes:
            problem = f"{entry.num_bytes} bytes are more than all that is kept"
            raise Exhausted(f"{_BYTES}: {problem}; ask for less, or send store: false")
        while self._num_bytes > self._bounds.max_bytes:
            self._make_room(tenant, lambda each: each.num_bytes, _BYTES)

    def end(self, tenant: str, name: str) -> None:
        """It runs no longer: from now on its time passes."""
        shelf = self._shelves.get(tenant)
        if shelf is None or (entry := shelf.running.pop(name, None)) is None:
            return
        entry.ended_s = self._clock()
        shelf.ended[name] = entry
        self._await_expiry()

    def find(self, tenant: str, name: str) -> Value | None:
        """None: there is none, whoever else may have one of that name."""
        self.expire()
        shelf = self._shelves.get(tenant)
        entry = None if shelf is None else shelf.find(name)
        return None if entry is None else entry.value

    def drop(self, tenant: str, name: str) -> None:
        """Keep it no longer, whether it runs or not."""
        shelf = self._shelves.get(tenant)
        if shelf is None:
            return
        entry = shelf.running.pop(name, None) or shelf.ended.pop(name, None)
        if entry is not None:
            shelf.num_bytes -= entry.num_bytes
            self._num_bytes -= entry.num_bytes
        if not shelf.num_values:
            del self._shelves[tenant]  # keys come and go

    def expire(self) -> None:
        """Drop what has had its time."""
        oldest_s = self._clock() - self._bounds.ttl_s
        for tenant, shelf in list(self._shelves.items()):
            while (ended_s := shelf.oldest_s) is not None and ended_s <= oldest_s:
                self.drop(tenant, next(iter(shelf.ended)))

    def _make_room(self, tenant: str, size: Callable[[_Shelf[Value]], int], setting: str) -> None:
        """Drop one value, of whoever has most of those that have as much as `tenant`.

        Raises Exhausted if all of theirs run.
        """
        by_size = sorted(self._shelves.items(), key=lambda each: size(each[1]), reverse=True)
        for other, shelf in by_size:
            if shelf.ended:
                self.drop(other, next(iter(shelf.ended)))
                return
            if other == tenant:
                break
        problem = "responses that still run fill what is kept; cancel some, or wait for their end"
        raise Exhausted(f"{setting}: {problem}")

    def _await_expiry(self) -> None:
        """Nobody may ask again, and yet what has had its time is to go."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._bounds.ttl_s, self._expire_later)

    def _expire_later(self) -> None:
        self._timer = None
        self.expire()
        found = (shelf.oldest_s for shelf in self._shelves.values())
        if ended := [ended_s for ended_s in found if ended_s is not None]:
            left_s = max(min(ended) + self._bounds.ttl_s - self._clock(), 0.001)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._expire_later)
