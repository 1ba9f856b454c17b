"""Rank 0 tells the other target ranks what to compute next. They decide nothing themselves.

Orders travel over a gloo group of the host, beside the tensors' own group, as integers: a fixed
header (order, length) and a payload. A single rank has nobody to tell. A watchdog ends a rank whose
loop stops turning: one that hangs must not look like a quiet one.
"""

import enum
import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

KEEP_ALIVE_PERIOD_S = 5.0
_LOOKS = 20  # of the watchdog, in the time that a loop may stand still


class Order(enum.IntEnum):
    STOP = 0
    KEEP_ALIVE = 1  # idle: proves that every rank still answers
    FORWARD = 2  # payload: ForwardBatch.encode()


class Ranks:
    """The control group of T target ranks; `broadcast` on rank 0, `receive` on the others."""

    def __init__(self, size: int, *, hang_timeout_s: float = 120.0) -> None:
        """A rank that hears nothing for `hang_timeout_s` gives up."""
        self.size = size
        self._keep_alive_s = min(KEEP_ALIVE_PERIOD_S, hang_timeout_s / 4)
        self._next_keep_alive_s = 0.0
        self._header = torch.zeros(2, dtype=torch.int64)

    def broadcast(self, order: Order, payload: np.ndarray | None = None) -> None:
        if self.size == 1:
            return
        data = torch.from_numpy(payload) if payload is not None else torch.zeros(0).long()
        self._header[0], self._header[1] = int(order), data.numel()
        dist.broadcast(self._header, src=0)
        if data.numel():
            dist.broadcast(data, src=0)

    def keep_alive(self) -> None:
        """Called by an idle rank 0: now and then, let the others know and see that they answer."""
        now_s = time.monotonic()
        if now_s >= self._next_keep_alive_s:
            self._next_keep_alive_s = now_s + self._keep_alive_s
            self.broadcast(Order.KEEP_ALIVE)

    def receive(self) -> tuple[Order, np.ndarray]:
        dist.broadcast(self._header, src=0)
        order, length = self._header.tolist()
        data = torch.empty(length, dtype=torch.int64)
        if length:
            dist.broadcast(data, src=0)
        return Order(order), data.numpy()


log = logging.getLogger(__name__)


def watch(
    progress: Callable[[], int], timeout_s: float, tell: Callable[[str], None]
) -> threading.Thread:
    """Start a daemon thread that exits the process with 1 if `progress()` stands still.

    That is within a twentieth more than `timeout_s`. Before it exits it calls `tell` with what
    happened.
    """

    def run() -> None:
        last, num_still = progress(), 0
        while True:
            wake.wait(timeout_s / _LOOKS)
            now = progress()
            # Counted, not timed: where the whole process was stopped, the loop has to have its
            # chance first.
            num_still = 0 if now != last else num_still + 1
            last = now
            if num_still >= _LOOKS:
                problem = f"no round ended for {timeout_s:g} s (engine.hang_timeout_s)"
                log.critical("%s; stacks follow, then this rank exits", problem)
                faulthandler.dump_traceback(all_threads=True)
                tell(problem)
                os._exit(1)

    wake = threading.Event()
    thread = threading.Thread(target=run, name="watchdog", daemon=True)
    thread.start()
    return thread
