# pyright: strict
"""From rounds to rates: tokens a round, conditional acceptance by position, verified tokens.

A round counts if its row had room for a whole block and the bonus token when it began. The rounds
at a text's end, cut short, would make every drafter look alike; the rule looks at the round's
beginning, never at its outcome.
"""

from collections.abc import Callable, Sequence

from bench.bootstrap import Rate
from bench.rounds import Answer, Round


def whole_rounds(answer: Answer, block_len: int) -> list[Round]:
    """The rounds that began with room for `block_len` drafted tokens and one more."""
    return [found for found in answer.rounds if found.room > block_len]


def accept_len(prompts: Sequence[Sequence[Round]]) -> Rate:
    """Tokens a round, the recovery or bonus token included; whole rounds of every prompt."""
    return _rate(prompts, lambda one: one.num_emitted, lambda one: 1)


def verified_len(prompts: Sequence[Sequence[Round]]) -> Rate:
    """Drafted tokens a round that the target verified."""
    return _rate(prompts, lambda one: one.verify_len, lambda one: 1)


def accepted_share(prompts: Sequence[Sequence[Round]]) -> Rate:
    """Accepted tokens among the verified ones."""
    return _rate(prompts, lambda one: one.num_accepted, lambda one: one.verify_len)


def conditional_acceptance(prompts: Sequence[Sequence[Round]], position: int) -> Rate:
    """How often the token at `position` (0 is the first) stands, where all before it did.

    DSpark, Figure 2. Rounds that did not verify the position say nothing about it.
    """
    return _rate(
        prompts,
        lambda one: one.num_accepted > position,
        lambda one: one.verify_len > position and one.num_accepted >= position,
    )


def _rate(
    prompts: Sequence[Sequence[Round]],
    over: Callable[[Round], float],
    under: Callable[[Round], float],
) -> Rate:
    return Rate.of(
        [(float(sum(map(over, rounds))), float(sum(map(under, rounds)))) for rounds in prompts]
    )
