# pyright: strict
"""Processor time and waiting of processes, from the kernel's scheduler statistics. Linux only.

A shared machine makes wall times lie. The scheduler counts, in nanoseconds, how long a thread ran
and how long it was ready but had no core; the second says which measurements were disturbed.
"""

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

_ROLES = {"target_node": "target", "draft_node": "draft", "specserve.api": "api"}


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: `ran_s` on a core, all threads; `waited_s` the main thread, ready without one."""

    ran_s: float = 0.0
    waited_s: float = 0.0

    def since(self, earlier: "Usage") -> "Usage":
        return Usage(ran_s=self.ran_s - earlier.ran_s, waited_s=self.waited_s - earlier.waited_s)


def usage(pid: int | None = None) -> Usage:
    """Of a process since it started, this one by default; zeros if it is gone."""
    pid = os.getpid() if pid is None else pid
    folder = Path(f"/proc/{pid}/task")
    try:
        threads = os.listdir(folder)
    except OSError:  # it has ended, perhaps just now
        return Usage()
    ran_ns = sum(_schedstat(folder / thread / "schedstat")[0] for thread in threads)
    # Helper threads wait for the main one; only the main one's waiting is somebody else's fault.
    waited_ns = _schedstat(Path(f"/proc/{pid}/schedstat"))[1]
    return Usage(ran_s=ran_ns / 1e9, waited_s=waited_ns / 1e9)


def descendants(ancestor: int | None = None) -> set[int]:
    """A process, its children, theirs and so on; of this one by default."""
    parents, ancestor = _parents(), os.getpid() if ancestor is None else ancestor
    return {pid for pid in parents if _descends(pid, ancestor, parents)}


def children_of(parents: Collection[int], role: str) -> set[int]:
    """Children of `parents` in a role: target, draft or api."""
    return {pid for pid, parent in _parents().items() if parent in parents and _role(pid) == role}


class ServiceProcesses:
    """Target rank, draft process and API process among this process's descendants."""

    def __init__(self, pids: Collection[int] | None = None) -> None:
        """`pids`: those of one service among several; all descendants unless given."""
        own = descendants() if pids is None else pids
        self._pids = {role: pid for pid in own if (role := _role(pid)) is not None}

    def usage(self) -> dict[str, Usage]:
        """So far, by role: target and draft (one each), api, and this process as client."""
        return {role: usage(pid) for role, pid in self._pids.items()} | {"client": usage()}

    def environment(self, role: str, name: str) -> dict[str, str]:
        """The variable `name` as the process of `role` was started with it; empty if without."""
        try:
            content = Path(f"/proc/{self._pids[role]}/environ").read_bytes()
        except OSError:
            return {}
        pairs = (entry.partition("=") for entry in content.decode(errors="replace").split("\0"))
        return {key: value for key, _, value in pairs if key == name}


def _schedstat(path: Path) -> tuple[int, int]:
    """Nanoseconds run and waited."""
    try:
        ran, waited, _ = path.read_text(encoding="ascii").split()
    except (OSError, ValueError):  # the thread has ended, or the kernel does not count
        return 0, 0
    return int(ran), int(waited)


def _parents() -> dict[int, int]:
    """The parent of every process."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # The name, in parentheses, may hold anything; state and parent follow it.
        parents[int(folder.name)] = int(text.rpartition(")")[2].split()[1])
    return parents


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def _role(pid: int) -> str | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return next((_ROLES[word] for word in words if word in _ROLES), None)
