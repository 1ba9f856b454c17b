"""A child that keeps the supervisor's contract and does nothing else; its behaviour is scripted.

Its configuration is a script: a folder to leave traces in (NAME.pid, and api.heard with the line it
got on stdin), and a behaviour by name ("api", "target0"): serve, refuse, crash_starting,
hang_starting or ignore_sigterm.
"""

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from specserve.errors import Unsupported
from specserve.process import die_with_parent, parse_child_arguments, report_failure, report_ready


def main(role: str) -> int:
    arguments = parse_child_arguments()
    die_with_parent(arguments.parent_pid)
    script = json.loads(arguments.config.read_text())
    name = role if role == "api" else f"{role}{arguments.rank}"
    folder = Path(script["folder"])
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    behaviour = script["behaviours"].get(name, "serve")
    if behaviour == "refuse":
        report_failure(arguments.ready_fd, Unsupported(f"model.target: {name} refuses"))
        return 2
    if behaviour == "crash_starting":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "hang_starting":
        time.sleep(60)
    stopping: list[int] = []
    ignoring = behaviour == "ignore_sigterm"
    signal.signal(signal.SIGTERM, lambda *_: None if ignoring else stopping.append(1))
    report_ready(arguments.ready_fd, address="127.0.0.1:1" if role == "api" else "")
    serve(folder / f"{name}.heard", stopping, listen=role == "api")
    return 0


def serve(heard: Path, stopping: list[int], *, listen: bool) -> None:
    told = False
    while not (told or stopping):
        told = listen and bool(select.select([sys.stdin], [], [], 0.02)[0])
        time.sleep(0 if listen else 0.02)
    if listen and select.select([sys.stdin], [], [], 0)[0]:
        heard.write_text(sys.stdin.readline())
