# pyright: strict
"""How the machines of a launch come together before anything is started, on each of them.

Node 0 waits until all are there and answers each of them with what all have said, or why it cannot
take part; the others ask. Whoever is refused may come again with other settings meanwhile.
"""

import logging
import os
import secrets
import signal
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from specserve.errors import InvalidField, SpecserveError, Unavailable, from_code
from specserve.processes.hosts.leader import Leader
from specserve.processes.hosts.links import HostLinks
from specserve.processes.hosts.member import Member
from specserve.processes.hosts.messages import Answer, Arrived
from specserve.processes.hosts.rendezvous import RendezvousProcess
from specserve.processes.supervised_events import EXIT_OK, Ending
from specserve.settings.agreement import missing_hosts, objection
from specserve.settings.config import TopologyConfig
from specserve.settings.hardware import Hardware
from specserve.settings.hosts import HostFacts, Place, find_place, listen, own_address

_ANSWER_S = 20.0  # beyond the time that node 0 waits for everybody: it says who has not come
_REMIND_S = 15.0  # between lines about who is waited for

log = logging.getLogger(__name__)


class Meeting:
    """Of one launch, on one machine; a launch on one machine alone meets nobody.

    `links` are the connections to the others, of which there are none before `attend`.
    """

    def __init__(self) -> None:
        self.links: HostLinks = HostLinks()
        self._process: RendezvousProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, SpecserveError):  # before anything was started
            self.links.tell_failed(str(error), error.code, is_refusal=True)
        elif isinstance(error, SystemExit | KeyboardInterrupt):  # a stop, which is everybody's
            self.links.ask_to_stop(signal.SIGTERM)
            self.links.tell_ending(Ending(EXIT_OK))
        self.links.close()
        if self._process is not None:
            self._process.close()

    def attend(
        self, wish: TopologyConfig, hardware: Hardware, agreed: dict[str, str]
    ) -> Sequence[HostFacts]:
        """What all machines say of themselves, in order.

        Raises InvalidField and Unsupported for settings that are wrong here or that differ from
        those of node 0, Unavailable where not all come in time.
        """
        place = find_place(wish)
        leads = wish.node_rank == 0
        own = HostFacts(
            node_rank=wish.node_rank,
            address=place.address if leads else own_address(place),
            hardware=hardware,
            agreed=agreed,
        )
        if leads:
            self._lead(wish, place, own)
        else:
            self._join(wish, place, own)
        # For all processes to come: torch warns of every address that has no name.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        return self.links.facts

    def _lead(self, wish: TopologyConfig, place: Place, own: HostFacts) -> None:
        if place.is_loopback:
            log.info("%s is loopback: only nodes of this machine can come", place.address)
        listener = listen(place, 0)
        own = msgspec.structs.replace(own, supervisor_port=listener.getsockname()[1])
        try:
            process = self._process = RendezvousProcess(place, wish.rendezvous_timeout_s, own)
            token = secrets.token_hex(16)
            facts = _gather(process, wish, own, token)
        except BaseException:
            listener.close()
            raise
        self.links = Leader(facts, wish.node_timeout_s, listener, token, process)

    def _join(self, wish: TopologyConfig, place: Place, own: HostFacts) -> None:
        with RendezvousProcess(place, wish.rendezvous_timeout_s, own) as process:
            log.info("meeting the other nodes at %s:%d", place.host, place.port)
            deadline_s = time.monotonic() + wish.rendezvous_timeout_s + _ANSWER_S
            try:
                answer = process.next(deadline_s)
            except Unavailable as error:
                raise Unavailable(_nobody_there(place, str(error))) from error
        if not isinstance(answer, Answer):
            limit = f"within {wish.rendezvous_timeout_s:g} s (--rendezvous-timeout-s)"
            raise Unavailable(_nobody_there(place, f"no answer {limit}"))
        if answer.error:
            raise from_code(answer.code, answer.error)
        self.links = Member(answer.facts, wish.node_timeout_s, own.node_rank, answer.token)


def _nobody_there(place: Place, why: str) -> str:
    return (
        f"topology.rendezvous: node 0 was not met at {place.host}:{place.port}, which it listens "
        f"on while it runs: start it, or correct --rendezvous ({why})"
    )


def _gather(
    process: RendezvousProcess, wish: TopologyConfig, own: HostFacts, token: str
) -> tuple[HostFacts, ...]:
    """Wait for all; every one that may take part is answered once all are there."""
    there: dict[int, tuple[str, HostFacts]] = {0: ("", own)}
    begin_s = remind_s = time.monotonic()
    deadline_s = begin_s + wish.rendezvous_timeout_s
    while missing := missing_hosts([facts for _, facts in there.values()], wish.nnodes):
        now_s = time.monotonic()
        if now_s >= deadline_s:
            problem = f"{missing} did not come within {wish.rendezvous_timeout_s:g} s"
            hint = "start it with the same --rendezvous and its own --node-rank"
            error = Unavailable(f"topology.rendezvous: {problem} (--rendezvous-timeout-s); {hint}")
            for visit, facts in there.values():
                _refuse(process, visit, facts, error)
            raise error
        if now_s >= remind_s:
            log.info("waiting for %s at %s", missing, wish.rendezvous)
            remind_s += _REMIND_S
        arrived = process.next(min(remind_s, deadline_s))
        if isinstance(arrived, Arrived):
            _admit(process, there, arrived, wish.nnodes)
    facts = tuple(there[rank][1] for rank in range(wish.nnodes))
    for visit, _ in there.values():
        if visit:
            process.lines.send(Answer(visit=visit, facts=facts, token=token))
    return facts


def _admit(
    process: RendezvousProcess,
    there: dict[int, tuple[str, HostFacts]],
    arrived: Arrived,
    nnodes: int,
) -> None:
    """Remember one that has come, or refuse it; the last one of a rank and a machine counts.

    One that came before may have been stopped and started again with better settings; if it is
    there still, it hears that another one has taken its rank.
    """
    facts, rank = arrived.facts, arrived.facts.node_rank
    error = objection(there[0][1], facts)
    known = there.get(rank)
    if rank >= nnodes:
        problem = f"{rank} is not below topology.nnodes, {nnodes}"
        error = error or InvalidField("topology.node_rank", problem)
    elif known is not None and (rank == 0 or known[1].address != facts.address):
        problem = f"{rank} is that of {known[1].address} already, not of {facts.address}, too"
        error = error or InvalidField("topology.node_rank", f"{problem}; type another one")
    if error is not None:
        _refuse(process, arrived.visit, facts, error)
        return
    if known is not None:
        problem = f"{rank} was taken over by a later launch on {facts.address}"
        taken = InvalidField("topology.node_rank", f"{problem}; type another one")
        _refuse(process, known[0], known[1], taken)
    log.info("%s has come", facts.name)
    there[rank] = arrived.visit, facts


def _refuse(
    process: RendezvousProcess, visit: str, facts: HostFacts, error: SpecserveError
) -> None:
    if visit:
        log.warning("%s is refused: %s", facts.name, error)
        process.lines.send(Answer(visit=visit, error=str(error), code=error.code))
