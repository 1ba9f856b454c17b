"""How processes on several machines find each other: by one store, and on one interface."""

import datetime
import os
import socket

import pytest
from torch.distributed import TCPStore

from specserve.errors import Unavailable
from specserve.settings.config import ResolvedConfig, TopologyConfig
from specserve.transport import rendezvous
from specserve.transport.rendezvous import finder, interface_of, open_store, use_own_interface

NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what is set here is taken back
        monkeypatch.delenv(name)


def config_of(port: int, *hosts: str, rank: int = 0) -> ResolvedConfig:
    topology = TopologyConfig(nnodes=2, node_rank=rank, rendezvous=f"any:{port}")
    return ResolvedConfig(topology=topology, hosts=hosts)


@pytest.fixture
def store() -> tuple[TCPStore, ResolvedConfig]:
    listener = socket.create_server(("127.0.0.2", 0))
    port = listener.getsockname()[1]
    timeout = datetime.timedelta(seconds=10)
    return (
        TCPStore(
            "127.0.0.2", port, is_master=True, wait_for_workers=False, timeout=timeout,
            master_listen_fd=listener.detach(),
        ),
        config_of(port, "127.0.0.2", "127.0.0.1"),
    )  # fmt: skip


def test_what_is_put_there_is_found_once_it_is_there(store):
    held, config = store
    find = finder(config, "key")
    assert find() is None
    open_store(config).set("key", "value")
    assert find() == "value"
    assert held.get("key") == b"value"


def test_a_store_that_does_not_answer_has_nothing_and_raises_nothing(monkeypatch, caplog):
    class Broken:
        def set_timeout(self, _: datetime.timedelta) -> None: ...

        def check(self, _: list[str]) -> bool:
            raise RuntimeError("Connection was likely closed.\nframe #0")

    monkeypatch.setattr(rendezvous, "open_store", lambda _: Broken())
    assert finder(ResolvedConfig(), "key")() is None
    assert "does not answer: Connection was likely closed." in caplog.text
    assert "frame" not in caplog.text


def test_a_store_that_is_not_there_is_told():
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unavailable, match=rf"the store of node 0 at 127\.0\.0\.2:{port} is not"):
        open_store(config_of(port, "127.0.0.2", "127.0.0.1"), wait_s=0.2)


def test_interfaces_are_found_by_their_address():
    assert interface_of("127.0.0.1") == interface_of("127.0.0.2") == "lo"
    assert interface_of("::1") in ("lo", None)  # where there is no IPv6
    assert interface_of("192.0.2.1") is None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("192.0.2.1", 1))
        except OSError:
            pytest.skip("this machine has no way out")
        address = way.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    assert interface_of(address) in [name for _, name in socket.if_nameindex()]


def test_groups_listen_on_loopback_or_on_the_interface_of_the_own_address(monkeypatch):
    use_own_interface(ResolvedConfig())
    assert [os.environ.pop(name) for name in NAMES] == ["lo", "lo"]
    monkeypatch.setattr(rendezvous, "interface_of", {"10.0.0.2": "eth7"}.get)
    use_own_interface(config_of(1, "10.0.0.1", "10.0.0.2", rank=1))
    assert [os.environ.pop(name) for name in NAMES] == ["eth7", "eth7"]
    use_own_interface(config_of(1, "10.0.0.1", "10.0.0.2", rank=0))  # behind a translation, say
    assert [name for name in NAMES if name in os.environ] == []
    monkeypatch.setenv(NAMES[0], "mine")
    use_own_interface(ResolvedConfig())
    assert [os.environ[name] for name in NAMES] == ["mine", "lo"]
