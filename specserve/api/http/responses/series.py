# pyright: strict
"""The typed events of one response, numbered from 0, and what there is of it after each of them.

    created, in_progress, then for its message output_item.added, content_part.added,
    output_text.delta ..., output_text.done, content_part.done, output_item.done, then one of
    completed, incomplete, failed

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
from specserve.api.http.responses.items import Item, MessageItem, OutputText, new_item_id
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
from specserve.types import FinishReason

_MANY_LOGPROBS = 1000  # positions


class _Text:
    """The message that is being written."""

    def __init__(self) -> None:
        self.item_id = new_item_id("msg")
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []

    def add(self, text: str, logprobs: list[Json]) -> None:
        self._pieces.append(text)
        self._logprobs += logprobs

    @property
    def num_logprobs(self) -> int:
        return len(self._logprobs)

    @property
    def part(self) -> OutputText:
        return OutputText("".join(self._pieces), logprobs=list(self._logprobs))

    def item(self, status: str) -> MessageItem:
        content = [] if status == RUNNING and not self._pieces else [self.part]
        return MessageItem(id=self.item_id, role="assistant", content=[*content], status=status)


class Series:
    """Of one response, which ends once: by `finish`, `fail` or `cancel`."""

    def __init__(self, response: Response, gamma: int) -> None:
        """`response` before its first token; `gamma`: drafted tokens a round at most."""
        self._response, self._gamma = response, gamma
        self._text: _Text | None = None
        self._num_events = 0

    @property
    def response(self) -> Response:
        """As far as it has come."""
        if self.has_ended or self._text is None:
            return self._response
        return self._with_output([self._text.item(RUNNING)])

    @property
    def is_large(self) -> bool:
        """Whether its JSON takes milliseconds to write."""
        return self._text is not None and self._text.num_logprobs > _MANY_LOGPROBS

    @property
    def has_ended(self) -> bool:
        return self._response.status != RUNNING

    def begin(self) -> list[Json]:
        """Once the target has been asked."""
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._response) for kind in kinds]

    def push(self, delta: TokenDelta) -> list[Json]:
        """What one round brought; nothing, where it ends within a character."""
        logprobs = chat_logprobs(delta.logprobs or [])["content"]
        if not delta.text and not logprobs:
            return []
        events, text = self._opened()
        text.add(delta.text, logprobs)
        piece = {"delta": delta.text, "logprobs": logprobs}
        return [*events, self._of_text("response.output_text.delta", text, **piece)]

    def finish(self, finished: Finished) -> list[Json]:
        """All has come; a text that had no room is incomplete."""
        is_whole = finished.samples[0].finish_reason is not FinishReason.LENGTH
        status = COMPLETED if is_whole else INCOMPLETE
        opening, text = self._opened()
        item = text.item(status)
        record, metrics = finished.spec, UNSET
        if record is not None and (found := speculation_of(record, self._gamma)) is not None:
            metrics = {"speculative_decoding": found}
        self._response = msgspec.structs.replace(
            self._with_output([item]),
            status=status,
            completed_at=int(time.time()) if is_whole else None,
            incomplete_details=None if is_whole else {"reason": "max_output_tokens"},
            usage=usage_of(finished.usage),
            metrics=metrics,
        )
        return [*opening, *self._closed(text, item), self._last(f"response.{status}")]

    def fail(self, refusal: Refusal) -> list[Json]:
        """It has ended with an error; what had come of it by then is told."""
        self._end(FAILED, error=error_of(refusal))
        return [self._last("response.failed")]

    def cancel(self) -> list[Json]:
        """Somebody has asked for its end."""
        self._end(CANCELLED)
        return [self._last("response.incomplete")]

    def _end(self, status: str, error: Json | None = None) -> None:
        output = [] if self._text is None else [self._text.item(INCOMPLETE)]
        ended = self._with_output(output)
        self._response = msgspec.structs.replace(ended, status=status, error=error)

    def _opened(self) -> tuple[list[Json], _Text]:
        """The message, and the events that begin it, if this does."""
        if self._text is not None:
            return [], self._text
        text = self._text = _Text()
        added = self._event("response.output_item.added", output_index=0, item=text.item(RUNNING))
        part = OutputText("")
        return [added, self._of_text("response.content_part.added", text, part=part)], text

    def _closed(self, text: _Text, item: Item) -> list[Json]:
        part = text.part
        done = {"text": part.text, "logprobs": part.logprobs}
        return [
            self._of_text("response.output_text.done", text, **done),
            self._of_text("response.content_part.done", text, part=part),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def _last(self, kind: str) -> Json:
        return self._event(kind, response=self._response)

    def _of_text(self, kind: str, text: _Text, /, **fields: Any) -> Json:  # noqa: ANN401
        place = {"item_id": text.item_id, "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:  # noqa: ANN401 - what JSON holds
        number = self._num_events
        self._num_events += 1
        return {"type": kind, "sequence_number": number, **fields}

    def _with_output(self, output: list[Item]) -> Response:
        return msgspec.structs.replace(self._response, output=output)
