# pyright: strict
"""Processor time of the service's processes, read from the kernel. Linux only, like the service."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ROLES = {"target_node": "target", "specserve.api": "api"}


class ServiceProcesses:
    """The target ranks and the API process among this process's descendants."""

    def __init__(self) -> None:
        parents = _parents()
        own = {pid for pid in parents if _descends(pid, os.getpid(), parents)}
        self._roles = {pid: role for pid in own if (role := _role(pid)) is not None}

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds so far by role, this process as `client`.

        The kernel counts the service's in ticks of 10 ms.
        """
        totals = {"client": sum(os.times()[:2])}
        for pid, role in self._roles.items():
            fields = _stat(pid)
            totals[role] = totals.get(role, 0.0) + sum(map(int, fields[11:13])) / _TICKS_PER_S
        return totals


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields:
            parents[int(folder.name)] = int(fields[1])
    return parents


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on (the second may hold spaces); empty if gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


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
