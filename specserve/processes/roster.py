# pyright: strict
"""What the supervisor says of its children in the run folder, for the API process to show.

A file and no message: whoever shows it reads what holds now, and a reader that stands still keeps
nobody waiting.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from specserve.processes.child import Child, ChildCommand

log = logging.getLogger(__name__)

_FILE = "processes.json"


class ChildState(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a launch, as its supervisor sees it."""

    role: str  # api, target or draft
    rank: int
    name: str  # as users read it
    pid: int  # 0 while there is none
    state: str  # starting, ready, failing (by its own word) or ended
    detail: str  # what happened to it last, or why it fails; empty: nothing to tell


class Roster:
    """Keeps the file of one launch."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._told: list[ChildState] = []

    def tell(self, states: Sequence[ChildState]) -> None:
        """Write them down if anything is new."""
        if list(states) == self._told:
            return
        self._told = list(states)
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(self._told))
            os.replace(new, self._path)  # a reader sees one or the other
        except OSError as error:  # what is shown is old then, and the service goes on
            log.warning("cannot tell the state of processes: %s", error)


def state_of(command: ChildCommand, child: Child | None, last_word: str) -> ChildState:
    """Of the latest child that ran `command`; None: it could not be started again yet."""
    is_alive = child is not None and child.alive
    if child is None or not child.alive:
        state, detail = "ended", last_word
    elif child.farewell is not None:
        state, detail = "failing", child.farewell.error
    else:
        state, detail = "starting" if child.report is None else "ready", last_word
    return ChildState(
        role=command.role,
        rank=command.rank,
        name=command.name,
        pid=child.pid if child is not None and is_alive else 0,
        state=state,
        detail=detail,
    )


def read_roster(folder: Path) -> list[ChildState]:
    """What was told last; nothing where nobody supervises."""
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=list[ChildState])
    except FileNotFoundError:
        return []
