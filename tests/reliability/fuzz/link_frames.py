# pyright: strict
"""Bad frames in the memory between the target and a draft process."""

import time

from specserve.transport.link.ring import SharedRegion
from tests.reliability.fuzz.port import Sent
from tests.specserve.transport.link.chaos import RingInjector

_BATCH = 25
_MOST_WAITS = 10_000  # of a millisecond, for a ring that stays full


class LinkFrames:
    """Fuzzes one direction."""

    def __init__(self, region: SharedRegion, name: str, seed: int) -> None:
        """`name` ends with the direction, to_draft or to_target. Closes `region` in the end."""
        self.name = name
        ring = region.to_draft if name.endswith("to_draft") else region.to_target
        self._injector = RingInjector(ring, seed)
        self._region = region

    def send(self, count: int) -> Sent:
        """`count` frames that found room."""
        sent, num_waits = Sent(), 0
        while sent.num_frames < count:
            num_written = self._injector.inject(min(_BATCH, count - sent.num_frames))
            sent.num_frames += num_written
            num_waits += not num_written
            if num_waits > _MOST_WAITS:
                raise TimeoutError(f"{self.name}: nobody reads")
            time.sleep(0.001)
        return sent

    def close(self) -> None:
        del self._injector  # it holds the memory
        self._region.close()
