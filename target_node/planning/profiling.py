"""Records some rounds with the torch profiler and writes a trace that any trace viewer opens."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from specserve.types import FromTarget, Profiled

IDLE_LIMIT_S = 30.0  # without a round, a recording ends with what it has

log = logging.getLogger(__name__)


class RoundProfiler:
    """Off costs one comparison a round."""

    def __init__(
        self, send: Callable[[FromTarget], bool], activities: Sequence[ProfilerActivity]
    ) -> None:
        """`activities`: see `Backend`."""
        self._send = send
        self._activities = activities
        self._remaining = 0
        self._path = Path()
        self._is_empty = True
        self._ends_s = 0.0
        self._profiler: torch.profiler.profile | None = None

    def ask(self, num_rounds: int, path: Path) -> None:
        """Profile the next `num_rounds` rounds; answered by one `Profiled` when they are over.

        0: whoever asked for `path` has left.
        """
        if not num_rounds:
            if self._profiler is not None and path == self._path:
                profiler, self._profiler = self._profiler, None
                with contextlib.suppress(RuntimeError):  # nobody is left to hear of it
                    profiler.stop()
            return
        if self._profiler is not None:
            self._send(Profiled(str(path), "profile: another profile is being recorded"))
            return
        self._remaining, self._path, self._is_empty = num_rounds, path, True
        self._ends_s = time.monotonic() + IDLE_LIMIT_S
        profiler = torch.profiler.profile(activities=self._activities)
        try:
            profiler.start()
        except RuntimeError as problem:  # another profiler has the device, say
            self._send(Profiled(str(path), f"profile: cannot begin: {problem}"))
            return
        self._profiler = profiler

    @contextlib.contextmanager
    def round(self) -> Iterator[None]:
        """Wraps one round."""
        yield
        if self._profiler is not None:
            self._remaining, self._is_empty = self._remaining - 1, False
            self._ends_s = time.monotonic() + IDLE_LIMIT_S
            if self._remaining <= 0:
                self._finish(self._profiler)

    def rest(self) -> None:
        """Called while nothing runs: nobody should wait forever for rounds that do not come."""
        if self._profiler is not None and time.monotonic() > self._ends_s:
            self._finish(self._profiler)

    def _finish(self, profiler: torch.profiler.profile) -> None:
        self._profiler = None
        error = ""
        try:
            profiler.stop()
            if self._is_empty:
                error = f"profile: no round ran within {IDLE_LIMIT_S:g} s; send a request meanwhile"
            else:
                profiler.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as problem:
            error = f"profile: cannot end and write {self._path}: {problem}"
            log.warning(error)
        self._send(Profiled(str(self._path), error))
