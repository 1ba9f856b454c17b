# pyright: strict
"""The typed events of one response, numbered from 0, and what there is of it after each of them.

    created, in_progress, then for each message output_item.added, content_part.added,
    output_text.delta ..., output_text.done, content_part.done, output_item.done, for each call
    output_item.added, function_call_arguments.delta ..., function_call_arguments.done,
    output_item.done, and in the end one of completed, incomplete, failed

A response that somebody has cancelled ends with `incomplete`, and says `cancelled` as its status:
OpenAI has no event of its own for it, and `failed` would promise an error that there is not.
"""

import time
from typing import Any

import msgspec
from msgspec import UNSET

from specserve.api.events import Finished, TokenDelta
from specserve.api.http.answers import Json, chat_logprobs, speculation_of
from specserve.api.http.refusals import Refusal
from specserve.api.http.responses.items import (
    CallItem,
    Item,
    MessageItem,
    OutputText,
    new_item_id,
)
from specserve.api.http.responses.response import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INCOMPLETE,
    RUNNING,
    Response,
    error_of,
    usage_of,
)
from specserve.api.tools.tool import ToolCallDelta
from specserve.types import FinishReason

_MANY_LOGPROBS = 1000  # positions


class _Text:
    """A message that is being written."""

    def __init__(self, output_index: int) -> None:
        self.place: Json = {"item_id": new_item_id("msg"), "output_index": output_index}
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []

    def add(self, text: str, logprobs: list[Json]) -> None:
        self._pieces.append(text)
        self._logprobs += logprobs

    @property
    def part(self) -> OutputText:
        return OutputText("".join(self._pieces), logprobs=list(self._logprobs))

    def item(self, status: str) -> MessageItem:
        content = [] if status == RUNNING and not self._pieces else [self.part]
        item_id = self.place["item_id"]
        return MessageItem(id=item_id, role="assistant", content=[*content], status=status)


class _Call:
    """A call of a function that is being written."""

    def __init__(self, output_index: int, opening: ToolCallDelta) -> None:
        self.place: Json = {"item_id": new_item_id("fc"), "output_index": output_index}
        self._call_id, self.name = opening.call_id or "", opening.name or ""
        self._pieces: list[str] = []

    def add(self, arguments: str) -> None:
        self._pieces.append(arguments)

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def item(self, status: str) -> CallItem:
        return CallItem(
            id=self.place["item_id"],
            call_id=self._call_id,
            name=self.name,
            arguments=self.arguments,
            status=status,
        )


