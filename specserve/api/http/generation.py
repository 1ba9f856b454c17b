# pyright: strict
"""POST /v1/completions and /v1/chat/completions: a body in, an answer or a stream of chunks out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from typing import Generic, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from specserve.api.call import GenerateCall
from specserve.api.events import Finished, PromptInfo, TokenDelta
from specserve.api.http.answers import Gathered, Head, Json
from specserve.api.http.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    StreamOptions,
    read_body,
)
from specserve.api.http.connection import Gone, Reply, TooLarge, read_content, unless_gone
from specserve.api.http.forms import ChatForm, CompletionForm, Form
from specserve.api.http.merged import merged
from specserve.api.http.refusals import refusal_of, too_large
from specserve.api.http.to_calls import call_of_chat, calls_of_completion, new_id
from specserve.api.service import Service
from specserve.api.tracing import trace_context
from specserve.validation import MAX_SAMPLES, check_token_ids

WARNING = "x-specserve-warning"


class Asked(NamedTuple):
    """One request, ready to be served."""

    calls: list[GenerateCall]
    form: Form
    prompt_ids: list[list[int]]  # if the answer has them


class GenerationEndpoint(ABC, Generic[Body]):
    """An ASGI application for one path."""

    kind: type[Body]

    def __init__(self, service: Service, *, is_lenient: bool) -> None:
        self.service = service
        self._is_lenient = is_lenient

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self.service.max_message_bytes
        try:
            content = await read_content(scope, receive, limit)
        except Gone:
            return
        except TooLarge:
            await Reply(send).refuse(too_large(limit))
            return
        await unless_gone(receive, self._answer(scope, content, send))

    async def _answer(self, scope: Scope, content: bytes, send: Send) -> None:
        reply = Reply(send)
        try:
            body, ignored = read_body(content, self.kind, is_lenient=self._is_lenient)
            if ignored:
                reply = Reply(send, {WARNING: f"ignored: {', '.join(ignored)[:512]}"})
            await self._serve(body, scope, reply)
        except Exception as error:  # noqa: BLE001 - the boundary: nothing may leave untranslated
            await reply.refuse(refusal_of(error))

    @abstractmethod
    async def asked(self, body: Body) -> Asked:
        """What `body` asks for. Raises the SpecserveError that refuses it."""

    @abstractmethod
    def streams(self, body: Body) -> StreamOptions | None:
        """How the answer is streamed; None: it comes as a whole."""

    async def _serve(self, body: Body, scope: Scope, reply: Reply) -> None:
        asked = await self.asked(body)
        if self.service.tracer is not None:
            asked = asked._replace(calls=_within_traces(asked.calls, scope))
        head = Head(new_id(asked.form.prefix), asked.form.kind, self.service.ready.model)
        ready = self.service.ready
        # No place is made for samples that the session will refuse.
        num_samples = min(asked.calls[0].sampling.n, MAX_SAMPLES)
        gathered = Gathered(len(asked.calls), num_samples, ready.eos_token_ids)
        options = self.streams(body)
        if options is None:
            await self._whole(asked, head, gathered, reply)
        else:
            await self._stream(asked, _Chunks(head, gathered, asked, options), reply)

    async def _whole(self, asked: Asked, head: Head, gathered: Gathered, reply: Reply) -> None:
        async with aclosing(merged(self.service, asked.calls)) as events:
            async for call, event in events:
                match event:
                    case PromptInfo():
                        gathered.add_prompt(call, event)
                    case TokenDelta():
                        gathered.add_delta(call, event)
                    case Finished():
                        gathered.finish(call, event)
        choices = [asked.form.whole(gathered, index) for index in range(len(gathered.samples))]
        if asked.prompt_ids:
            for index, choice in enumerate(choices):
                choice["prompt_token_ids"] = asked.prompt_ids[gathered.call_of(index)]
        answer = head(choices) | {"usage": gathered.usage}
        await reply.json(answer | gathered.metrics(self.service.ready.gamma))

    async def _stream(self, asked: Asked, chunks: "_Chunks", reply: Reply) -> None:
        async with aclosing(merged(self.service, asked.calls)) as events:
            async for call, event in events:
                for chunk in chunks.of(call, event):
                    await reply.event(chunk)
        for chunk in chunks.last(self.service.ready.gamma):
            await reply.event(chunk)
        await reply.done()


class _Chunks:
    """The stream's chunks, event by event."""

    def __init__(
        self, head: Head, gathered: Gathered, asked: Asked, options: StreamOptions
    ) -> None:
        self._head, self._gathered, self._form = head, gathered, asked.form
        self._options, self._prompt_ids = options, asked.prompt_ids
        self._num_samples = asked.calls[0].sampling.n
        self._opened: set[int] = set()

    def of(self, call: int, event: PromptInfo | TokenDelta | Finished) -> list[Json]:
        match event:
            case PromptInfo():
                self._gathered.add_prompt(call, event)
                return []
            case TokenDelta():
                index = self._gathered.index(call, event.sample_index)
                opening = self._open(index)
                self._gathered.add_delta(call, event)
                return [*opening, self._chunk(self._form.piece(self._gathered, index, event))]
            case Finished():
                self._gathered.finish(call, event)
                indices = [self._gathered.index(call, n) for n in range(self._num_samples)]
                opened = [chunk for index in indices for chunk in self._open(index)]
                return opened + [
                    self._chunk(self._form.closing(self._gathered, index)) for index in indices
                ]

    def last(self, gamma: int) -> list[Json]:
        """Usage and metrics, of a stream that is to have them."""
        if not self._options.include_usage:
            return []
        chunk = self._head([], is_chunk=True) | {"usage": self._gathered.usage}
        return [chunk | self._gathered.metrics(gamma)]

    def _open(self, index: int) -> list[Json]:
        """Once a choice: what its stream begins with."""
        if index in self._opened:
            return []
        self._opened.add(index)
        opening = self._form.opening(self._gathered, index)
        if opening is None:
            return []
        if self._prompt_ids:
            opening["prompt_token_ids"] = self._prompt_ids[self._gathered.call_of(index)]
        return [self._chunk(opening)]

    def _chunk(self, choice: Json) -> Json:
        chunk = self._head([choice], is_chunk=True)
        if self._options.continuous_usage_stats:
            chunk["usage"] = self._gathered.usage
        elif self._options.include_usage:
            chunk["usage"] = None
        return chunk


