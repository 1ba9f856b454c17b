# pyright: strict
"""What NCCL reads from the environment of a process, once, before its first group."""

import os


def set_nccl_environment(process: str, *, shares_device: bool) -> None:
    """All sockets on loopback; a process that shares its device becomes a host of its own.

    NCCL refuses two processes of one host on one device. Of two hosts it takes them, and carries
    everything through sockets: slowly, but by the code that runs between devices. `process` tells
    one from the other.
    """
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if shares_device:
        os.environ["NCCL_HOSTID"] = f"specserve {process}"
