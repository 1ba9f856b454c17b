"""Requests written by hand, byte by byte, as no client library would send them."""

import socket
import time
from collections.abc import Iterable
from urllib.parse import urlsplit


def connected(url: str, timeout_s: float = 20) -> socket.socket:
    """A connection to a service, on which nothing has been said."""
    place = urlsplit(url)
    assert place.hostname
    assert place.port
    return socket.create_connection((place.hostname, place.port), timeout=timeout_s)


def head(
    target: str,
    method: str = "GET",
    headers: Iterable[str] = ("Host: localhost",),
    version: str = "1.1",
) -> bytes:
    """A request without a body; nothing is escaped."""
    lines = [f"{method} {target} HTTP/{version}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def status(answer: bytes) -> int:
    """Of the first answer in `answer`; 0: there is none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/1.") else 0


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    parts = []
    while part := _part(connection):
        parts.append(part)
    return b"".join(parts)


def answer_on(connection: socket.socket, begun: bytes = b"") -> bytes:
    """One whole answer, which has `begun`; b"" where the connection ends without one.

    Of what has no length all that comes, and so of what ends the connection.
    """
    answer = begun
    while not _is_whole(answer) and (part := _part(connection)):
        answer += part
    return answer


def _is_whole(answer: bytes) -> bool:
    found, ends, content = answer.partition(b"\r\n\r\n")
    lines = found.lower().split(b"\r\n")
    lengths = [int(line[16:]) for line in lines if line.startswith(b"content-length: ")]
    return bool(ends and lengths and len(content) >= lengths[0])


def _part(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def asked(url: str, request: bytes) -> bytes:
    """The answer to `request` on a connection of its own.

    It stays open in both directions until then: a server may take its end for a client that left.
    """
    with connected(url) as connection:
        connection.sendall(request)
        return answer_on(connection)


def seconds_to_end(connection: socket.socket) -> tuple[float, bytes]:
    """How long it took until the other side ended the connection, and what it said before."""
    began_s = time.monotonic()
    answer = received(connection)
    return time.monotonic() - began_s, answer


def sent_until_refused(place: socket.socket, piece: bytes, limit: int) -> tuple[int, bytes]:
    """How many bytes of `piece` after `piece` were taken before an answer came, and that answer."""
    num_sent, left = 0, memoryview(piece)
    place.settimeout(0.0)
    deadline_s = time.monotonic() + 20
    while num_sent < limit and time.monotonic() < deadline_s:
        try:
            if answer := place.recv(65_536):
                place.settimeout(20)
                return num_sent, answer_on(place, answer)
        except BlockingIOError:
            pass
        except ConnectionResetError:
            break
        try:
            taken = place.send(left)
            num_sent, left = num_sent + taken, left[taken:] or memoryview(piece)
        except BlockingIOError:
            time.sleep(0.001)
        except (BrokenPipeError, ConnectionResetError):
            break
    place.settimeout(20)
    return num_sent, answer_on(place)
