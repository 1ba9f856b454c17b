# pyright: strict
"""The way between two ends for the time of one epoch; a thread makes it, watches it and ends it.

Making it waits for the peer and ending it may wait for what it was doing, so neither happens in the
loop of a node. Until it is there writes are dropped and reads are empty; after the first error they
are so for good, and the next epoch makes another.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from torch import Tensor

from specserve.transport.group_link.lanes import FAILURES, Lanes
from specserve.transport.group_link.transit import Receiver, Sender
from specserve.transport.link.ends import Frame
from specserve.transport.link.envelope import Part
from specserve.transport.link.ring import ByteRing

# Between looks of the thread. What was announced is received meanwhile, so that it is there when
# the node asks, and its sender need not go on offering it.
WATCH_S = 0.001

log = logging.getLogger(__name__)


class Attachment:
    """What one end writes to and reads from in one epoch. Only `wait` waits, and nothing raises."""

    def __init__(
        self,
        epoch: int,
        join: Callable[[Callable[[], bool]], Lanes],
        rings: tuple[ByteRing, ByteRing],
        timeouts_s: tuple[float, float],
    ) -> None:
        """`join` meets the peer or raises `FAILURES`; what it is given says when to give up.

        `rings` carry the headers, out and in; `timeouts_s` are for a frame out and a frame in.
        """
        self.epoch = epoch
        self.is_broken = False
        self._join = join
        self._rings, self._timeouts_s = rings, timeouts_s
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"link-{epoch}", daemon=True)
        self._thread.start()

    def write(self, parts: Sequence[Part], device_part: Sequence[Tensor] = ()) -> bool:
        """All as one frame; False: no room, or no way yet, or none any more."""
        sender = self._sender
        if sender is None or self._leaving.is_set():
            return False
        try:
            return sender.write(parts, device_part)
        except FAILURES as error:
            self._fail(error)
            return False

    def read(self) -> Frame | None:
        """The next frame."""
        receiver = self._receiver
        if receiver is None or self.is_empty():
            return None
        try:
            return receiver.take()
        except FAILURES as error:
            self._fail(error)
            return None

    def is_empty(self) -> bool:
        """Whether no frame has arrived."""
        receiver = self._receiver
        if receiver is None:
            return True
        if not receiver.has_frame() and not self._leaving.is_set():
            try:
                receiver.advance()
            except FAILURES as error:
                self._fail(error)
        return not receiver.has_frame()

    def leave(self) -> None:
        """The epoch is over; the thread does the rest."""
        self._leaving.set()

    def wait(self, timeout_s: float) -> bool:
        """Until the thread has ended; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _fail(self, error: Exception) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            reason = str(error).partition("\n")[0]
            log.warning("the link of epoch %d is broken: %s", self.epoch, reason)
            self.is_broken = True

    def _run(self) -> None:
        # Whatever ends this thread has to be seen: the link would be silent for good.
        try:
            lanes = self._join(self._leaving.is_set)
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return
        try:
            self._watch(lanes)
        except Exception as error:  # noqa: BLE001
            self._fail(error)
        self._sender = self._receiver = None  # nothing else may keep the group
        try:
            lanes.close()
        except FAILURES as error:
            log.info("the link of epoch %d did not end well: %s", self.epoch, error)

    def _watch(self, lanes: Lanes) -> None:
        """Until one of both sides leaves. Raises `FAILURES`."""
        (ring_out, ring_in), (out_s, in_s) = self._rings, self._timeouts_s
        sender = Sender(ring_out, lanes.outgoing, self.epoch, out_s)
        receiver = Receiver(ring_in, lanes.incoming, self.epoch, in_s)
        self._sender, self._receiver = sender, receiver
        log.debug("the link of epoch %d is there", self.epoch)
        while not self._leaving.wait(WATCH_S):
            receiver.advance()
            if sender.is_overdue() or receiver.is_overdue():
                raise TimeoutError("the peer does not take part in a transfer")
