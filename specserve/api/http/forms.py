# pyright: strict
"""The two forms of an answer: a completion's text, and a chat's message.

Each as a whole, and as the chunks of a stream: what opens a choice, every piece of it, its ending.
"""

from collections.abc import Sequence
from typing import Protocol

from specserve.api.events import TokenDelta
from specserve.api.http.answers import (
    Gathered,
    Json,
    Sample,
    TokenDetails,
    chat_logprobs,
    completion_logprobs,
    ending_of,
)
from specserve.types import Logprobs


class Form(Protocol):
    """How the choices of an answer look; `index` numbers them."""

    kind: str  # `object` of the answer
    prefix: str  # of its id

    def whole(self, gathered: Gathered, index: int) -> Json: ...

    def opening(self, gathered: Gathered, index: int) -> Json | None:
        """Before a choice's first piece; None: nothing."""
        ...

    def piece(self, gathered: Gathered, index: int, delta: TokenDelta) -> Json:
        """What one round brought, which `gathered` has already."""
        ...

    def closing(self, gathered: Gathered, index: int) -> Json: ...


class CompletionForm:
    """Of /v1/completions."""

    kind, prefix = "text_completion", "cmpl"

    def __init__(
        self,
        *,
        num_samples: int,
        has_logprobs: bool,
        details: TokenDetails,
        echoed: Sequence[str] = (),
    ) -> None:
        """`num_samples` of each prompt; `echoed`: all prompts, if the answer repeats them."""
        self._num_samples = num_samples
        self._has_logprobs = has_logprobs
        self._details = details
        self._echoed = echoed

    def whole(self, gathered: Gathered, index: int) -> Json:
        sample = gathered.samples[index]
        positions: list[Logprobs | None] = list(sample.logprobs)
        if self._echoed:
            positions = [*self._prompt_positions(gathered, index), *positions]
        choice = {
            "index": index,
            "text": self._echo(index) + sample.text,
            "logprobs": completion_logprobs(positions, 0) if self._has_logprobs else None,
            **ending_of(sample.end),
        }
        return choice | self._details.of(sample)

    def opening(self, gathered: Gathered, index: int) -> Json | None:
        if not self._echoed and not self._details.has_ids:
            return None
        positions = self._prompt_positions(gathered, index) if self._echoed else []
        logprobs = completion_logprobs(positions, 0) if self._has_logprobs else None
        text = self._echo(index)
        return {"index": index, "text": text, "logprobs": logprobs, **ending_of(None)}

    def piece(self, gathered: Gathered, index: int, delta: TokenDelta) -> Json:
        sample, logprobs = gathered.samples[index], None
        if self._has_logprobs:
            offset = len(self._echo(index)) + len(sample.text) - len(delta.text)
            logprobs = completion_logprobs(delta.logprobs or [], offset)
        choice = {"index": index, "text": delta.text, "logprobs": logprobs, **ending_of(None)}
        return choice | self._details.of(delta)

    def closing(self, gathered: Gathered, index: int) -> Json:
        end = gathered.samples[index].end
        return {"index": index, "text": "", "logprobs": None, **ending_of(end)}

    def _echo(self, index: int) -> str:
        """The prompt of a choice, if it is repeated."""
        return self._echoed[index // self._num_samples] if self._echoed else ""

    def _prompt_positions(self, gathered: Gathered, index: int) -> list[Logprobs | None]:
        """The first token of a prompt has no probability."""
        return [None, *gathered.prompt_logprobs[index // self._num_samples]]


class ChatForm:
    """Of /v1/chat/completions."""

    kind, prefix = "chat.completion", "chatcmpl"

    def __init__(self, *, has_logprobs: bool, details: TokenDetails) -> None:
        self._has_logprobs = has_logprobs
        self._details = details

    def whole(self, gathered: Gathered, index: int) -> Json:
        sample = gathered.samples[index]
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": sample.text},
            "logprobs": self._logprobs(sample.logprobs),
            **ending_of(sample.end),
        }
        return choice | self._details.of(sample)

    def opening(self, gathered: Gathered, index: int) -> Json | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, Sample())

    def piece(self, gathered: Gathered, index: int, delta: TokenDelta) -> Json:
        choice = self._chunk(index, {"content": delta.text}, Sample())
        choice["logprobs"] = self._logprobs(delta.logprobs or [])
        return choice | self._details.of(delta)

    def closing(self, gathered: Gathered, index: int) -> Json:
        return self._chunk(index, {}, gathered.samples[index])

    def _chunk(self, index: int, delta: Json, sample: Sample) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, **ending_of(sample.end)}

    def _logprobs(self, positions: Sequence[Logprobs]) -> Json | None:
        return chat_logprobs(positions) if self._has_logprobs else None
