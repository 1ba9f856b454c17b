# pyright: strict
"""Requests to the HTTP port over raw sockets: lines, headers, chunks, bodies, and what is none."""

import json
import random
import socket
import struct

from tests.reliability.fuzz.mutations import Mutator, wild_body
from tests.reliability.fuzz.port import Sent

_COMPLETION: dict[str, object] = {
    "prompt": "def", "max_tokens": 2, "temperature": 0.5, "seed": 1, "stop": ["x"], "n": 1,
    "logprobs": 1, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "logit_bias": {"5": 1.0},
    "stop_token_ids": [3], "presence_penalty": 0.1, "stream": False, "echo": False,
    "cache_salt": "a", "min_tokens": 1, "priority": 0, "repetition_penalty": 1.1,
}  # fmt: skip
_CHAT: dict[str, object] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    "max_completion_tokens": 1, "stream": True, "stream_options": {"include_usage": True},
    "logprobs": True, "top_logprobs": 2, "response_format": {"type": "text"},
}  # fmt: skip
_RESPONSE: dict[str, object] = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    "max_output_tokens": 2, "instructions": "a", "metadata": {"a": "b"}, "store": True,
    "stream": True, "background": False, "previous_response_id": None, "top_logprobs": 1,
    "include": ["message.output_text.logprobs"], "text": {"format": {"type": "text"}},
}  # fmt: skip
_BODIES: dict[str, dict[str, object]] = {
    "/v1/completions": _COMPLETION,
    "/v1/chat/completions": _CHAT,
    "/v1/responses": _RESPONSE,
    "/tokenize": {"prompt": "a b", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
_PATHS = (
    "/v1/models", "/v1/models/tiny", "/health", "/readyz", "/livez", "/version", "/server_info",
    "/metrics", "/v1/models/..%2f..%2fetc", "/none", "/v1/responses/resp_1?stream=true",
    "/v1/responses/resp_1/input_items?limit=1&order=asc", "/v1/responses/resp_1/cancel",
)  # fmt: skip
# Most answers are not waited for: whoever leaves early is a hostile client, too.
_PATIENCE_S = (0.002, 0.002, 0.002, 0.1)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _chunked(path: str, body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    return head.encode() + chunks + b"0\r\n\r\n"


class HttpFrames:
    """Fuzzes one port; several frames a connection while the server keeps it."""

    name = "HTTP"

    def __init__(self, port: int, seed: int) -> None:
        self._address = ("127.0.0.1", port)
        self._source = random.Random(seed)
        self._mutator = Mutator(self._source)
        self._valid = [
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-long: {'y' * 50}\r\n\r\n".encode()
            for path in _PATHS
        ]
        for path, body in _BODIES.items():
            content = json.dumps(body).encode()
            self._valid += [_post(path, content), _chunked(path, content, 9)]
        self._connection: socket.socket | None = None

    def send(self, count: int) -> Sent:
        """`count` frames."""
        sent = Sent()
        for _ in range(count):
            sent.num_frames += 1
            status = self._exchange(self._frame())
            if status is not None:
                sent.num_answers[status] = sent.num_answers.get(status, 0) + 1
        self._leave()
        return sent

    def close(self) -> None:
        self._leave()

    def _frame(self) -> bytes:
        kind = self._source.random()
        if kind < 0.05:
            return self._source.choice(self._valid)
        if kind < 0.4:
            path = self._source.choice(list(_BODIES))
            body = wild_body(_BODIES[path], self._source)
            return _post(path, body) if kind < 0.3 else _chunked(path, body, 700)
        if kind < 0.6:  # a sound head over a mutated body
            path = self._source.choice(list(_BODIES))
            body = json.dumps(_BODIES[path]).encode()
            return _post(path, self._mutator.mutated(body, [body]))
        return self._mutator.mutated(self._source.choice(self._valid), self._valid)

    def _exchange(self, frame: bytes) -> str | None:
        """Send it, and see what comes at once: a status, or None."""
        if self._connection is None:
            self._connection = socket.create_connection(self._address, timeout=5)
        self._connection.settimeout(5)
        try:
            self._connection.sendall(frame)
            self._connection.settimeout(self._source.choice(_PATIENCE_S))
            answer = self._connection.recv(4096)
        except TimeoutError:
            answer = b""  # it waits for more, or generates: leave
        except OSError:
            answer = b""  # closed on us
        keeps = answer.startswith(b"HTTP/1.1 2") and self._source.random() < 0.8
        if not keeps:
            self._leave()
        return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else None

    def _leave(self) -> None:
        if self._connection is None:
            return
        if self._source.random() < 0.7:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._connection.close()
        self._connection = None
