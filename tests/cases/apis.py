"""The same request over either API, and what came back in words that belong to neither.

Fields have the names of the Python client. Answers are compared by what both APIs tell.
"""

import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from specserve.api.call import SpecOptions
from specserve.api.events import CompletedSample, Completion, SampleEnd
from specserve.client import Client, Prompt
from specserve.errors import SpecserveError
from specserve.types import Logprobs, TokenOrigin

GRPC, HTTP = "gRPC", "HTTP"
APIS = (GRPC, HTTP)
TIMEOUT_S = 120.0
_OF_THE_SERVER = SpecOptions(return_stats=True)
_PLAIN = SpecOptions(mode="off")


@dataclass(frozen=True)
class Service:
    """A running service, and a client of it that any thread may use."""

    client: Client
    http_port: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """One of the n answers; `stop`: the string or token id of the request's that ended it."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop: str | int | None
    logprobs: tuple[float, ...] | None
    # Over gRPC alone.
    entries: tuple[Logprobs, ...] = field(default=(), compare=False)
    origins: tuple[TokenOrigin, ...] = field(default=(), compare=False)

    @property
    def num_drafted(self) -> int:
        return self.origins.count(TokenOrigin.DRAFTED)


@dataclass(frozen=True)
class Answer:
    """All samples of a request. Equal are answers of the same tokens, texts, ends and logprobs."""

    samples: tuple[Sample, ...]
    num_prompt_tokens: int
    num_generated_tokens: int
    prompt_logprobs: tuple[float, ...] = ()
    num_accepted: int = field(default=0, compare=False)  # of n = 1
    num_cached_tokens: int = field(default=0, compare=False)
    completion: Completion | None = field(default=None, compare=False)  # over gRPC

    @property
    def only(self) -> Sample:
        (sample,) = self.samples
        return sample


@dataclass(frozen=True)
class Delta:
    """What one event of a stream added to a sample."""

    sample_index: int
    text: str
    token_ids: tuple[int, ...]


class Refused(Exception):
    """The request was never acceptable: INVALID_ARGUMENT, or the status 400."""


def ask(api: str, service: Service, prompt: Prompt, **fields: Any) -> Answer:
    """The whole answer, speculated as the service is set to; raises Refused."""
    if api == HTTP:
        return _of_body(_post(service, _body_of(prompt, fields)), fields)
    try:
        return _of_completion(
            service.client.generate(
                prompt, **{"spec": _OF_THE_SERVER, "timeout_s": TIMEOUT_S} | fields
            ),
            service,
        )
    except SpecserveError as error:
        raise _refusal_of(error) from error


def ask_plainly(service: Service, prompt: Prompt, **fields: Any) -> Answer:
    """The same decoded without drafts, which only gRPC has a wish for."""
    return ask(GRPC, service, prompt, spec=_PLAIN, **fields)


def ask_all(
    ask_one: Callable[..., Answer], requests: Sequence[tuple[Prompt, dict[str, Any]]], at_once: int
) -> list[Answer]:
    """Answers in the order of `requests`, of which so many run at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        calls = [pool.submit(ask_one, prompt, **fields) for prompt, fields in requests]
        return [call.result() for call in calls]


def stream(api: str, service: Service, prompt: Prompt, **fields: Any) -> tuple[Answer, list[Delta]]:
    """The answer put together from its pieces, and these."""
    if api == HTTP:
        return _of_chunks(list(events(service, prompt, **fields)), fields)
    texts = service.client.stream(prompt, spec=_OF_THE_SERVER, timeout_s=TIMEOUT_S, **fields)
    deltas = list(texts)
    assert texts.finished is not None
    assert texts.prompt is not None
    samples = tuple(
        _of_pieces([d for d in deltas if d.sample_index == end.sample_index], end, service)
        for end in texts.finished.samples
    )
    usage = texts.finished.usage
    answer = Answer(samples, usage.num_prompt_tokens, usage.num_generated_tokens)
    return answer, [Delta(d.sample_index, d.text, tuple(d.token_ids)) for d in deltas]


def refusal(api: str, service: Service, prompt: Prompt, **fields: Any) -> str:
    """The message with which a request is refused, which it has to be."""
    try:
        answer = ask(api, service, prompt, **fields)
    except Refused as refused:
        return str(refused)
    raise AssertionError(f"answered instead of refused: {answer}")


# --- gRPC ------------------------------------------------------------------------------------


def _refusal_of(error: SpecserveError) -> Exception:
    return Refused(str(error)) if error.code == "INVALID_ARGUMENT" else error


def _of_completion(completion: Completion, service: Service) -> Answer:
    record = completion.spec
    return Answer(
        samples=tuple(_of_sample(sample, service) for sample in completion.samples),
        num_prompt_tokens=completion.usage.num_prompt_tokens,
        num_generated_tokens=completion.usage.num_generated_tokens,
        prompt_logprobs=tuple(each.logprob for each in completion.prompt.prompt_logprobs),
        num_accepted=0 if record is None else record.num_accepted_tokens,
        num_cached_tokens=completion.usage.num_cached_tokens,
        completion=completion,
    )


