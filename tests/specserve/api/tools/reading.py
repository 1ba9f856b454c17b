"""Texts of models, read in pieces of any size, and what came of them."""

import random
from collections.abc import Sequence

from specserve.api.tools.formats import FORMATS, HERMES, ToolCallFormat
from specserve.api.tools.parser import parser_of
from specserve.api.tools.tool import Tool, ToolCallDelta, ToolUse, calls_of

TOOLS = (Tool(name="weather", parameters={"properties": {"city": {}}}), Tool(name="now"))

Read = tuple[str, list[tuple[str, str]]]  # text, and name and arguments of each call


def use_of(*, is_streamed: bool, **more: object) -> ToolUse:
    return ToolUse(tools=TOOLS, is_streamed=is_streamed, **more)  # type: ignore[arg-type]


def read_in(
    pieces: Sequence[str], form: ToolCallFormat = HERMES, *, streamed: bool = False
) -> Read:
    text, calls, _ = read_all(pieces, form, streamed=streamed)
    return text, calls


def read_all(
    pieces: Sequence[str], form: ToolCallFormat = HERMES, *, streamed: bool = False
) -> tuple[str, list[tuple[str, str]], list[ToolCallDelta]]:
    parser = parser_of(form, use_of(is_streamed=streamed))
    found = [*map(parser.push, pieces), parser.finish()]
    deltas = [delta for each in found for delta in each.calls]
    calls = calls_of(deltas)
    assert parser.num_calls == len(calls)
    assert len({call.call_id for call in calls}) == len(calls)
    return "".join(each.text for each in found), [(c.name, c.arguments) for c in calls], deltas


def cut(text: str, source: random.Random) -> list[str]:
    """Pieces of 0 to 7 characters."""
    pieces, place = [], 0
    while place < len(text):
        size = source.randrange(8)
        pieces.append(text[place : place + size])
        place += size
    return pieces


__all__ = ["FORMATS", "HERMES", "TOOLS", "cut", "read_all", "read_in", "use_of"]
