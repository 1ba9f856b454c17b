# pyright: strict
"""What the kernel says of a launch's processes: which there are, memory, open files."""

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Vitals:
    """Of one moment, by process."""

    names: dict[int, str]  # "target", "draft", "api", "forkserver" or "launcher", by pid
    rss_kb: dict[int, int]
    num_files: dict[int, int]


def vitals(launcher_pid: int) -> Vitals:
    """Of the launcher and everything below it that lives."""
    names = {launcher_pid: "launcher"} | {pid: _name(pid) for pid in _below(launcher_pid)}
    return Vitals(
        names=names,
        rss_kb={pid: _rss_kb(pid) for pid in names},
        num_files={pid: len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in names},
    )


def quiet_vitals(launcher_pid: int, most_files: dict[int, int], timeout_s: float = 10) -> Vitals:
    """As soon as nobody has more open files than `most_files`, or when the time has passed."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        now = vitals(launcher_pid)
        is_quiet = all(count <= most_files.get(pid, 0) for pid, count in now.num_files.items())
        if is_quiet or time.monotonic() > deadline_s:
            return now
        time.sleep(0.1)


def growth(first: Vitals, last: Vitals) -> dict[str, float]:
    """Of resident memory, by process, as a fraction of the first."""
    return {
        name: last.rss_kb[pid] / first.rss_kb[pid] - 1
        for pid, name in first.names.items()
        if pid in last.rss_kb
    }


def _below(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_below(int(child))]
    return found


def _name(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    known = {"target_node": "target", "draft_node": "draft", "specserve.api": "api"}
    return next((known[word] for word in words if word in known), "forkserver")


def _rss_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
