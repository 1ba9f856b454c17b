# pyright: strict
"""The events of several calls of one request as one stream, in the order in which they come.

Where one fails, all are ended: the client gets one answer, or one error.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from specserve.api.call import GenerateCall
from specserve.api.events import Event
from specserve.api.service import Service

_MOST_WAITING = 64  # events; a session that is not read keeps its own bounded buffer
_Item = tuple[int, Event | BaseException | None]  # None: this call has ended


async def merged(
    service: Service, calls: Sequence[GenerateCall]
) -> AsyncGenerator[tuple[int, Event]]:
    """Events with the number of their call. Raises what the first of them raised."""
    if len(calls) == 1:
        async with aclosing(service.session(calls[0]).stream()) as events:
            async for event in events:
                yield 0, event
        return
    queue: asyncio.Queue[_Item] = asyncio.Queue(_MOST_WAITING)
    tasks = [asyncio.create_task(_forward(service, n, call, queue)) for n, call in enumerate(calls)]
    try:
        num_open = len(tasks)
        while num_open:
            number, item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    service: Service, number: int, call: GenerateCall, queue: asyncio.Queue[_Item]
) -> None:
    try:
        async with aclosing(service.session(call).stream()) as events:
            async for event in events:
                await queue.put((number, event))
    except Exception as error:  # noqa: BLE001 - raised anew by whoever reads
        await queue.put((number, error))
    else:
        await queue.put((number, None))
