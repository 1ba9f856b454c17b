# pyright: strict
"""The other machines of a launch as a supervisor sees them: who is there, and what they tell.

Every machine has one connection, to node 0. It says something every `BEAT_S`. A machine whose
connection ends is gone at once; one that is silent is warned of within a second and gone after
`topology.node_timeout_s`. What has draft processes alone is not needed, and may come back. Decides
nothing: what happens becomes an event of the supervisor's.
"""

import logging
import math
import selectors
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from specserve.errors import Unavailable
from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.messages import MOST_TEXT, Beat, FromHost, HostFails, ToHost
from specserve.processes.roster import ChildState
from specserve.processes.supervised_events import EXIT_REFUSED, Ending, Event, HostEnded
from specserve.settings.config import ResolvedConfig
from specserve.settings.hosts import HostFacts

BEAT_S = 0.2
_WARN_BEATS = 4  # of silence
_START_BEATS = 150  # until the supervisor of one that has come runs

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Peer:
    """One other machine."""

    facts: HostFacts
    lines: Lines[ToHost] | Lines[FromHost] | None = None  # None: not connected
    is_needed: bool = True  # it has ranks of the target, or is node 0
    is_ready: bool = False
    is_gone: bool = False
    has_ended: bool = False  # by its own word
    is_heard: bool = False  # its supervisor runs; before, it has this and that to find out
    num_still: int = 0  # beats of ours without a word of its
    states: tuple[ChildState, ...] = field(default=())

    @property
    def name(self) -> str:
        return self.facts.name


