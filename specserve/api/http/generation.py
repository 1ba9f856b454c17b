# pyright: strict
"""POST /v1/completions and /v1/chat/completions: a body in, an answer or a stream of chunks out."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

import msgspec
from starlette.types import Scope

from specserve.api.call import GenerateCall
from specserve.api.events import Event, Finished, PromptInfo, TokenDelta
from specserve.api.http.answer_size import require_answer_size
from specserve.api.http.answers import Gathered, Head, Json, TokenDetails
from specserve.api.http.bodies import Body, ChatBody, CompletionBody, StreamOptions
from specserve.api.http.completion_logprobs import Echo, echo_of, prompt_logprobs
from specserve.api.http.connection import Reply
from specserve.api.http.endpoint import BodyEndpoint, within_traces
from specserve.api.http.forms import ChatForm, CompletionForm, Form
from specserve.api.http.merged import merged, scored
from specserve.api.http.to_calls import call_of_chat, calls_of_completion, new_id
from specserve.api.service import Service
from specserve.errors import InvalidField
from specserve.validation import MAX_SAMPLES, check_prompt_len

_MANY_LOGPROBS = 1000  # positions of an answer that takes milliseconds to write


class Asked(NamedTuple):
    """One request, ready to be served."""

    calls: list[GenerateCall]
    form: Form
    prompt_ids: list[list[int]]  # if the answer has them
    has_prompt_logprobs: bool  # the answer
    is_scored: bool = False  # no sample has tokens


class GenerationEndpoint(BodyEndpoint[Body, tuple[Asked, StreamOptions | None]]):
    """One of choices."""

    @abstractmethod
    async def asked(self, body: Body) -> Asked:
        """What `body` asks for. Raises the SpecserveError that refuses it."""

    @abstractmethod
    def streams(self, body: Body) -> StreamOptions | None:
        """How the answer is streamed; None: it comes as a whole."""

    async def checked(self, body: Body) -> tuple[Asked, StreamOptions | None]:
        """What `asked` and `streams` say, which go together. Raises SpecserveError."""
        asked, options = await self.asked(body), self.streams(body)
        if options is not None and asked.has_prompt_logprobs:
            problem = "come with whole answers; leave stream out"
            raise InvalidField("prompt_logprobs", problem)
        require_answer_size(asked.calls, self.service.limits, is_whole=options is None)
        return asked, options

    async def serve(
        self, checked: tuple[Asked, StreamOptions | None], scope: Scope, reply: Reply
    ) -> None:
        asked, options = checked
        if self.service.tracer is not None:
            asked = asked._replace(calls=within_traces(asked.calls, scope))
        head = Head(new_id(asked.form.prefix), asked.form.kind, self.service.ready.model)
        ready = self.service.ready
        # No place is made for samples that the session will refuse.
        num_samples = min(asked.calls[0].sampling.n, MAX_SAMPLES)
        gathered = Gathered(
            len(asked.calls), num_samples, ready.eos_token_ids, keeps_tokens=options is None
        )
        if options is None:
            await self._whole(asked, head, gathered, reply)
        else:
            await self._stream(asked, _Chunks(head, gathered, asked, options), reply)

    def _events(self, asked: Asked) -> AsyncGenerator[tuple[int, Event]]:
        events = merged(self.service, asked.calls)
        return scored(events) if asked.is_scored else events

    async def _whole(self, asked: Asked, head: Head, gathered: Gathered, reply: Reply) -> None:
        async with aclosing(self._events(asked)) as events:
            async for call, event in events:
                match event:
                    case PromptInfo():
                        gathered.add_prompt(call, event)
                    case TokenDelta():
                        gathered.add_delta(call, event)
                    case Finished():
                        gathered.finish(call, event)

        def encoded() -> bytes:
            answer = _whole_of(asked, head, gathered)
            return msgspec.json.encode(answer | gathered.metrics(self.service.ready.gamma))

        is_large = gathered.num_logprobs > _MANY_LOGPROBS
        await reply.json(await self.service.tokenizer.off_loop(encoded) if is_large else encoded())

    async def _stream(self, asked: Asked, chunks: "_Chunks", reply: Reply) -> None:
        async with aclosing(self._events(asked)) as events:
            async for call, event in events:
                for chunk in chunks.of(call, event):
                    await reply.event(chunk)
        for chunk in chunks.last(self.service.ready.gamma):
            await reply.event(chunk)
        await reply.done()


def _whole_of(asked: Asked, head: Head, gathered: Gathered) -> Json:
    """All of an answer but `metrics`."""
    choices = [asked.form.whole(gathered, index) for index in range(len(gathered.samples))]
    answer = head(choices) | {"usage": gathered.usage}
    for index, choice in enumerate(choices):
        place = answer if asked.form.is_of_one_prompt else choice
        place.update(_told_of_prompt(asked, gathered, gathered.call_of(index)))
    return answer


class _Chunks:
    """The stream's chunks, event by event."""

    def __init__(
        self, head: Head, gathered: Gathered, asked: Asked, options: StreamOptions
    ) -> None:
        self._head, self._gathered, self._form = head, gathered, asked.form
        self._options, self._prompt_ids = options, asked.prompt_ids
        self._num_samples = asked.calls[0].sampling.n
        self._opened: set[int] = set()
        self._closed: set[int] = set()

    def of(self, call: int, event: PromptInfo | TokenDelta | Finished) -> list[Json]:
        match event:
            case PromptInfo():
                self._gathered.add_prompt(call, event)
                return []
            case TokenDelta():
                index = self._gathered.index(call, event.sample_index)
                opening = self._open(index)
                self._gathered.add_delta(call, event)
                pieces = map(self._chunk, self._form.pieces(self._gathered, index, event))
                return [*opening, *pieces, *(self._close(index) if event.end else [])]
            case Finished():
                self._gathered.finish(call, event)
                indices = [self._gathered.index(call, n) for n in range(self._num_samples)]
                return [chunk for n in indices for chunk in (*self._open(n), *self._close(n))]

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
        chunk = self._chunk(opening)
        if self._prompt_ids:
            place = chunk if self._form.is_of_one_prompt else opening
            place["prompt_token_ids"] = self._prompt_ids[self._gathered.call_of(index)]
        return [chunk]

    def _close(self, index: int) -> list[Json]:
        """Once a choice, when it has ended, though others go on."""
        if index in self._closed:
            return []
        self._closed.add(index)
        return [self._chunk(self._form.closing(self._gathered, index))]

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
        is_scored = body.echo and body.max_tokens == 0
        if is_scored:
            body = msgspec.structs.replace(body, max_tokens=1)
        calls = calls_of_completion(body, service.limits, service.sampling_defaults)
        has_logprobs = body.logprobs is not None
        echoed = await _echoes(service, calls) if body.echo else []
        prompt_ids: list[list[int]] = []
        if body.return_token_ids or calls[0].sampling.prompt_logprobs is not None:
            prompt_ids = await _encoded(service, calls)
            calls = _with_ids(calls, prompt_ids)
        if has_logprobs and echoed:
            echoed = await _with_places(service, echoed, prompt_ids)
        shows_special = not body.skip_special_tokens  # as in the text that places are told of
        form = CompletionForm(
            num_samples=calls[0].sampling.n,
            detokenizer=partial(service.tokenizer.detokenizer, shows_special=shows_special),
            has_logprobs=has_logprobs,
            details=_details(service, body),
            echoed=echoed,
        )
        shown_ids = prompt_ids if body.return_token_ids else []
        has_prompt_logprobs = body.prompt_logprobs is not None
        return Asked(calls, form, shown_ids, has_prompt_logprobs, is_scored=is_scored)

    def streams(self, body: CompletionBody) -> StreamOptions | None:
        return (body.stream_options or StreamOptions()) if body.stream else None


