"""A child that keeps the supervisor's contract and does nothing else; its behaviour is scripted.

Its configuration is a script: a folder to leave traces in (NAME.pid, NAME.lives with a line for
every start, NAME.spoken once it has said why it ends, and NAME.heard: the line the API process got
on stdin, or the record a draft process got over its link from target 0, which sends "for draft
RANK" to each), and a behaviour by name ("api", "target0"): serve, refuse, crash_starting,
hang_starting, ignore_sigterm, linger (told to stop, it leaves NAME.leaving and ends when there is a
file "leave"), bereft and bereft_starting (it ends because of another, as it says: when there is a
file "bereave", or at once), of which bereft_draining says so when it is told to stop,
bereft_leaving then leaves NAME.leaving and waits for the file, and bereft_lingering does not end
after it; fail_lingering (when there is a file "fail" it says so, and does not end);
crash_starting_late; of a draft process also flap (dies soon after it is ready), refuse_again (every
start but the first) and stall (its heart stops beating, once).
"""

import json
import os
import select
import signal
import sys
import time
from pathlib import Path

from specserve.errors import Unsupported
from specserve.processes.process import (
    die_with_parent,
    parse_child_arguments,
    report_failure,
    report_ready,
)
from specserve.transport.link.ring import SharedRegion

PERIOD_S = 0.02


def main(role: str) -> int:
    arguments = parse_child_arguments()
    die_with_parent(arguments.parent_pid)
    script = json.loads(arguments.config.read_text())
    name = role if role == "api" else f"{role}{arguments.rank}"
    folder = Path(script["folder"])
    # At once: one that is killed meanwhile must leave no empty file, which is nobody's pid.
    unnamed = folder / f"{os.getpid()}.unnamed"
    unnamed.write_text(str(os.getpid()))
    unnamed.rename(folder / f"{name}.pid")
    behaviour = script["behaviours"].get(name, "serve")
    with (folder / f"{name}.lives").open("a") as lives:
        lives.write(f"{time.monotonic()}\n")
    is_first = (folder / f"{name}.lives").read_text().count("\n") == 1
    if (code := start_badly(behaviour, name, arguments.ready_fd, is_first=is_first)) is not None:
        return code
    stopping: list[int] = []

    def be_told(*_: object) -> None:
        (folder / f"{name}.told").write_text("now")
        if behaviour != "ignore_sigterm":
            stopping.append(1)

    signal.signal(signal.SIGTERM, be_told)
    links = [SharedRegion.attach(fd) for fd in arguments.link_fds]
    report_ready(arguments.ready_fd, address="127.0.0.1:1" if role == "api" else "")
    heard = folder / f"{name}.heard"
    if role == "draft":
        (link,) = links
        draft(heard, stopping, link, stalls=behaviour == "stall" and is_first, behaviour=behaviour)
    else:
        for rank, link in enumerate(links):
            link.to_draft.write([f"for draft {rank}".encode()])
        until = {"bereft": folder / "bereave", "fail": folder / "fail"}.get(behaviour.split("_")[0])
        serve(heard, stopping, listen=role == "api", until=until)
    if behaviour in ("linger", "bereft_leaving"):
        (folder / f"{name}.leaving").write_text("now")
        while not (folder / ("leave" if behaviour == "linger" else "bereave")).exists():
            time.sleep(PERIOD_S)
    is_bereft = behaviour.startswith("bereft")
    if behaviour in ("bereft_draining", "bereft_leaving") or (
        not stopping and (is_bereft or behaviour == "fail_lingering")
    ):
        text = f"{name} is alone" if is_bereft else f"{name} failed: out of memory"
        report_failure(arguments.ready_fd, text, is_consequence=is_bereft)
        (folder / f"{name}.spoken").write_text("now")
        time.sleep(60 if behaviour.endswith("lingering") else 0)
        return 1
    return 0


def start_badly(behaviour: str, name: str, ready_fd: int, *, is_first: bool) -> int | None:
    """The exit code of one that does not start; None for all others."""
    if behaviour == "refuse" or (behaviour == "refuse_again" and not is_first):
        report_failure(ready_fd, Unsupported(f"model.target: {name} refuses"))
        return 2
    if behaviour == "bereft_starting":
        report_failure(ready_fd, f"{name} is alone", is_consequence=True)
        return 1
    if behaviour == "crash_starting_late":
        time.sleep(0.5)
    if behaviour.startswith("crash_starting"):
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "hang_starting":
        time.sleep(60)
    return None


def draft(
    heard: Path, stopping: list[int], link: SharedRegion, *, stalls: bool, behaviour: str
) -> None:
    began_s = time.monotonic()
    link.draft_pid = os.getpid()
    while not stopping:
        lived_s = time.monotonic() - began_s
        if not (stalls and lived_s > 0.3):
            link.heartbeat_ns = time.monotonic_ns()
        if record := link.to_draft.read():
            heard.write_text(record.decode())
        if behaviour == "flap" and lived_s > 0.05:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PERIOD_S)
    link.draft_pid = 0


def serve(heard: Path, stopping: list[int], *, listen: bool, until: Path | None) -> None:
    told = False
    while not (told or stopping or (until is not None and until.exists())):
        told = listen and bool(select.select([sys.stdin], [], [], PERIOD_S)[0])
        time.sleep(0 if listen else PERIOD_S)
    if listen and select.select([sys.stdin], [], [], 0)[0]:
        heard.write_text(sys.stdin.readline())
