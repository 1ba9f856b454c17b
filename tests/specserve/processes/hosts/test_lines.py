"""Lines of JSON between machines: whole or not at all, and nothing that arrives can raise."""

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from specserve.processes.hosts import lines as lines_module
from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.messages import Beat, Hello, HostFails, ToHost


@pytest.fixture
def pair() -> Iterator[tuple[Lines[ToHost], Lines[ToHost]]]:
    made = [Lines(sock, msgspec.json.Decoder(ToHost)) for sock in socket.socketpair()]
    yield made[0], made[1]
    for each in made:
        each.close()


def test_messages_arrive_in_order_and_whole(pair):
    near, far = pair
    sent = [Beat(), HostFails(detail="x\ny" * 1000), Beat()]
    for message in sent:
        assert near.send(message)
    assert far.wait(5)
    assert far.receive() == sent
    assert far.receive() == []
    assert not far.wait(0)
    assert not far.is_over


def test_a_line_in_pieces_is_one(pair):
    near, far = pair
    for piece in (b'{"ty', b'pe":"beat', b'"}\n{"type"', b':"beat"}\n'):
        near.sock.send(piece)
        far.wait(5)
    assert far.receive() == [Beat(), Beat()]


@pytest.mark.parametrize(
    "data",
    [b"x\n", b"\n", b"\xff\n", b"[" * 5000 + b"\n", b'{"type":"hello"}\n', b'{"type":"beat"} {}\n'],
)
def test_what_is_malformed_ends_it(pair, data):
    near, far = pair
    near.send(Beat())
    near.sock.send(data)
    far.wait(5)
    assert far.receive() == [Beat()]
    assert far.is_over


def test_a_line_without_end_ends_it(pair, monkeypatch):
    near, far = pair
    monkeypatch.setattr(lines_module, "_MOST_BYTES", 1000)
    near.sock.send(b"x" * 2000)
    far.wait(5)
    assert far.receive() == []
    assert far.is_over


def test_the_end_of_the_other_side_is_seen_by_both_who_read_and_who_write(pair):
    near, far = pair
    near.send(Beat())
    near.close()
    assert far.receive() == [Beat()]
    assert far.is_over
    assert not far.send(Beat())


def test_a_reader_that_lags_is_waited_for_a_moment_and_then_given_up(pair, monkeypatch):
    near, far = pair
    monkeypatch.setattr(lines_module, "_SEND_S", 0.1)
    large = Hello(node_rank=1, token="x" * (1 << 22))
    assert not near.send(large)
    assert near.is_over
    assert far.wait(0)  # what was sent of it is there


def test_a_reader_that_reads_in_time_gets_what_is_larger_than_a_socket_holds(pair):
    near, far = pair
    large = HostFails(detail="x" * 4096)
    received: list[ToHost] = []

    def read() -> None:
        while len(received) < 500 and far.wait(20):
            received.extend(far.receive())

    reader = threading.Thread(target=read)
    reader.start()
    assert all(near.send(large) for _ in range(500))
    reader.join(30)
    assert received == [large] * 500
