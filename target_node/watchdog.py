"""Ends the process when its loop stops turning: a hung rank must not look like a quiet one."""

import faulthandler
import logging
import os
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


def watch(progress: Callable[[], int], timeout_s: float) -> threading.Thread:
    """Start a daemon thread that exits the process with 1 if `progress()` stands still."""

    def run() -> None:
        last = progress()
        while True:
            wake.wait(timeout_s)
            now = progress()
            if now == last:
                log.critical(
                    "no round ended for %.0f s; stacks follow, then this rank exits", timeout_s
                )
                faulthandler.dump_traceback(all_threads=True)
                os._exit(1)
            last = now

    wake = threading.Event()
    thread = threading.Thread(target=run, name="watchdog", daemon=True)
    thread.start()
    return thread
