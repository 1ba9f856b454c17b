# pyright: strict
"""What the target knows of a draft process besides its frames, wherever that runs."""

from typing import Protocol


class DraftWords(Protocol):
    """As the target reads them, of `ring.SharedRegion` for one."""

    @property
    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC of the draft's last sign of life; 0: none yet, or it has ended."""
        ...

    @property
    def draft_pid(self) -> int:
        """Of the draft that attached last; 0: none yet, or it is leaving."""
        ...

    @property
    def draft_epoch(self) -> int:
        """The epoch that the draft works in; 0: none yet."""
        ...


class OwnWords(Protocol):
    """As the draft writes them."""

    @property
    def heartbeat_ns(self) -> int: ...
    @heartbeat_ns.setter
    def heartbeat_ns(self, now_ns: int) -> None: ...

    @property
    def draft_pid(self) -> int: ...
    @draft_pid.setter
    def draft_pid(self, pid: int) -> None: ...

    @property
    def draft_epoch(self) -> int: ...
    @draft_epoch.setter
    def draft_epoch(self, epoch: int) -> None: ...
