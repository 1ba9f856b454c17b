# pyright: strict
"""A link inside one process whose channels follow a script: late, lost, twice, damaged, stale.

The frames are those of every link; only the way between the ends is played. For tests and chaos
runs; everything follows from the script's seed.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specserve.transport.link.ends import DraftLinkEnd, Frame, TargetLinkEnd
from specserve.transport.link.envelope import Part
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import DeviceArray
from tests.specserve.transport.link.chaos import Corruptor


@dataclass(frozen=True, slots=True)
class Script:
    """What befalls frames on their way. All but the first and the last two are chances a frame."""

    delay: int = 0  # calls of `deliver` until a frame is there; 0: at once
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0  # overtakes the one before it, if that has not been read yet
    bit_flips: float = 0.0
    garbage: float = 0.0  # random bytes come first
    stale: float = 0.0  # the frame comes first under another epoch
    capacity: int = 1024  # frames under way or unread; beyond, `write` finds no room
    seed: int = 0


class ScriptedChannel:
    """One direction, a `Channel`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._source = random.Random(script.seed)
        self._corruptor = Corruptor(self._source)
        self._frames: deque[tuple[int, bytes]] = deque()  # when due, and what
        self._now = 0

    def write(self, parts: Sequence[Part], device_part: Sequence[DeviceArray] = ()) -> bool:
        """All parts as one frame; False when there is no room. A lost frame was written."""
        assert not device_part, "its frames are bytes"
        script = self.script
        if len(self._frames) >= script.capacity:
            return False
        frame = b"".join(parts)
        if self._happens(script.garbage):
            self._post(self._corruptor.noise())
        if self._happens(script.stale):
            self._post(self._corruptor.stale(frame))
        copies = 2 if self._happens(script.duplication) else 1
        if self._happens(script.loss):
            copies = 0
        for _ in range(copies):
            flipped = self._happens(script.bit_flips)
            self._post(self._corruptor.flipped(frame) if flipped else frame)
        if len(self._frames) > 1 and self._happens(script.reordering):
            (first_due, first), (second_due, second) = self._frames[-2], self._frames[-1]
            self._frames[-2], self._frames[-1] = (first_due, second), (second_due, first)
        return True

    def read(self) -> Frame | None:
        """The next frame that has arrived."""
        return None if self.is_empty() else Frame(bytearray(self._frames.popleft()[1]))

    def is_empty(self) -> bool:
        """Whether nothing has arrived."""
        return not self._frames or self._frames[0][0] > self._now

    def drop(self) -> None:
        """Forget what has arrived; what is under way still comes."""
        while not self.is_empty():
            self._frames.popleft()

    def deliver(self, num_steps: int = 1) -> None:
        """Let time pass."""
        self._now += num_steps

    def _post(self, frame: bytes) -> None:
        self._frames.append((self._now + self.script.delay, frame))

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._source.random() < chance


class Loopback:
    """Both ends of a link in one process."""

    def __init__(
        self, limits: LinkLimits, script: Script | None = None, answers: Script | None = None
    ) -> None:
        """`script` for reports; `answers` for pushes, None: the same with another seed."""
        script = script or Script()
        self.to_draft = ScriptedChannel(script)
        self.to_target = ScriptedChannel(answers or replace(script, seed=script.seed + 1))
        self.target = TargetLinkEnd(self.to_draft, self.to_target, limits)
        self.draft = DraftLinkEnd(self.to_target, self.to_draft, limits)

    def attach(self, epoch: int) -> None:
        """Both ends enter `epoch`, as after a handshake."""
        self.draft.epoch = self.target.epoch = epoch

    def deliver(self, num_steps: int = 1) -> None:
        """Let time pass for both directions."""
        self.to_draft.deliver(num_steps)
        self.to_target.deliver(num_steps)
