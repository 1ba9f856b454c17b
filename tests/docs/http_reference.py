"""OpenAI's API over HTTP of docs/api.md: paths as the app routes them, bodies as it reads them."""

import asyncio
import inspect
import pkgutil
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.routing import Route

from specserve.api import http
from specserve.api.http.app import _Paths
from specserve.api.http.guard import PUBLIC
from specserve.api.service import Service
from specserve.api.tokenizer import TextTokenizer
from specserve.settings.config import ModelConfig, ResolvedConfig
from specserve.settings.target_source import EMBEDDED_TARGET
from tests.docs.grpc_reference import field_texts
from tests.docs.markdown import Table, cell
from tests.docs.struct_fields import fields_of, inherited_from, structs_in

_OF_POST = re.compile(r"Of POST (\S+?)[.:]?(?:\s+|$)")
# Fields of gRPC that bodies have under the same names.
_SHARED = ("SamplingParams", "GenerateRequest", "SpecOptions", "ChatMessage")
_OTHERWISE = frozenset({"logprobs", "max_tokens"})  # of these, which mean something else there


class Path_(NamedTuple):  # noqa: N801 - `Path` is taken
    """One path, and what is answered there."""

    path: str
    method: str
    text: str


@cache
def bodies() -> dict[str, type[msgspec.Struct]]:
    """By path: the struct whose docstring says that it is the path's body."""
    found: dict[str, type[msgspec.Struct]] = {}
    for module in pkgutil.walk_packages(http.__path__, f"{http.__name__}."):
        for _, kind in inspect.getmembers(import_module(module.name), inspect.isclass):
            said = _OF_POST.match(inspect.getdoc(kind) or "")
            if said and issubclass(kind, msgspec.Struct):
                found[said[1]] = kind
    return found


@cache
def paths() -> list[Path_]:
    """Those of a service that is not started, in the app's order."""
    return asyncio.run(_paths())


async def _paths() -> list[Path_]:
    tokenizer = TextTokenizer(EMBEDDED_TARGET)
    config = ResolvedConfig(model=ModelConfig(target=str(EMBEDDED_TARGET)))
    with tempfile.TemporaryDirectory() as folder:
        service = Service(config, Path(folder), tokenizer)
        routes = [each for each in _Paths(service).app().routes if isinstance(each, Route)]
        service.hub.close()
    tokenizer.close()
    return [
        Path_(re.sub(r":\w+}", "}", route.path), method, _text_of(route))
        for route in routes
        for method in sorted((route.methods or set()) - {"HEAD"})
    ]


def _text_of(route: Route) -> str:
    """What the body's class says, or else what answers."""
    if (body := bodies().get(route.path)) is not None:
        return _said(body) or f"a body of [its fields](api.md#{_anchor(route.path)})"
    endpoint = route.endpoint
    is_plain = inspect.isfunction(endpoint)
    return inspect.getdoc(endpoint if is_plain else type(endpoint)) or ""


def _said(body: type[msgspec.Struct]) -> str:
    text = _OF_POST.sub("", inspect.getdoc(body) or "", count=1)
    return text[:1].upper() + text[1:]


def lines() -> Iterator[str]:
    """The whole section."""
    yield from ("## HTTP", "")
    yield (
        "On `--http-port`. With `--api-key-file` every path but those marked *open* needs "
        "`Authorization: Bearer KEY`. Bodies are JSON objects; a null is a field that is not set, "
        "and an unknown field is refused by name ([errors](errors.md#fields-of-requests))."
    )
    yield ""
    table = Table("path", "method", "what it is")
    for each in paths():
        is_open = " *open*" if each.path in PUBLIC else ""
        told = cell(each.text.partition("\n\n")[0])
        shown = f"[`{each.path}`](api.md#{_anchor(each.path)})" if each.path in bodies() else None
        table.add(shown or f"`{each.path}`", each.method, told + is_open)
    yield from table.lines()
    shared: dict[type[msgspec.Struct], None] = {}
    for path, body in bodies().items():
        yield from ("", f"### {_title(path)}", "")
        if text := _said(body):
            yield from (cell(text), "")
        yield from _table(body)
        for base in inherited_from(body):
            shared[base] = None
            name = base.__name__.lstrip("_")
            yield from ("", f"And the fields of [{name}](api.md#http-{name.lower()}).")
    for kind in _all_below(dict.fromkeys([*shared, *bodies().values()])):
        if kind not in bodies().values():
            name = kind.__name__.lstrip("_")
            yield from ("", f"### HTTP: {name}", "", cell(inspect.getdoc(kind) or ""), "")
            yield from _table(kind)


def _all_below(found: dict[type[msgspec.Struct], None]) -> list[type[msgspec.Struct]]:
    waiting = list(found)
    while waiting:
        for kind in structs_in(waiting.pop(0)):
            if kind not in found:
                found[kind] = None
                waiting.append(kind)
    return list(found)


def _table(struct: type[msgspec.Struct]) -> Iterator[str]:
    table = Table("field", "type", "default", "what it says")
    known = _texts()
    for field in fields_of(struct):
        default = f"`{field.default}`" if field.default else "unset"
        default = "required" if field.is_required else default
        text = field.text or known.get(field.name, "")
        table.add(f"`{field.name}`", _linked(cell(field.kind)), default, cell(text))
    return table.lines()


@cache
def _texts() -> dict[str, str]:
    """What is said of a field elsewhere: in the schema of gRPC, or where another body has it."""
    found = {name: text for name, text in field_texts(*_SHARED).items() if name not in _OTHERWISE}
    for body in bodies().values():
        for owner in (body, *inherited_from(body)):
            for field in fields_of(owner):
                if field.text and field.name not in _OTHERWISE:
                    found.setdefault(field.name, field.text)
    return found


def _linked(kind: str) -> str:
    """With ways to the sections of structs."""
    return re.sub(
        r"`([A-Z]\w+)`", lambda named: f"[{named[1]}](api.md#http-{named[1].lower()})", kind
    )


def _title(path: str) -> str:
    return f"POST {path}"


def _anchor(path: str) -> str:
    return re.sub(r"[^\w -]", "", _title(path)).lower().replace(" ", "-")
