# pyright: strict
"""Which device computes, and which processes run where: on this machine, or spread over several.

Pure, as all of `specserve.settings.resolve`.
"""

from collections.abc import Sequence

from specserve.errors import InvalidField
from specserve.settings.config import ELSEWHERE, Config, Placement
from specserve.settings.hardware import Hardware
from specserve.settings.hosts import HostFacts, check_hosts
from specserve.settings.spread import Spread, spread
from specserve.settings.topology import CpuThreads, Topology, place_on_cpu, place_on_cuda

_DEVICES = ("cpu", "cuda")


def resolve_device(config: Config, topology: Topology, hardware: Hardware) -> str:
    """cpu or cuda. Raises InvalidField."""
    device = config.topology.device
    if device is None:
        here = _here(config, topology)
        needed = here.num_target_ranks + here.num_draft_processes
        if config.topology.nnodes > 1:
            needed = 1  # as it looks from here; that all say the same is checked when they meet
        return "cuda" if len(hardware.cuda_devices) >= needed else "cpu"
    if device not in _DEVICES:
        raise InvalidField("topology.device", f"{device!r} is not known ({', '.join(_DEVICES)})")
    return device


def wants_gpus(device: str) -> bool:
    """Whether each process on `device` has one of its own."""
    return device == "cuda"


def place(
    config: Config,
    topology: Topology,
    device: str,
    hardware: Hardware,
    facts: Sequence[HostFacts] = (),
) -> Spread:
    """Placements of all processes; `facts`: of all machines, where there are several.

    Who has not met the others, such as `specserve info`, places all on this machine. Raises
    InvalidField, Unsupported.
    """
    wish = config.topology
    check_hosts(wish)
    threads = CpuThreads(wish.threads, draft_threads(config))
    topology, elsewhere = _here(config, topology), topology
    num_elsewhere = elsewhere.num_draft_processes - topology.num_draft_processes
    if wish.draft_address is not None and not num_elsewhere:
        problem = f"is for draft processes, and topology.topology is {topology}"
        hint = f"type --topology {topology.num_target_ranks}+1 for one"
        raise InvalidField("topology.draft_address", f"{problem}; {hint}")
    if facts:
        return spread(wish, topology, device, facts, threads)
    if device == "cuda":
        num_devices = len(hardware.cuda_devices)
        found, is_short = place_on_cuda(topology, num_devices, oversubscribe=wish.oversubscribe)
    else:
        found, is_short = place_on_cpu(
            topology, hardware.cores, threads, oversubscribe=wish.oversubscribe
        )
    drafts = [
        Placement(role="draft", rank=rank, device=device, host=ELSEWHERE)
        for rank in range(num_elsewhere)
    ]
    return Spread("", (*found[:-1], *drafts, found[-1]), is_short)


def _here(config: Config, topology: Topology) -> Topology:
    """Without the draft processes that other commands start."""
    if config.topology.draft_address is None:
        return topology
    return Topology(topology.num_target_ranks, 0)


def draft_threads(config: Config) -> int:
    """Cores of each draft process on a CPU."""
    return config.speculation.draft_threads or config.topology.threads
