"""Which API and which regime a case is asked over: all of them, or one where time is short."""

from collections.abc import Sequence
from typing import TypeVar

import pytest

from tests.cases.apis import APIS
from tests.cases.serving import REGIMES
from tests.reliability.scale import is_long

T = TypeVar("T")


def case(
    number: int, *, apis: Sequence[str] = APIS, regimes: Sequence[str] = REGIMES
) -> pytest.MarkDecorator:
    """Parameters `api` and `service` of case `number`; in a plain run one pair, which differs in
    both from that of the next number."""
    pairs = [(api, regime) for regime in regimes for api in apis]
    if len(pairs) == 4:
        pairs = [pairs[place] for place in (0, 3, 2, 1)]
    chosen = pairs if is_long() else [pairs[number % len(pairs)]]
    names = ["-".join(pair) for pair in chosen]
    return pytest.mark.parametrize(("api", "service"), chosen, ids=names, indirect=["service"])


def some(values: Sequence[T], at_least: int = 1) -> list[T]:
    """All of them in a long run; else at most `at_least`, evenly spread, the last among them."""
    if is_long() or len(values) <= at_least:
        return list(values)
    step = len(values) / at_least
    return [values[round((place + 1) * step) - 1] for place in range(at_least)]
