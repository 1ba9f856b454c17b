# pyright: strict
"""The two forms of an answer: a completion's text, and a chat's message.

Each as a whole, and as the chunks of a stream: what opens a choice, every piece of it, its ending.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from specserve.api.detokenizer import Detokenizer
from specserve.api.events import TokenDelta
from specserve.api.http.answers import (
    Gathered,
    Json,
    Sample,
    TokenDetails,
    chat_logprobs,
    ending_of,
)
from specserve.api.http.completion_logprobs import Echo, TextOffsets, completion_logprobs
from specserve.api.tools.tool import ToolCall, ToolCallDelta
from specserve.types import Logprobs


class Form(Protocol):
    """How the choices of an answer look; `index` numbers them."""

    kind: str  # `object` of the answer
    prefix: str  # of its id
    is_of_one_prompt: bool  # what is told of it stands beside the choices, else in each

    def whole(self, gathered: Gathered, index: int) -> Json: ...

    def opening(self, gathered: Gathered, index: int) -> Json | None:
        """Before a choice's first piece; None: nothing."""
        ...

    def pieces(self, gathered: Gathered, index: int, delta: TokenDelta) -> list[Json]:
        """What one round brought, which `gathered` has already: one choice for each chunk."""
        ...

    def closing(self, gathered: Gathered, index: int) -> Json: ...


class CompletionForm:
    """Of /v1/completions."""

    kind, prefix, is_of_one_prompt = "text_completion", "cmpl", False

    def __init__(
        self,
        *,
        num_samples: int,
        detokenizer: Callable[[], Detokenizer],
        has_logprobs: bool,
        details: TokenDetails,
        echoed: Sequence[Echo] = (),
    ) -> None:
        """`num_samples` of each prompt; `echoed`: all prompts, if the answer repeats them."""
        self._num_samples = num_samples
        self._detokenizer = detokenizer
        self._has_logprobs = has_logprobs
        self._details = details
        self._echoed = echoed
        self._offsets: dict[int, TextOffsets] = {}  # of tokens to come, by choice

    def whole(self, gathered: Gathered, index: int) -> Json:
        sample = gathered.samples[index]
        logprobs = self._logprobs(index, sample.logprobs)
        if logprobs and (of_prompt := self._prompt_logprobs(gathered, index)):
            logprobs = {name: [*of_prompt[name], *logprobs[name]] for name in logprobs}
        choice = {
            "index": index,
            "text": self._echo(index).text + sample.text,
            "logprobs": logprobs,
            **ending_of(sample.end),
        }
        return choice | self._details.of(sample)

    def opening(self, gathered: Gathered, index: int) -> Json | None:
        if not self._echoed and not self._details.has_ids:
            return None
        logprobs = self._prompt_logprobs(gathered, index)
        text = self._echo(index).text
        return {"index": index, "text": text, "logprobs": logprobs, **ending_of(None)}

    def pieces(self, gathered: Gathered, index: int, delta: TokenDelta) -> list[Json]:
        logprobs = self._logprobs(index, delta.logprobs or [])
        choice = {"index": index, "text": delta.text, "logprobs": logprobs, **ending_of(None)}
        return [choice | self._details.of(delta)]

    def closing(self, gathered: Gathered, index: int) -> Json:
        end = gathered.samples[index].end
        return {"index": index, "text": "", "logprobs": None, **ending_of(end)}

    def _logprobs(self, index: int, positions: Sequence[Logprobs]) -> Json | None:
        """Of the next tokens of a choice."""
        if not self._has_logprobs:
            return None
        if index not in self._offsets:
            before = len(self._echo(index).text)
            self._offsets[index] = TextOffsets(self._detokenizer(), before)
        return completion_logprobs(positions, self._offsets[index].of(positions))

    def _prompt_logprobs(self, gathered: Gathered, index: int) -> Json | None:
        """Of the prompt of a choice, if it is repeated."""
        if not self._has_logprobs or not self._echoed:
            return None
        echo, positions = self._echo(index), gathered.prompt_logprobs[gathered.call_of(index)]
        return completion_logprobs(positions, echo.offsets, echo.first_token)

    def _echo(self, index: int) -> Echo:
        """The prompt of a choice, if it is repeated."""
        return self._echoed[index // self._num_samples] if self._echoed else Echo("")


class ChatForm:
    """Of /v1/chat/completions."""

    kind, prefix, is_of_one_prompt = "chat.completion", "chatcmpl", True

    def __init__(self, *, has_logprobs: bool, details: TokenDetails) -> None:
        self._has_logprobs = has_logprobs
        self._details = details

    def whole(self, gathered: Gathered, index: int) -> Json:
        sample = gathered.samples[index]
        message: Json = {"role": "assistant", "content": sample.text}
        if calls := sample.calls:
            message |= {"content": sample.text or None, "tool_calls": [_call(c) for c in calls]}
        choice = {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(sample.logprobs),
            **ending_of(sample.end),
        }
        return choice | self._details.of(sample)

    def opening(self, gathered: Gathered, index: int) -> Json | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, Sample())

    def pieces(self, gathered: Gathered, index: int, delta: TokenDelta) -> list[Json]:
        """A chunk for each piece of a call: some clients put two of one chunk together badly."""
        said: list[Json] = [{"content": delta.text}] if delta.text or not delta.calls else []
        said += [{"tool_calls": [_piece_of_call(each)]} for each in delta.calls]
        first, *others = [self._chunk(index, each, Sample()) for each in said]
        first["logprobs"] = self._logprobs(delta.logprobs or [])
        return [first | self._details.of(delta), *others]

    def closing(self, gathered: Gathered, index: int) -> Json:
        return self._chunk(index, {}, gathered.samples[index])

    def _chunk(self, index: int, delta: Json, sample: Sample) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, **ending_of(sample.end)}

    def _logprobs(self, positions: Sequence[Logprobs]) -> Json | None:
        return chat_logprobs(positions) if self._has_logprobs else None


def _call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _piece_of_call(piece: ToolCallDelta) -> Json:
    """The first has all but arguments, which come in the others."""
    if piece.name is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    call = ToolCall(piece.call_id or "", piece.name, piece.arguments)
    return {"index": piece.index, **_call(call)}
