# pyright: strict
"""What a launch over several machines needs to know: where they meet, and what each says of itself.

Called *nodes* where users read of them, as torchrun does, and hosts in code, where target and draft
node are roles. Decides nothing of who runs where: that is `specserve.settings.spread`.
"""

import ipaddress
import re
import socket
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from specserve.errors import InvalidField, Unsupported
from specserve.settings.config import TopologyConfig
from specserve.settings.hardware import Hardware

_PLACE = re.compile(r"(?:\[(?P<within>[^\[\]]+)\]|(?P<host>[^\[\]]+)):(?P<port>\d{1,5})", re.ASCII)
_Key = Annotated[str, Meta(pattern=r"^[\w.]{1,64}\Z")]
_Value = Annotated[str, Meta(max_length=4096)]


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of a launch, as it tells the others before anything is started.

    The limits are for what somebody else puts in its place.
    """

    node_rank: Annotated[int, Meta(ge=0, lt=64)]
    # IP address that the others reach it at
    address: Annotated[str, Meta(pattern=r"^[0-9A-Fa-f:.]{2,45}\Z")]
    # Of the first one: where the other launches report
    supervisor_port: Annotated[int, Meta(ge=0, lt=65_536)] = 0
    hardware: Hardware
    # What has to be the same everywhere, by its name, in words
    agreed: Annotated[dict[_Key, _Value], Meta(max_length=256)]

    @property
    def name(self) -> str:
        """As users read it."""
        return host_name(self.node_rank, self.address)


class Place(NamedTuple):
    """Where the machines of a launch meet."""

    host: str  # a name or an address, as it was typed
    address: str  # what it leads to
    port: int
    family: socket.AddressFamily

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


def host_name(node_rank: int, address: str) -> str:
    """Of one machine, such as "node 1 (10.0.0.2)"."""
    return f"node {node_rank} ({address})"


def reach(text: str, key: str, *, is_private: bool) -> Place:
    """The place that a HOST:PORT says; may ask for the address of a name.

    `key` is what it was typed as, `is_private` whether strangers are kept out. Raises InvalidField
    for what is no place, or one that strangers may reach; Unsupported for a name that leads
    nowhere.
    """
    host, port = _parse(text, key)
    try:
        family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError) as error:  # ValueError: what can be no name, such as "a..b"
        raise Unsupported(f"{key}: {host} has no address: {error}") from error
    place = Place(host, str(found[0]), port, family)
    address = ipaddress.ip_address(place.address)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if address.is_unspecified or (mapped is not None and mapped.is_unspecified):
        problem = f"{host} is every address; type the one that the others reach it at"
        raise InvalidField(key, problem)
    if family == socket.AF_INET6 and address.is_link_local:
        problem = (
            f"{host} is an address of one cable, which every machine calls by another name; type "
            "one that all others reach it at, such as [fd00::1]:29400"
        )
        raise InvalidField(key, problem)
    if not place.is_loopback and not is_private:
        problem = (
            f"{host} can be reached by others, and what nodes say to each other is neither "
            "encrypted nor asked for a key; type --private-network where the network between them "
            "keeps strangers out (docs/security.md)"
        )
        raise InvalidField(key, problem)
    return place


def check_hosts(topology: TopologyConfig) -> None:
    """What is said of several machines has to go together. Raises InvalidField."""
    if topology.nnodes > 1 and topology.draft_address is not None:
        problem = "is for a launch on one machine; leave it out, or --nnodes"
        raise InvalidField("topology.draft_address", problem)
    if topology.node_rank >= topology.nnodes:
        problem = f"{topology.node_rank} is not below topology.nnodes, {topology.nnodes}"
        hint = "nodes count from 0; type --nnodes, the same on every node"
        raise InvalidField("topology.node_rank", f"{problem}: {hint}")
    if topology.nnodes > 1 and topology.rendezvous is None:
        problem = "is missing; type --rendezvous HOST:PORT, the address of node 0 and a free port"
        raise InvalidField("topology.rendezvous", problem)
    if topology.nnodes == 1:
        for key in ("rendezvous", "spread"):
            if getattr(topology, key) is not None:
                problem = "is for several nodes; type --nnodes N as well, or leave it out"
                raise InvalidField(f"topology.{key}", problem)


def port_of(topology: TopologyConfig) -> int:
    """Of the store. Raises InvalidField."""
    return _parse(topology.rendezvous or "", "topology.rendezvous")[1]


def find_place(topology: TopologyConfig) -> Place:
    """Where the machines meet; may ask for the address of a name.

    Raises InvalidField for what is no place, or one that strangers may reach and nobody has said
    that they cannot; Unsupported for a name that leads nowhere.
    """
    wish, is_private = topology.rendezvous or "", topology.private_network
    return reach(wish, "topology.rendezvous", is_private=is_private)


def require_draft_address(topology: TopologyConfig) -> None:
    """Fail before a model is loaded where draft nodes could not attach. What listens comes later.

    Raises InvalidField for an address of another machine, a port that is in use, and what `reach`
    does.
    """
    wish, key = topology.draft_address, "topology.draft_address"
    if wish is None:
        return
    place = reach(wish, key, is_private=topology.private_network)
    try:
        with socket.socket(place.family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((place.address, place.port))
    except OSError as error:
        problem = f"cannot listen on {wish}: {error.strerror}"
        hint = "type an address of this machine and a free port"
        raise InvalidField(key, f"{problem}; {hint}") from error


def own_address(place: Place) -> str:
    """Of this machine, as it appears at `place`. Raises Unsupported where no way leads there."""
    try:
        with socket.socket(place.family, socket.SOCK_DGRAM) as way:
            way.connect((place.address, place.port))  # sends nothing
            return str(way.getsockname()[0])
    except OSError as error:
        problem = f"{place.host} cannot be reached from here: {error.strerror}"
        raise Unsupported(f"topology.rendezvous: {problem}") from error


def listen(place: Place, port: int) -> socket.socket:
    """Of node 0, on the address of `place` alone; `port` 0 takes any free one.

    Raises InvalidField for an address of another machine, or a port that is in use.
    """
    listener = socket.socket(place.family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((place.address, port))
        listener.listen()
    except OSError as error:
        listener.close()
        problem = f"node 0 cannot listen on {place.host}:{port}: {error.strerror}"
        hint = "it is an address of node 0 and a free port; the others have --node-rank 1 and up"
        raise InvalidField("topology.rendezvous", f"{problem}; {hint}") from error
    return listener


def _parse(text: str, key: str) -> tuple[str, int]:
    match = _PLACE.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"]) < 65_536:
        problem = f"{text!r} is not of the form HOST:PORT, such as 10.0.0.1:29400"
        raise InvalidField(key, problem)
    return match["within"] or match["host"], int(match["port"])
