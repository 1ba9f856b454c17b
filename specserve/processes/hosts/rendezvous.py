# pyright: strict
"""A launch's handle of the process that meets the other machines for it.

That process imports torch, which this one never does.
"""

import logging
import os
import socket
import subprocess
import time
from collections import deque
from types import TracebackType
from typing import Self

import msgspec

from specserve.errors import Unavailable
from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.messages import Answer, Arrived, Broken, FromMeeting, Meet
from specserve.processes.process import command_line
from specserve.settings.hosts import HostFacts, Place, listen

log = logging.getLogger(__name__)


class RendezvousProcess:
    """One life of it; leaving its `with` ends it."""

    def __init__(self, place: Place, timeout_s: float, facts: HostFacts) -> None:
        """Begins it. On node 0 it listens at `place`: raises InvalidField where it cannot."""
        leads = facts.node_rank == 0
        listener = listen(place, place.port) if leads else None
        ours, theirs = socket.socketpair()
        handed = [theirs.fileno(), *([listener.fileno()] if listener else [])]
        words = ["--parent-pid", str(os.getpid()), "--socket-fd", str(theirs.fileno())]
        words += ["--listen-fd", str(listener.fileno())] if listener else []
        words += ["--log-level", logging.getLevelName(log.getEffectiveLevel()).lower()]
        self.lines: Lines[FromMeeting] = Lines(ours, msgspec.json.Decoder(FromMeeting))
        self._waiting = deque[Arrived | Answer]()
        try:
            self._process = subprocess.Popen(
                command_line("specserve.processes.hosts", words),
                stdin=subprocess.DEVNULL,
                pass_fds=handed,
                start_new_session=True,
                # torch has its own words for a peer that is not there yet, with all its frames.
                env={"TORCH_CPP_LOG_LEVEL": "FATAL"} | os.environ,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if listener is not None:
                listener.close()
        self.lines.send(
            Meet(
                host=place.address if leads else place.host,
                port=place.port,
                timeout_s=timeout_s,
                facts=None if leads else facts,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def next(self, deadline_s: float) -> Arrived | Answer | None:
        """What it says next, None at `deadline_s` of CLOCK_MONOTONIC.

        Raises Unavailable once it can say nothing more.
        """
        while not self._waiting:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self.lines.wait(left_s)
            self.read()
        return self._waiting.popleft()

    def read(self) -> None:
        """Take what it has said, for `next`. Raises Unavailable as that."""
        for message in self.lines.receive():
            if isinstance(message, Broken):
                raise Unavailable(f"topology.rendezvous: {message.error}")
            self._waiting.append(message)
        if self.lines.is_over and not self._waiting:
            raise Unavailable("topology.rendezvous: the process that meets other nodes has ended")

    def close(self) -> None:
        """End it; nobody can be met any more."""
        self.lines.close()
        self._process.kill()
        self._process.wait()
