"""From "T+D" to devices and cores."""

import pytest

from specserve.errors import InvalidField, Unsupported
from specserve.settings.config import ResolvedConfig
from specserve.settings.topology import (
    CpuThreads,
    Topology,
    parse_topology,
    place_on_cpu,
    place_on_cuda,
)


def cores(placements):
    return {(p.role, p.rank): p.cores for p in placements}


@pytest.mark.parametrize(
    ("text", "topology"),
    [("1+0", Topology(1, 0)), ("4+1", Topology(4, 1)), (" 2 + 0 ", Topology(2, 0))],
)
def test_topologies_are_parsed(text, topology):
    assert parse_topology(text) == topology
    assert parse_topology(str(topology)) == topology


@pytest.mark.parametrize(
    "text", ["", "1", "0+1", "+1", "1+", "-1+0", "1+0+0", "65+0", "1+65", "a+b"]
)
def test_what_is_no_topology_is_refused(text):
    with pytest.raises(InvalidField, match=r"topology\.topology"):
        parse_topology(text)


def test_ranks_then_drafts_then_the_api_take_cores_in_order():
    placements, oversubscribed = place_on_cpu(
        Topology(2, 1), (2, 3, 5, 7, 8, 9, 10), CpuThreads(2, 2), oversubscribe=False
    )
    assert not oversubscribed
    assert cores(placements) == {
        ("target", 0): (2, 3),
        ("target", 1): (5, 7),
        ("draft", 0): (8, 9),
        ("api", 0): (10,),
    }


def test_a_draft_process_takes_as_many_cores_as_it_was_given():
    placements, _ = place_on_cpu(
        Topology(1, 2), tuple(range(8)), CpuThreads(1, 3), oversubscribe=False
    )
    assert cores(placements) == {
        ("target", 0): (0,),
        ("draft", 0): (1, 2, 3),
        ("draft", 1): (4, 5, 6),
        ("api", 0): (7,),
    }
    with pytest.raises(Unsupported, match=r"1 thread\(s\) per rank and 3 per draft process.* 7 "):
        place_on_cpu(Topology(1, 2), range(6), CpuThreads(1, 3), oversubscribe=False)


def test_the_api_is_unpinned_when_the_nodes_take_every_core():
    placements, _ = place_on_cpu(Topology(2, 0), (0, 1), CpuThreads(1), oversubscribe=False)
    assert cores(placements)["api", 0] == ()


def test_what_shares_its_cores_is_tied_to_none():
    placements, _ = place_on_cpu(Topology(1, 0), (0, 1), CpuThreads(1), oversubscribe=True)
    assert set(cores(placements).values()) == {()}


def test_too_few_cores_say_what_is_there_and_what_is_needed():
    with pytest.raises(Unsupported, match=r"2\+1.*needs 6 cores.*may use 4.*--oversubscribe"):
        place_on_cpu(Topology(2, 1), (0, 1, 2, 3), CpuThreads(2, 2), oversubscribe=False)


def test_oversubscribed_cores_are_shared_unpinned_and_marked():
    placements, oversubscribed = place_on_cpu(
        Topology(4, 0), (0, 1), CpuThreads(1), oversubscribe=True
    )
    assert oversubscribed
    assert len(placements) == 5
    assert set(cores(placements).values()) == {()}


def test_oversubscribe_marks_nothing_where_there_is_room():
    placements, oversubscribed = place_on_cpu(
        Topology(2, 0), (0, 1), CpuThreads(1), oversubscribe=True
    )
    assert not oversubscribed
    assert set(cores(placements).values()) == {()}


def test_devices_are_given_in_order():
    placements, oversubscribed = place_on_cuda(Topology(2, 1), 3, oversubscribe=False)
    assert not oversubscribed
    assert [p.device for p in placements] == ["cuda:0", "cuda:1", "cuda:2", "cpu"]


def test_too_few_devices_say_what_is_there_and_what_is_needed():
    with pytest.raises(Unsupported, match=r"2\+1 needs 3 CUDA devices, 1 found.*--oversubscribe"):
        place_on_cuda(Topology(2, 1), 1, oversubscribe=False)


def test_oversubscribed_devices_are_shared_in_turn():
    placements, oversubscribed = place_on_cuda(Topology(3, 0), 2, oversubscribe=True)
    assert oversubscribed
    assert [p.device for p in placements] == ["cuda:0", "cuda:1", "cuda:0", "cpu"]


def test_no_device_at_all_is_refused_even_oversubscribed():
    with pytest.raises(Unsupported, match="no CUDA device"):
        place_on_cuda(Topology(1, 0), 0, oversubscribe=True)


@pytest.mark.parametrize(
    ("topology", "num_cores", "shares", "expected"),
    [
        (Topology(1, 0), 3, False, (1, 2)),
        (Topology(1, 1), 2, False, (1,)),  # the draft's: the API process has none to itself
        (Topology(1, 1), 3, False, (2,)),
        (Topology(1, 0), 1, False, ()),
        (Topology(1, 0), 3, True, ()),
        (Topology(2, 1), 2, True, ()),
    ],
)
def test_messages_are_carried_beside_what_targets_compute_on(topology, num_cores, shares, expected):
    placements, _ = place_on_cpu(topology, range(num_cores), CpuThreads(1, 1), oversubscribe=shares)
    assert ResolvedConfig(placements=placements).message_cores == expected
