"""The door: grammars that cannot be had are refused, and harm nobody but who compiles them."""

import asyncio
import re

import pytest

from specserve.errors import InvalidField
from specserve.grammars.checker import GrammarChecker
from specserve.grammars.source import MAX_CHARS
from specserve.types import Grammar, GrammarKind

GOOD = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}', "good")
CHAIN = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(6000)) + 'r6000: "a"'
REFUSED = {
    "no JSON": (GrammarKind.JSON_SCHEMA, "{", "cannot be used"),
    "no schema": (GrammarKind.JSON_SCHEMA, '{"type": "objet"}', "Invalid type: objet"),
    "unsupported": (GrammarKind.JSON_SCHEMA, '{"not": {}}', '"not".*"x-guidance"'),
    "no regex": (GrammarKind.REGEX, "(", "unclosed group$"),
    "looks around": (GrammarKind.REGEX, "(?<=a)b", "look-around.* is not supported"),
    "no grammar": (GrammarKind.GRAMMAR, "hello", "Expected ::=.*Lark's EBNF.*GBNF"),
    "unknown rule": (GrammarKind.GRAMMAR, "start: foo", 'unknown name: "foo"'),
    "too long": (
        GrammarKind.REGEX,
        "a" * (MAX_CHARS + 1),
        f"65537 characters; the limit is {MAX_CHARS}",
    ),
}


def check(*grammars: Grammar, limit_s: float = 1.0) -> list[str]:
    """What one checker says of each, one after the other; empty: it may pass."""

    async def run() -> list[str]:
        checker, said = GrammarChecker(limit_s), []
        try:
            for grammar in grammars:
                try:
                    await checker.check(grammar)
                    said.append("")
                except InvalidField as error:
                    said.append(str(error))
        finally:
            await checker.close()
        return said

    return asyncio.run(run())


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """By one process, which outlives them all."""
    grammars = [Grammar(kind, text, "its name") for kind, text, _ in REFUSED.values()]
    *problems, good = check(*grammars, GOOD)
    assert good == ""
    return dict(zip(REFUSED, problems, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_field_and_what_is_wrong(said: dict[str, str], name: str):
    assert said[name].startswith("its name: ")
    assert re.search(REFUSED[name][2], said[name]), said[name]


def test_one_that_exhausts_the_stack_or_the_time_ends_no_other():
    deep = Grammar(GrammarKind.GRAMMAR, CHAIN, "deep")
    slow = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "integer", "multipleOf": 99991}', "slow")
    deep_said, slow_said, good = check(deep, slow, GOOD, limit_s=0.2)
    for name, text in (("deep", deep_said), ("slow", slow_said)):
        assert text.startswith(f"{name}: takes more than 0.2 s or"), text
        assert "make it smaller" in text
    assert good == ""
