# pyright: strict
"""The body of POST /v1/responses: OpenAI's fields, and those that completions and chats have, too.

What OpenAI has and this does not is refused by name, with what to send for it. Says nothing of what
a field does: it is read here and held against what is the same for every model.
"""

from typing import Any, ClassVar

import msgspec

from specserve.api.http.answers import Json
from specserve.api.http.bodies import CHATS, THINKING, AnyBody, SpecWishes, Stop
from specserve.api.http.responses.functions import SentFunction
from specserve.api.http.responses.items import KNOWN
from specserve.api.http.structured import StructuredOutputs
from specserve.errors import InvalidField, Unsupported

LOGPROBS = "message.output_text.logprobs"  # of `include`
# Of items that there are none of here, so that there is nothing to include.
_NEVER_THERE = frozenset({
    "code_interpreter_call.outputs", "computer_call_output.output.image_url",
    "file_search_call.results", "message.input_image.image_url", "reasoning.encrypted_content",
    "web_search_call.action.sources", "web_search_call.results",
})  # fmt: skip
INCLUDABLE = frozenset({LOGPROBS, *_NEVER_THERE})
_FORMATS = ("text", "json_object", "json_schema")
_MOST_PAIRS, _MOST_KEY_CHARS, _MOST_VALUE_CHARS = 16, 64, 512  # of metadata, as OpenAI has them
_USUAL_VERBOSITY = "medium"


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name`, `description` and `strict` have no meaning: a schema is kept to in any case."""

    type: str  # text, json_object or json_schema
    schema: dict[str, Any] | None = None  # of json_schema
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the text that a model writes."""

    format: TextFormat | None = None
    verbosity: str | None = None  # medium alone


class EventOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a stream. Obfuscated events have random characters, which nobody has asked for yet."""

    include_obfuscation: bool = False


class ResponsesBody(AnyBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of POST /v1/responses. What is answered, as OpenAI has it, and how, as chats have it.

    None is unset, as in the other bodies.
    """

    noun: ClassVar[str] = "a response"
    input: str | list[dict[str, Any]]  # a text, or messages, calls of functions and their results
    model: str | None = None
    instructions: str | None = None  # the system's message, of this response alone
    previous_response_id: str | None = None  # what was said up to it comes before the input
    max_output_tokens: int | None = None  # left out: until the model ends it
    temperature: float | None = None
    top_p: float | None = None
    text: TextOptions = TextOptions()  # what the answer's texts have to be
    metadata: dict[str, Any] | None = None  # 16 texts at most, told again with the response
    store: bool = True  # the response can be asked for again, and continued
    background: bool = False  # answered at once: the response goes on, whoever waits
    stream: bool = False  # typed events, numbered from 0
    stream_options: EventOptions | None = None
    include: list[str] | None = None  # message.output_text.logprobs; others find nothing here
    top_logprobs: int | None = None  # of so many likeliest tokens; with include
    tools: list[dict[str, Any]] = []  # functions: {"type": "function", "name": ...}
    tool_choice: str | dict[str, Any] | None = None  # or {"type": "function", "name": ...}
    parallel_tool_calls: bool = True
    # From here on as of chats.
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: Stop | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    spec: SpecWishes = SpecWishes()
    priority: int = 0
    cache_salt: str | None = None
    min_tokens_per_s: float | None = None
    timeout_s: float | None = None
    request_id: str | None = None

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer's tokens come with their log probabilities."""
        return LOGPROBS in (self.include or ())


_SCHEMA = 'text: {"format": {"type": "json_schema", ...}}, or structured_outputs'
READING = CHATS._replace(
    without_meaning=frozenset({
        "max_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "user",
    }),
    as_it_is={"truncation": "disabled"},
    elsewhere={
        "context_management": "a shorter input, or raise max_model_len",
        "conversation": "previous_response_id",
        "function_call": 'tool_choice: "auto", or {"type": "function", "name": ...}',
        "functions": 'tools: [{"type": "function", "name": ...}]',
        "guided_choice": "structured_outputs",
        "guided_grammar": "structured_outputs",
        "guided_json": _SCHEMA,
        "guided_regex": "structured_outputs",
        "logprobs": f'include: ["{LOGPROBS}"], and top_logprobs',
        "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "messages": "input, which may be a list of messages",
        "n": "as many requests, each with a seed of its own",
        "prompt": "instructions and input",
        "prompt_logprobs": "the prompt to /v1/completions",
        "reasoning": THINKING,
        "reasoning_effort": THINKING,
        "response_format": _SCHEMA,
    },
    nested=frozenset({"input", "stream_options"}),
    parts={
        **KNOWN, "tools": SentFunction.__struct_fields__,
        "stream_options": EventOptions.__struct_fields__,
        "structured_outputs": StructuredOutputs.__struct_fields__,
        "text": TextOptions.__struct_fields__, "text.format": TextFormat.__struct_fields__,
    },
)  # fmt: skip


def check_body(body: ResponsesBody) -> None:
    """Raise InvalidField or Unsupported for values that no model could serve."""
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        problem = "is not served here; leave it out, or send false"
        raise InvalidField("stream_options.include_obfuscation", problem)
    if body.background and not body.store:
        problem = "needs store: true, since its answer is asked for later"
        raise InvalidField("background", problem)
    if body.top_logprobs and not body.has_logprobs:
        raise InvalidField("top_logprobs", f'needs include: ["{LOGPROBS}"]')
    check_include(body.include or [], "include")
    _check_text(body.text)
    _check_metadata(body.metadata or {})


def check_include(names: list[str], field: str) -> None:
    """Raise InvalidField for what nobody knows how to include."""
    for name in names:
        if name not in INCLUDABLE:
            known = ", ".join(sorted(INCLUDABLE))
            raise InvalidField(field, f"{name[:64]!r} is not served here; there are {known}")


def _check_text(text: TextOptions) -> None:
    if text.verbosity not in (None, _USUAL_VERBOSITY):
        problem = "is not served here; leave it out, and say it in instructions"
        raise InvalidField("text.verbosity", problem)
    if text.format is None:
        return
    if text.format.type not in _FORMATS:
        problem = f"{text.format.type[:64]!r} is not served; send {', '.join(_FORMATS)}"
        raise Unsupported(f"text.format.type: {problem}")
    if text.format.type == "json_schema" and text.format.schema is None:
        raise InvalidField("text.format.schema", "is missing; it must be an object")


def _check_metadata(metadata: Json) -> None:
    if len(metadata) > _MOST_PAIRS:
        raise InvalidField("metadata", f"has {len(metadata)} keys; the limit is {_MOST_PAIRS}")
    for key, value in metadata.items():
        if len(key) > _MOST_KEY_CHARS:
            problem = f"has a key of {len(key)} characters; the limit is {_MOST_KEY_CHARS}"
            raise InvalidField("metadata", problem)
        if not isinstance(value, str) or len(value) > _MOST_VALUE_CHARS:
            problem = f"must be text of at most {_MOST_VALUE_CHARS} characters"
            raise InvalidField(f"metadata[{key}]", problem)
