# pyright: strict
"""Bodies of requests as OpenAI's clients send them, with what vLLM and SGLang both add.

A field that is not here is refused by name, or with `--lenient` left out with a warning. None means
unset: what the model's own generation config says, or neutral values.
"""

from collections.abc import Mapping, Set
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast

import msgspec

from specserve.api.http.structured import (
    ELSEWHERE,
    JsonSchema,
    ResponseFormat,
    Schema,
    StructuredOutputs,
)
from specserve.api.http.tool_bodies import (
    ELSEWHERE as TOOLS_ELSEWHERE,
)
from specserve.api.http.tool_bodies import (
    OF_CHATS,
    CallBody,
    CalledFunction,
    FunctionBody,
    ToolBody,
)
from specserve.api.http.wrong_fields import unknown, wrong_field
from specserve.errors import InvalidField

# Sent by clients as a matter of course, and without a meaning here.
_WITHOUT_MEANING = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier"})
# Values that say what happens anyway, of fields that are not served; clients write them out.
_AS_IT_IS: dict[str, Any] = {
    "best_of": 1,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "use_beam_search": False,
    "length_penalty": 1,
    "modalities": ["text"],
}
THINKING = 'chat_template_kwargs, as {"enable_thinking": false}, where the model\'s template has it'
_ABOUT_THINKING = frozenset({"reasoning", "reasoning_effort", "include_reasoning", "thinking"})
_NESTED = frozenset({"messages", "stream_options"})  # fields with fields of their own
_DEEPEST = 4  # that these go: messages, one of them, its content, a part of it

_Parts = Mapping[str, tuple[str, ...]]  # names of fields, by the path of what they stand in
Stop = str | list[str]
Prompts = str | list[str | int | list[int]]  # one text, texts, token ids, or lists of these


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a stream; `continuous_usage_stats` has the counts so far in every chunk."""

    include_usage: bool = False  # one more chunk at the end, with the counts of the request
    continuous_usage_stats: bool = False


class SpecWishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """About speculation, as `SpecOptions` of the gRPC API has them; "off" decodes plainly."""

    mode: str = "auto"
    max_verify_len: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None


class AnyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `read_body` reads."""

    noun: ClassVar[str]  # what one is called in refusals


