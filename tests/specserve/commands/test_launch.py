"""What `launch` prints once it serves: addresses that can be opened as they stand."""

import pytest

from specserve.commands.launch import ready_lines
from specserve.processes.process import ReadyReport


def lines(address: str, http_url: str = "", host_name: str = "box") -> list[str]:
    report = ReadyReport(ready=True, address=address, http_url=http_url)
    return ready_lines(report, host_name)


def test_an_address_of_one_interface_is_told_as_it_is():
    assert lines("127.0.0.1:7411", "http://127.0.0.1:8000") == [
        "OpenAI-compatible API at http://127.0.0.1:8000/v1",
        "watch it work at http://127.0.0.1:8000/",
        "listening on 127.0.0.1:7411",
    ]


@pytest.mark.parametrize(("everywhere", "loopback"), [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")])
def test_every_interface_is_told_by_addresses_that_can_be_opened(everywhere, loopback):
    assert lines(f"{everywhere}:7411", f"https://{everywhere}:8000") == [
        f"OpenAI-compatible API at https://{loopback}:8000/v1 and https://box:8000/v1",
        f"watch it work at https://{loopback}:8000/ and https://box:8000/",
        f"listening on {loopback}:7411 and box:7411 (on all interfaces: {everywhere}:7411)",
    ]


def test_a_machine_without_a_name_has_its_loopback():
    said = lines("0.0.0.0:7411", host_name="")
    assert said == ["listening on 127.0.0.1:7411 (on all interfaces: 0.0.0.0:7411)"]


def test_without_http_there_is_one_line():
    assert lines("127.0.0.1:7411") == ["listening on 127.0.0.1:7411"]
