# pyright: strict
"""The target's end for draft nodes that no launch of its own has started.

They come as they like, under names that nobody knows before, and serve other targets besides. Who
goes by what this target goes by gets a lane, as long as one is free; a lane is its draft's until
that leaves or falls silent. Who is refused hears why.
"""

import logging
import time
from collections.abc import Callable, Sequence

import zmq
from msgspec.structs import replace

from specserve.telemetry import SparseLog
from specserve.transport.control.control import FrameWriter
from specserve.transport.control.draft_control import (
    MAX_PROBLEM_CHARS,
    Attach,
    Detached,
    FromDraft,
    Refused,
    ToDraft,
)
from specserve.transport.network_link.hub import DraftHub, Lane, reader_of_drafts
from specserve.transport.network_link.wire import CONTROL, WORDS, Words

_MOST_WAITING = 64  # strangers between two looks
_MOST_KNOWN = 256  # of those refused, by name: each is told of once
# Looks in which every connection has had its turn several times, however much some of them send:
# the socket takes from all of them in turn.
_ENOUGH_LOOKS = 8
# A machine that is gone ends no connection. Far longer than a busy one takes to answer.
_HEARTBEAT_MS, _HEARTBEAT_TIMEOUT_MS = 2000, 20_000

log = logging.getLogger(__name__)

Objection = Callable[[Attach], str | None]  # why a draft does not fit; None: it does


class OpenLane(Lane):
    """A lane that belongs to nobody at first."""

    def is_free(self, silence_s: float) -> bool:
        """Whether its draft has left, or has said nothing for so long."""
        return not self._words.pid or time.monotonic() > self._heard_ns / 1e9 + silence_s

    def give_to(self, identity: bytes, attach: Attach) -> None:
        """What the former draft has sent counts no more."""
        self.identity = identity
        self._frames.clear()
        self._messages.clear()
        self._reader = reader_of_drafts()
        self._words, self._heard_ns = Words(attach.pid, 0), time.monotonic_ns()
        # The first word of this draft here, however often it has asked for a lane.
        self._messages.append(replace(attach, draft=self._draft, repetition=0))

    def _as_ours(self, message: FromDraft) -> FromDraft:
        """Drafts do not know which lane they have."""
        return replace(message, draft=self._draft)


class OpenDraftHub(DraftHub):
    """Listens at a port that draft nodes are told of, and lets in `num_drafts` of them at most."""

    def __init__(
        self,
        address: str,
        port: int,
        num_drafts: int,
        objection: Objection,
        *,
        silence_s: float,
        cores: Sequence[int] = (),
    ) -> None:
        """Who is silent for `silence_s` may be replaced. See `DraftHub` for what it raises."""
        self._objection, self._silence_s = objection, silence_s
        self._waiting: dict[bytes, Attach] = {}
        self._num_looks = 0  # one after the other that have left something unread
        self._refused: dict[bytes, str] = {}
        self._warnings = SparseLog(log)
        self._reader = reader_of_drafts()
        self._writer = FrameWriter()
        super().__init__(address, range(num_drafts), cores, port=port)

    def _make_lanes(self, drafts: Sequence[int]) -> dict[int, OpenLane]:
        self._open = {draft: OpenLane(self, draft, b"") for draft in drafts}
        return self._open

    def _add_options(self, socket: "zmq.Socket[bytes]") -> None:
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)

    def pump(self) -> bool:
        """Lanes change hands when every draft that has sent something was heard: none is silent."""
        is_all = super().pump()
        self._num_looks = 0 if is_all else self._num_looks + 1
        if self._waiting and (is_all or self._num_looks >= _ENOUGH_LOOKS):
            self._num_looks = 0
            waiting, self._waiting = self._waiting, {}
            for identity, attach in waiting.items():
                self._welcome(identity, attach)
        return is_all

    def _hear_stranger(self, identity: bytes, kind: bytes, data: bytes) -> None:
        if kind == WORDS and (words := Words.unpack(data)) is not None and words.epoch:
            self._answer(identity, Detached())  # it was silent, and another has its lane
        elif kind == CONTROL and (received := self._reader.open(data)) is not None:
            message = received.message
            if isinstance(message, Attach) and len(self._waiting) < _MOST_WAITING:
                self._waiting[identity] = message

    def _welcome(self, identity: bytes, attach: Attach) -> None:
        if (problem := self._objection(attach)) is not None:
            self._refuse(identity, Refused(problem=problem[:MAX_PROBLEM_CHARS]))
            return
        lane = next((each for each in self._open.values() if each.is_free(self._silence_s)), None)
        if lane is None:
            problem = (
                f"topology.topology: this target has room for {len(self._open)} draft node(s), "
                "which are there; start it with a larger D of T+D"
            )
            self._refuse(identity, Refused(problem=problem, may_pass=True))
            return
        self._by_identity.pop(lane.identity, None)
        self._by_identity[identity] = lane
        self._refused.pop(identity, None)
        lane.give_to(identity, attach)

    def _refuse(self, identity: bytes, refused: Refused) -> None:
        is_news = self._refused.get(identity) != refused.problem  # it goes on asking
        if is_news and self._warnings.warning(f"a draft node is refused: {refused.problem}"):
            if len(self._refused) >= _MOST_KNOWN:
                self._refused.clear()
            self._refused[identity] = refused.problem
        self._answer(identity, refused)

    def _answer(self, identity: bytes, message: ToDraft) -> None:
        self.send(identity, CONTROL, self._writer.seal(message))  # pyright: ignore[reportArgumentType]
