"""What a forkserver of stand-in nodes calls before it forks them; every call is a line of a file.

It fails, takes the ability to fork away, or makes births slow where a file of that name says so.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path


def preload() -> None:
    import stand_in  # noqa: F401 - what takes long for nodes that do something

    folder = Path(os.environ["STAND_IN_FOLDER"])
    with (folder / "preloads").open("a") as preloads:
        preloads.write(f"{time.monotonic()}\n")
    if (folder / "fail").exists():
        raise RuntimeError("no preload here")
    if (folder / "no_forks").exists():
        os.fork = refuse
    if (folder / "slow_births").exists():
        os.setsid = late(os.setsid)


def refuse() -> int:
    raise BlockingIOError("no more processes")


def late(function: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        time.sleep(0.2)
        function()

    return run
