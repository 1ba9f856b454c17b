"""Fields of msgspec structs as a reference has them.

Names, types and defaults are the classes' own; what is said of a field is the comment that stands
behind it in the source. Comments of other classes' fields are read as well.
"""

import inspect
import io
import tokenize
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect as kinds

_WORDS: dict[type[kinds.Type], str] = {
    kinds.AnyType: "anything",
    kinds.BoolType: "true or false",
    kinds.IntType: "integer",
    kinds.FloatType: "number",
    kinds.StrType: "text",
    kinds.DictType: "object",
    kinds.BytesType: "bytes",
}


class Field(NamedTuple):
    """Of a struct."""

    name: str
    kind: str  # in words
    default: str  # in JSON; "" where the field is required, or where it is unset by default
    is_required: bool
    text: str


def fields_of(struct: type[msgspec.Struct]) -> list[Field]:
    """Those that the struct itself has, without what it inherits."""
    own = inspect.get_annotations(struct)
    texts = comments_of(struct)
    return [
        Field(
            each.encode_name,
            in_words(each.type),
            _default_of(each),
            each.required,
            texts.get(each.name, ""),
        )
        for each in _info(struct).fields
        if each.name in own
    ]


def inherited_from(struct: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Structs whose fields it has besides its own."""
    return [
        base
        for base in struct.__mro__[1:]
        if base is not msgspec.Struct
        and issubclass(base, msgspec.Struct)
        and set(inspect.get_annotations(base)) & set(base.__struct_fields__)
    ]


def structs_in(struct: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Structs that its fields hold, in their order."""
    found: dict[type[msgspec.Struct], None] = {}
    for field in _info(struct).fields:
        for kind in _below(field.type):
            if isinstance(kind, kinds.StructType):
                found[kind.cls] = None
    return list(found)


def in_words(kind: kinds.Type) -> str:
    """A type as a reader of JSON calls it; that it may be null is left out."""
    match kind:
        case kinds.UnionType():
            parts = [each for each in kind.types if not isinstance(each, kinds.NoneType)]
            return " or ".join(in_words(each) for each in parts)
        case kinds.ListType() | kinds.VarTupleType():
            item = in_words(kind.item_type)
            return f"list of ({item})" if " or " in item else f"list of {item}"
        case kinds.StructType():
            return f"`{kind.cls.__name__}`"
        case kinds.EnumType():
            return " or ".join(f"`{each.value}`" for each in kind.cls)
        case kinds.LiteralType():
            return " or ".join(f"`{each}`" for each in kind.values)
        case _:
            return _WORDS[type(kind)]


@cache
def comments_of(owner: type) -> Mapping[str, str]:
    """By the name of a field: the comment behind it."""
    found: dict[str, str] = {}
    name = ""
    lines = io.StringIO(inspect.getsource(owner)).readline
    is_line_begin = True
    for token in tokenize.generate_tokens(lines):
        if token.type == tokenize.NAME and is_line_begin:
            name = token.string
        if token.type == tokenize.COMMENT and name:
            found[name] = token.string.lstrip("# ")
        if token.type == tokenize.NEWLINE:
            name = ""
        is_line_begin = token.type in (
            tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT,
        )  # fmt: skip
    own = inspect.get_annotations(owner) | vars(owner)
    return {name: text for name, text in found.items() if name in own}


def _info(struct: type[msgspec.Struct]) -> kinds.StructType:
    info = kinds.type_info(struct)
    assert isinstance(info, kinds.StructType)
    return info


def _default_of(field: kinds.Field) -> str:
    if field.required or field.default is None:
        return ""
    value: Any = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory() if callable(field.default_factory) else None
    return "" if isinstance(value, msgspec.Struct) else msgspec.json.encode(value).decode()


def _below(kind: kinds.Type) -> list[kinds.Type]:
    match kind:
        case kinds.UnionType():
            return [each for part in kind.types for each in _below(part)]
        case kinds.ListType() | kinds.VarTupleType():
            return _below(kind.item_type)
        case _:
            return [kind]
