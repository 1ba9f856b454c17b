# pyright: strict
"""Node 0's connections to the supervisors of the other machines, and who comes late.

A machine that has draft processes alone may come back at any time: it meets node 0 as at first, is
answered at once, and connects anew.
"""

import logging
import selectors
import socket
from collections.abc import Sequence

import msgspec

from specserve.errors import InvalidField, SpecserveError, Unavailable, Unsupported
from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.links import HostLinks, Peer
from specserve.processes.hosts.messages import (
    Answer,
    Arrived,
    AskedToStop,
    FromHost,
    Hello,
    HostFails,
    HostIsReady,
    Leaves,
    ServiceEnds,
    States,
)
from specserve.processes.hosts.rendezvous import RendezvousProcess
from specserve.processes.roster import ChildState
from specserve.processes.supervised_events import HostReady, StopRequested
from specserve.settings.agreement import objection
from specserve.settings.hosts import HostFacts
from specserve.telemetry import SparseLog

_MOST_STRANGERS = 64  # that have connected and not said who they are; taken in at one look

log = logging.getLogger(__name__)


class Leader(HostLinks):
    """Owns `listener`; `process` goes on meeting who comes, and stays its maker's to end."""

    def __init__(
        self,
        facts: Sequence[HostFacts],
        timeout_s: float,
        listener: socket.socket,
        token: str,
        process: RendezvousProcess,
    ) -> None:
        """`token` is what those that were met say of themselves."""
        super().__init__(facts, timeout_s)
        listener.setblocking(False)
        self._listener, self._token, self._process = listener, token, process
        self._strangers: list[Lines[FromHost]] = []
        self._warnings = SparseLog(log)
        self.peers += [Peer(each) for each in facts[1:]]

    def watch(self, selector: selectors.BaseSelector) -> None:
        super().watch(selector)
        for sock in (self._listener, self._process.lines.sock):
            selector.register(sock, selectors.EVENT_READ, self)

    def read(self, fileobj: object) -> None:
        if fileobj is self._listener:
            self._accept()
        elif fileobj is self._process.lines.sock:
            self._meet()
        elif any(each.sock is fileobj for each in self._strangers):
            self._hear_strangers()
        else:
            super().read(fileobj)

    def tell(self, message: msgspec.Struct) -> None:
        """Also to those that have connected a moment ago."""
        self._accept()
        self._hear_strangers()
        super().tell(message)

    def tell_end(self, *, is_cut: bool = False) -> None:
        self._has_told_end = True
        self.tell(ServiceEnds(is_cut=is_cut))

    def other_states(self) -> list[ChildState]:
        return [
            msgspec.structs.replace(each, state="ended", pid=0, detail=f"{peer.name} is gone")
            if peer.is_gone
            else each
            for peer in self.peers
            for each in peer.states
        ]

    def close(self) -> None:
        super().close()
        for each in self._strangers:
            each.close()
        self._listener.close()

    # --- who comes --------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_MOST_STRANGERS):  # a flood must not keep a supervisor from its children
            try:
                connection, _ = self._listener.accept()
            except OSError:  # there is no other one
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lines: Lines[FromHost] = Lines(connection, msgspec.json.Decoder(FromHost))
            if len(self._strangers) == _MOST_STRANGERS:
                self._hear_strangers()  # who has said who it is makes room by that
            if len(self._strangers) == _MOST_STRANGERS:
                self._forget(self._strangers[0])
            self._strangers.append(lines)
            self.watch_socket(lines)

    def _hear_strangers(self) -> None:
        for lines in list(self._strangers):
            messages = lines.receive()
            if messages and isinstance(hello := messages[0], Hello):
                self._greet(hello, lines, messages[1:])
            elif messages or lines.is_over:
                self._forget(lines)

    def _greet(self, hello: Hello, lines: Lines[FromHost], more: list[FromHost]) -> None:
        known = [peer for peer in self.peers if peer.facts.node_rank == hello.node_rank]
        if hello.token != self._token or not known:
            self._warnings.warning("somebody connected who is no node of this launch")
            self._forget(lines)
            return
        self._strangers.remove(lines)
        (peer,) = known
        if peer.lines is not None:
            anew = "was started again, and the later launch has taken its place"
            peer.lines.send(HostFails(detail=f"{peer.name} {anew}"))
        self._disconnect(peer)
        if peer.is_gone:
            log.info("%s is back", peer.name)
        peer.lines, peer.num_still = lines, 0
        peer.is_gone = peer.has_ended = peer.is_heard = False
        for message in more:
            self._take(peer, message)

    def _forget(self, lines: Lines[FromHost]) -> None:
        self._strangers.remove(lines)
        self.forget(lines)

    def _meet(self) -> None:
        """Those that come after the beginning."""
        try:
            self._process.read()
            while (arrived := self._process.next(0.0)) is not None:
                if isinstance(arrived, Arrived):
                    self._process.lines.send(self._answer(arrived))
        except Unavailable as error:
            log.warning("%s; no node can come back", error)
            assert self._selector is not None
            self._selector.unregister(self._process.lines.sock)

    def _answer(self, arrived: Arrived) -> Answer:
        facts = arrived.facts
        error = objection(self.facts[0], facts) or self._obstacle(facts)
        if error is not None:
            self._warnings.warning(f"{facts.name} is refused: {error}")
            return Answer(visit=arrived.visit, error=str(error), code=error.code)
        known = list(self.facts)
        known[facts.node_rank] = facts
        self.facts = tuple(known)
        for peer in self.peers:
            if peer.facts.node_rank == facts.node_rank:
                peer.facts = facts
        return Answer(visit=arrived.visit, facts=self.facts, token=self._token)

    def _obstacle(self, facts: HostFacts) -> SpecserveError | None:
        """What keeps one out that says all the right things."""
        rank = facts.node_rank
        known = [peer for peer in self.peers if peer.facts.node_rank == rank]
        if not known or known[0].is_needed:
            problem = f"the service runs with node {rank}, which cannot be replaced"
            hint = "end it and start every node anew"
            return Unsupported(f"topology.node_rank: {problem} (it has target ranks): {hint}")
        if known[0].lines is not None and known[0].facts.address != facts.address:
            problem = f"{rank} is that of {known[0].facts.address}, which is there"
            return InvalidField("topology.node_rank", f"{problem}; type another one")
        return None

    # --- what they say ----------------------------------------------------------------------

    def _take(self, peer: Peer, message: msgspec.Struct) -> None:
        match message:
            case States(states):
                peer.states = states
            case HostIsReady():
                peer.is_ready = True
                self.events.append(HostReady(name=peer.name))
            case Leaves():
                peer.has_ended = True
                log.warning("%s leaves; decoding goes on without it", peer.name)
            case AskedToStop(signum):
                log.info("%s was told to stop", peer.name)
                self.events.append(StopRequested(signum))
            case _:
                super()._take(peer, message)
