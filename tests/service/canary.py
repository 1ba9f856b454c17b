"""Pickles that leave a file behind if anybody unpickles them, and every way into a service."""

import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import zmq

from specserve.transport.control.control import FrameWriter
from specserve.transport.link.envelope import Kind, seal
from specserve.transport.link.ring import SharedRegion


class _Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return os.open, (str(self._path), os.O_CREAT | os.O_WRONLY)


def canaries(path: Path) -> list[bytes]:
    """Pickles in every protocol, each of which makes the file `path` where it is read."""
    return [pickle.dumps(_Touch(path), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]


def requests_with(payload: bytes, key: str) -> Iterator[bytes]:
    """HTTP requests that have `payload` in every place where bytes can stand."""
    sent = payload.hex().encode()  # where bytes as they are would be no HTTP
    length = b"Content-Length: %d\r\n" % len(payload)
    authorized = b"Authorization: Bearer %s\r\n" % key.encode()
    for path in (b"/v1/completions", b"/v1/chat/completions", b"/tokenize", b"/detokenize"):
        for more in (b"", authorized):
            start = b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s%s" % (path, length, more)
            for kind in (b"application/json", b"application/octet-stream", b"application/x-pickle"):
                yield start + b"Content-Type: %s\r\n\r\n" % kind + payload
    yield payload
    yield b"GET /v1/models?%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (sent, authorized)
    yield b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" % sent
    yield b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n%s\r\n" % (payload, authorized)


def send_raw(family: socket.AddressFamily, address: tuple[str, int] | str, payload: bytes) -> None:
    """To a socket, whatever it speaks; nobody needs to answer, or even to listen to the end."""
    with socket.socket(family) as place:
        place.settimeout(2)
        try:
            place.connect(address)
            place.sendall(payload)
            place.shutdown(socket.SHUT_WR)
            place.recv(65_536)
        except OSError:
            pass


def send_over_zmq(path: Path, payload: bytes) -> int:
    """To a socket of zmq's, as its own peers send: bare, sealed, in parts. How many frames."""
    writer = FrameWriter()
    sealed = writer.seal(payload)  # type: ignore[arg-type] - a message that there is not
    frames = [[payload], [sealed], [sealed[:20] + payload], [payload, sealed, payload], [b""]]
    with zmq.Context() as context:
        for kind in (zmq.PUSH, zmq.DEALER, zmq.REQ):
            with context.socket(kind) as place:
                place.setsockopt(zmq.LINGER, 500)
                place.setsockopt(zmq.SNDTIMEO, 500)
                place.connect(f"ipc://{path}")
                for frame in frames[: 1 if kind == zmq.REQ else None]:
                    try:
                        place.send_multipart(frame)
                    except zmq.Again:
                        pass  # a peer that takes nothing from sockets of this kind
    return len(frames)


def write_into_link(region: SharedRegion, payload: bytes) -> int:
    """Into both rings of a link, bare and soundly sealed as every kind; how many found room."""
    num_written = 0
    for ring in (region.to_draft, region.to_target):
        frames = [[payload], *(seal(kind, 1, 0, [payload]) for kind in Kind)]
        num_written += sum(ring.write(frame) for frame in frames)
    return num_written
