"""Draft processes without processes: real nodes whose turns, deaths and links follow a script.

Time is the script's as well, so what waits, expires or is asked again does so in every run alike.
"""

import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch

from draft_node.draft_slots import DraftSlots
from draft_node.node import DraftNode
from draft_node.prespeculation.draft_batches import BatchSettings
from draft_node.prespeculation.prespeculation import PreSpeculation
from specserve.drafters.protocol import Drafter
from specserve.grammars.compiler import GrammarCompiler
from specserve.transport.control.draft_control import Attach, FromDraft, ToDraft
from specserve.transport.link.ends import DraftLinkEnd, TargetLinkEnd
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.ring import RingDraftEnd, RingTargetEnd, SharedRegion
from tests.backends.chosen import BACKEND
from tests.specserve.transport.link.loopback import Script, ScriptedChannel
from tests.target_node.tensor_link import TensorChannel, TensorDraftEnd, TensorTargetEnd

CPU = torch.device("cpu")
RING_BYTES = 1 << 20
MAX_TURNS_DEAD = 12
_FROM_DRAFT = msgspec.msgpack.Decoder(FromDraft)
_TO_DRAFT = msgspec.msgpack.Decoder(ToDraft)


class Clock:
    """In place of a node's `time`: passes only when told, or when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    perf_counter = monotonic

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        """Others work meanwhile, for as long as a draft batch takes at least."""
        self.now_s += max(seconds, 0.004)
        self.on_sleep()


@dataclass(frozen=True)
class Drafting:
    """How draft processes are set up, and what befalls them. Chances are a turn of the target."""

    num_drafts: int = 1
    draft_batch: int = 4
    fan_out: int = 12
    num_kept: int = 16
    saguaro_c: float | None = None
    usual_tokens: int | None = None  # chains with confidences may go beyond
    max_extension: int = 64
    pace: Sequence[int] = (0, 1, 2, 4, 8)  # turns of a draft in one of the target's: any of these
    script: Script | None = None  # of the links; None: rings in shared memory
    tensors: bool = False  # links carry tensors
    control_loss: float = 0.0  # of a control message
    death: float = 0.0  # it is back after up to `MAX_TURNS_DEAD` turns, perhaps at once
    seed: int = 0


class ControlWire:
    """In place of the sockets: what one end sends waits, encoded, until the other end asks."""

    def __init__(self, num_drafts: int, loss: float, seed: int) -> None:
        self._loss = loss
        self._source = random.Random(seed)
        self._from_drafts: deque[bytes] = deque()
        self._to_draft: list[deque[bytes]] = [deque() for _ in range(num_drafts)]

    def is_lost(self) -> bool:
        return self._source.random() < self._loss

    def target_end(self) -> "TargetControlEnd":
        return TargetControlEnd(self, self._from_drafts, self._to_draft)

    def draft_end(self, index: int) -> "DraftControlEnd":
        """Of a new life: what the one before did not read is gone."""
        self._to_draft[index].clear()
        return DraftControlEnd(self, self._to_draft[index], self._from_drafts)


class TargetControlEnd:
    """`DraftControlTarget`."""

    def __init__(
        self, wire: ControlWire, inbox: deque[bytes], outboxes: list[deque[bytes]]
    ) -> None:
        self._wire, self._inbox, self._outboxes = wire, inbox, outboxes

    def receive(self) -> list[FromDraft]:
        frames = [self._inbox.popleft() for _ in range(len(self._inbox))]
        return [_FROM_DRAFT.decode(frame) for frame in frames]

    def send(self, draft: int, message: ToDraft) -> bool:
        if not self._wire.is_lost():
            self._outboxes[draft].append(msgspec.msgpack.encode(message))
        return True

    def close(self) -> None:
        pass


class DraftControlEnd:
    """`DraftControlDraft`."""

    def __init__(self, wire: ControlWire, inbox: deque[bytes], outbox: deque[bytes]) -> None:
        self._wire, self._inbox, self._outbox = wire, inbox, outbox

    def receive(self) -> list[ToDraft]:
        frames = [self._inbox.popleft() for _ in range(len(self._inbox))]
        return [_TO_DRAFT.decode(frame) for frame in frames]

    def send(self, message: FromDraft) -> bool:
        if not self._wire.is_lost():
            self._outbox.append(msgspec.msgpack.encode(message))
        return True


class DraftLife:
    """One draft process through all its lives: alive while `node` is."""

    def __init__(
        self,
        index: int,
        make_drafter: Callable[[], Drafter],
        drafting: Drafting,
        wire: ControlWire,
        limits: LinkLimits,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.index = index
        self._grammars = grammars
        self.node: DraftNode | None = None
        self.num_lives = 0
        self._make_drafter = make_drafter
        self._drafting = drafting
        self._wire = wire
        self._limits = limits
        self._source = random.Random(f"{drafting.seed} {index}")
        self._turns_dead = 0
        self._fd = SharedRegion.create(RING_BYTES)
        self.region = SharedRegion.attach(self._fd)
        self._own_region = SharedRegion.attach(self._fd)
        self.tensors = (TensorChannel(), TensorChannel()) if drafting.tensors else None
        self._channels: list[ScriptedChannel] = []
        if drafting.script is not None:
            seeds = (self._source.getrandbits(32) for _ in range(2))
            self._channels = [
                ScriptedChannel(replace(drafting.script, seed=seed)) for seed in seeds
            ]

    def close(self) -> None:
        self.die()
        self.region.close()
        self._own_region.close()
        os.close(self._fd)

    def target_end(self) -> TargetLinkEnd:
        if self.tensors is not None:
            return TensorTargetEnd(*self.tensors, self._limits)
        if self._channels:
            return TargetLinkEnd(*self._channels, self._limits)
        return RingTargetEnd(self.region, self._limits)

    def _draft_end(self, limits: LinkLimits) -> DraftLinkEnd:
        assert limits == self._limits
        if self.tensors is not None:
            return TensorDraftEnd(*self.tensors[::-1], limits)
        if self._channels:
            return DraftLinkEnd(*self._channels[::-1], limits)
        return RingDraftEnd(self._own_region, limits)

    def start(self) -> None:
        drafting, drafter = self._drafting, self._make_drafter()
        streams = DraftSlots(drafter, dtype=torch.float32, device=CPU, grammars=self._grammars)
        settings = BatchSettings(
            size=drafting.draft_batch,
            fan_out=drafting.fan_out,
            num_kept=drafting.num_kept,
            saguaro_c=drafting.saguaro_c,
            usual_tokens=drafting.usual_tokens,
            goes_beyond=drafting.usual_tokens is not None,
        )
        introduction = Attach(
            draft=self.index,
            pid=os.getpid(),
            drafter=drafter.name,
            gamma=drafter.gamma,
            feature_size=drafter.feature_size,
        )
        self.num_lives += 1
        self.node = DraftNode(
            introduction,
            streams=streams,
            prespeculation=PreSpeculation(drafter, streams, settings, backend=BACKEND),
            control=self._wire.draft_end(self.index),
            words=self._own_region,
            open_link=self._draft_end,
            max_extension=drafting.max_extension,
        )

    def die(self, turns_dead: int = 0) -> None:
        """At once; it starts anew after so many turns of the target."""
        self.node, self._turns_dead = None, turns_dead

    def step(self) -> None:
        """One turn of its loop, if it is alive."""
        if self.node is not None:
            self.node.step()

    def pass_turn(self) -> None:
        """What happens to it while the target makes a turn. Draws the same whatever it does."""
        drafting, source = self._drafting, self._source
        num_steps = source.choice(drafting.pace)
        dies, turns_dead = source.random() < drafting.death, source.randint(0, MAX_TURNS_DEAD)
        for channel in self._channels:
            channel.deliver()
        if self.node is None:
            self._turns_dead -= 1
            if self._turns_dead < 0:
                self.start()
        if dies and self.node is not None:
            num_steps = num_steps // 2
        for _ in itertools.repeat(None, num_steps):
            self.step()
        if dies and self.node is not None:
            self.die(turns_dead)
