# pyright: strict
"""A response that can be asked for: while it is made in the background, and for a while afterwards.

What has ended is kept as the bytes that are shown, so that its size is known to the byte. The
events of one that was made in the background as a stream are kept, too, and read by whoever
connects again.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from specserve.api.http.answers import Json
from specserve.api.http.responses.items import Item, decoded_items, encoded_items
from specserve.api.http.responses.response import COMPLETED, INCOMPLETE
from specserve.api.http.responses.series import Series
from specserve.errors import InvalidField


class WrittenEvent(NamedTuple):
    """As it stands in a stream."""

    kind: str
    content: bytes


def written(event: Json) -> WrittenEvent:
    """As JSON."""
    return WrittenEvent(event["type"], msgspec.json.encode(event))


class EventLog:
    """The events of one response from its first, for any number of readers."""

    def __init__(self) -> None:
        self._events: list[WrittenEvent] = []
        self._has_ended = False
        self._changed = asyncio.Event()

    def add(self, events: Sequence[WrittenEvent]) -> None:
        self._events += events
        self._wake()

    def end(self) -> None:
        """No more come."""
        self._has_ended = True
        self._wake()

    async def follow(self, start: int) -> AsyncGenerator[WrittenEvent]:
        """From the `start`th event on, until the last has come. A slow reader holds nobody up."""
        place = start
        while True:
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self._has_ended:
                return
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Kept:
    """One response, and the conversation that it belongs to."""

    def __init__(self, series: Series, conversation: Sequence[Item], log: EventLog | None) -> None:
        """`conversation`: what it answers, without its instructions; `log`: None if it has none."""
        self.log = log
        # Ends what makes it, in the background, and waits until that has ended.
        self.stop: Callable[[], Awaitable[None]] | None = None
        self._series: Series | None = series
        self._num_asked = len(conversation)
        self._conversation: Sequence[Item] | bytes = conversation
        self._status, self._shown = "", b""  # once it has ended
        self.response_id = series.response.id
        self.is_background = series.response.background

    @property
    def status(self) -> str:
        """As the response has it."""
        series = self._series
        return self._status if series is None else series.response.status

    @property
    def is_large(self) -> bool:
        """Whether `shown` and `end` take milliseconds."""
        return self._series is not None and self._series.is_large

    def shown(self) -> bytes:
        """JSON of it, as far as it has come."""
        series = self._series  # which another thread may have come to the end of
        return self._shown if series is None else msgspec.json.encode(series.response)

    def asked(self) -> list[Item]:
        """What it answers, oldest first."""
        return self._items()[: self._num_asked]

    def end(self) -> int:
        """Nothing more comes; how many bytes it takes from now on."""
        assert self._series is not None
        response = self._series.response
        self._status = response.status
        self._shown = msgspec.json.encode(response)
        self._conversation = encoded_items([*self._items(), *response.output])
        self._series = None
        return len(self._shown) + len(self._conversation)

    def continued(self, field: str) -> list[Item]:
        """What comes before a next question. Raises InvalidField while there is no answer."""
        if self.status not in (COMPLETED, INCOMPLETE):
            problem = (
                f"is {self.status}; wait for its answer"
                if self._series is not None
                else f"has no answer, for it is {self.status}; name the response before it"
            )
            raise InvalidField(field, problem)
        return self._items()

    def _items(self) -> list[Item]:
        if isinstance(self._conversation, bytes):
            return decoded_items(self._conversation)
        return list(self._conversation)
