# pyright: strict
"""How a response is made: events of a session to typed events, for a client or in the background.

A session's error refuses the request while nothing of it has begun, and ends the response with
`failed` from then on; either way there is one end.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from specserve.api.call import GenerateCall
from specserve.api.events import Finished, PromptInfo, TokenDelta
from specserve.api.http.answers import Json
from specserve.api.http.refusals import refusal_of
from specserve.api.http.responses.kept import Kept, WrittenEvent, written
from specserve.api.http.responses.series import Series
from specserve.api.http.responses.store import Store
from specserve.api.http.responses.to_call import as_sent
from specserve.api.service import Service
from specserve.api.tokenizer import TextTokenizer
from specserve.errors import Exhausted

log = logging.getLogger(__name__)


async def made(service: Service, call: GenerateCall, series: Series) -> AsyncGenerator[list[Json]]:
    """The events of a response, as many at a time as come at once.

    Raises the SpecserveError that it ends with, if it does: of a series that has events already it
    is for the caller to tell.
    """
    async with aclosing(service.session(call).stream()) as events:
        async for event in events:
            match event:
                case PromptInfo():
                    yield series.begin()
                case TokenDelta():
                    yield series.push(event)
                case Finished():
                    yield series.finish(event)


class Background:
    """Makes one response, whoever waits for it."""

    def __init__(
        self, service: Service, call: GenerateCall, series: Series, store: Store[Kept], tenant: str
    ) -> None:
        """`tenant`: whose it is, in `store`."""
        self._service, self._call, self._series = service, call, series
        self._tokenizer = service.tokenizer
        self._store, self._tenant = store, tenant
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    async def start(self, kept: Kept) -> None:
        """Return once the target has been asked, and go on. Raises what refuses the call.

        Who is cancelled meanwhile has begun nothing.
        """
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(kept, begun), name=kept.response_id)
        kept.stop = self.stop
        try:
            await begun
        except asyncio.CancelledError:
            self._cancel()
            raise

    async def stop(self) -> None:
        """Cancel the response, unless it has ended, and return once it is kept as it has ended."""
        self._cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _cancel(self) -> None:
        """Once, and not while its end is written: whoever follows it is to hear of that."""
        if self._task is not None and not self._is_stopped and not self._series.has_ended:
            self._is_stopped = True
            self._task.cancel()

    async def _run(self, kept: Kept, begun: asyncio.Future[None]) -> None:
        try:
            self._store.add(self._tenant, kept.response_id, kept)
            async with aclosing(made(self._service, self._call, self._series)) as batches:
                async for events in batches:
                    await self._note(kept, events)
                    if not begun.done():
                        begun.set_result(None)
        except asyncio.CancelledError:
            begun.cancel()
        except Exception as error:  # noqa: BLE001 - its end, whatever it is
            if not begun.done():
                begun.set_exception(error)
            elif not self._series.has_ended:
                await self._log(kept, self._series.fail(refusal_of(as_sent(error))))
        if begun.cancelled() or begun.exception() is not None:
            self._store.drop(self._tenant, kept.response_id)
            return
        if not self._series.has_ended:
            await self._log(kept, self._series.cancel())
        await keep_ended(self._store, self._tenant, kept, self._tokenizer)
        kept.stop = None  # and with it go the pieces that it was made of
        if kept.log is not None:
            kept.log.end()

    async def _note(self, kept: Kept, events: list[Json]) -> None:
        """Raises Exhausted where they are more than may be kept."""
        num_bytes = await self._log(kept, events)
        self._store.grow(self._tenant, kept.response_id, num_bytes)

    async def _log(self, kept: Kept, events: list[Json]) -> int:
        """How many bytes its readers can have more."""
        if kept.log is None:
            return 0
        found = await written_of(events, self._series, self._tokenizer)
        kept.log.add(found)
        return sum(len(event.content) for event in found)


async def written_of(
    events: list[Json], series: Series, tokenizer: TextTokenizer
) -> list[WrittenEvent]:
    """As JSON; elsewhere where that takes long, as of the last events of a long answer."""

    def work() -> list[WrittenEvent]:
        return [written(event) for event in events]

    is_long = series.has_ended and series.is_large
    return await tokenizer.off_loop(work) if is_long else work()


async def keep_ended(store: Store[Kept], tenant: str, kept: Kept, tokenizer: TextTokenizer) -> None:
    """Have what has ended asked for later, unless it is too large for that.

    It is in `store` already if it was made in the background.
    """
    num_bytes = await tokenizer.off_loop(kept.end) if kept.is_large else kept.end()
    try:
        if not kept.is_background:
            store.add(tenant, kept.response_id, kept)
        store.grow(tenant, kept.response_id, num_bytes)
    except Exhausted as error:
        store.drop(tenant, kept.response_id)
        log.warning("a response is not kept: %s", error)
    else:
        store.end(tenant, kept.response_id)
