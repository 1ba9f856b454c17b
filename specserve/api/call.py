# pyright: strict
"""What a caller asks for, in no wire's terms, and the limits that it is held against."""

import time
from typing import Any

import msgspec

from specserve.api.tools.tool import Tool, ToolCall, ToolUse
from specserve.errors import InvalidField
from specserve.types import Grammar, GrammarKind, Ready, SamplingParams
from specserve.validation import Limits

ROLES = ("system", "user", "assistant", "tool")


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of a conversation; `role` is one of `ROLES`.

    An assistant's may have called functions; a tool's is what one of these calls returned, of the
    function `name`.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def num_chars(self) -> int:
        """That a template has to write at least."""
        return len(self.content) + sum(len(call.arguments) for call in self.tool_calls)


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the chat template writes a conversation."""

    begins_answer: bool = True  # what follows is the assistant's
    continues_last: bool = False  # ... or the rest of the last message
    tools: tuple[Tool, ...] = ()  # that the model is told of
    variables: dict[str, Any] = {}  # that the template may read besides


class SpecOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's wishes about speculation; one that cannot be met is refused, never ignored."""

    mode: str = "auto"
    max_verify_len: int | None = None
    return_stats: bool = False


class TraceContext(msgspec.Struct, frozen=True):
    """The caller's span, as W3C writes it; empty: none. Read only where spans are wanted."""

    traceparent: str = ""
    tracestate: str = ""


class GenerateCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request before validation. None means the documented default."""

    prompt: str | list[int] | list[ChatMessage]
    chat: ChatOptions = ChatOptions()
    sampling: SamplingParams = SamplingParams()
    request_id: str | None = None
    model: str | None = None
    seed: int | None = None
    cache_salt: str = ""
    priority: int = 0
    deadline_s: float | None = None  # CLOCK_MONOTONIC seconds, the clock of the event loop
    spec: SpecOptions = SpecOptions()
    min_tokens_per_s: float | None = None
    grammar: Grammar | None = None
    tools: ToolUse | None = None  # what may be called; None: calls in the text are text
    skip_special_tokens: bool = True  # in texts; token ids have them either way
    trace: TraceContext = TraceContext()


_RANDOM_SEED = -1  # to clients of vLLM; other negative ones are seeds
_NUM_SEEDS = 2**64


def seed_of(sent: int | None, number: int = 0) -> int | None:
    """The seed of a call, the `number`th that a client asks for at once; None: a random one."""
    return None if sent in (None, _RANDOM_SEED) else (sent + number) % _NUM_SEEDS


def deadline_of(remaining_s: float | None) -> float | None:
    """`deadline_s` of a caller who waits so long from now; None: without end."""
    return None if remaining_s is None else time.monotonic() + remaining_s


ANY_OBJECT = '{"type": "object"}'  # as a JSON schema
MAX_CHOICES = 1024
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # of the API
STREAM_BUFFER_ROUNDS = 4096  # that a slow reader may lag before it is cut off


def limits_of(ready: Ready) -> Limits:
    """What the requests of a target that has announced itself are held against."""
    return Limits(
        vocab_size=ready.vocab_size,
        max_model_len=ready.max_model_len,
        fills_pool=ready.max_model_len == ready.num_blocks * ready.block_size,
    )


def choice_of(choices: list[str], field: str) -> Grammar:
    """One of some texts. Raises InvalidField."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        problem = f"has {len(choices)} entries; it must have 1 to {MAX_CHOICES}"
        raise InvalidField(field, problem)
    return Grammar(GrammarKind.CHOICE, msgspec.json.encode(choices).decode(), field)
