# pyright: strict
"""POST /v1/responses: a body in, a response or its events out, or one that goes on by itself.

A response that its client waits for is kept when it has ended; one in the background from its first
event on, so that it can be asked for, followed and cancelled.
"""

import secrets
from contextlib import aclosing
from typing import NamedTuple

from starlette.types import Scope

from specserve.api.call import GenerateCall
from specserve.api.http.answer_size import MAX_OF_ANSWER
from specserve.api.http.answers import Json
from specserve.api.http.connection import Reply
from specserve.api.http.endpoint import BodyEndpoint, within_traces
from specserve.api.http.refusals import refusal_of
from specserve.api.http.responses.body import READING, ResponsesBody, check_body
from specserve.api.http.responses.functions import functions_of
from specserve.api.http.responses.items import Item, read_input, with_ids_of_their_own
from specserve.api.http.responses.kept import EventLog, Kept
from specserve.api.http.responses.making import Background, keep_ended, made, written_of
from specserve.api.http.responses.response import Response, begun
from specserve.api.http.responses.series import Series
from specserve.api.http.responses.store import Store, not_kept
from specserve.api.http.responses.to_call import (
    as_sent,
    call_of_response,
    largest_answer,
    require_calls,
)
from specserve.api.keys import caller
from specserve.api.service import Service
from specserve.api.tokenizer import TextTokenizer
from specserve.errors import InvalidField, Unsupported

_PREVIOUS = "previous_response_id"


class Asked(NamedTuple):
    """One request, ready to be served."""

    call: GenerateCall
    response: Response  # before its first token
    conversation: list[Item]
    streams: bool


class Responses(BodyEndpoint[ResponsesBody, Asked]):
    """An ASGI application for the path."""

    kind, reading = ResponsesBody, READING

    def __init__(self, service: Service, store: Store[Kept], *, is_lenient: bool) -> None:
        super().__init__(service, is_lenient=is_lenient)
        self._store = store
        self._keeps = service.config.server.max_stored_responses > 0

    async def checked(self, body: ResponsesBody) -> Asked:
        check_body(body)
        self._require_keeping(body)
        service = self.service
        if not service.tokenizer.has_chat_template:
            problem = "the model has no chat template; send the text to /v1/completions"
            raise Unsupported(f"input: {problem}")
        functions, conversation = functions_of(body.tools), read_input(body.input)
        num_before = 0
        if body.previous_response_id is not None:
            before = self._before(body.previous_response_id)
            num_before = len(before)
            conversation = with_ids_of_their_own([*before, *conversation])
        require_calls(conversation, num_before)
        defaults = service.sampling_defaults
        call = call_of_response(body, functions, conversation, service.limits, defaults)
        if (number := largest_answer(call, service.limits)) > MAX_OF_ANSWER:
            problem = (
                f"the answer could have {number} log probabilities, top_logprobs + 1 for each of "
                f"max_output_tokens; the limit is {MAX_OF_ANSWER}: ask for fewer"
            )
            raise InvalidField("top_logprobs", problem)
        response = begun(
            f"resp_{secrets.token_hex(24)}",
            body,
            call,
            service.ready.model,
            is_kept=body.store and self._keeps,
        )
        return Asked(call, response, conversation, body.stream)

    def as_sent(self, error: Exception) -> Exception:
        return as_sent(error)

    def _require_keeping(self, body: ResponsesBody) -> None:
        """Raise InvalidField for what a service that keeps nothing cannot do."""
        asked = {"background": body.background, _PREVIOUS: body.previous_response_id is not None}
        for field, is_asked in asked.items():
            if is_asked and not self._keeps:
                problem = "needs responses that are kept; server.max_stored_responses is 0 here"
                raise InvalidField(field, problem)

    def _before(self, response_id: str) -> list[Item]:
        """The conversation that ends with this response. Raises InvalidField."""
        kept = self._store.find(caller.get().identity, response_id)
        if kept is None:
            raise InvalidField(_PREVIOUS, not_kept(response_id))
        return kept.continued(_PREVIOUS)

    async def serve(self, checked: Asked, scope: Scope, reply: Reply) -> None:
        call = checked.call
        if self.service.tracer is not None:
            (call,) = within_traces([call], scope)
        series = Series(checked.response, self.service.ready.gamma)
        if checked.response.background:
            await self._in_background(checked, call, series, reply)
            return
        kept = Kept(series, checked.conversation, None)
        if checked.streams:
            await self._stream(call, series, kept, reply)
            return
        async with aclosing(made(self.service, call, series)) as batches:
            async for _ in batches:
                pass
        await self._keep(kept, series)
        await reply.json(await shown(kept, self.service.tokenizer))

    async def _stream(self, call: GenerateCall, series: Series, kept: Kept, reply: Reply) -> None:
        try:
            async with aclosing(made(self.service, call, series)) as batches:
                async for events in batches:
                    await self._keep(kept, series)  # before the client hears of its end
                    await self._send(events, series, reply)
        except Exception as error:
            if series.has_ended or not reply.has_begun:
                raise
            events = series.fail(refusal_of(as_sent(error)))
            await self._keep(kept, series)
            await self._send(events, series, reply)
        await reply.end()

    async def _in_background(
        self, asked: Asked, call: GenerateCall, series: Series, reply: Reply
    ) -> None:
        tenant = caller.get().identity
        log = EventLog() if asked.streams else None
        kept = Kept(series, asked.conversation, log)
        await Background(self.service, call, series, self._store, tenant).start(kept)
        if log is None:
            await reply.json(await shown(kept, self.service.tokenizer))
        else:
            await follow(log, 0, reply)

    async def _keep(self, kept: Kept, series: Series) -> None:
        """Once it has ended."""
        if series.has_ended and series.response.store:
            tenant = caller.get().identity
            await keep_ended(self._store, tenant, kept, self.service.tokenizer)

    async def _send(self, events: list[Json], series: Series, reply: Reply) -> None:
        for event in await written_of(events, series, self.service.tokenizer):
            await reply.written(event.content, event.kind)


async def shown(kept: Kept, tokenizer: TextTokenizer) -> bytes:
    """JSON of it; written elsewhere where that takes long."""
    return await tokenizer.off_loop(kept.shown) if kept.is_large else kept.shown()


async def follow(log: EventLog, start: int, reply: Reply) -> None:
    """Send the events from the `start`th on, until the last."""
    await reply.begin_stream()
    async with aclosing(log.follow(start)) as events:
        async for event in events:
            await reply.written(event.content, event.kind)
    await reply.end()
