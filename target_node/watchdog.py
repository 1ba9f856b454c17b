"""Ends the process when its loop stops turning: a hung rank must not look like a quiet one."""

import faulthandler
import logging
import os
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


def watch(
    progress: Callable[[], int], timeout_s: float, tell: Callable[[str], None]
) -> threading.Thread:
    """Start a daemon thread that exits the process with 1 if `progress()` stands still.

    Before that it calls `tell` with what happened.
    """

    def run() -> None:
        last = progress()
        while True:
            wake.wait(timeout_s)
            now = progress()
            if now == last:
                problem = f"no round ended for {timeout_s:g} s (engine.hang_timeout_s)"
                log.critical("%s; stacks follow, then this rank exits", problem)
                faulthandler.dump_traceback(all_threads=True)
                tell(problem)
                os._exit(1)
            last = now

    wake = threading.Event()
    thread = threading.Thread(target=run, name="watchdog", daemon=True)
    thread.start()
    return thread
