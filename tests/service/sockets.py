"""What the processes of a launch listen on, as the kernel tells it."""

import ipaddress
import os
import struct
from pathlib import Path
from typing import NamedTuple

_LISTENS = "0A"  # of TCP
_UNCONNECTED = "07"  # of UDP, which hears whoever sends


class Listener(NamedTuple):
    """An address and port that a process can be reached at."""

    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        address = ipaddress.ip_address(self.address)
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback


def family_of(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # ended meanwhile
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _inodes(pids: list[int]) -> set[str]:
    found = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                link = os.readlink(entry)
            except OSError:
                continue
            if link.startswith("socket:["):
                found.add(link[8:-1])
    return found


def listeners(pids: list[int]) -> set[Listener]:
    """Of TCP and UDP, in IPv4 and IPv6."""
    inodes, found = _inodes(pids), set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes and words[3] in (_LISTENS, _UNCONNECTED):
                found.add(_listener(words[1]))
    return found


def _listener(word: str) -> Listener:
    """The kernel writes 32 bits at a time, in the machine's own order."""
    address, _, port = word.partition(":")
    parts = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    packed = struct.pack(f"={len(parts)}I", *parts)
    return Listener(str(ipaddress.ip_address(packed)), int(port, 16))


def unix_paths(pids: list[int]) -> set[str]:
    """Names of the sockets in folders, and (with @) in no folder, that processes have bound."""
    inodes, found = _inodes(pids), set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split(maxsplit=7)
        if words[6] in inodes and len(words) == 8:
            found.add(words[7])
    return found
