"""One event loop for all clients of a test run, in a thread of its own.

gRPC's library shares its queue of events among all loops of a process, and one that has been closed
disturbs the others: so none is.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

_ResultT = TypeVar("_ResultT")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="clients", daemon=True).start()
    return loop


def begin(work: Coroutine[Any, Any, _ResultT]) -> "Future[_ResultT]":
    """Do it meanwhile; its `result` waits, and raises what it raised."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


def run(work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
    """What it returns."""
    return begin(work).result()
