# pyright: strict
"""The one connection of a machine that is not node 0, to node 0."""

import logging
import socket
from collections.abc import Sequence

import msgspec

from specserve.errors import Unavailable
from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.links import HostLinks, Peer
from specserve.processes.hosts.messages import (
    AskedToStop,
    Hello,
    HostIsReady,
    Leaves,
    ServiceEnds,
    States,
    ToHost,
)
from specserve.processes.roster import ChildState
from specserve.processes.supervised_events import ServiceEnded
from specserve.settings.config import ResolvedConfig
from specserve.settings.hosts import HostFacts

_CONNECT_S = 10.0

log = logging.getLogger(__name__)


class Member(HostLinks):
    """As node 0 sees this machine from its first word on."""

    def __init__(
        self, facts: Sequence[HostFacts], timeout_s: float, node_rank: int, token: str
    ) -> None:
        """Connects. Raises Unavailable where node 0 has ended meanwhile."""
        super().__init__(facts, timeout_s)
        self._rank = node_rank
        self._has_ranks = True
        self._told: tuple[ChildState, ...] = ()
        first = facts[0]
        place = first.address, first.supervisor_port
        try:
            connection = socket.create_connection(place, _CONNECT_S)
        except OSError as error:
            problem = (
                f"{first.name} cannot be reached at port {place[1]}: {error.strerror or error}"
            )
            raise Unavailable(f"{problem}; see what it says, and start it again") from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines: Lines[ToHost] = Lines(connection, msgspec.json.Decoder(ToHost))
        lines.send(Hello(node_rank=node_rank, token=token))
        self._first = Peer(first, lines, is_ready=True)
        self.peers.append(self._first)

    @property
    def leads(self) -> bool:
        return False

    @property
    def own(self) -> HostFacts:
        return self.facts[self._rank]

    def place(self, config: ResolvedConfig) -> None:
        """Node 0 is needed whatever it has."""
        self._has_ranks = any(each.role == "target" for each in config.own_placements)

    def tell_ready(self) -> None:
        self.tell(HostIsReady())

    def tell_states(self, states: Sequence[ChildState]) -> None:
        if self._told != (told := tuple(states)):
            self._told = told
            self.tell(States(told))

    def ask_to_stop(self, signum: int) -> bool:
        """With ranks here it is a stop of the service, otherwise of this machine alone."""
        self.tell(AskedToStop(signum) if self._has_ranks else Leaves())
        return not self._has_ranks

    def _take(self, peer: Peer, message: msgspec.Struct) -> None:
        if isinstance(message, ServiceEnds):
            peer.has_ended = True
            self.events.append(ServiceEnded(is_cut=message.is_cut))
        else:
            super()._take(peer, message)