class ChatCompletions(GenerationEndpoint[ChatBody]):
    """POST /v1/chat/completions."""

    kind = ChatBody

    async def asked(self, body: ChatBody) -> Asked:
        service = self.service
        calls = [call_of_chat(body, service.limits, service.sampling_defaults)]
        prompt_ids: list[list[int]] = []
        if body.return_token_ids or body.prompt_logprobs is not None:
            prompt_ids = await _encoded(service, calls)
            calls = _with_ids(calls, prompt_ids)
        form = ChatForm(has_logprobs=body.logprobs, details=_details(service, body))
        shown_ids = prompt_ids if body.return_token_ids else []
        return Asked(calls, form, shown_ids, body.prompt_logprobs is not None)

    def streams(self, body: ChatBody) -> StreamOptions | None:
        return (body.stream_options or StreamOptions()) if body.stream else None


def _told_of_prompt(asked: Asked, gathered: Gathered, call: int) -> Json:
    """What the request wants to know of one of its prompts."""
    told: Json = {}
    if asked.prompt_ids:
        told["prompt_token_ids"] = asked.prompt_ids[call]
    if asked.has_prompt_logprobs:
        told["prompt_logprobs"] = prompt_logprobs(gathered.prompt_logprobs[call])
    return told


def _details(service: Service, body: CompletionBody | ChatBody) -> TokenDetails:
    shown = service.tokenizer.shown if body.return_token_origins else None
    return TokenDetails(ids=body.return_token_ids, shown=shown)


async def _encoded(service: Service, calls: Sequence[GenerateCall]) -> list[list[int]]:
    found: list[list[int]] = []
    for call in calls:
        ids = await service.tokenizer.encode_prompt(call.prompt, call.chat)
        check_prompt_len("prompt", len(ids), service.limits)  # what is told of them takes longer
        found.append(ids)
    return found


async def _echoes(service: Service, calls: Sequence[GenerateCall]) -> list[Echo]:
    return await service.tokenizer.off_loop(
        lambda: [Echo(_text_of(service, call)) for call in calls]
    )


async def _with_places(
    service: Service, echoed: Sequence[Echo], prompt_ids: Sequence[list[int]]
) -> list[Echo]:
    """The same echoes, and where each token of theirs begins."""
    pairs = list(zip(echoed, prompt_ids, strict=True))
    return await service.tokenizer.off_loop(
        lambda: [echo_of(echo.text, ids, service.tokenizer) for echo, ids in pairs]
    )


def _with_ids(calls: Sequence[GenerateCall], ids: Sequence[list[int]]) -> list[GenerateCall]:
    """The same calls, whose prompts need not be encoded again."""
    return [
        msgspec.structs.replace(call, prompt=token_ids)
        for call, token_ids in zip(calls, ids, strict=True)
    ]


def _text_of(service: Service, call: GenerateCall) -> str:
    if isinstance(call.prompt, str):
        return call.prompt
    ids = [each for each in call.prompt if isinstance(each, int)]
    return service.tokenizer.decode(ids)
