# pyright: strict
"""What can be asked of a response that is kept: itself, its events, its input, its end.

A response is its tenant's. To anybody else there is none of that name, and what is answered is the
same whether there is.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from specserve.api.http.answers import Json
from specserve.api.http.connection import Gone, Reply, read_content, refuse_unread, unless_gone
from specserve.api.http.refusals import Refused, refusal_of
from specserve.api.http.responses.body import check_include
from specserve.api.http.responses.endpoint import follow, shown
from specserve.api.http.responses.items import Item, as_json
from specserve.api.http.responses.kept import Kept
from specserve.api.http.responses.store import Store, not_kept
from specserve.api.http.wrong_fields import unknown
from specserve.api.keys import caller
from specserve.api.tokenizer import TextTokenizer
from specserve.errors import InvalidField, NotFound

_FIELD = "response_id"
_MOST_ITEMS, _USUAL_ITEMS = 100, 20  # of a page, as OpenAI has them
_ORDERS = ("asc", "desc")
_MOST_DIGITS = 18  # of a number
_MOST_BODY_BYTES = 64 * 1024  # of requests whose bodies say nothing


class NotKept(NotFound):
    """There is no such response, to whoever asks."""

    field = _FIELD


class _Query(NamedTuple):
    """What stands behind a path, by name; the last one counts."""

    fields: dict[str, str]

    def flag(self, name: str) -> bool:
        """False where it is left out. Raises InvalidField."""
        value = self.fields.get(name, "false").lower()
        if value not in ("true", "false"):
            raise InvalidField(name, f"must be true or false, not {value[:64]!r}")
        return value == "true"

    def number(self, name: str) -> int | None:
        """A whole number of at least 0. Raises InvalidField."""
        if (value := self.fields.get(name)) is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS):
            raise InvalidField(name, f"must be a whole number of at least 0, not {value[:64]!r}")
        return int(value)


def _query_of(scope: Scope, known: Sequence[str]) -> _Query:
    """Raises InvalidField for a field that there is not, and for what cannot be included."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    fields = {name.removesuffix("[]"): value for name, value in pairs}
    for name in fields:
        if name not in known:
            raise InvalidField(name[:64], unknown(name, "this path's query", list(known)))
    included = [value for name, value in pairs if name.removesuffix("[]") == "include"]
    check_include(included, "include")
    return _Query(fields)


class _OfKept(ABC):
    """An ASGI application; what bodies say is read and thrown away."""

    def __init__(self, store: Store[Kept], tokenizer: TextTokenizer) -> None:
        """`tokenizer`: off whose loop what is long is written."""
        self._store, self._tokenizer = store, tokenizer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await read_content(scope, receive, _MOST_BODY_BYTES)
        except Gone:
            return
        except Refused as error:
            await refuse_unread(error.refusal, receive, send)
            return
        await unless_gone(receive, self._answered(scope, Reply(send)))

    async def _answered(self, scope: Scope, reply: Reply) -> None:
        try:
            await self.answer(scope, reply)
        except Exception as error:  # noqa: BLE001 - the boundary: nothing may leave untranslated
            await reply.refuse(refusal_of(error))

    @abstractmethod
    async def answer(self, scope: Scope, reply: Reply) -> None:
        """Raises the SpecserveError that refuses it."""

    def kept(self, scope: Scope) -> Kept:
        """The caller's response of the path. Raises NotKept."""
        name: str = scope["path_params"][_FIELD]
        found = self._store.find(caller.get().identity, name)
        if found is None:
            raise NotKept(f"{_FIELD}: {not_kept(name)}")
        return found

    async def show(self, kept: Kept, reply: Reply) -> None:
        """As it is now."""
        await reply.json(await shown(kept, self._tokenizer))


class OneResponse(_OfKept):
    """A response that is kept, or with `stream=true` its events; DELETE ends and forgets it."""

    async def answer(self, scope: Scope, reply: Reply) -> None:
        await (self._delete if scope["method"] == "DELETE" else self._get)(scope, reply)

    async def _get(self, scope: Scope, reply: Reply) -> None:
        known = ("include", "include_obfuscation", "starting_after", "stream")
        query, kept = _query_of(scope, known), self.kept(scope)
        if query.flag("include_obfuscation"):
            problem = "is not served here; leave it out, or send false"
            raise InvalidField("include_obfuscation", problem)
        after = query.number("starting_after")
        if not query.flag("stream"):
            if after is not None:
                raise InvalidField("starting_after", "is for streams; send stream=true as well")
            await self.show(kept, reply)
            return
        if kept.log is None:
            problem = (
                "needs events, which are kept of responses that were made with background: true "
                "and stream: true; leave it out for the response as it is"
            )
            raise InvalidField("stream", problem)
        await follow(kept.log, 0 if after is None else after + 1, reply)

    async def _delete(self, scope: Scope, reply: Reply) -> None:
        _query_of(scope, ())
        kept = self.kept(scope)
        await _ended(kept)
        self._store.drop(caller.get().identity, kept.response_id)
        told = {"id": kept.response_id, "object": "response", "deleted": True}
        await reply.json(msgspec.json.encode(told))


class Cancellation(_OfKept):
    """End a response that is made in the background; it is shown as it has ended."""

    async def answer(self, scope: Scope, reply: Reply) -> None:
        _query_of(scope, ())
        kept = self.kept(scope)
        if not kept.is_background:
            problem = (
                "was not made with background: true; a response that its client waits for is "
                "ended by closing its connection"
            )
            raise InvalidField(_FIELD, problem)
        await _ended(kept)
        await self.show(kept, reply)


class InputItems(_OfKept):
    """What a kept response answers, with what came before it, in pages."""

    async def answer(self, scope: Scope, reply: Reply) -> None:
        query, kept = _query_of(scope, ("after", "include", "limit", "order")), self.kept(scope)
        order = query.fields.get("order", "desc")
        if order not in _ORDERS:
            raise InvalidField("order", f"{order[:64]!r} is not one of {', '.join(_ORDERS)}")
        limit = query.number("limit")
        limit = _USUAL_ITEMS if limit is None else limit
        if not 1 <= limit <= _MOST_ITEMS:
            problem = f"{limit} is out of range; it must be 1 to {_MOST_ITEMS}"
            raise InvalidField("limit", problem)
        items = kept.asked()
        if order == "desc":
            items.reverse()
        page = _page(items, query.fields.get("after"), limit)
        await reply.json(msgspec.json.encode(page))


def _page(items: Sequence[Item], after: str | None, limit: int) -> Json:
    start = 0
    if after is not None:
        start = next((i for i, item in enumerate(items, 1) if item.id == after), -1)
        if start < 0:
            raise InvalidField("after", f"{after[:64]!r} is no item of this response's input")
    found = items[start : start + limit]
    return {
        "object": "list",
        "data": as_json(found),
        "first_id": found[0].id if found else None,
        "last_id": found[-1].id if found else None,
        "has_more": start + limit < len(items),
    }


async def _ended(kept: Kept) -> None:
    """Once nothing makes it any more."""
    if kept.stop is not None:
        await kept.stop()
