# pyright: strict
"""The events of several calls of one request as one stream, in the order in which they come.

Where one fails, all are ended: the client gets one answer, or one error. `scored` has them of
prompts alone: a target says nothing of a prompt without decoding one token behind it.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from specserve.api.call import GenerateCall
from specserve.api.events import Event, Finished, TokenDelta
from specserve.api.service import Service
from specserve.types import FinishReason

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


async def scored(
    events: AsyncGenerator[tuple[int, Event]],
) -> AsyncGenerator[tuple[int, Event]]:
    """`events` without the tokens of any sample; each ends for its length, which is nothing."""
    async with aclosing(events):
        async for call, event in events:
            if isinstance(event, Finished):
                yield call, _of_prompt(event)
            elif not isinstance(event, TokenDelta):
                yield call, event


def _of_prompt(finished: Finished) -> Finished:
    replace = msgspec.structs.replace
    ends = [
        replace(end, finish_reason=FinishReason.LENGTH, stop_string=None, stop_token_id=None)
        for end in finished.samples
    ]
    usage = replace(finished.usage, num_generated_tokens=0)
    return replace(finished, samples=ends, usage=usage, spec=None)