def _of_sample(sample: CompletedSample, service: Service) -> Sample:
    return Sample(
        text=sample.text,
        token_ids=tuple(sample.token_ids),
        finish_reason=str(sample.finish_reason),
        stop=_stop_of(sample, service),
        logprobs=None if not sample.logprobs else tuple(e.logprob for e in sample.logprobs),
        entries=tuple(sample.logprobs or ()),
        origins=tuple(sample.origins),
    )


def _of_pieces(deltas: list[Any], end: SampleEnd, service: Service) -> Sample:
    entries = tuple(entry for each in deltas for entry in each.logprobs or ())
    return Sample(
        text="".join(each.text for each in deltas),
        token_ids=tuple(token_id for each in deltas for token_id in each.token_ids),
        finish_reason=str(end.finish_reason),
        stop=_stop_of(end, service),
        logprobs=tuple(each.logprob for each in entries) or None,
        entries=entries,
        origins=tuple(origin for each in deltas for origin in each.origins),
    )


def _stop_of(end: CompletedSample | SampleEnd, service: Service) -> str | int | None:
    """As HTTP has it, where an end of sequence is nobody's stop token."""
    if end.stop_string is not None:
        return end.stop_string
    return None if end.stop_token_id in service.eos_token_ids else end.stop_token_id


# --- HTTP ------------------------------------------------------------------------------------


@contextmanager
def posted(service: Service, body: dict[str, Any], path: str) -> Iterator[http.client.HTTPResponse]:
    """The response whose body nobody has read; leaving closes the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body).encode())
        yield connection.getresponse()
    finally:
        connection.close()


def events(service: Service, prompt: Prompt, **fields: Any) -> Iterator[dict[str, Any]]:
    """The chunks of a stream; leaving early closes the connection."""
    body = {"stream_options": {"include_usage": True}} | _body_of(prompt, fields)
    with posted(service, body | {"stream": True}, "/v1/completions") as response:
        assert response.status == 200, response.read()
        for line in response:
            content = line.decode().strip().removeprefix("data: ")
            if content and content != "[DONE]":
                yield json.loads(content)


def _post(service: Service, body: dict[str, Any]) -> dict[str, Any]:
    with posted(service, body, "/v1/completions") as response:
        found = json.loads(response.read())
        if response.status == 400:
            raise Refused(found["error"]["message"])
        assert response.status == 200, found
        return found


def _body_of(prompt: Prompt, fields: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": prompt, "return_token_ids": True, "max_tokens": 256}
    return body | fields


def _of_body(body: dict[str, Any], fields: dict[str, Any]) -> Answer:
    choices = sorted(body["choices"], key=lambda choice: choice["index"])
    told = body.get("metrics", {}).get("speculative_decoding", {})
    answer = Answer(
        samples=tuple(_of_choice(choice, fields) for choice in choices),
        num_prompt_tokens=body["usage"]["prompt_tokens"],
        num_generated_tokens=body["usage"]["completion_tokens"],
        num_accepted=told.get("num_accepted_draft_tokens", 0),
        num_cached_tokens=body["usage"]["prompt_tokens_details"]["cached_tokens"],
    )
    if fields.get("prompt_logprobs") is None:
        return answer
    return replace(answer, prompt_logprobs=_prompt_logprobs_of(choices[0]))


def _prompt_logprobs_of(choice: dict[str, Any]) -> tuple[float, ...]:
    """As vLLM has them: nothing of the first token, of others the token itself comes first."""
    first, *others = choice["prompt_logprobs"]
    assert first is None
    ids = choice["prompt_token_ids"][1:]
    return tuple(each[str(token_id)]["logprob"] for token_id, each in zip(ids, others, strict=True))


def _of_choice(choice: dict[str, Any], fields: dict[str, Any]) -> Sample:
    logprobs = choice["logprobs"]
    return Sample(
        text=choice["text"],
        token_ids=tuple(choice["token_ids"]),
        finish_reason=choice["finish_reason"],
        stop=choice["stop_reason"],
        logprobs=None if fields.get("logprobs") is None else tuple(logprobs["token_logprobs"]),
    )


def _of_chunks(chunks: list[dict[str, Any]], fields: dict[str, Any]) -> tuple[Answer, list[Delta]]:
    *chunks, last = chunks
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    pieces = [choice for choice in choices if choice["finish_reason"] is None]
    ends = sorted(
        (choice for choice in choices if choice["finish_reason"] is not None),
        key=lambda choice: choice["index"],
    )
    samples = [_merged([c for c in pieces if c["index"] == end["index"]], end) for end in ends]
    answer = Answer(
        samples=tuple(_of_choice(sample, fields) for sample in samples),
        num_prompt_tokens=last["usage"]["prompt_tokens"],
        num_generated_tokens=last["usage"]["completion_tokens"],
    )
    deltas = [Delta(c["index"], c["text"], tuple(c.get("token_ids", ()))) for c in choices]
    return answer, [delta for delta in deltas if delta.text or delta.token_ids]


def _merged(pieces: list[dict[str, Any]], end: dict[str, Any]) -> dict[str, Any]:
    """One choice as it would have come whole."""
    values = [value for c in pieces if c["logprobs"] for value in c["logprobs"]["token_logprobs"]]
    return end | {
        "text": "".join(choice["text"] for choice in pieces) + end["text"],
        "token_ids": [token_id for c in pieces for token_id in c.get("token_ids", ())],
        "logprobs": {"token_logprobs": values},
    }
