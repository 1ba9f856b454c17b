"""The gRPC API of docs/api.md: services, messages and their comments, as protoc reads them."""

import re
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from tests.docs.markdown import Table, cell
from tests.docs.raised import ROOT

_PROTO = "specserve/v1/generation.proto"
_SERVICES, _MESSAGES, _ENUMS = 6, 4, 5  # of a file, by field number in descriptor.proto
_METHODS = _FIELDS = _VALUES = 2  # of each of these


@cache
def proto() -> FileDescriptorProto:
    """The schema with its comments."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "set")
        includes = [f"-I{ROOT / 'proto'}", f"-I{resources.files('grpc_tools') / '_proto'}"]
        flags = ["--include_source_info", f"--descriptor_set_out={out}"]
        assert protoc.main(["protoc", *includes, *flags, _PROTO]) == 0
        (file,) = FileDescriptorSet.FromString(out.read_bytes()).file
    return file


@cache
def _comments() -> dict[tuple[int, ...], str]:
    places = proto().source_code_info.location
    told = {tuple(each.path): each.leading_comments + each.trailing_comments for each in places}
    return {path: " ".join(text.split()) for path, text in told.items() if text}


def field_texts(*messages: str) -> dict[str, str]:
    """What the schema says of fields, by their names; of a name in several the first counts."""
    found: dict[str, str] = {}
    for name in messages:
        for index, message in enumerate(proto().message_type):
            if message.name == name:
                for number, field in enumerate(message.field):
                    text = _comments().get((_MESSAGES, index, _FIELDS, number), "")
                    found.setdefault(field.name, text)
    return found


def lines() -> Iterator[str]:
    """The whole section."""
    yield "## gRPC"
    yield ""
    yield (
        f"`proto/{_PROTO}`, package `{proto().package}`; reflection and `grpc.health.v1` are on. "
        "Every sampling field is optional: an absent field means the default that is written "
        "there, never zero. Times are seconds, logarithms natural. Fields are only ever added."
    )
    for index, service in enumerate(proto().service):
        yield from _service(index, service)
    for index, message in enumerate(proto().message_type):
        yield from _message(index, message)
    for index, enum in enumerate(proto().enum_type):
        yield from _enum(index, enum)


def _service(index: int, service: ServiceDescriptorProto) -> Iterator[str]:
    yield from ("", f"### {service.name}", "", _comments().get((_SERVICES, index), ""), "")
    table = Table("call", "takes", "answers", "what it does")
    for number, method in enumerate(service.method):
        answer = _short(method.output_type)
        text = _comments().get((_SERVICES, index, _METHODS, number), "")
        stream = "a stream of " if method.server_streaming else ""
        table.add(f"`{method.name}`", _short(method.input_type), stream + answer, cell(text))
    yield from table.lines()


def _message(index: int, message: DescriptorProto) -> Iterator[str]:
    entries = {nested.name: nested for nested in message.nested_type}
    if not message.field:
        return
    yield from ("", f"### {message.name}", "")
    if text := _comments().get((_MESSAGES, index)):
        yield from (text, "")
    table = Table("field", "type", "what it says")
    for number, field in enumerate(message.field):
        text = _comments().get((_MESSAGES, index, _FIELDS, number), "")
        table.add(f"`{field.name}`", _type_of(field, entries), cell(text))
    yield from table.lines()


def _enum(index: int, enum: EnumDescriptorProto) -> Iterator[str]:
    yield from ("", f"### {enum.name}", "", _comments().get((_ENUMS, index), ""), "")
    table = Table("value", "what it says")
    for number, value in enumerate(enum.value):
        text = _comments().get((_ENUMS, index, _VALUES, number), "")
        table.add(f"`{value.name}`", cell(text))
    yield from table.lines()


def _type_of(field: FieldDescriptorProto, entries: dict[str, DescriptorProto]) -> str:
    name = field.type_name.rpartition(".")[2]
    if name in entries:  # of a map
        key, value = (_type_of(each, {}) for each in entries[name].field)
        return f"map of {key} to {value}"
    if name:
        shown = _short(field.type_name)
    else:
        shown = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {shown}"
    if field.proto3_optional:
        return f"optional {shown}"
    return f"one of: {shown}" if field.HasField("oneof_index") else shown


def _short(type_name: str) -> str:
    """Its name, which leads to its section where it has one."""
    name = type_name.rpartition(".")[2]
    known = {each.name for each in proto().message_type if each.field}
    known |= {each.name for each in proto().enum_type}
    anchor = re.sub(r"[^\w-]", "", name).lower()
    return f"[{name}](api.md#{anchor})" if name in known else name
