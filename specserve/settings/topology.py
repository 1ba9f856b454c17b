# pyright: strict
"""From "4+1" to a place for every process: devices and cores, and what follows from it. Pure.

On CPU target rank r takes the r-th run of `threads` cores of those this process may use, each
draft process the next `draft_threads`, and the API process what is left; with `oversubscribe`
nothing is tied to cores. On CUDA ranks and drafts take devices in order, and nothing is either.

NCCL goes from GPU to GPU; between processes on one GPU it carries everything through sockets. And
processes on one GPU take turns on it, unless NVIDIA MPS runs their kernels side by side.
"""

import re
from collections.abc import Sequence

import msgspec

from specserve.errors import InvalidField, Unsupported
from specserve.settings.config import Placement

_MAX_RANKS = 64
_MAX_DRAFTS = 64


class Topology(msgspec.Struct, frozen=True):
    """How many processes of each kind one launch starts."""

    num_target_ranks: int
    num_draft_processes: int

    def __str__(self) -> str:
        return f"{self.num_target_ranks}+{self.num_draft_processes}"


class CpuThreads(msgspec.Struct, frozen=True):
    """Cores of one process, by its role."""

    target: int
    draft: int = 1


def parse_topology(text: str) -> Topology:
    """ "4+1": four target ranks, one draft process. Raises InvalidField."""
    match = re.fullmatch(r"\s*(\d{1,3})\s*\+\s*(\d{1,3})\s*", text)
    if match is None:
        raise InvalidField("topology.topology", f'{text!r} is not of the form T+D, such as "2+0"')
    topology = Topology(int(match[1]), int(match[2]))
    if not 1 <= topology.num_target_ranks <= _MAX_RANKS:
        raise InvalidField("topology.topology", f"{text!r}: T must be from 1 to {_MAX_RANKS}")
    if topology.num_draft_processes > _MAX_DRAFTS:
        raise InvalidField("topology.topology", f"{text!r}: D must be at most {_MAX_DRAFTS}")
    return topology


def place_on_cpu(
    topology: Topology,
    cores: Sequence[int],
    threads: CpuThreads,
    *,
    oversubscribe: bool,
) -> tuple[tuple[Placement, ...], bool]:
    """Placements of all processes, and whether cores are oversubscribed.

    Raises Unsupported when the cores do not suffice and `oversubscribe` is off.
    """
    nodes = _nodes(topology)
    wanted = [threads.draft if role == "draft" else threads.target for role, _ in nodes]
    short = sum(wanted) > len(cores)
    if short and not oversubscribe:
        raise Unsupported(
            f"topology.topology: {topology} with {_per_process(threads, topology)} needs "
            f"{sum(wanted)} cores, this process may use {len(cores)}; --oversubscribe shares them"
        )
    left = [] if oversubscribe else list(cores)  # what is shared is nobody's own
    placements: list[Placement] = []
    for (role, rank), count in zip(nodes, wanted, strict=True):
        own, left = tuple(left[:count]), left[count:]
        placements.append(Placement(role=role, rank=rank, device="cpu", cores=own))
    placements.append(Placement(role="api", rank=0, device="cpu", cores=tuple(left)))
    return tuple(placements), short


def place_on_cuda(
    topology: Topology, num_devices: int, *, oversubscribe: bool
) -> tuple[tuple[Placement, ...], bool]:
    """Placements of all processes, and whether devices are oversubscribed.

    Raises Unsupported when the devices do not suffice and `oversubscribe` is off.
    """
    num_nodes = topology.num_target_ranks + topology.num_draft_processes
    short = num_nodes > num_devices
    if num_devices == 0:
        raise Unsupported("topology.device: no CUDA device that torch can use was found; use cpu")
    if short and not oversubscribe:
        raise Unsupported(
            f"topology.topology: {topology} needs {num_nodes} CUDA devices, {num_devices} found; "
            "--oversubscribe shares them"
        )
    placements = [
        Placement(role=role, rank=rank, device=f"cuda:{node % num_devices}")
        for node, (role, rank) in enumerate(_nodes(topology))
    ]
    placements.append(Placement(role="api", rank=0, device="cpu"))
    return tuple(placements), short


def resolve_link(wish: str | None, device: str, *, shares_devices: bool) -> str:
    """What carries rounds to draft processes. Raises Unsupported."""
    if wish == "nccl" and device != "cuda":
        raise Unsupported(
            f"speculation.link: nccl carries tensors between CUDA devices, this is {device} "
            "(--link shm)"
        )
    return wish or ("nccl" if device == "cuda" and not shares_devices else "shm")


def resolve_collectives(device: str, *, shares_devices: bool) -> str:
    """What carries tensors between ranks."""
    return "nccl" if device == "cuda" and not shares_devices else "gloo"


def resolve_mps(wish: bool | None, device: str, *, shares_devices: bool) -> bool | None:
    """Whether MPS is used: None: where it starts. Raises InvalidField."""
    if device == "cuda" and shares_devices:
        return wish
    if wish:
        problem = "is for processes that share a GPU (--device cuda --oversubscribe)"
        raise InvalidField("topology.mps", problem)
    return False


def _per_process(threads: CpuThreads, topology: Topology) -> str:
    if topology.num_draft_processes and threads.draft != threads.target:
        return f"{threads.target} thread(s) per rank and {threads.draft} per draft process"
    return f"{threads.target} thread(s) per process"


def _nodes(topology: Topology) -> list[tuple[str, int]]:
    targets = [("target", rank) for rank in range(topology.num_target_ranks)]
    return targets + [("draft", rank) for rank in range(topology.num_draft_processes)]
