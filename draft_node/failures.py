"""What a drafter raises: counted and logged, and in the end too much."""

import logging

MAX_FAILURES = 16  # in a row, then the process is of no use

log = logging.getLogger(__name__)


class DraftingFailed(Exception):
    """The drafter has raised `MAX_FAILURES` times in a row."""


class Failures:
    """One count for contexts and blocks: either costs what it was meant for, nothing else."""

    def __init__(self) -> None:
        self.total = 0
        self._in_a_row = 0

    def count(self, error: Exception, what: str) -> None:
        """To be called while `error` is handled. Raises `DraftingFailed` once there are too many.

        Logs at powers of two only: a broken drafter must not become a flood of log lines.
        """
        self.total += 1
        self._in_a_row += 1
        if self.total & (self.total - 1) == 0:
            log.error("%s failed, time %d", what, self.total, exc_info=error)
        if self._in_a_row >= MAX_FAILURES:
            raise DraftingFailed(f"{what}: {MAX_FAILURES} times in a row") from error

    def end(self) -> None:
        """Something worked."""
        self._in_a_row = 0
