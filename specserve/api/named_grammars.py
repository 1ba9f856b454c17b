# pyright: strict
"""Grammars of the forms that clients name without writing one, in either API."""

import msgspec

from specserve.errors import InvalidField
from specserve.types import Grammar, GrammarKind

ANY_OBJECT = '{"type": "object"}'
MAX_CHOICES = 1024


def choice_of(choices: list[str], field: str) -> Grammar:
    """One of some texts. Raises InvalidField."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        problem = f"has {len(choices)} entries; it must have 1 to {MAX_CHOICES}"
        raise InvalidField(field, problem)
    return Grammar(GrammarKind.CHOICE, msgspec.json.encode(choices).decode(), field)