class HostLinks:
    """What node 0 and the others have in common; made with no machine, it is that of one alone."""

    def __init__(self, facts: Sequence[HostFacts] = (), timeout_s: float = math.inf) -> None:
        """`facts`: of all machines, in order. One silent for `timeout_s` is gone."""
        self.facts = tuple(facts)
        self.peers: list[Peer] = []
        self._has_told_end = False
        self.events = deque[Event]()
        self._timeout_s = timeout_s
        self._selector: selectors.BaseSelector | None = None
        self._next_beat_s = -math.inf

    @property
    def leads(self) -> bool:
        """Whether this is node 0, which has the API."""
        return True

    @property
    def own(self) -> HostFacts:
        """What this machine has said of itself; there has to be another one."""
        return self.facts[0]

    @property
    def unready(self) -> set[str]:
        """Names of those that have yet to say that they are ready."""
        return {peer.name for peer in self.peers if not (peer.is_ready or peer.is_gone)}

    def place(self, config: ResolvedConfig) -> None:
        """Learn who is needed."""
        ranks = {each.host for each in config.placements if each.role == "target"}
        for peer in self.peers:
            peer.is_needed = peer.facts.node_rank in ranks

    # --- as the supervisor's selector has them ----------------------------------------------

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Register what can be read, with this as its data; see `read`."""
        self._selector = selector
        for peer in self.peers:
            if peer.lines is not None:
                self.watch_socket(peer.lines)

    def watch_socket(self, lines: "Lines[ToHost] | Lines[FromHost]") -> None:
        if self._selector is not None:
            self._selector.register(lines.sock, selectors.EVENT_READ, self)

    def read(self, fileobj: object) -> None:
        """Something has arrived there."""
        for peer in self.peers:
            if peer.lines is not None and peer.lines.sock is fileobj:
                self._read(peer, peer.lines)
                return

    def due(self, now_s: float) -> float:
        """Say what is to be said by now, and notice silence; when to call again."""
        if not self.peers:
            return math.inf
        if now_s >= self._next_beat_s:
            # Counted, not timed: after a pause of this machine the others have their chance first.
            self._next_beat_s = now_s + BEAT_S
            for peer in self.peers:
                self._beat(peer)
        return self._next_beat_s

    # --- what is told -----------------------------------------------------------------------

    def tell(self, message: msgspec.Struct) -> None:
        """To all that are connected."""
        for peer in self.peers:
            if peer.lines is not None:
                peer.lines.send(message)

    def tell_failed(
        self,
        detail: str,
        code: str = Unavailable.code,
        *,
        is_here: bool = True,
        is_consequence: bool = False,
        is_refusal: bool = False,
    ) -> None:
        """This machine gives up; unless it `is_here` that it began, `detail` says where."""
        self._has_told_end |= not is_consequence
        message = HostFails(
            detail=(f"{self.own.name}: {detail}" if is_here and self.facts else detail)[:MOST_TEXT],
            code=code,
            is_consequence=is_consequence,
            is_refusal=is_refusal,
        )
        self.tell(message)

    def tell_end(self, *, is_cut: bool = False) -> None:
        """Of node 0: the service ends as it should."""

    def tell_ending(self, ending: Ending) -> None:
        """How the launch ends here, for those who have not been told."""
        if self._has_told_end:
            return
        if ending.error:
            is_refusal = ending.exit_code == EXIT_REFUSED
            self.tell_failed(ending.error, ending.code, is_refusal=is_refusal)
        else:
            self.tell_end(is_cut=True)

    def tell_ready(self) -> None:
        """Every process of this machine is ready."""

    def tell_states(self, states: Sequence[ChildState]) -> None:
        """Of the processes of this machine."""

    def ask_to_stop(self, signum: int) -> bool:
        """A stop signal arrived: whether it is this machine's to follow, or node 0's."""
        return True

    def other_states(self) -> list[ChildState]:
        """Of the processes of others, where they are told."""
        return []

    def close(self) -> None:
        for peer in self.peers:
            self._disconnect(peer)

    # --- parts ------------------------------------------------------------------------------

    def _take(self, peer: Peer, message: msgspec.Struct) -> None:
        """One message; `HostFails` is everybody's."""
        if isinstance(message, HostFails):
            peer.has_ended = True
            self.events.append(
                HostEnded(
                    detail=message.detail,
                    code=message.code,
                    is_consequence=message.is_consequence,
                    is_refusal=message.is_refusal,
                    is_needed=peer.is_needed,
                    name=peer.name,
                )
            )

    def _read(self, peer: Peer, lines: "Lines[ToHost] | Lines[FromHost]") -> None:
        if messages := lines.receive():
            if peer.num_still >= _WARN_BEATS and peer.is_heard:
                log.warning("%s is heard again", peer.name)
            peer.num_still, peer.is_heard = 0, True
        for message in messages:
            self._take(peer, message)
        if lines.is_over:
            self._lose(peer, f"{peer.name} is gone: its launch or the connection to it has ended")

    def _beat(self, peer: Peer) -> None:
        if peer.is_gone:
            return
        peer.num_still += 1
        silent_s = peer.num_still * BEAT_S
        if not peer.is_heard and peer.num_still > _START_BEATS:
            self._lose(peer, f"{peer.name} came, and has said nothing for {silent_s:.0f} s")
        elif peer.lines is not None and not peer.lines.send(Beat()):
            self._read(peer, peer.lines)  # its last words may be there
        elif peer.is_heard and silent_s > self._timeout_s:
            limit = f"{self._timeout_s:g} s (topology.node_timeout_s)"
            self._lose(peer, f"{peer.name} has been silent for {limit}")
        elif peer.is_heard and peer.num_still == _WARN_BEATS:
            log.warning("%s has been silent for %.1f s", peer.name, silent_s)

    def _lose(self, peer: Peer, detail: str) -> None:
        self._disconnect(peer)
        peer.is_gone = True
        if not (peer.has_ended or self._has_told_end):
            self.events.append(HostEnded(detail=detail, is_needed=peer.is_needed, name=peer.name))

    def _disconnect(self, peer: Peer) -> None:
        if peer.lines is not None:
            self.forget(peer.lines)
            peer.lines = None

    def forget(self, lines: "Lines[ToHost] | Lines[FromHost]") -> None:
        """Close it."""
        watched = None if self._selector is None else self._selector.get_map()
        if self._selector is not None and watched and lines.sock in watched:  # none: it is closed
            self._selector.unregister(lines.sock)
        lines.close()
