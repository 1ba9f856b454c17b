"""One request over either API, as seen by a client that measures: `ask(api, places, prompt, ...)`.

Over HTTP by a socket of its own, so that a client may stop reading or leave when it likes, and
takes no time that it would measure. Answers are streams; both APIs give the same record of them.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
import grpc.aio

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from tests.reliability.scale import is_long
from tests.service.launched import Launched

GRPC, HTTP = "gRPC", "HTTP"
CUT = "CUT"  # the answer broke off without a word of why
LEFT = "LEFT"  # the client went
_CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_OWN = (("grpc.use_local_subchannel_pool", 1),)
_BESIDE_SAMPLING = ("seed", "request_id", "priority", "cache_salt")


def apis(usual: str) -> list[str]:
    """What to parametrize a test by: both in a long run, otherwise the one that is named."""
    return [GRPC, HTTP] if is_long() else [usual]


class Places(NamedTuple):
    """Where a service listens."""

    grpc: str  # host:port
    http: str  # http://host:port


def places_of(launched: Launched) -> Places:
    """Of one that has said so, or will."""
    address = launched.address()
    match = re.search(r"OpenAI-compatible API at (\S+)", launched.output)
    assert match, launched.output
    return Places(address, match[1])


@dataclass
class Answer:
    """What came of a request. Times are CLOCK_MONOTONIC seconds."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    error: str = ""  # a gRPC status name, CUT or LEFT; empty: it finished
    message: str = ""  # of the error
    retry_after_s: int | None = None
    sent_s: float = 0.0
    piece_s: list[float] = field(default_factory=list)  # when tokens came
    ended_s: float = 0.0

    @property
    def said(self) -> tuple[tuple[int, ...], str, str]:
        """What must not depend on what befell the service meanwhile."""
        return tuple(self.token_ids), self.text, self.finish_reason

    @property
    def gaps_s(self) -> list[float]:
        """Between pieces."""
        return [b - a for a, b in zip(self.piece_s, self.piece_s[1:], strict=False)]


OnPiece = Callable[[Answer], bool]  # False: leave now


async def ask(
    api: str,
    places: Places,
    prompt: str,
    *,
    timeout_s: float | None = None,
    on_piece: OnPiece = lambda answer: True,
    channel: grpc.aio.Channel | None = None,
    **options: Any,
) -> Answer:
    """`options` have the names of both APIs. Raises nothing that a service may do.

    `channel`: for many short calls over gRPC, which would take longer to connect than to answer.
    """
    answer = Answer(sent_s=time.monotonic())
    try:
        if api == HTTP:
            await _over_http(places, prompt, options, timeout_s, answer, on_piece)
        elif channel is not None:
            await _over_grpc(channel, prompt, options, timeout_s, answer, on_piece)
        else:  # a connection of its own, as over HTTP: what ends one request ends no other
            async with grpc.aio.insecure_channel(places.grpc, options=_OWN) as channel:
                await _over_grpc(channel, prompt, options, timeout_s, answer, on_piece)
    except (OSError, asyncio.IncompleteReadError) as error:
        answer.error, answer.message = CUT, repr(error)
    answer.ended_s = time.monotonic()
    return answer


# --- gRPC ---------------------------------------------------------------------------------------


async def _over_grpc(
    channel: grpc.aio.Channel,
    prompt: str,
    options: dict[str, Any],
    timeout_s: float | None,
    answer: Answer,
    on_piece: OnPiece,
) -> None:
    beside = {name: options[name] for name in _BESIDE_SAMPLING if name in options}
    sampling = {name: value for name, value in options.items() if name not in beside}
    if (mode := sampling.pop("mode", None)) is not None:  # of speculation; this API's alone
        beside["spec"] = pb.SpecOptions(mode=mode)
    request = pb.GenerateRequest(text=prompt, sampling=pb.SamplingParams(**sampling), **beside)
    call = stubs.GenerationStub(channel).GenerateStream(request, timeout=timeout_s)
    try:
        async for event in call:
            if _take(answer, event) and not on_piece(answer):
                answer.error = LEFT
                call.cancel()
                return
    except grpc.aio.AioRpcError as error:
        _take_error(answer, error)


def _take(answer: Answer, event: pb.GenerateStreamResponse) -> bool:
    """True if it brought tokens."""
    match event.WhichOneof("event"):
        case "token_delta":
            answer.piece_s.append(time.monotonic())
            answer.token_ids += event.token_delta.token_ids
            answer.text += event.token_delta.text
            return True
        case "finished":
            answer.finish_reason = event.finished.samples[0].finish_reason
    return False


def _take_error(answer: Answer, error: grpc.aio.AioRpcError) -> None:
    answer.error, answer.message = error.code().name, error.details() or ""
    metadata = {str(key): str(value) for key, value in error.trailing_metadata() or ()}
    if "retry-after" in metadata:
        answer.retry_after_s = int(metadata["retry-after"])
    # What the library says by itself of a connection that has gone, or does not come about.
    if re.match("Socket closed|.*onnection (reset|refused)|failed to connect", answer.message):
        answer.error = CUT


# --- HTTP ---------------------------------------------------------------------------------------


async def _over_http(
    places: Places,
    prompt: str,
    options: dict[str, Any],
    timeout_s: float | None,
    answer: Answer,
    on_piece: OnPiece,
) -> None:
    body = {"prompt": prompt, "stream": True, "return_token_ids": True, **options}
    if timeout_s is not None:
        body["timeout_s"] = timeout_s
    reader, writer = await open_http(places, "POST", "/v1/completions", body)
    try:
        status, headers = await read_head(reader)
        if status != 200:
            _take_problem(answer, json.loads(await reader.read()))
            if "retry-after" in headers:
                answer.retry_after_s = int(headers["retry-after"])
            return
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue  # sizes of chunks, and empty lines
            if line.startswith(b"data: [DONE]"):
                return
            chunk = json.loads(line[6:])
            if "error" in chunk:
                _take_problem(answer, chunk)
                return
            if _take_chunk(answer, chunk) and not on_piece(answer):
                answer.error = LEFT
                return
        answer.error = CUT
    finally:
        writer.transport.abort()


async def open_http(
    places: Places, method: str, path: str, body: dict[str, Any] | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which one request has been sent."""
    place = urlsplit(places.http)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**20)
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return reader, writer


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = [line.split(": ", 1) for line in head[1:] if line]
    return int(head[0].split()[1]), {name.lower(): value for name, value in pairs}


def _take_chunk(answer: Answer, chunk: dict[str, Any]) -> bool:
    """True if it brought tokens."""
    for choice in chunk["choices"]:
        answer.text += choice["text"]
        answer.finish_reason = choice["finish_reason"] or ""
        if token_ids := choice.get("token_ids"):
            answer.piece_s.append(time.monotonic())
            answer.token_ids += token_ids
            return True
    return False


def _take_problem(answer: Answer, body: dict[str, Any]) -> None:
    error = body["error"]
    answer.error, answer.message = _CODES.get(error["code"], str(error["code"])), error["message"]


# --- probes -------------------------------------------------------------------------------------


async def probe(places: Places, path: str) -> tuple[int, str]:
    """Status and `status` of a path such as /livez."""
    reader, writer = await open_http(places, "GET", path)
    try:
        status, _ = await read_head(reader)
        return status, json.loads(await reader.read())["status"]
    finally:
        writer.transport.abort()
