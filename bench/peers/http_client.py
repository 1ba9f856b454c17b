# pyright: strict
"""Streamed completions of an OpenAI server on this machine: only what the bench needs of HTTP/1.1.

Standard library alone, since the client runs beside what is measured. One connection a request.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, TypeVar

from bench.peers.records import Answer, Call, Job
from specserve.errors import Failed

_EVENT, _DONE = b"data: ", b"[DONE]"
_NEW_CHUNK = b"\r\n"


class CompletionsClient:
    """`extra` is sent with every request: what this server calls the wishes of the bench."""

    def __init__(self, port: int, extra: dict[str, Any]) -> None:
        self._port = port
        self._extra = extra

    async def is_ready(self) -> bool:
        """Whether the server says that it is healthy."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        try:
            writer.write(_head("GET", "/health") + _NEW_CHUNK)
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()

    async def ask(self, job: Job) -> Call:
        """All prompts at once. Raises Failed where a stream ends otherwise than it should."""
        start_s = time.perf_counter()
        streams = (self._stream(prompt, job.num_tokens, start_s) for prompt in job.prompts)
        answers = await together(streams)
        return Call(answers=answers, total_s=time.perf_counter() - start_s)

    async def _stream(self, prompt: list[int], num_tokens: int, start_s: float) -> Answer:
        wish = {
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        texts: list[str] = []
        first_token_s, counted = None, 0
        async with aclosing(self._events(json.dumps(wish).encode())) as events:
            async for event in events:
                if event.get("choices"):
                    if first_token_s is None:  # a token may have no text of its own
                        first_token_s = time.perf_counter() - start_s
                    texts.append(event["choices"][0].get("text") or "")
                usage: dict[str, int] | None = event.get("usage")
                counted = usage["completion_tokens"] if usage else counted
        if first_token_s is None or counted != num_tokens:
            raise Failed(f"an answer of {counted} tokens, not of {num_tokens}")
        return Answer(first_token_s=first_token_s, num_tokens=counted, text="".join(texts))

    async def _events(self, body: bytes) -> AsyncGenerator[dict[str, Any]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(_head("POST", "/v1/completions", len(body)) + _NEW_CHUNK + body)
            await _expect_chunks(reader)
            buffered = b""
            async for chunk in _chunks(reader):
                *lines, buffered = (buffered + chunk).split(b"\n")
                for line in lines:
                    if line.startswith(_EVENT) and line[len(_EVENT) :].strip() != _DONE:
                        yield _parsed(line[len(_EVENT) :])
        finally:
            writer.close()


def _head(method: str, path: str, num_bytes: int = 0) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close")
    if num_bytes:
        lines += ("Content-Type: application/json", f"Content-Length: {num_bytes}")
    return "".join(f"{line}\r\n" for line in lines).encode()


async def _expect_chunks(reader: asyncio.StreamReader) -> None:
    """Read the head of a response. Raises Failed with what the server said instead."""
    status = await reader.readline()
    is_chunked = False
    while (line := await reader.readline()) not in (_NEW_CHUNK, b""):
        is_chunked |= line.lower().replace(b" ", b"").startswith(b"transfer-encoding:chunked")
    if b" 200 " not in status or not is_chunked:
        said = (await reader.read(2000)).decode(errors="replace")
        raise Failed(f"the server says {status.decode(errors='replace').strip()!r}: {said}")


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Raises Failed where the server hangs up before its last chunk."""
    try:
        while num_bytes := int((await reader.readline()).split(b";")[0], 16):
            yield await reader.readexactly(num_bytes)
            await reader.readexactly(len(_NEW_CHUNK))
    except (ValueError, asyncio.IncompleteReadError) as error:
        raise Failed("the server hung up in the middle of an answer") from error


def _parsed(text: bytes) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(text)
    if "error" in event:
        raise Failed(f"the server says: {event['error']}")
    return event


_T = TypeVar("_T")


async def together(streams: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """All results in order. The first failure is raised once every other stream has stopped.

    Without that they would go on beside whoever is measured next.
    """
    tasks = [asyncio.ensure_future(stream) for stream in streams]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
