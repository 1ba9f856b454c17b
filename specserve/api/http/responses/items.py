# pyright: strict
"""Items of a response, as they are shown and kept: messages, calls of functions, their results.

What a body sends is read to the same items as those that a model makes, so that a conversation is
one list of them, whoever said what.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from specserve.api.http.answers import Json
from specserve.api.http.wrong_fields import wrong_field
from specserve.errors import InvalidField

_MOST_ITEMS = 4096  # of a conversation, as of a chat
_MOST_ID_CHARS = 128


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    """Of a message that a model reads."""

    text: str


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """Of a message that a model has written."""

    text: str
    annotations: list[Json] = []  # OpenAI's clients need the field; nothing here fills it
    logprobs: list[Json] = []


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """One turn; `role` is user, system, developer or assistant."""

    id: str
    role: str
    content: list[InputText | OutputText]
    status: str = "completed"

    @property
    def text(self) -> str:
        """Parts that say something, each in lines of its own, as of a chat's message."""
        return "\n".join(filter(None, (part.text for part in self.content)))


class CallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A model's call of a function; `arguments` is JSON, unless the answer was cut."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"


class ResultItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"
):
    """What the call of this `call_id` has returned."""

    id: str
    call_id: str
    output: str
    status: str = "completed"


Item = MessageItem | CallItem | ResultItem


class _SentMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`status` and `phase` come with what is sent back as it came, and have no meaning."""

    role: str
    content: str | list[dict[str, Any]]
    type: str = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class _SentText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`annotations` and `logprobs` come with what is sent back as it came."""

    text: str
    type: str
    annotations: list[Json] | None = None
    logprobs: list[Json] | None = None


class _SentCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class _SentResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    call_id: str
    output: str | list[dict[str, Any]]
    id: str | None = None
    status: str | None = None


# Field names within `input` that are known, by path; lenient services leave out what is not here.
KNOWN = {
    "input": (
        *_SentMessage.__struct_fields__, *_SentCall.__struct_fields__,
        *_SentResult.__struct_fields__,
    ),
    "input.content": _SentText.__struct_fields__,
    "input.output": _SentText.__struct_fields__,
}  # fmt: skip
_ROLES = ("user", "system", "developer", "assistant")
# Kinds of items and parts that clients of OpenAI's send, and what to do here.
_OTHER_ITEMS = {
    "item_reference": "send the item itself, or previous_response_id",
    "reasoning": "leave it out: what the model has thought is no part of the conversation",
}
_OTHER_PARTS = {
    "text": "send input_text, or output_text of an assistant's message",
    "refusal": "send it as output_text",
}
_Sent = TypeVar("_Sent", bound=msgspec.Struct)


def new_item_id(prefix: str) -> str:
    """Of an item, as OpenAI's clients know it: `msg_...`."""
    return f"{prefix}_{secrets.token_hex(24)}"


def read_input(sent: str | Sequence[Json]) -> list[Item]:
    """The items of a body's `input`, each with an id of its own. Raises InvalidField."""
    if isinstance(sent, str):
        return [_message("user", [InputText(sent)], None)]
    if not sent:
        raise InvalidField("input", "is empty; it must be text or have at least 1 item")
    if len(sent) > _MOST_ITEMS:
        raise InvalidField("input", f"has {len(sent)} items; the limit is {_MOST_ITEMS}")
    return with_ids_of_their_own([_item(each, f"input[{i}]") for i, each in enumerate(sent)])


def with_ids_of_their_own(items: Sequence[Item]) -> list[Item]:
    """The same; of several with one id the first keeps it, for lists are leafed through by ids."""
    found: dict[str, Item] = {}
    for each in items:
        item = each
        if item.id in found:
            item = msgspec.structs.replace(item, id=new_item_id(item.id.partition("_")[0]))
        found[item.id] = item
    return list(found.values())


