# pyright: strict
"""The client of a bench leaves the target's core alone. Linux only."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager


@contextmanager
def client_beside(cores: Sequence[int], *, is_pinned: bool) -> Generator[None]:
    """This process on all of `cores` but the first, the target's; anywhere unless `is_pinned`."""
    if is_pinned:
        _move_to(cores[1:] or cores)
    try:
        yield
    finally:
        _move_to(cores)  # services inherit what this process may use


def _move_to(cores: Sequence[int]) -> None:
    """All threads of this process: gRPC has some of its own."""
    for task in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(task), cores)
        except ProcessLookupError:  # the thread has ended
            continue
