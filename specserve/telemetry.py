# pyright: strict
"""What a process says about itself: log lines, and one `RoundRecord` per round.

The node fills a record through `span()` and `RoundLog`, and counts what it publishes in `Tally`s.
Knows no sockets.
"""

import bisect
import logging
import sys
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import msgspec

from specserve.types import Distribution

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname).1s {process}: %(message)s"
LOG_LEVELS = ("debug", "info", "warning", "error")
_TALKATIVE = ("grpc", "asyncio", "numba", "llvmlite")  # whose debug lines say nothing of a service


def setup_logging(process: str, level: str = "info") -> None:
    """Log lines of this process go to stderr, each with the process's name, such as "target 0"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT.format(process=process), "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.root.level))


class VerifiedRow(msgspec.Struct, kw_only=True, frozen=True):
    """One row of a round that verified drafted tokens."""

    request_id: str
    sample_index: int
    verify_len: int
    num_accepted: int
    num_emitted: int
    num_judged: int = 0  # positions that were reached and looked at: what comes after tells nothing
    confidences: tuple[float, ...] = ()  # of the whole block; empty: the drafter has none
    is_stand_in: bool = False  # drafted where the block of a draft process was missing


class RoundRecord(msgspec.Struct, kw_only=True):
    """One round of the node loop: its rows, and seconds by span."""

    round_id: int
    num_rows: int = 0
    mode: str = "off"  # of speculation: `SpeculationSource.mode`
    round_s: float = 0.0
    spans_s: dict[str, float] = {}
    rows: list[VerifiedRow] = []  # those that verified drafted tokens

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Add the time spent inside to `spans_s[name]`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - began
            self.spans_s[name] = self.spans_s.get(name, 0.0) + elapsed


class RoundLog:
    """The last `capacity` rounds of one process."""

    def __init__(self, capacity: int = 1024) -> None:
        self.records: deque[RoundRecord] = deque(maxlen=capacity)
        self._next_id = 0

    @contextmanager
    def round(self) -> Generator[RoundRecord]:
        """A record for the round run inside, kept once the round ends."""
        record = RoundRecord(round_id=self._next_id)
        self._next_id += 1
        began = time.perf_counter()
        yield record
        record.round_s = time.perf_counter() - began
        self.records.append(record)


class Tally:
    """Counts values between fixed edges, as `Distribution` tells them."""

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges` ascend; a value on one belongs below it."""
        self._edges = tuple(edges)
        self._counts = [0] * (len(self._edges) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._edges, value)] += 1
        self._total += value

    def report(self) -> Distribution:
        """As it is now."""
        return Distribution(list(self._counts), self._total)
