"""Which processes run on which machine: ranks together, drafts elsewhere, or as somebody said."""

import msgspec
import pytest

from specserve.errors import InvalidField, Unsupported
from specserve.settings.config import Config, SpeculationConfig, TopologyConfig
from specserve.settings.hardware import CudaDevice, Hardware
from specserve.settings.hosts import HostFacts
from specserve.settings.resolve import resolve
from specserve.settings.spread import Spread, spread, tightest
from specserve.settings.topology import CpuThreads, parse_topology
from tests.specserve.settings.resolving import FOLDER, GIB, SPEC


def hosts(*sizes: int, device: str = "cpu", memory: int = 8 * GIB) -> tuple[HostFacts, ...]:
    """Machines with so many cores, or devices."""
    return tuple(
        HostFacts(
            node_rank=rank,
            address=f"10.0.0.{rank + 1}",
            hardware=Hardware(
                cores=tuple(range(size)) if device == "cpu" else (0, 1),
                cpu_name="any",
                available_memory=memory,
                cuda_devices=tuple(
                    CudaDevice(index=index, name="any", memory=GIB)
                    for index in range(size if device == "cuda" else 0)
                ),
            ),
            agreed={},
        )
        for rank, size in enumerate(sizes)
    )


def placed(topology: str, facts: tuple[HostFacts, ...], device: str = "cpu", **wish) -> Spread:
    threads = CpuThreads(wish.get("threads", 1), wish.pop("draft_threads", 1))
    config = TopologyConfig(topology=topology, nnodes=len(facts), **wish)
    return spread(config, parse_topology(topology), device, facts, threads)


@pytest.mark.parametrize(
    ("topology", "sizes", "expected"),
    [
        ("2+1", (4, 4), "2+0,0+1"),  # a slower way is for drafts
        ("4+0", (2, 2), "2+0,2+0"),
        ("3+2", (2, 2, 2), "2+0,1+0,0+2"),
        ("2+2", (2, 2, 2), "2+0,0+1,0+1"),
        ("8+1", (8, 8), "8+0,0+1"),
        ("4+2", (8, 1), "4+1,0+1"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_fill_machines_and_drafts_go_where_none_is(topology, sizes, expected, device):
    found = placed(topology, hosts(*sizes, device=device), device)
    assert found.text == expected
    assert not found.is_oversubscribed


def test_every_process_has_its_place_and_the_api_is_on_the_first_machine():
    found = placed("2+2", hosts(3, 4, 2), threads=2, draft_threads=2, spread="1+0,1+1,0+1")
    assert [(p.role, p.rank, p.host, p.cores) for p in found.placements] == [
        ("target", 0, 0, (0, 1)),
        ("target", 1, 1, (0, 1)),
        ("draft", 0, 1, (2, 3)),
        ("draft", 1, 2, (0, 1)),
        ("api", 0, 0, (2,)),
    ]


def test_devices_are_counted_on_each_machine():
    found = placed("3+1", hosts(2, 2, device="cuda"), "cuda")
    assert [(p.role, p.host, p.device) for p in found.placements] == [
        ("target", 0, "cuda:0"),
        ("target", 0, "cuda:1"),
        ("target", 1, "cuda:0"),
        ("draft", 1, "cuda:1"),
        ("api", 0, "cpu"),
    ]


def test_who_shares_devices_is_spread_evenly():
    assert placed("2+1", hosts(1, 1), oversubscribe=True).text == "2+0,0+1"
    assert placed("4+1", hosts(9, 9), oversubscribe=True).text == "3+0,1+1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2+0", "is for 1 nodes, and topology.nnodes is 2"),
        ("1+0,1+x", "is not T+D of every node"),
        ("1+0,1+0", "is 2+0 in all; type --topology 2+0, which is 2+1"),
        ("0+1,2+0", "node 0 has target rank 0"),
        ("2+1,0+0", "leaves nothing for node 1"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(text, told):
    with pytest.raises(InvalidField) as caught:
        placed("2+1", hosts(8, 8), spread=text)
    assert caught.value.field == "topology.spread"
    assert told in caught.value.problem


def test_a_machine_without_work_is_refused_with_what_to_type():
    with pytest.raises(InvalidField, match=r"topology\.nnodes: 2\+0 leaves nothing for node 1; "):
        placed("2+0", hosts(8, 8))


def test_what_does_not_fit_is_refused_and_says_where():
    with pytest.raises(Unsupported, match=r"5\+0 does not fit on nodes with 2, 2 cores"):
        placed("5+0", hosts(2, 2))
    with pytest.raises(Unsupported, match=r"2 cores, .* may use 1.*\(on node 1 \(10\.0\.0\.2\)\)"):
        placed("2+1", hosts(4, 1), spread="1+0,1+1")


def test_memory_is_that_of_the_poorest_that_has_ranks():
    rich, poor = hosts(2, memory=8 * GIB)[0], hosts(0, 2, 2, memory=3 * GIB)[1:]
    facts = (rich, *poor)
    found = placed("3+1", facts, spread="2+0,1+0,0+1")
    assert tightest(rich.hardware, facts, found).available_memory == 3 * 3 * GIB


def test_all_machines_resolve_the_same_but_for_what_is_their_own():
    facts = hosts(2, 2, 1)
    found = []
    for rank in range(3):
        config = Config(
            topology=TopologyConfig(topology="3+1", nnodes=3, node_rank=rank, rendezvous="h:1"),
            speculation=SpeculationConfig(mode="async", drafter="/d"),
        )
        found.append(resolve(config, facts[rank].hardware, SPEC, FOLDER, facts))
    assert [config.topology.spread for config in found] == ["2+0,1+0,0+1"] * 3
    assert found[0].hosts == ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert len({(config.placements, config.num_blocks, config.far_drafts) for config in found}) == 1
    assert [len(config.own_placements) for config in found] == [3, 1, 1]
    assert found[0].far_drafts == (0,)
    assert found[2].placement("draft").host == 2
    alone = msgspec.structs.replace(found[0], hosts=())
    assert found[0].sharing != alone.sharing  # what is measured of one says nothing of the other
