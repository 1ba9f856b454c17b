"""How processes on several machines find each other: node 0's store, and the way that leads there.

The store is the one in which the launches met (`specserve.processes.hosts`); what is put there is
text. Gloo and NCCL listen on the interface of the address at which this machine is reached, and on
no other.
"""

import datetime
import fcntl
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from specserve.errors import Unavailable
from specserve.settings.config import ResolvedConfig
from specserve.settings.hosts import port_of

DRAFT_HUB = "draft hub"  # a key: where target rank 0 listens for draft processes, as zmq has it
_JOIN_S = 30.0
_ASK_S = 1.0
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_NAME_BYTES = 16  # of an interface, as the kernel has it

log = logging.getLogger(__name__)


def open_store(config: ResolvedConfig, wait_s: float = _JOIN_S) -> TCPStore:
    """A way to the store; it may take `wait_s`, and so may each call. Raises Unavailable."""
    address, port = config.hosts[0], port_of(config.topology)
    try:
        return TCPStore(
            address,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=wait_s),
        )
    except RuntimeError as error:  # torch's own for everything
        problem = f"the store of node 0 at {address}:{port} is not there"
        raise Unavailable(f"topology.rendezvous: {problem}: {error}") from error


def finder(config: ResolvedConfig, key: str) -> Callable[[], str | None]:
    """What tells, whenever it is asked, what is under `key` in the store; None: nothing yet."""
    store = open_store(config)
    store.set_timeout(datetime.timedelta(seconds=_ASK_S))

    def find() -> str | None:
        try:
            return store.get(key).decode() if store.check([key]) else None
        except RuntimeError as error:
            log.warning("the store of node 0 does not answer: %s", str(error).partition("\n")[0])
            return None

    return find


def use_own_interface(config: ResolvedConfig) -> None:
    """Before any group is made: who said otherwise has the last word.

    One machine alone talks on loopback; several do where they are all on loopback, too.
    """
    name = "lo"
    if config.hosts:
        name = interface_of(config.hosts[config.topology.node_rank]) or ""
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if name:
            os.environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    """The name of the one that has this IP address; None: none of this machine, as it looks."""
    if address.startswith("127."):  # all of these are of one
        return "lo"
    if ":" in address:
        return _interface_of_six(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s240x", name.encode()[: _NAME_BYTES - 1])
            try:
                answer = fcntl.ioctl(asked.fileno(), _GET_ADDRESS, request)
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _interface_of_six(address: str) -> str | None:
    wanted = socket.inet_pton(socket.AF_INET6, address).hex()
    try:
        lines = Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines]
    return next((words[-1] for words in found if words[0] == wanted), None)
