# pyright: strict
"""Calls made in order by a thread of their own, and none after the first that failed.

For libraries whose errors spoil the thread that made the call. torch opens a group of NCCL calls
around every transfer and leaves it open if the transfer raises: whatever that thread asks of NCCL
from then on, of any communicator, is noted down and never begun. A node's own thread must not be
it: a draft that dies would stop the collectives of the target.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from specserve.group_link.lanes import FAILURES

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Call(Generic[_Result]):
    """One that is to be made."""

    function: Callable[[], _Result]
    _result: _Result | None = None
    _error: Exception | None = None

    def result(self) -> _Result | None:
        """What it returned; None: it has not yet. Raises what it, or one before it, has raised."""
        if self._error is not None:
            raise self._error
        return self._result


class CallThread(Generic[_Result]):
    """Whoever asks does not wait, and is never the thread that calls."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call[_Result] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def make(self, function: Callable[[], _Result]) -> Call[_Result]:
        """`function` must not return None. Of what it raises only `FAILURES` are caught."""
        call = Call(function)
        self._calls.put(call)
        return call

    def close(self) -> None:
        """Waits for the call that is being made, if any; those behind it are made, too."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        failure: Exception | None = None
        while (call := self._calls.get()) is not None:
            if failure is None:
                try:
                    call._result = call.function()  # pyright: ignore[reportPrivateUsage]
                except FAILURES as error:
                    failure = error
            call._error = failure  # pyright: ignore[reportPrivateUsage]
