"""gRPC calls written by hand, frame by frame, as no client library would send them."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, DATA, SETTINGS = 1, 0, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = struct.pack(">I", len(payload))[1:]
    return size + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_of(path: bytes, message: bytes = b"") -> bytes:
    """All that a client sends for one call."""
    fields = [(b":path", path), (b":authority", b"a"), (b"te", b"trailers")]
    fields.append((b"content-type", b"application/grpc"))
    headers = b"\x83\x86" + b"".join(header(*field) for field in fields)
    content = b"\x00" + struct.pack(">I", len(message)) + message
    return frame(HEADERS, 4, 1, headers) + frame(DATA, 1, 1, content)