class Series:
    """Of one response, which ends once: by `finish`, `fail` or `cancel`."""

    def __init__(self, response: Response, gamma: int) -> None:
        """`response` before its first token; `gamma`: drafted tokens a round at most."""
        self._response, self._gamma = response, gamma
        self._done: list[Item] = []
        self._open: _Text | _Call | None = None
        self._logprobs: list[Json] = []  # of tokens whose text has not come
        self._num_logprobs = 0
        self._num_events = 0

    @property
    def response(self) -> Response:
        """As far as it has come."""
        return self._response if self.has_ended else self._with_output(RUNNING)

    @property
    def is_large(self) -> bool:
        """Whether its JSON takes milliseconds to write."""
        return self._num_logprobs > _MANY_LOGPROBS

    @property
    def has_ended(self) -> bool:
        return self._response.status != RUNNING

    def begin(self) -> list[Json]:
        """Once the target has been asked."""
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._response) for kind in kinds]

    def push(self, delta: TokenDelta) -> list[Json]:
        """What one round brought; nothing, where it ends within a character or a mark."""
        self._logprobs += chat_logprobs(delta.logprobs or [])["content"]
        calls, events = list(delta.calls), list[Json]()
        while calls and calls[0].name is None:  # the rest of the call before this text
            events += self._pushed(calls.pop(0))
        if delta.text:
            events += self._written(delta.text)
        for call in calls:
            events += self._pushed(call)
        return events

    def finish(self, finished: Finished) -> list[Json]:
        """All has come; an answer that had no room is incomplete."""
        is_whole = finished.samples[0].finish_reason is not FinishReason.LENGTH
        status = COMPLETED if is_whole else INCOMPLETE
        events: list[Json] = []
        if (self._open is None and not self._done) or (self._logprobs and self._is_in_text):
            events += self._written("")
        events += self._closed(status)
        record, metrics = finished.spec, UNSET
        if record is not None and (found := speculation_of(record, self._gamma)) is not None:
            metrics = {"speculative_decoding": found}
        self._response = msgspec.structs.replace(
            self._with_output(status),
            status=status,
            completed_at=int(time.time()) if is_whole else None,
            incomplete_details=None if is_whole else {"reason": "max_output_tokens"},
            usage=usage_of(finished.usage),
            metrics=metrics,
        )
        return [*events, self._last(f"response.{status}")]

    def fail(self, refusal: Refusal) -> list[Json]:
        """It has ended with an error; what had come of it by then is told."""
        self._end(FAILED, error=error_of(refusal))
        return [self._last("response.failed")]

    def cancel(self) -> list[Json]:
        """Somebody has asked for its end."""
        self._end(CANCELLED)
        return [self._last("response.incomplete")]

    def _end(self, status: str, error: Json | None = None) -> None:
        output = self._with_output(INCOMPLETE)
        self._response = msgspec.structs.replace(output, status=status, error=error)

    # --- items ------------------------------------------------------------------------------

    @property
    def _is_in_text(self) -> bool:
        return isinstance(self._open, _Text)

    def _written(self, text: str) -> list[Json]:
        """More of the message, which this begins where there is none, or a call stands before."""
        events: list[Json] = []
        if not isinstance(message := self._open, _Text):
            events += self._closed(COMPLETED)
            message = self._open = _Text(len(self._done))
            events.append(self._added(message))
            part = OutputText("")
            events.append(self._of_text("response.content_part.added", message, part=part))
        logprobs, self._logprobs = self._logprobs, []
        self._num_logprobs += len(logprobs)
        message.add(text, logprobs)
        if text or logprobs:
            piece = {"delta": text, "logprobs": logprobs}
            events.append(self._of_text("response.output_text.delta", message, **piece))
        return events

    def _pushed(self, piece: ToolCallDelta) -> list[Json]:
        """A piece of a call; its first one begins it. The tokens of calls have no probabilities."""
        self._logprobs = []
        events: list[Json] = []
        if piece.name is not None:
            events += self._closed(COMPLETED)
            self._open = _Call(len(self._done), piece)
            events.append(self._added(self._open))
        call = self._open
        assert isinstance(call, _Call), "pieces of a call come in a row"
        if piece.arguments:
            call.add(piece.arguments)
            kind = "response.function_call_arguments.delta"
            events.append(self._event(kind, **call.place, delta=piece.arguments))
        return events

    def _closed(self, status: str) -> list[Json]:
        """The end of the item that is open, if one is."""
        match self._open:
            case None:
                return []
            case _Text() as text:
                part = text.part
                done = {"text": part.text, "logprobs": part.logprobs}
                events = [
                    self._of_text("response.output_text.done", text, **done),
                    self._of_text("response.content_part.done", text, part=part),
                ]
            case _Call() as call:
                kind, done = "response.function_call_arguments.done", {"name": call.name}
                events = [self._event(kind, **call.place, **done, arguments=call.arguments)]
        item, place = self._open.item(status), self._open.place["output_index"]
        self._open = None
        self._done.append(item)
        return [*events, self._event("response.output_item.done", output_index=place, item=item)]

    def _with_output(self, status: str) -> Response:
        """`status`: of the item that is open."""
        still = [] if self._open is None else [self._open.item(status)]
        return msgspec.structs.replace(self._response, output=[*self._done, *still])

    # --- events -----------------------------------------------------------------------------

    def _added(self, item: _Text | _Call) -> Json:
        place = item.place["output_index"]
        return self._event(
            "response.output_item.added", output_index=place, item=item.item(RUNNING)
        )

    def _last(self, kind: str) -> Json:
        return self._event(kind, response=self._response)

    def _of_text(self, kind: str, message: _Text, /, **fields: Any) -> Json:  # noqa: ANN401
        return self._event(kind, **message.place, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:  # noqa: ANN401 - what JSON holds
        number = self._num_events
        self._num_events += 1
        return {"type": kind, "sequence_number": number, **fields}
