"""CUDA graphs: what a function does on a device, begun by one call instead of one a kernel.

Beginning a kernel from Python takes several microseconds, and most kernels of a round last no
longer. Only what has the same shapes has the same kernels on the same memory, so functions are
captured by shape, when it is first met. See docs/decisions/0024-cuda-graphs.md.
"""

import logging
import weakref
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

MOST_GRAPHS = 128  # of one kind that are kept: those of the shapes that were met last

# Sizes that graphs of a forward have. Below 8 a product reads weights and nothing else takes time,
# so few sizes do. Then come multiples of 8, which is what a product on tensor cores is cut into,
# and from 32 on four sizes between a number and its double: up to a fifth of the tokens is padding,
# for a number of graphs that can be captured as they are met. Beyond the last, kernels take longer
# than beginning them does.
BUCKETS = (
    *(1, 2, 4),
    *range(8, 64, 8),
    *range(64, 128, 16),
    *range(128, 256, 32),
    *range(256, 512, 64),
    *range(512, 1025, 128),
)

_Key = TypeVar("_Key", bound=Hashable)
_Made = TypeVar("_Made", bound=Callable[[], None])

log = logging.getLogger(__name__)


class Capture(Protocol):
    def capture(self, function: Callable[[], None]) -> Callable[[], object]:
        """What does again what `function` does, on the same memory.

        `function` waits for nothing on the device, and decides nothing by what is there. It has
        been called when this returns. RuntimeError where that cannot be.
        """
        ...


class GraphCapture:
    """What it captures shares memory: what one function made is overwritten by any other.

    Capture waits for nothing: a transfer of a link may stand still on the device meanwhile.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def capture(self, function: Callable[[], None]) -> Callable[[], object]:
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                function()  # what a first call makes for all others must not be in the graph
                # Other threads, of links, may ask anything of the device meanwhile.
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    function()
                finally:
                    graph.capture_end()
        finally:  # the first call may still be at work, on memory that others get after a failure
            torch.cuda.current_stream().wait_stream(self._stream)
        return graph.replay


class CapturedGraphs(Generic[_Key, _Made]):
    """Captured calls of what `make` makes for a key; each has memory of its own for its inputs.

    What one of them found is overwritten by the next call of any of them, and by nothing else.
    """

    def __init__(
        self,
        make: Callable[[_Key], _Made],
        capture: Capture | None = None,
        *,
        may_fail: bool = True,
    ) -> None:
        """`capture`: by default one of CUDA graphs. `may_fail`: who calls can do without."""
        self._make = make
        self._capture = capture or GraphCapture()
        self._may_fail = may_fail
        self._found: OrderedDict[_Key, tuple[_Made, Callable[[], object]]] = OrderedDict()
        self._has_failed = False
        _all.add(self)

    def __len__(self) -> int:
        return len(self._found)

    @torch.inference_mode()  # whose tensors nobody else may write to: all of them are made in it
    def run(self, key: _Key, fill: Callable[[_Made], None]) -> _Made | None:
        """What was made for `key`, called again with the inputs that `fill` gives it.

        None, now and from now on, where nothing can be captured. RuntimeError if that may not be.
        """
        if self._has_failed:
            return None
        if key in self._found:
            self._found.move_to_end(key)
            made, replay = self._found[key]
            fill(made)
        else:
            _process.num_captured += 1
            _process.is_capturing = True  # what is captured calls functions that would capture
            try:
                made = self._make(key)
                fill(made)
                replay = self._capture.capture(made)
            except RuntimeError as error:
                if not self._may_fail:
                    raise
                log.warning("goes on without CUDA graphs, which is slower: %s", error)
                self._has_failed = True
                self.forget()
                return None
            finally:
                _process.is_capturing = False
            self._found[key] = made, replay
            if len(self._found) > MOST_GRAPHS:
                self._found.popitem(last=False)
        replay()
        return made

    def forget(self) -> None:
        """Give the memory of all CUDA graphs back."""
        self._found.clear()


_all: weakref.WeakSet[CapturedGraphs] = weakref.WeakSet()


def forget() -> None:
    """All CUDA graphs of this process: NCCL does not end a group whose collectives are in one."""
    for graphs in tuple(_all):
        graphs.forget()


@dataclass
class _Process:
    """This one; its only loop captures."""

    uses: bool = False
    is_capturing: bool = False
    num_captured: int = 0


_process = _Process()


def use() -> None:
    """From now on what is made for CUDA devices in this process is captured."""
    _process.uses = True


def are_used(device: torch.device) -> bool:
    """Whether to capture what is done there now; not within another graph."""
    return device.type == "cuda" and _process.uses and not _process.is_capturing


def num_captured() -> int:
    """So far; what took a while in which it grew says nothing of the next time."""
    return _process.num_captured


def padded(count: int) -> int:
    """To a power of two: few shapes, none of them twice as large as it need be."""
    return 1 << (count - 1).bit_length()


def bucket_of(count: int) -> int:
    """The least of `BUCKETS` that holds so many; beyond the last a power of two."""
    place = bisect_left(BUCKETS, count)
    return BUCKETS[place] if place < len(BUCKETS) else padded(count)
