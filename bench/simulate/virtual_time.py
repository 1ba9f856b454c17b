# pyright: strict
"""One clock for all that is simulated, which shipped modules read in place of the machine's.

The planner measures what it plans with. Under this clock it measures simulated rounds, so that the
code that a service runs is what runs here, and a run is the same every time.
"""

from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType

from target_node.planning import pace, round_prices
from target_node.speculation import auto, miss_policy, round_latency

# Shipped modules that are used here and read the time.
_READERS: tuple[ModuleType, ...] = (auto, miss_policy, pace, round_latency, round_prices)
_BEGINS_S = 1.0  # a moment of zero would mean that nothing was sent yet


class VirtualTime:
    """In place of a module's `time`: seconds that pass when the simulator says so."""

    def __init__(self) -> None:
        self.now_s = _BEGINS_S

    def perf_counter(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


@contextmanager
def shipped_code_reads(clock: VirtualTime) -> Generator[None]:
    """Within the block; not for two threads at once, since modules have one `time` each."""
    machine = {module: vars(module)["time"] for module in _READERS}
    try:
        for module in _READERS:
            vars(module)["time"] = clock
        yield
    finally:
        for module, its_own in machine.items():
            vars(module)["time"] = its_own