def _item(sent: Json, where: str) -> Item:
    """Its type is looked at first: fields of another kind would be named as misspelt."""
    kind = str(sent.get("type", "message"))
    if kind not in _READERS:
        way = _OTHER_ITEMS.get(kind, f"items are of type {', '.join(_READERS)}")
        raise InvalidField(f"{where}.type", f"{kind[:64]!r} is not served here; {way}")
    return _READERS[kind](sent, where)


def _read_message(sent: Json, where: str) -> MessageItem:
    given = _converted(sent, _SentMessage, where)
    if given.role not in _ROLES:
        problem = f"{given.role[:64]!r} is not one of {', '.join(_ROLES)}"
        raise InvalidField(f"{where}.role", problem)
    kind = OutputText if given.role == "assistant" else InputText
    if isinstance(given.content, str):
        content = [kind(given.content)]
    else:
        parts = enumerate(given.content)
        content = [kind(_text_of(part, kind, f"{where}.content[{i}]")) for i, part in parts]
    return _message(given.role, content, _id_of(given.id, where))


def _read_call(sent: Json, where: str) -> CallItem:
    given = _converted(sent, _SentCall, where)
    return CallItem(
        id=_id_of(given.id, where) or new_item_id("fc"),
        call_id=_call_id_of(given.call_id, where),
        name=given.name,
        arguments=given.arguments,
    )


def _read_result(sent: Json, where: str) -> ResultItem:
    given = _converted(sent, _SentResult, where)
    output = given.output
    if not isinstance(output, str):
        parts = enumerate(output)
        said = [_text_of(part, InputText, f"{where}.output[{i}]") for i, part in parts]
        output = "\n".join(filter(None, said))
    return ResultItem(
        id=_id_of(given.id, where) or new_item_id("fco"),
        call_id=_call_id_of(given.call_id, where),
        output=output,
    )


def _call_id_of(sent: str, where: str) -> str:
    if not 1 <= len(sent) <= _MOST_ID_CHARS:
        problem = f"has {len(sent)} characters; it must have 1 to {_MOST_ID_CHARS}"
        raise InvalidField(f"{where}.call_id", problem)
    return sent


def _text_of(part: Json, kind: type[InputText | OutputText], where: str) -> str:
    wanted = "output_text" if kind is OutputText else "input_text"
    if (found := str(part.get("type"))) != wanted:
        of_whom = "an assistant's message" if kind is OutputText else "a message to the model"
        way = _OTHER_PARTS.get(found, f"parts of {of_whom} are of type {wanted!r}")
        raise InvalidField(f"{where}.type", f"{found[:64]!r} is not served here; {way}")
    return _converted(part, _SentText, where).text


def _message(
    role: str, content: Sequence[InputText | OutputText], item_id: str | None
) -> MessageItem:
    return MessageItem(id=item_id or new_item_id("msg"), role=role, content=list(content))


def _id_of(sent: str | None, where: str) -> str | None:
    if sent is not None and not (1 <= len(sent) <= _MOST_ID_CHARS and sent.isprintable()):
        problem = f"must have 1 to {_MOST_ID_CHARS} printable characters; leave it out for a new id"
        raise InvalidField(f"{where}.id", problem)
    return sent


def _converted(sent: Json, kind: type[_Sent], where: str) -> _Sent:
    try:
        return msgspec.convert(sent, kind)
    except msgspec.ValidationError as error:
        raise wrong_field(error, kind, sent, where) from error


_READERS: dict[str, Callable[[Json, str], Item]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_result,
}


def encoded_items(items: Sequence[Item]) -> bytes:
    """As JSON, to be kept or shown."""
    return msgspec.json.encode(items)


def decoded_items(content: bytes) -> list[Item]:
    """The counterpart of `encoded_items`."""
    return msgspec.json.decode(content, type=list[Item])


def as_json(items: Sequence[Item]) -> list[Json]:
    """As they are shown."""
    return cast("list[Json]", msgspec.to_builtins(items))
