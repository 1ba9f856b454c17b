"""Machines of a launch in one process: what they say of themselves, and who meets them by hand."""

import socket
import time
from collections import deque
from collections.abc import Callable

import msgspec

from specserve.processes.hosts.leader import Leader
from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.links import HostLinks
from specserve.processes.hosts.member import Member
from specserve.processes.hosts.messages import FromMeeting, ToMeeting
from specserve.processes.hosts.rendezvous import RendezvousProcess
from specserve.settings.config import Placement, ResolvedConfig, TopologyConfig
from specserve.settings.hardware import Hardware
from specserve.settings.hosts import HostFacts

MACHINE = Hardware(cores=(0, 1), cpu_name="any", available_memory=1 << 33)
TOKEN = "token"


def facts_of(rank: int, port: int = 0, address: str = "127.0.0.1", **agreed: str) -> HostFacts:
    return HostFacts(
        node_rank=rank, address=address, supervisor_port=port, hardware=MACHINE, agreed=agreed
    )


def placed(*roles: str, rank: int = 0) -> ResolvedConfig:
    """As machine `rank` has it; of each machine, what is on it, such as "target" or "draft"."""
    counts = {"target": 0, "draft": 0}
    placements = []
    for host, names in enumerate(roles):
        for role in names.split():
            placements.append(Placement(role=role, rank=counts[role], device="cpu", host=host))
            counts[role] += 1
    return ResolvedConfig(
        topology=TopologyConfig(nnodes=len(roles), node_rank=rank, rendezvous="h:1"),
        placements=tuple(placements),
        hosts=tuple(f"127.0.0.{rank + 1}" for rank in range(len(roles))),
    )


class MetByHand(RendezvousProcess):
    """What its process would say is said by the test, at `far`."""

    def __init__(self) -> None:
        near, far = socket.socketpair()
        self.lines = Lines(near, msgspec.json.Decoder(FromMeeting))
        self.far = Lines(far, msgspec.json.Decoder(ToMeeting))
        self._waiting = deque()

    def close(self) -> None:
        self.lines.close()
        self.far.close()


class Machines:
    """Node 0 and others, connected, without supervisors: `turn` is what these do all the time."""

    def __init__(self, *roles: str, timeout_s: float = 2.0) -> None:
        self.process = MetByHand()
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        self.facts = tuple(facts_of(rank, port) for rank in range(len(roles)))
        self.leader = Leader(self.facts, timeout_s, listener, TOKEN, self.process)
        self.roles, self._timeout_s = roles, timeout_s
        self.leader.place(placed(*roles))
        self.members = {rank: self.join(rank) for rank in range(1, len(roles))}

    def join(self, rank: int) -> Member:
        member = Member(self.leader.facts, self._timeout_s, rank, TOKEN)
        member.place(placed(*self.roles, rank=rank))
        return member

    def turn(self, *links: HostLinks) -> None:
        """Everything that has arrived is read, and what is due is done; by all, or by `links`."""
        for each in links or (self.leader, *self.members.values()):
            if isinstance(each, Leader):
                each.read(each._listener)
                each.read(self.process.lines.sock)
                each._hear_strangers()
            for peer in each.peers:
                if peer.lines is not None:
                    each.read(peer.lines.sock)
            each.due(time.monotonic())

    def until(self, happens: Callable[[], object], *links: HostLinks) -> None:
        deadline_s = time.monotonic() + 20
        while not happens():
            assert time.monotonic() < deadline_s
            self.turn(*links)
            time.sleep(0.005)

    def close(self) -> None:
        for each in (*self.members.values(), self.leader):
            each.close()
        self.process.close()


def raw_lines(port: int) -> socket.socket:
    """A connection to node 0 of somebody else."""
    return socket.create_connection(("127.0.0.1", port))
