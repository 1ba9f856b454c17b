# pyright: strict
"""The forkserver that a supervisor has: none before somebody asks, another where one has ended."""

import logging
import selectors
from collections.abc import Iterable

from specserve.processes.child import ChildCommand, environment
from specserve.processes.forkserver.handle import Forkserver
from specserve.processes.process import adopt_orphans

log = logging.getLogger(__name__)


class ForkserverKeeper:
    """At most one at a time, which the selector has with itself as data."""

    def __init__(self, commands: Iterable[ChildCommand], selector: selectors.BaseSelector) -> None:
        """`commands` say what is preloaded."""
        self._preloads = sorted({command.preload for command in commands if command.preload})
        self._selector = selector
        self._forkserver: Forkserver | None = None

    def live(self) -> Forkserver:
        """Another one if the former has ended."""
        if self._forkserver is not None and self._forkserver.alive:
            return self._forkserver
        self.bury()
        adopt_orphans()  # what is forked is left to us, and never was ours before
        level = logging.getLevelName(log.getEffectiveLevel()).lower()
        self._forkserver = Forkserver(self._preloads, log_level=level, environment=environment())
        self._selector.register(self._forkserver.socket, selectors.EVENT_READ, self._forkserver)
        return self._forkserver

    def reap(self) -> None:
        """Say so if it has ended since the last look."""
        if self._forkserver is not None and self._forkserver.reap():
            log.info("the forkserver has ended; what it would start next takes longer")

    def known_pids(self) -> set[int]:
        """Its own while it lives; who was just born has a pid afterwards."""
        if self._forkserver is None or not self._forkserver.alive:
            return set()
        self._forkserver.read()
        return {self._forkserver.pid}

    def bury(self) -> None:
        """End it, if there is one."""
        if self._forkserver is not None:
            self._forkserver.kill()
            if self._forkserver.socket.fileno() in self._selector.get_map():
                self._selector.unregister(self._forkserver.socket)
            self._forkserver.close()
            self._forkserver = None
