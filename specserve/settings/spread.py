# pyright: strict
"""Which processes run on which machine of a launch over several. Pure.

Target ranks fill machines in order, since each round crosses whatever lies between them. Draft
processes go to machines that have no rank first: they stand a slower way. `topology.spread` says
otherwise. Every machine computes the same from what all have said of themselves.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from specserve.errors import InvalidField, Unsupported
from specserve.settings.config import Placement, TopologyConfig
from specserve.settings.hardware import Hardware
from specserve.settings.hosts import HostFacts
from specserve.settings.topology import CpuThreads, Topology, place_on_cpu, place_on_cuda


class Spread(NamedTuple):
    """Where everything runs."""

    text: str  # T+D of every machine, as `topology.spread` has it
    placements: tuple[Placement, ...]
    is_oversubscribed: bool


class _Room(NamedTuple):
    """What processes take of the machines, and what there is of it: cores, or devices."""

    for_rank: int
    for_draft: int
    of_host: list[int]


def spread(
    wish: TopologyConfig,
    topology: Topology,
    device: str,
    facts: Sequence[HostFacts],
    threads: CpuThreads,
) -> Spread:
    """Placements of all processes, the API's on the first machine.

    `facts` are in order of node ranks. Raises InvalidField, Unsupported.
    """
    room = _room(wish, topology, device, facts, threads)
    parts = _wished(wish.spread, topology, len(facts)) if wish.spread else _dealt(topology, room)
    placements: list[Placement] = []
    counts, oversubscribed = {"target": 0, "draft": 0}, False
    for host, (part, own) in enumerate(zip(parts, facts, strict=True)):
        found, is_short = _place(wish, part, device, own, threads)
        oversubscribed |= is_short
        placements += [
            msgspec.structs.replace(each, rank=each.rank + counts.get(each.role, 0), host=host)
            for each in found
            if each.role != "api" or host == 0
        ]
        counts["target"] += part.num_target_ranks
        counts["draft"] += part.num_draft_processes
    order = {"target": 0, "draft": 1, "api": 2}
    placements.sort(key=lambda each: (order[each.role], each.rank))
    return Spread(",".join(map(str, parts)), tuple(placements), oversubscribed)


def tightest(hardware: Hardware, facts: Sequence[HostFacts], placed: Spread) -> Hardware:
    """`hardware` with the memory that all ranks had together if each had what the poorest has."""
    num_ranks = [0] * len(facts)
    for placement in placed.placements:
        num_ranks[placement.host] += placement.role == "target"
    shares = [
        own.hardware.available_memory / count
        for own, count in zip(facts, num_ranks, strict=True)
        if count
    ]
    return msgspec.structs.replace(hardware, available_memory=int(min(shares) * sum(num_ranks)))


def _room(
    wish: TopologyConfig,
    topology: Topology,
    device: str,
    facts: Sequence[HostFacts],
    threads: CpuThreads,
) -> _Room:
    num_processes = topology.num_target_ranks + topology.num_draft_processes
    if wish.oversubscribe:  # as many on each, wherever they fit
        return _Room(1, 1, [math.ceil(num_processes / len(facts))] * len(facts))
    if device == "cuda":
        return _Room(1, 1, [len(own.hardware.cuda_devices) for own in facts])
    return _Room(threads.target, threads.draft, [len(own.hardware.cores) for own in facts])


def _dealt(topology: Topology, room: _Room) -> list[Topology]:
    left, hosts = list(room.of_host), range(len(room.of_host))
    ranks, drafts = [0] * len(left), [0] * len(left)
    for _ in range(topology.num_target_ranks):
        host = _first([host for host in hosts if left[host] >= room.for_rank], topology, room)
        ranks[host] += 1
        left[host] -= room.for_rank
    for _ in range(topology.num_draft_processes):
        free = [host for host in hosts if left[host] >= room.for_draft]
        free.sort(key=lambda host: (ranks[host] > 0, drafts[host]))
        host = _first(free, topology, room)
        drafts[host] += 1
        left[host] -= room.for_draft
    idle = [host for host in hosts if not ranks[host] and not drafts[host]]
    if idle:
        raise InvalidField(
            "topology.nnodes",
            f"{topology} leaves nothing for node {idle[0]}; type --nnodes {len(left) - len(idle)}, "
            "a larger --topology, or --spread with T+D of every node",
        )
    return [Topology(*part) for part in zip(ranks, drafts, strict=True)]


def _first(hosts: Sequence[int], topology: Topology, room: _Room) -> int:
    if not hosts:
        there = ", ".join(map(str, room.of_host))
        raise Unsupported(
            f"topology.topology: {topology} does not fit on nodes with {there} cores or devices; "
            "--oversubscribe shares them"
        )
    return hosts[0]


def _wished(text: str, topology: Topology, num_hosts: int) -> list[Topology]:
    """As somebody typed it. Raises InvalidField."""
    parts = [re.fullmatch(r"\s*(\d{1,3})\s*\+\s*(\d{1,3})\s*", part) for part in text.split(",")]
    found = [Topology(int(part[1]), int(part[2])) for part in parts if part]
    if len(found) != len(parts):
        problem = f'{text!r} is not T+D of every node with commas between, such as "2+0,0+1"'
        raise InvalidField("topology.spread", problem)
    if len(found) != num_hosts:
        problem = f"{text!r} is for {len(found)} nodes, and topology.nnodes is {num_hosts}"
        raise InvalidField("topology.spread", problem)
    in_all = Topology(
        sum(part.num_target_ranks for part in found),
        sum(part.num_draft_processes for part in found),
    )
    if in_all != topology:
        problem = f"{text!r} is {in_all} in all; type --topology {in_all}, which is {topology}"
        raise InvalidField("topology.spread", problem)
    if not found[0].num_target_ranks:
        problem = f"{text!r}: node 0 has target rank 0, so its T is 1 at least"
        raise InvalidField("topology.spread", problem)
    for host, part in enumerate(found):
        if part == Topology(0, 0):
            raise InvalidField("topology.spread", f"{text!r} leaves nothing for node {host}")
    return found


def _place(
    wish: TopologyConfig, part: Topology, device: str, own: HostFacts, threads: CpuThreads
) -> tuple[tuple[Placement, ...], bool]:
    try:
        if device == "cuda":
            num_devices = len(own.hardware.cuda_devices)
            return place_on_cuda(part, num_devices, oversubscribe=wish.oversubscribe)
        return place_on_cpu(part, own.hardware.cores, threads, oversubscribe=wish.oversubscribe)
    except Unsupported as error:
        raise Unsupported(f"{error} (on {own.name})") from error
