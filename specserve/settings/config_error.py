# pyright: strict
"""What is wrong with a setting, on one line: its name, what it may be, and what it is.

Knows types and ranges as msgspec tells them, and no setting.
"""

from typing import Any

import msgspec
from msgspec import inspect

from specserve.errors import InvalidField


def as_invalid_field(
    error: msgspec.ValidationError,
    config: type[msgspec.Struct],
    sections: dict[str, Any],
    *,
    strict: bool,
) -> InvalidField:
    """msgspec says "Expected `int` >= 1 - at `$.speculation.fan_out`", and nothing of the value.

    `sections` is what was converted to `config`; unless `strict`, values may be text.
    """
    field = str(error).partition(" - at ")[2].strip("`").removeprefix("$.")
    field = field.partition("[")[0]  # of a list whatever is in it
    kind: inspect.Type = inspect.type_info(config)
    value: Any = sections
    for name in field.split("."):
        assert isinstance(kind, inspect.StructType)
        kind = next(_decided(known.type) for known in kind.fields if known.name == name)
        value = value[name]
    return InvalidField(field, f"expected {_wanted(kind)}, got {_as_written(value, strict=strict)}")


def _decided(kind: inspect.Type) -> inspect.Type:
    """Without the None of "decide for me"."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    return next(option for option in kind.types if not isinstance(option, inspect.NoneType))


def _wanted(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType() | inspect.FloatType():
            name = "int" if isinstance(kind, inspect.IntType) else "float"
            return name + _range(kind.ge, kind.gt, kind.le)
        case inspect.StrType():
            return "text that is not empty" if kind.min_length else "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return "one of " + ", ".join(map(str, kind.values))
        case inspect.VarTupleType():
            return "a list of texts that are not empty"
        case _:
            return "a section"


def _range(least: float | None, above: float | None, most: float | None) -> str:
    if above is not None:
        return f" above {above:.15g}" + ("" if most is None else f" and at most {most:.15g}")
    if least is None:
        return ""
    return f" of at least {least:.15g}" if most is None else f" from {least:.15g} to {most:.15g}"


def _as_written(value: object, *, strict: bool) -> str:
    """As a file has it; a number from a command line, which is text there, without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and not strict and _is_number(value):
        return value.strip()
    return repr(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
