# pyright: strict
"""Streams side by side, of which none outlives the others' failure."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def together(streams: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All results in order. The first failure is raised once every other stream has stopped.

    Without that they would go on beside whoever is measured next.
    """
    tasks = [asyncio.ensure_future(stream) for stream in streams]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
