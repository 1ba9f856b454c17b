# pyright: strict
"""What a draft node of its own goes by: a draft process that services elsewhere are told of.

It has the settings of a launch, of which it reads those about the model, the drafter and this
machine, so that one file may serve both. It computes where a launch of one draft process would, and
divides the memory for contexts between its targets. Pure, as all of `specserve.settings.resolve`.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from specserve.errors import InvalidField
from specserve.settings.config import Config, ResolvedConfig, TopologyConfig
from specserve.settings.hardware import Hardware
from specserve.settings.hosts import reach
from specserve.settings.placing import draft_threads
from specserve.settings.topology import CpuThreads, Topology, place_on_cpu, place_on_cuda

ATTACH_TO = "--attach-to"
MOST_TARGETS = 16  # that one draft node serves: with more, nobody's share is of use


def parse_targets(text: str, *, is_private: bool) -> tuple[str, ...]:
    """HOST:PORT of each target; see `reach`, which may ask for the address of a name.

    Raises InvalidField for what is no such list, names a target twice or too many of them.
    """
    names = tuple(part.strip() for part in text.split(","))
    if len(names) > MOST_TARGETS:
        problem = f"{len(names)} targets, the limit is {MOST_TARGETS}; start another draft node"
        raise InvalidField(ATTACH_TO, problem)
    known: dict[tuple[str, int], str] = {}  # by address, to which two names may lead
    for name in names:
        place = reach(name, ATTACH_TO, is_private=is_private)
        if former := known.get((place.address, place.port)):
            other = f" (as {former})" if former != name else ""
            raise InvalidField(ATTACH_TO, f"{name} is there twice{other}; name each target once")
        known[place.address, place.port] = name
    return names


def as_launched(config: Config, hardware: Hardware) -> Config:
    """`config` as a launch of one target rank and one draft process here would have it."""
    wish = config.topology
    device = wish.device or ("cuda" if hardware.cuda_devices else "cpu")
    topology = TopologyConfig(
        topology="1+1",
        device=device,
        threads=wish.threads,
        oversubscribe=True,  # the rank is elsewhere
        mps=False,
        private_network=wish.private_network,
    )
    speculation = replace(config.speculation, mode="async", link=None)
    return replace(config, topology=topology, speculation=speculation, server=Config().server)


def resolve_draft_node(
    wish: Config, launched: ResolvedConfig, hardware: Hardware, targets: Sequence[str]
) -> ResolvedConfig:
    """Of one draft process that serves `targets`; `launched` is `as_launched(wish)`, resolved.

    Raises Unsupported where this machine has not the cores or the device.
    """
    alone, shares = Topology(0, 1), wish.topology.oversubscribe
    threads = CpuThreads(wish.topology.threads, draft_threads(wish))
    if launched.topology.device == "cuda":
        found, is_short = place_on_cuda(alone, len(hardware.cuda_devices), oversubscribe=shares)
    else:
        found, is_short = place_on_cpu(alone, hardware.cores, threads, oversubscribe=shares)
    return replace(
        launched,
        topology=replace(launched.topology, oversubscribe=shares),
        placements=tuple(place for place in found if place.role == "draft"),
        oversubscribed=is_short,
        targets=tuple(targets),
    )
