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

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Call(Generic[_Result]):
    """One that is to be made."""

    function: Callable[[], _Result] | None  # None once it has been made
    returned: _Result | None = None
    # What it raised, in words: an error holds the frames that it went through, and with them all
    # that the call was made with, for as long as somebody holds the call.
    failure: str | None = None

    def result(self) -> _Result | None:
        """What it returned; None: it has not yet. RuntimeError if it, or one before, has failed."""
        if self.failure is not None:
            raise RuntimeError(self.failure)
        return self.returned


class CallThread(Generic[_Result]):
    """Whoever asks does not wait, and is never the thread that calls."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call[_Result] | None] = queue.SimpleQueue()
        self._is_over = threading.Event()  # nothing more is to be called
        self._is_idle = threading.Event()  # of no use before `end`
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def make(self, function: Callable[[], _Result]) -> Call[_Result]:
        """`function` must not return None."""
        call = Call(function)
        self._calls.put(call)
        return call

    def end(self, timeout_s: float) -> bool:
        """No call is begun any more; whether the one that is being made was over in time."""
        self._is_over.set()
        self._calls.put(None)
        return self._is_idle.wait(timeout_s)

    def join(self) -> None:
        """Waits for the thread, behind `end`."""
        self._thread.join()

    def _run(self) -> None:
        failure: str | None = None
        while (call := self._calls.get()) is not None and not self._is_over.is_set():
            if failure is None:
                failure = _make(call)
            call.failure = failure
        self._is_idle.set()


def _make(call: Call[_Result]) -> str | None:
    """In words what it raised, if it did: whatever that is, it has to be heard of."""
    function, call.function = call.function, None
    assert function is not None, "made once"
    try:
        call.returned = function()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return None
