# pyright: strict
"""Keeps draft processes alive: whatever ends one of them, it is started again.

A draft process holds nothing that cannot be rebuilt, so its death, unlike any other child's, is no
reason to stop. Owns the shared memory of the links: the target keeps its end through all lives of
a draft. When to start and what counts as a hang is decided by
`specserve.processes.restart_back_off`.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterable

from specserve.processes.child import Child, ChildCommand
from specserve.processes.restart_back_off import RestartBackOff

log = logging.getLogger(__name__)


class _Draft:
    """One draft process through all its lives."""

    def __init__(self, command: ChildCommand, silence_limit_s: float) -> None:
        from specserve.transport.link.ring import (
            SharedRegion,  # numpy is slow to import, most need none
        )

        self.command = command
        self.link_fd = SharedRegion.create()
        self.region = SharedRegion.attach(self.link_fd)
        self.back_off = RestartBackOff(silence_limit_s)
        self.child: Child | None = None
        self.restart_s = math.inf
        self.has_been_ready = False
        self.last_word = ""  # what happened to it last

    def close(self) -> None:
        """Free the link's memory."""
        self.region.close()
        os.close(self.link_fd)


class DraftKeeper:
    """All draft processes of one launch. Told of everything that happens to them."""

    def __init__(
        self,
        commands: Iterable[ChildCommand],
        *,
        draft_timeout_s: float,
        start: Callable[[ChildCommand], Child],
        bury: Callable[[Child], None],
    ) -> None:
        """Create the links' memory; `start` and `bury` begin and tidy up one life."""
        self._drafts = [
            _Draft(command, draft_timeout_s) for command in commands if command.role == "draft"
        ]
        self._start = start
        self._bury = bury
        self._is_retired = False

    def link_fds(self, command: ChildCommand) -> tuple[int, ...]:
        """What a child inherits: target rank 0 every link, a draft process its own."""
        if (command.role, command.rank) == ("target", 0):
            return tuple(draft.link_fd for draft in self._drafts)
        return tuple(draft.link_fd for draft in self._drafts if draft.command == command)

    def started(self, child: Child) -> None:
        if draft := self._find(child):
            draft.child, draft.restart_s = child, math.inf
            draft.back_off.started(time.monotonic())

    def reported(self, child: Child) -> bool:
        """Whether the report is dealt with here: that of every life but the first."""
        draft = self._find(child)
        if draft is None or child.report is None:
            return False
        is_first, is_ready = not draft.has_been_ready, child.report.ready
        if is_ready:
            draft.has_been_ready = True
            draft.back_off.ready(time.monotonic())
        if not is_first:
            self._say(draft, "is back" if is_ready else f"cannot start: {child.report.error}")
        return not is_first

    def died(self, child: Child) -> bool:
        """Whether the death is dealt with here: not in a first start, nor after `retire`."""
        draft = self._find(child)
        if draft is None or self._is_retired or not draft.has_been_ready:
            return False
        self._schedule(draft, child.describe_death().removeprefix(child.command.name).strip())
        return True

    def restart_due(self) -> float:
        """Start and kill what is due; returns when to look again, infinity for never."""
        if self._is_retired:
            return math.inf
        return min((self._restart_if_due(draft) for draft in self._drafts), default=math.inf)

    def last_word(self, command: ChildCommand) -> str:
        """What happened last to the draft process of this command; empty for all others."""
        return next((draft.last_word for draft in self._drafts if draft.command == command), "")

    def retire(self) -> None:
        """From now on nothing is started or killed here: the service stops."""
        self._is_retired = True

    def close(self) -> None:
        """Free the links' memory."""
        for draft in self._drafts:
            draft.close()

    def _restart_if_due(self, draft: _Draft) -> float:
        now_s = time.monotonic()
        if now_s >= draft.restart_s:
            self._restart(draft)
        child, back_off = draft.child, draft.back_off
        if child is None or not child.alive or child.is_doomed:
            return draft.restart_s
        heartbeat_s, is_leaving = draft.region.heartbeat_ns / 1e9, not draft.region.draft_pid
        if back_off.is_hung(heartbeat_s, now_s, is_leaving=is_leaving):
            self._say(draft, "hangs and is killed")
            child.doom()
            return draft.restart_s
        return back_off.next_look_s(heartbeat_s, now_s, is_leaving=is_leaving)

    def _restart(self, draft: _Draft) -> None:
        if draft.child is not None:
            self._bury(draft.child)
            draft.child = None
        try:
            self._start(draft.command)
        except OSError as error:  # out of processes, memory or descriptors for the moment
            self._schedule(draft, f"cannot be started: {error}")

    def _schedule(self, draft: _Draft, what: str) -> None:
        now_s, heard_s = time.monotonic(), draft.region.heartbeat_ns / 1e9
        draft.region.heartbeat_ns = 0  # tells the target at once
        pause_s = draft.back_off.died(now_s, max(0.0, now_s - heard_s) if heard_s else 0.0)
        draft.restart_s = now_s + pause_s
        self._say(draft, f"{what}; starting it again in {pause_s:g} s")

    def _say(self, draft: _Draft, what: str) -> None:
        """Deaths number 1, 2, 4, 8 and so on are told: one that flaps must not flood the log."""
        draft.last_word = what
        count = draft.back_off.num_deaths
        if count & (count - 1) == 0:
            log.warning("%s %s", draft.command.name, what)

    def _find(self, child: Child) -> _Draft | None:
        for draft in self._drafts:
            if draft.command == child.command:
                return draft
        return None
