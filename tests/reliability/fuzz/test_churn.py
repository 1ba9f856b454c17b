"""Row 21: streams opened and cancelled at once, and a body in countless pieces, cost no memory.

Bodies and headers that are too large are refused: `tests/specserve/api/http` has those.
"""

import socket
import struct
import time

import pytest

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.errors import Cancelled
from tests.exactness.workload import Outcome, run
from tests.reliability.figures import keep
from tests.reliability.fuzz.bystander import plainly, requests_of
from tests.reliability.fuzz.campaign import Attacked
from tests.reliability.fuzz.grpc_frames import PREFACE, RST, SETTINGS, call_frames, http2_frame
from tests.reliability.fuzz.vitals import vitals
from tests.reliability.scale import is_long
from tests.service.draft_watch import eventually

_NUM_STREAMS = 100_000 if is_long() else 2_000
_NUM_CHUNKS = 1_000_000 if is_long() else 20_000
_STREAMS_A_CONNECTION = 1_000
_MOST_RISE_KB = 50 * 1024
_CANCEL = struct.pack(">I", 8)


def _rss_kb(attacked: Attacked) -> dict[str, int]:
    now = vitals(attacked.launched.process.pid)
    return {name: now.rss_kb[pid] for pid, name in now.names.items()}


def _largest_rise_kb(before: dict[str, int], after: dict[str, int]) -> int:
    return max(after[name] - before[name] for name in before)


def _open_and_cancel(attacked: Attacked, num_streams: int) -> int:
    """On one connection, without waiting for anything; how many the server took."""
    message = pb.GenerateRequest(text="def", sampling=pb.SamplingParams(max_tokens=200))
    host, _, port = attacked.address.rpartition(":")
    number = 0
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(PREFACE + http2_frame(SETTINGS, 0, 0, b""))
        try:
            for number in range(num_streams):
                stream = 2 * number + 1
                frames = call_frames(
                    "/specserve.v1.Generation/Generate", message.SerializeToString(), stream
                )
                frames.append(http2_frame(RST, 0, stream, _CANCEL))
                connection.sendall(b"".join(frames))
        except ConnectionError:  # the server has had enough, which it may
            return number
    return num_streams


@pytest.mark.slow
def test_streams_that_are_cancelled_at_once_leave_nothing(attacked: Attacked):
    requests = requests_of(6, seed=4)
    plain = plainly(attacked.address, requests)
    _open_and_cancel(attacked, 200)  # what the first ones touch is kept
    assert eventually(attacked.is_idle, 60)
    before, num_taken = _rss_kb(attacked), 0
    while num_taken < _NUM_STREAMS:
        num_taken += _open_and_cancel(attacked, _STREAMS_A_CONNECTION)
    ended_s = time.monotonic()
    assert eventually(attacked.is_idle, 60)

    def answers() -> list[Outcome] | None:
        # gRPC's core refuses calls while too many that were cancelled wait to be looked at.
        try:
            return run(attacked.address, requests, concurrency=2)
        except Cancelled:
            return None

    assert eventually(lambda: answers() == plain, 60)
    recovery_s = time.monotonic() - ended_s
    rise_kb = _largest_rise_kb(before, _rss_kb(attacked))
    assert rise_kb <= _MOST_RISE_KB
    keep(21, "gRPC", requests=num_taken, largest_rise_kb=rise_kb, recovery_s=recovery_s)


def test_a_body_in_a_million_pieces_is_a_body(attacked: Attacked):
    before = _rss_kb(attacked)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", attacked.http_port), timeout=60) as connection:
        connection.sendall(head)
        for _ in range(_NUM_CHUNKS // 1000):
            connection.sendall(b"2\r\n[[\r\n" * 1000)
        rise_kb = _largest_rise_kb(before, _rss_kb(attacked))
        connection.sendall(b"0\r\n\r\n")
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400")
    assert rise_kb <= _MOST_RISE_KB
    assert _largest_rise_kb(before, _rss_kb(attacked)) <= _MOST_RISE_KB
    keep(21, "HTTP", requests=1, chunks=_NUM_CHUNKS, largest_rise_kb=rise_kb)
