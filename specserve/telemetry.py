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
_BURST = 8  # lines of a `SparseLog` at once
_TALKATIVE = ("grpc", "asyncio", "numba", "llvmlite")  # whose debug lines say nothing of a service


def setup_logging(process: str, level: str = "info") -> None:
    """Log lines of this process go to stderr, each with the process's name, such as "target 0"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT.format(process=process), "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.root.level))


def one_line(text: str, most: int = 1000) -> str:
    """What somebody else has said, as a log may hold it: no line of its own, and no end of them."""
    return (text if text.isprintable() else repr(text)[1:-1])[:most]


class SparseLog:
    """Lines that others can bring about, as often as they like: some at once, then one a second.

    Those left out are counted.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._left, self._at_s = float(_BURST), time.monotonic()  # how many may be written
        self._num_untold = 0

    def log(self, level: int, text: str) -> bool:
        """Whether it was written."""
        now_s = time.monotonic()
        self._left = min(_BURST, self._left + now_s - self._at_s)
        self._at_s = now_s
        if self._left < 1:
            self._num_untold += 1
            return False
        more = f" (and {self._num_untold} like it before)" if self._num_untold else ""
        self._log.log(level, "%s%s", one_line(text), more)
        self._left, self._num_untold = self._left - 1, 0
        return True

    def warning(self, text: str) -> bool:
        """Whether it was written."""
        return self.log(logging.WARNING, text)


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
