"""The client against a server that answers as those of peers do, and as they should not."""

import asyncio
import json

import pytest

from bench.peers.http_client import CompletionsClient
from bench.peers.records import Job
from specserve.errors import Failed

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    return f"{len(payload):x}\r\n".encode() + payload + b"\r\n"


def event(content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event({"choices": [{"text": text}], "usage": None})


def usage(count: int) -> bytes:
    return event({"choices": [], "usage": {"completion_tokens": count}})


def ask(pieces: list[bytes], *, num_tokens: int = 2, prompts=((1, 2),)):
    """What the client makes of it, and what it had asked for."""
    asked = []

    async def serve(reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            asked.append(json.loads(await reader.readexactly(length)))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass  # the client has heard enough
        finally:
            writer.close()

    async def run():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = CompletionsClient(port, {"cache_prompt": False})
            return await client.ask(Job(prompts=[list(p) for p in prompts], num_tokens=num_tokens))

    return asyncio.run(run()), asked


def test_an_answer_is_timed_counted_and_put_together():
    pieces = [_HEAD, chunk(token("one")), chunk(token(" two")), chunk(usage(2)), chunk(b"")]
    call, [asked] = ask(pieces)
    [answer] = call.answers
    assert (answer.text, answer.num_tokens) == ("one two", 2)
    assert 0 < answer.first_token_s < call.total_s
    assert call.tokens_per_s == pytest.approx(2 / call.total_s)
    assert asked["prompt"] == [1, 2]
    assert (asked["max_tokens"], asked["ignore_eos"], asked["stream"]) == (2, True, True)
    assert asked["cache_prompt"] is False


def test_events_may_be_cut_by_chunks_and_chunks_by_packets():
    whole = token("one") + token(" two") + usage(2) + b"data: [DONE]\n\n"
    chunks = b"".join(chunk(whole[at : at + 7]) for at in range(0, len(whole), 7)) + chunk(b"")
    sent = _HEAD + chunks
    call, _ = ask([sent[at : at + 50] for at in range(0, len(sent), 50)])
    assert call.answers[0].text == "one two"


def test_the_first_token_counts_even_where_it_has_no_text_yet():
    pieces = [_HEAD, chunk(token("")), *[b""] * 20, chunk(token("é")), chunk(usage(2)), chunk(b"")]
    call, _ = ask(pieces)
    assert call.answers[0].first_token_s < call.total_s / 2


def test_all_prompts_are_sent_at_once():
    pieces = [_HEAD, *[b""] * 10, chunk(token("x")), chunk(usage(2)), chunk(b"")]
    one, _ = ask(pieces)
    four, asked = ask(pieces, prompts=((1,), (2,), (3,), (4,)))
    assert sorted(each["prompt"][0] for each in asked) == [1, 2, 3, 4]
    assert len(four.answers) == 4
    assert four.total_s < 3 * one.total_s


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"error": "too long"}'], "too long"),
        ([_HEAD, chunk(token("one"))], "hung up"),
        ([_HEAD, chunk(token("one"))[:-9]], "hung up"),
        ([_HEAD, chunk(event({"error": "out of memory"})), chunk(b"")], "out of memory"),
        ([_HEAD, chunk(token("one")), chunk(usage(1)), chunk(b"")], "1 tokens, not of 2"),
    ],
    ids=["refused", "no end", "inside a chunk", "error event", "too short"],
)
def test_what_is_no_whole_answer_fails_with_what_the_server_said(pieces, said):
    with pytest.raises(Failed, match=said):
        ask(pieces)


def test_nobody_at_home_is_not_ready():
    async def run():
        async with await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            silent = await CompletionsClient(port, {}).is_ready()
        return silent, await CompletionsClient(port, {}).is_ready()

    assert asyncio.run(run()) == (False, False)
