"""What NCCL is told: loopback for all, and for who shares a device, a host of its own."""

import os

import pytest

from specserve.transport.group_link.nccl import set_nccl_environment


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_HOSTID"):
        monkeypatch.setenv(name, "")  # so that what is set here is taken back
        monkeypatch.delenv(name)


def test_who_shares_a_device_is_a_host_of_its_own():
    names = set()
    for process in ("target 0", "target 1", "draft 0"):
        set_nccl_environment(process, shares_device=True)
        names.add(os.environ["NCCL_HOSTID"])
    assert len(names) == 3
    assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"


def test_who_has_a_device_is_of_the_same_host():
    set_nccl_environment("target 0", shares_device=False)
    assert "NCCL_HOSTID" not in os.environ


def test_another_interface_may_be_wished_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    set_nccl_environment("target 0", shares_device=False)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7"