class _Body(AnyBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats share."""

    model: str | None = None
    max_tokens: int | None = None  # of each sample; 0 of completions with `echo`: prompts alone
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # -1 and 0: no limit
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None  # by token id, as a string in JSON
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True  # in texts; token ids have them either way
    n: int | None = None
    seed: int | None = None  # -1: none
    stream: bool = False  # as server-sent events, chunk by chunk
    stream_options: StreamOptions | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None  # what the answer has to be, as OpenAI has it
    structured_outputs: StructuredOutputs | None = None  # the same as vLLM has it
    guided_json: Schema | None = None  # as structured_outputs.json, as the next three
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    return_token_ids: bool = False  # of prompt and answer
    return_token_origins: bool = False  # of every token: drafted, bonus, recovery or plain
    spec: SpecWishes = SpecWishes()
    priority: int = 0
    cache_salt: str | None = None
    min_tokens_per_s: float | None = None
    timeout_s: float | None = None  # since the body has come; its answer then ends with an error
    request_id: str | None = None


class CompletionBody(_Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of POST /v1/completions. One prompt or several, as text or as token ids."""

    noun: ClassVar[str] = "a completion"
    prompt: Prompts
    logprobs: int | None = None  # of each token, and of so many likeliest ones
    echo: bool = False  # the prompt before each answer


class _TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a message's content."""

    text: str
    type: str = "text"


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn. The type of a text is accepted and has no meaning, as `name` but for a tool's."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    type: Literal["text"] = "text"  # lm-evaluation-harness writes it

    def text(self, where: str) -> str:
        """Parts that say something, each in lines of its own.

        Raises InvalidField for what is no text, of a message at `where`, and for a question that
        asks nothing: a model would go on about it as long as it may. An empty text is one.
        """
        if self.content is None and self.role == "user":
            raise InvalidField(f"{where}.content", "is missing; it must be text or a list of parts")
        if not isinstance(self.content, list):
            return self.content or ""
        parts = enumerate(self.content)
        texts = (_text_of(part, f"{where}.content[{index}]") for index, part in parts)
        return "\n".join(filter(None, texts))


def _text_of(part: dict[str, Any], where: str) -> str:
    """Its type is looked at first: what else a picture has would be named as a misspelt field."""
    if (kind := part.get("type", "text")) != "text":
        problem = f"{str(kind)[:64]!r} is not served here; parts are of type 'text'"
        raise InvalidField(f"{where}.type", problem)
    try:
        return msgspec.convert(part, _TextPart).text
    except msgspec.ValidationError as error:
        raise wrong_field(error, _TextPart, part, where) from error


class ChatBody(_Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of POST /v1/chat/completions."""

    noun: ClassVar[str] = "a chat completion"
    messages: list[Message]
    max_completion_tokens: int | None = None  # another name of max_tokens
    logprobs: bool = False  # of each token
    top_logprobs: int | None = None  # with logprobs: of so many likeliest ones, too
    add_generation_prompt: bool = True  # what follows is the assistant's
    continue_final_message: bool = False  # what follows is the rest of the last message
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True


class TokenizeBody(AnyBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of POST /tokenize: a text, or a conversation as the chat template writes it."""

    noun: ClassVar[str] = "POST /tokenize"
    prompt: str | None = None
    messages: list[Message] | None = None
    model: str | None = None
    add_special_tokens: bool | None = None  # of a text: true; templates write their own
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool = False


class DetokenizeBody(AnyBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of POST /detokenize."""

    noun: ClassVar[str] = "POST /detokenize"
    tokens: list[int]
    model: str | None = None


# What fields with fields of their own may have; a body's other ones know it by themselves.
_PARTS: _Parts = {
    "messages": Message.__struct_fields__, "messages.content": _TextPart.__struct_fields__,
    "messages.tool_calls": CallBody.__struct_fields__,
    "messages.tool_calls.function": CalledFunction.__struct_fields__,
    "tools": ToolBody.__struct_fields__, "tools.function": FunctionBody.__struct_fields__,
    "stream_options": StreamOptions.__struct_fields__,
    "response_format": ResponseFormat.__struct_fields__,
    "response_format.json_schema": JsonSchema.__struct_fields__,
    "structured_outputs": StructuredOutputs.__struct_fields__,
}  # fmt: skip


class Reading(NamedTuple):
    """How a kind of body is read, besides what its struct says."""

    without_meaning: Set[str]  # fields that are sent as a matter of course, and left out
    as_it_is: Mapping[str, Any]  # of fields that are not served: what happens anyway
    elsewhere: Mapping[str, str]  # fields of other servers, and what to send for them here
    nested: Set[str]  # fields with fields of their own, which say nothing where they are null
    parts: _Parts  # fields that are known within fields


CHATS = Reading(_WITHOUT_MEANING, _AS_IT_IS, ELSEWHERE, _NESTED, _PARTS)
PLAIN = CHATS._replace(elsewhere={})  # of bodies that ask for no text

Body = TypeVar("Body", bound=AnyBody)


def read_body(
    content: bytes, kind: type[Body], *, is_lenient: bool, reading: Reading = CHATS
) -> tuple[Body, list[str]]:
    """The body, and the unknown fields that were left out of it. Raises InvalidField."""
    fields: dict[str, Any] = {
        name: _without_nothings(value) if name in reading.nested else value
        for name, value in _decoded(content).items()
        if _says_something(name, value, reading)
    }
    unknown_names = sorted(fields.keys() - set(kind.__struct_fields__))
    if unknown_names and not is_lenient:
        problem = _unknown_problem(unknown_names[0], kind, reading)
        raise InvalidField(unknown_names[0][:64], problem)
    for name in unknown_names:
        del fields[name]
    if is_lenient:
        within: set[str] = set()
        fields = {
            name: _known_part(name, value, reading.parts, within) for name, value in fields.items()
        }
        unknown_names += sorted(within)
    try:
        body = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise wrong_field(error, kind, fields) from error
    if fields.get("stream_options") and not fields.get("stream"):  # as OpenAI and vLLM refuse it
        raise InvalidField("stream_options", "are for streams; send stream: true, or leave it out")
    return body, unknown_names


def _decoded(content: bytes) -> dict[str, Any]:
    if not content:
        raise InvalidField("body", "is empty; it has to be a JSON object")
    try:
        given = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error).partition(" - at `")[0]  # a path in signs of msgspec's own
        raise InvalidField("body", f"is no JSON: {problem}") from error
    if not isinstance(given, dict):
        raise InvalidField("body", "has to be a JSON object")
    return cast(dict[str, Any], given)


def _says_something(name: str, value: Any, reading: Reading) -> bool:  # noqa: ANN401
    """A null is a field that is not set, whatever its name: clients write out all they know."""
    if value is None or name in reading.without_meaning:
        return False
    return name not in reading.as_it_is or value != reading.as_it_is[name]


def _without_nothings(value: Any, depth: int = _DEEPEST) -> Any:  # noqa: ANN401 - what JSON holds
    """The same without fields that are null or an empty list, so deep.

    Answers of other servers have such (`tool_calls: []`), and clients send them back as they came.
    """
    if isinstance(value, list) and depth:
        return [_without_nothings(each, depth - 1) for each in cast(list[Any], value)]
    if isinstance(value, dict) and depth:
        fields = cast(dict[str, Any], value).items()
        return {
            name: _without_nothings(each, depth - 1)
            for name, each in fields
            if each is not None and each != []
        }
    return cast(Any, value)


def _known_part(path: str, value: Any, parts: _Parts, lost: set[str]) -> Any:  # noqa: ANN401
    """`value` at `path` without fields that there are not: they go to `lost`."""
    if path not in parts:
        return value
    if isinstance(value, list):
        items = cast(list[Any], value)
        return [_known_fields(path, each, parts, lost) for each in items]
    return _known_fields(path, value, parts, lost)


def _known_fields(path: str, value: Any, parts: _Parts, lost: set[str]) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        return value
    fields, known = cast(dict[str, Any], value), parts[path]
    lost.update(f"{path}.{each}" for each in fields if each not in known)
    return {
        each: _known_part(f"{path}.{each}", fields[each], parts, lost)
        for each in fields
        if each in known
    }


def _unknown_problem(name: str, kind: type[AnyBody], reading: Reading) -> str:
    if name in reading.as_it_is:
        only = msgspec.json.encode(reading.as_it_is[name]).decode()
        return f"is not served here; leave it out, or send {only} (launch --lenient ignores it)"
    if name in reading.elsewhere:
        return f"is no field of {kind.noun} here; send {reading.elsewhere[name]}"
    if name in OF_CHATS:
        if kind is not ChatBody:
            return f"is no field of {kind.noun}; POST /v1/chat/completions has tools"
        return f"is no field of {kind.noun} here; send {TOOLS_ELSEWHERE[name]}"
    if name in _ABOUT_THINKING and kind is ChatBody:
        return f"is no field of {kind.noun} here; send {THINKING}"
    problem = unknown(name, kind.noun, list(kind.__struct_fields__))
    return f"{problem} (launch --lenient ignores unknown fields)"
