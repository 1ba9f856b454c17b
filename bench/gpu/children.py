# pyright: strict
"""Commands with a time limit: their lines as they come, and none of their processes afterwards."""

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from bench.processes import descendants

_GRACE_S = 6.0  # to end by itself: services stop their processes, and keep what they have
_LOOK_EVERY_S = 0.05


def run(
    words: Sequence[str], hear: Callable[[str], None], ends_s: float, *, merged: bool = False
) -> int | None:
    """The exit code, or None where it was stopped at `ends_s` of the monotonic clock.

    `hear` is given every line of its stdout, and of its stderr if these are `merged`. Whatever ends
    this, no process of it is left.
    """
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else None,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        while (left_s := ends_s - time.monotonic()) > 0:
            try:
                line = lines.get(timeout=left_s)
            except queue.Empty:
                break
            if line is None:
                return process.wait()
            hear(line)
        return None
    finally:
        end(process)
        reader.join(_GRACE_S)
        while not lines.empty() and (line := lines.get()) is not None:
            hear(line)  # said while it ended


def _read(process: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str | None]") -> None:
    assert process.stdout is not None
    with process.stdout as stream:
        for line in stream:
            lines.put(line.rstrip("\n"))
    lines.put(None)


def end(process: "subprocess.Popen[str]") -> None:
    """Asked first, as by Ctrl-C; whoever is left of it then is killed, in whatever session."""
    if process.poll() is not None:
        return
    family = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    ends_s = time.monotonic() + _GRACE_S
    while process.poll() is None and time.monotonic() < ends_s:
        family |= descendants(process.pid)  # what is started meanwhile belongs to it, too
        time.sleep(_LOOK_EVERY_S)
    for pid in family:
        for each in descendants(pid) | {pid}:
            _kill(each)
    process.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended
        return
