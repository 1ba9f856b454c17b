"""The Python client of docs/api.md: signatures, docstrings and records as the modules have them."""

import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from specserve import client
from specserve.api import call, events
from specserve.types import FinishReason, Grammar, GrammarKind, Logprobs, TokenOrigin
from tests.docs.grpc_reference import field_texts
from tests.docs.markdown import Table, cell
from tests.docs.struct_fields import comments_of

# Records, and the messages of gRPC whose fields they have.
_RECORDS: dict[type[msgspec.Struct], tuple[str, ...]] = {
    call.ChatMessage: ("ChatMessage",),
    call.SpecOptions: ("SpecOptions",),
    Grammar: (),
    events.Completion: ("GenerateResponse", "Finished"),
    events.CompletedSample: ("Sample", "SampleEnd"),
    events.PromptInfo: ("PromptInfo",),
    events.TokenDelta: ("TokenDelta",),
    events.Finished: ("Finished",),
    events.SampleEnd: ("SampleEnd",),
    events.Usage: ("Usage",),
    events.Timings: ("Timings",),
    events.SpecRecord: ("SpecRecord",),
    Logprobs: ("TokenLogprobs",),
}
_ENUMS = (FinishReason, TokenOrigin, GrammarKind)


def lines() -> Iterator[str]:
    """The whole section."""
    yield from ("## Python client", "", "```python")
    yield _example()
    yield from ("```", "")
    yield (
        "Every failure is a `specserve.errors.SpecserveError` whose `code` is the gRPC status "
        "([errors](errors.md#statuses)). What `server_info`, `model_info`, `load`, `spec_config` "
        "and `spec_stats` return has the fields of the messages of gRPC."
    )
    for owner in (client.Client, client.AsyncClient, client.TextStream):
        yield from _class(owner)
    yield from ("", "### Python: Options", "", cell(inspect.getdoc(client.Options) or ""), "")
    yield from _fields(client.Options, "SamplingParams", "GenerateRequest")
    for record, messages in _RECORDS.items():
        doc = (inspect.getdoc(record) or "").partition("\n\n")[0]
        yield from ("", f"### Python: {record.__name__}", "", cell(doc), "")
        yield from _fields(record, *messages)
    for kind in _ENUMS:
        yield from ("", f"### Python: {kind.__name__}", "", cell(inspect.getdoc(kind) or ""), "")
        yield from _members(kind)


def _example() -> str:
    """That of the module's docstring."""
    text = inspect.getdoc(client) or ""
    return inspect.cleandoc("\n".join(re.findall(r"^(?: {4}.*|)$", text, re.MULTILINE))).strip()


def _class(owner: type) -> Iterator[str]:
    yield from ("", f"### Python: {owner.__name__}", "", cell(inspect.getdoc(owner) or ""), "")
    table = Table("call", "gives", "what it does")
    if owner is not client.TextStream:  # which the clients make
        made = inspect.signature(owner)
        table.add(f"`{owner.__name__}{_arguments(made)}`", "", _doc(owner.__init__))
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if not name.startswith("_"):
            found = inspect.signature(method)
            gives = cell(_shown(found.return_annotation))
            told = "" if gives == "None" else f"`{gives}`"
            wait = "await " if inspect.iscoroutinefunction(method) else ""
            text = _doc(method) or _doc(found.return_annotation)  # which names the call of gRPC
            table.add(f"`{wait}{name}{_arguments(found)}`", told, text)
    yield from table.lines()


def _arguments(found: inspect.Signature) -> str:
    own = [each for name, each in found.parameters.items() if name != "self"]
    plain = [
        each.replace(annotation=inspect.Parameter.empty)
        if each.kind is inspect.Parameter.VAR_KEYWORD
        else each
        for each in own
    ]
    text = str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return cell(_without_modules(text))


def _doc(owner: Any) -> str:
    return cell(inspect.getdoc(owner) or "")


def _fields(owner: type, *messages: str) -> Iterator[str]:
    table = Table("field", "type", "default", "what it says")
    comments, known = comments_of(owner), field_texts(*messages)
    defaults: dict[str, Any] = {}
    if issubclass(owner, msgspec.Struct):
        fields = msgspec.structs.fields(owner)
        defaults = {each.name: each for each in fields}
    for name, kind in inspect.get_annotations(owner).items():
        text = comments.get(name) or known.get(name, "")
        field = defaults.get(name)
        default = "" if field is None or field.required else _default(field)
        table.add(f"`{name}`", f"`{cell(_shown(kind))}`", default, cell(text))
    return table.lines()


def _default(field: msgspec.structs.FieldInfo) -> str:
    is_made = field.default is msgspec.NODEFAULT and callable(field.default_factory)
    value = field.default_factory() if is_made else field.default
    return f"`{value!r}`"


def _members(kind: type[enum.Enum]) -> Iterator[str]:
    table = Table("value", "what it says")
    for member in kind:
        table.add(f"`{member.name}`", cell(comments_of(kind).get(member.name, "")))
    return table.lines()


def _shown(annotation: Any) -> str:
    if annotation in (None, type(None)):
        return "None"
    return _without_modules(inspect.formatannotation(annotation).strip("'"))


def _without_modules(text: str) -> str:
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)