class Completions(GenerationEndpoint[CompletionBody]):
    """POST /v1/completions."""

    kind = CompletionBody

    async def asked(self, body: CompletionBody) -> Asked:
        service = self.service
        calls = calls_of_completion(body, service.limits, service.sampling_defaults)
        prompt_ids: list[list[int]] = []
        if body.return_token_ids:
            prompt_ids = await _encoded(service, calls)
            calls = _with_ids(calls, prompt_ids)
        form = CompletionForm(
            num_samples=calls[0].sampling.n,
            has_logprobs=body.logprobs is not None,
            return_token_ids=body.return_token_ids,
            echoed=[_text_of(service, call) for call in calls] if body.echo else (),
        )
        return Asked(calls, form, prompt_ids)

    def streams(self, body: CompletionBody) -> StreamOptions | None:
        return (body.stream_options or StreamOptions()) if body.stream else None


class ChatCompletions(GenerationEndpoint[ChatBody]):
    """POST /v1/chat/completions."""

    kind = ChatBody

    async def asked(self, body: ChatBody) -> Asked:
        service = self.service
        calls = [call_of_chat(body, service.limits, service.sampling_defaults)]
        prompt_ids: list[list[int]] = []
        if body.return_token_ids:
            prompt_ids = await _encoded(service, calls)
            calls = _with_ids(calls, prompt_ids)
        form = ChatForm(has_logprobs=body.logprobs, return_token_ids=body.return_token_ids)
        return Asked(calls, form, prompt_ids)

    def streams(self, body: ChatBody) -> StreamOptions | None:
        return (body.stream_options or StreamOptions()) if body.stream else None


def _within_traces(calls: Sequence[GenerateCall], scope: Scope) -> list[GenerateCall]:
    """The same calls, below the span that the request's headers name."""
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
    trace = trace_context(headers)
    return [msgspec.structs.replace(call, trace=trace) for call in calls]


async def _encoded(service: Service, calls: Sequence[GenerateCall]) -> list[list[int]]:
    return [await service.tokenizer.encode_prompt(call.prompt, call.chat) for call in calls]


def _with_ids(calls: Sequence[GenerateCall], ids: Sequence[list[int]]) -> list[GenerateCall]:
    """The same calls, whose prompts need not be encoded again."""
    return [
        msgspec.structs.replace(call, prompt=token_ids)
        for call, token_ids in zip(calls, ids, strict=True)
    ]


def _text_of(service: Service, call: GenerateCall) -> str:
    """Raises InvalidField for ids of which there is none."""
    if isinstance(call.prompt, str):
        return call.prompt
    ids = [each for each in call.prompt if isinstance(each, int)]
    check_token_ids("prompt", ids, service.limits.vocab_size)
    return service.tokenizer.decode(ids)
