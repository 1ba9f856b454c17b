"""What is said of several machines: it goes together, and strangers are kept out by their words."""

import socket

import msgspec
import pytest

from specserve.errors import InvalidField, Unsupported
from specserve.settings.config import Config, TopologyConfig
from specserve.settings.hosts import check_hosts, find_place, listen, own_address, port_of
from specserve.settings.placing import resolve_device
from specserve.settings.topology import parse_topology
from tests.specserve.settings.resolving import DEVICES, MACHINE


def topology(rendezvous: str | None = "127.0.0.2:29400", **fields) -> TopologyConfig:
    return TopologyConfig(**{"nnodes": 2, "rendezvous": rendezvous} | fields)


@pytest.mark.parametrize(
    ("wish", "field", "told"),
    [
        (topology(node_rank=2), "topology.node_rank", "2 is not below topology.nnodes, 2"),
        (topology(nnodes=1, node_rank=1), "topology.node_rank", "nodes count from 0"),
        (topology(None), "topology.rendezvous", "type --rendezvous HOST:PORT"),
        (topology(nnodes=1), "topology.rendezvous", "type --nnodes N as well"),
        (topology(None, nnodes=1, spread="1+0"), "topology.spread", "is for several nodes"),
    ],
)
def test_what_does_not_go_together_is_refused(wish, field, told):
    with pytest.raises(InvalidField) as caught:
        check_hosts(wish)
    assert caught.value.field == field
    assert told in caught.value.problem


def test_one_machine_and_several_are_fine():
    check_hosts(TopologyConfig())
    check_hosts(topology(node_rank=1, spread="1+0,1+0"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:70000",
        "host:x",
        "[::1:1",
        "::1]:1",
        "host:\u0661",
    ],
)
def test_what_is_no_place_is_refused(text):
    with pytest.raises(InvalidField, match=r"is not of the form HOST:PORT, such as 10\.0\.0\.1"):
        find_place(topology(text))


@pytest.mark.parametrize("host", ["192.0.2.7", "[2001:db8::7]"])
def test_beyond_loopback_somebody_has_to_say_that_strangers_are_kept_out(host):
    with pytest.raises(InvalidField) as caught:
        find_place(topology(f"{host}:29400"))
    assert caught.value.field == "topology.rendezvous"
    assert "can be reached by others" in caught.value.problem
    assert "type --private-network where the network between them" in caught.value.problem
    place = find_place(topology(f"{host}:29400", private_network=True))
    assert (place.address, place.port) == (host.strip("[]"), 29400)


@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]", "localhost"])
def test_loopback_needs_no_word(host):
    assert find_place(topology(f"{host}:29400")).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[::ffff:0.0.0.0]"])
def test_every_address_is_none_to_meet_at(host):
    with pytest.raises(InvalidField, match="is every address; type the one that the others reach"):
        find_place(topology(f"{host}:29400", private_network=True))


def test_an_address_of_one_cable_is_none_to_meet_at():
    with pytest.raises(InvalidField, match=r"of one cable.*; type one that all others reach"):
        find_place(topology("[fe80::1%lo]:29400", private_network=True))


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 70, "a\0b"])
def test_a_name_that_leads_nowhere_is_told(host):
    with pytest.raises(Unsupported) as caught:
        find_place(topology(f"{host}:29400"))
    assert str(caught.value).startswith(f"topology.rendezvous: {host} has no address: ")


def test_only_node_0_can_listen_at_the_place_and_nobody_else_beside_it():
    place = find_place(topology("127.0.0.2:29400"))
    with listen(place, 0) as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.2"  # and no other
        with pytest.raises(InvalidField, match=rf"node 0 cannot listen on 127\.0\.0\.2:{port}: "):
            listen(place, port)
    elsewhere = find_place(topology("192.0.2.7:29400", private_network=True))
    with pytest.raises(InvalidField, match=r"the others have --node-rank 1 and up"):
        listen(elsewhere, 0)


def test_a_machine_knows_by_which_address_it_is_reached():
    assert own_address(find_place(topology("127.0.0.2:29400"))) == "127.0.0.1"
    assert port_of(topology("h:29401")) == 29401
    assert find_place(topology("[::1]:29400")).family == socket.AF_INET6


def test_each_machine_of_several_needs_a_device_and_not_all_that_there_are():
    gpus = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    config = Config(topology=topology(topology="4+1"))
    asked = parse_topology("4+1")
    assert resolve_device(config, asked, gpus) == "cuda"
    assert resolve_device(Config(), asked, gpus) == "cpu"  # which one machine has too few of
    assert resolve_device(config, asked, MACHINE) == "cpu"
