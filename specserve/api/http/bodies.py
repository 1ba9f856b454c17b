# pyright: strict
"""Bodies of requests as OpenAI's clients send them, with what vLLM and SGLang both add.

A field that is not here is refused by name, or with `--lenient` left out with a warning. None means
unset: what the model's own generation config says, or neutral values.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

import msgspec

from specserve.api.http.structured import (
    ELSEWHERE,
    JsonSchema,
    ResponseFormat,
    Schema,
    StructuredOutputs,
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
    "tool_choice": "none",
    "tools": [],
    "parallel_tool_calls": True,
    "modalities": ["text"],
}
_NESTED = frozenset({"messages", "stream_options"})  # fields with fields of their own
_DEEPEST = 4  # that these go: messages, one of them, its content, a part of it

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


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats share."""

    noun: ClassVar[str]  # what one is called in refusals
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
    """One turn. `name` is accepted and has no meaning, and so is the type of a text."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
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


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of POST /tokenize: a text, or a conversation as the chat template writes it."""

    noun: ClassVar[str] = "POST /tokenize"
    prompt: str | None = None
    messages: list[Message] | None = None
    model: str | None = None
    add_special_tokens: bool | None = None  # of a text: true; templates write their own
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of POST /detokenize."""

    noun: ClassVar[str] = "POST /detokenize"
    tokens: list[int]
    model: str | None = None


# What fields with fields of their own may have; a body's other ones know it by themselves.
_PARTS: dict[str, type[msgspec.Struct]] = {
    "messages": Message, "messages.content": _TextPart, "stream_options": StreamOptions,
    "response_format": ResponseFormat, "response_format.json_schema": JsonSchema,
    "structured_outputs": StructuredOutputs,
}  # fmt: skip

Body = TypeVar("Body", CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)


def read_body(content: bytes, kind: type[Body], *, is_lenient: bool) -> tuple[Body, list[str]]:
    """The body, and the unknown fields that were left out of it. Raises InvalidField."""
    fields: dict[str, Any] = {
        name: _without_nothings(value) if name in _NESTED else value
        for name, value in _decoded(content).items()
        if _says_something(name, value)
    }
    unknown_names = sorted(fields.keys() - set(kind.__struct_fields__))
    if unknown_names and not is_lenient:
        raise InvalidField(unknown_names[0][:64], _unknown_problem(unknown_names[0], kind))
    for name in unknown_names:
        del fields[name]
    if is_lenient:
        within: set[str] = set()
        fields = {name: _known_part(name, value, within) for name, value in fields.items()}
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


def _says_something(name: str, value: Any) -> bool:  # noqa: ANN401 - what JSON holds
    """A null is a field that is not set, whatever its name: clients write out all they know."""
    if value is None or name in _WITHOUT_MEANING:
        return False
    return name not in _AS_IT_IS or value != _AS_IT_IS[name]


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


def _known_part(name: str, value: Any, unknown_names: set[str]) -> Any:  # noqa: ANN401
    """`value` of the field `name` without fields that there are not: they go to `unknown_names`."""
    if isinstance(value, list) and name in _PARTS:
        return [_known_fields(name, each, unknown_names) for each in cast(list[Any], value)]
    return _known_fields(name, value, unknown_names)


def _known_fields(name: str, value: Any, unknown_names: set[str]) -> Any:  # noqa: ANN401
    if name not in _PARTS or not isinstance(value, dict):
        return value
    fields, known = cast(dict[str, Any], value), _PARTS[name].__struct_fields__
    unknown_names.update(f"{name}.{each}" for each in fields if each not in known)
    return {
        each: _known_part(f"{name}.{each}", fields[each], unknown_names)
        for each in fields
        if each in known
    }


def _unknown_problem(name: str, kind: type[Body]) -> str:
    if name in _AS_IT_IS:
        only = msgspec.json.encode(_AS_IT_IS[name]).decode()
        return f"is not served here; leave it out, or send {only} (launch --lenient ignores it)"
    if name in ELSEWHERE and issubclass(kind, _Body):
        return f"is no field of {kind.noun} here; send {ELSEWHERE[name]}"
    problem = unknown(name, kind.noun, list(kind.__struct_fields__))
    return f"{problem} (launch --lenient ignores unknown fields)"
