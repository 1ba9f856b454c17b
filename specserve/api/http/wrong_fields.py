# pyright: strict
"""What is wrong with a field of a body, in words: where it stands, what it may be, what was sent.

Knows types as msgspec tells them, and the ranges that fields are held against later.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import inspect

from specserve.errors import InvalidField
from specserve.nearest import nearest
from specserve.settings.config import DAY_S
from specserve.validation import (
    MAX_LOGPROBS,
    MAX_REPETITION_PENALTY,
    MAX_SAMPLES,
    MAX_TEMPERATURE,
    MAX_TOKENS_PER_S,
    MIN_REPETITION_PENALTY,
)

# Who sends another type is told the range as well, which the door would name only next time.
RANGES = {
    "n": f" from 1 to {MAX_SAMPLES}",
    "max_tokens": " of at least 1",
    "max_completion_tokens": " of at least 1",
    "max_output_tokens": " of at least 1",
    "min_tokens": " of at least 0",
    "temperature": f" from 0 to {MAX_TEMPERATURE:g}",
    "top_p": " above 0 and at most 1",
    "top_k": " of at least -1",
    "min_p": " from 0 to 1",
    "presence_penalty": " from -2 to 2",
    "frequency_penalty": " from -2 to 2",
    "repetition_penalty": f" from {MIN_REPETITION_PENALTY:g} to {MAX_REPETITION_PENALTY:g}",
    "logprobs": f" from 0 to {MAX_LOGPROBS}",
    "top_logprobs": f" from 0 to {MAX_LOGPROBS}",
    "prompt_logprobs": f" from 0 to {MAX_LOGPROBS}",
    "min_tokens_per_s": f" above 0 and at most {MAX_TOKENS_PER_S:g}",
    "timeout_s": f" above 0 and at most {DAY_S:g}",
}
_MOST_CHARS = 32  # of a text that is quoted
_MOST_BITS = 96  # of a number
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_QUOTED = re.compile("`(.*)`", re.DOTALL)  # a name that somebody sent may have such marks in it


class _Place(NamedTuple):
    """A field as msgspec's path leads to it."""

    path: str  # as a user would write it
    kind: inspect.Type
    value: Any

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def wrong_field(
    error: msgspec.ValidationError,
    struct: type[msgspec.Struct],
    fields: Mapping[str, Any],
    where: str = "",
) -> InvalidField:
    """`fields` is what could not be converted to `struct`, and stands at `where` in its body."""
    problem, _, path = str(error).rpartition(" - at `$")
    if not problem:
        problem, path = path, ""
    place = _Place(where, _type_of(struct), fields)
    for name, index in cast("list[tuple[str, str]]", _STEP.findall(path)):
        place = _below(place, name or index)
    if problem.startswith("Object contains unknown field"):
        name = _quoted(problem)
        known = [each.name for option in _structs(place.kind) for each in option.fields]
        return InvalidField(_joined(place.path, name[:64]), unknown(name, place.name, known))
    if problem.startswith("Object missing required field"):
        place = _below(place, _quoted(problem))
        return InvalidField(place.path, f"is missing; it must be {_allowed(place)}")
    if "out of range" in problem:  # of what arithmetic holds at all
        return InvalidField(place.path, f"is out of range; it must be {_allowed(place)}")
    return InvalidField(place.path, f"must be {_allowed(place)}, not {_sent(place.value)}")


@functools.cache
def _type_of(struct: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(struct)


def unknown(name: str, of_what: str, known: list[str]) -> str:
    """What is wrong with a field that there is none of, and which one was meant."""
    if near := nearest(name, known):
        return f"is no field of {of_what}; did you mean {near}?"
    return f"is no field of {of_what}; its fields are {', '.join(sorted(known))}"


def _quoted(problem: str) -> str:
    found = _QUOTED.search(problem)
    assert found is not None
    return found[1]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _below(place: _Place, step: str) -> _Place:
    """A step down: a field's name, an item's index, or "..." for some value of a mapping."""
    for option in _options(place.kind):
        match option:
            case inspect.StructType():
                kinds = {field.name: field.type for field in option.fields}
                value = cast("dict[str, Any]", place.value).get(step)
                return _Place(_joined(place.path, step), kinds[step], value)
            case inspect.ListType() if step.isdigit():
                value = cast("list[Any]", place.value)[int(step)]
                return _Place(f"{place.path}[{step}]", option.item_type, value)
            case inspect.DictType() if step == "...":
                values = cast("dict[str, Any]", place.value)
                key = next(key for key, value in values.items() if not _is_number(value))
                return _Place(f"{place.path}[{key[:64]}]", option.value_type, values[key])
            case _:
                pass
    raise AssertionError(f"no way from {place.path} to {step}")


def _is_number(value: object) -> bool:
    """The values of the one mapping that is not free."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _options(kind: inspect.Type) -> Iterator[inspect.Type]:
    yield from kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    yield from (option for option in _options(kind) if isinstance(option, inspect.StructType))


def _allowed(place: _Place) -> str:
    """All that may be there; null, which anything may be that has a default, as the last."""
    words = [_one(option, RANGES.get(place.path, "")) for option in _options(place.kind)]
    return _or(sorted(words, key=lambda word: word == "null"))


def _or(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _one(kind: inspect.Type, known_range: str) -> str:
    match kind:
        case inspect.IntType():
            return "a whole number" + (_range(kind) or known_range)
        case inspect.FloatType():
            return "a number" + known_range
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
        case inspect.ListType():
            return "a list of " + _or([_many(each) for each in _options(kind.item_type)])
        case _:
            return "an object"


def _many(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return "whole numbers"
        case inspect.StrType():
            return "texts"
        case inspect.ListType():
            return "lists of " + _or([_many(each) for each in _options(kind.item_type)])
        case _:
            return "objects"


def _range(kind: inspect.IntType) -> str:
    if kind.ge is None or kind.lt is None:
        return ""
    return f" from {kind.ge} to {kind.lt - 1}"


def _sent(value: Any) -> str:  # noqa: ANN401 - what JSON holds
    match value:
        case None | bool():
            return msgspec.json.encode(value).decode()
        case str():
            is_short = len(value) <= _MOST_CHARS
            text = value if is_short else value[:_MOST_CHARS] + "..."
            return f"the text {msgspec.json.encode(text).decode()}"
        case int() if value.bit_length() > _MOST_BITS:
            return "a number that long"
        case int() | float():
            return f"the number {value}"
        case Mapping():
            return "an object"
        case _:
            return "a list"
