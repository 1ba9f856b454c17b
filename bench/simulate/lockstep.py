# pyright: strict
"""SSD's own engine, round by round: the target asks for its blocks, and waits until they are there.

Ours never waits for a draft that is late; theirs does, so what the paper reports is compared with
this. Every row's outcomes are prepared as the shipped `allocate` divides them, or as many behind
each prefix (the paper's F); a row is a hit if its outcome is among them. If any row missed, the
whole batch waits for the backup: the same drafter again (`jit`), whose blocks then replace all, or
tokens at random, of which none stands. Sections 3.2 and 4.3 of the paper; appendix B for its parts.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.simulate.texts import RankLaw
from draft_node.prespeculation.fan_out import allocate
from draft_node.prespeculation.outcomes import outcome_weights
from specserve.drafters.draft_times import DraftTimes
from target_node.planning.step_table import FrozenSteps

Integers = NDArray[np.int64]
_MOST_RANKS = 256
_USUAL = RankLaw()


@dataclass(frozen=True)
class Lockstep:
    """One setting."""

    steps: FrozenSteps
    drafts: DraftTimes  # in the draft's process, by blocks; chains
    accept: float
    lookahead: int = 7
    fan_out: int = 3  # outcomes of each prefix; with `divides`, on average
    divides: bool = False  # by the shipped allocator, else as many for each prefix
    num_rows: int = 1
    backup: str = "jit"  # or "random"
    recovery: RankLaw = _USUAL
    bonus: RankLaw = _USUAL
    after_miss: RankLaw | None = None  # where random tokens were verified; None: as a bonus
    num_drafts: int = 1  # devices that share the outcomes
    # Forwards of a round's tree besides one for each token: the accepted tokens are read first.
    extra_passes: int = 1

    def fan_outs(self) -> Integers:
        """By number of accepted tokens."""
        slots = self.lookahead + 1
        if not self.divides:
            return np.full(slots, self.fan_out, np.int64)
        weights = outcome_weights([self.accept] * self.lookahead, self.lookahead, slots)
        rates = np.array([_rates(self.recovery)] * self.lookahead + [_rates(self.bonus)])
        return allocate(weights, rates, self.fan_out * slots)

    def tree_s(self) -> float:
        """Until all outcomes of a round are drafted for."""
        blocks = self.num_rows * int(self.fan_outs().sum()) // self.num_drafts
        passes = self.lookahead + self.extra_passes
        return self.drafts.seconds(max(1, blocks), passes)

    def jit_s(self) -> float:
        """Until one block of each row is drafted."""
        return self.drafts.seconds(self.num_rows, self.lookahead)

    def verify_s(self) -> float:
        return _seconds(self.steps, self.num_rows, self.num_rows * (self.lookahead + 1))

    def plain_s(self) -> float:
        return _seconds(self.steps, self.num_rows, self.num_rows)


class Ran(NamedTuple):
    """What rounds came to."""

    tokens_per_s: float
    over_plain: float
    hit_rate: float
    accept_len: float


def run(engine: Lockstep, *, num_rounds: int = 4000, seed: int = 0) -> Ran:
    """So many rounds of all rows; the first ones begin without anything prepared."""
    rng = np.random.default_rng(seed)
    fan_outs, verify_s = engine.fan_outs(), engine.verify_s()
    tree_s, jit_s = engine.tree_s(), engine.jit_s()
    is_drafted = np.ones(engine.num_rows, np.bool_)  # by the primary: its block is worth something
    tokens, seconds, hits = 0, 0.0, 0
    for _ in range(num_rounds):
        accepted = _accepted(rng, engine) * is_drafted
        tokens += int(accepted.sum()) + engine.num_rows
        found = _ranks(rng, engine, accepted, is_drafted) < fan_outs[accepted]
        hits += int(found.sum())
        waits = engine.backup == "jit" and not found.all()
        # The tree is drafted while this round is verified, and the backup once that is known.
        seconds += max(verify_s, tree_s) + (jit_s if waits else 0.0)
        is_drafted = found | waits
    looked = num_rounds * engine.num_rows
    speed = tokens / seconds
    over_plain = speed * engine.plain_s() / engine.num_rows
    return Ran(speed, over_plain, hits / looked, tokens / looked)


def synchronous(engine: Lockstep, drafts: DraftTimes, lookahead: int) -> float:
    """Tokens a second where the same rows are drafted for, then verified: no draws are needed."""
    verify_s = _seconds(engine.steps, engine.num_rows, engine.num_rows * (lookahead + 1))
    standing = float(np.sum(engine.accept ** np.arange(lookahead + 1)))
    return engine.num_rows * standing / (drafts.seconds(engine.num_rows, lookahead) + verify_s)


def _accepted(rng: np.random.Generator, engine: Lockstep) -> Integers:
    stands = rng.random((engine.num_rows, engine.lookahead)) < engine.accept
    return stands.cumprod(axis=1).sum(axis=1)


def _ranks(
    rng: np.random.Generator,
    engine: Lockstep,
    accepted: Integers,
    is_drafted: NDArray[np.bool_],
) -> Integers:
    """Of the tokens that follow, among the draft's guesses behind what stands."""
    count = engine.num_rows
    after_miss = engine.after_miss or engine.bonus
    laws = (engine.recovery, engine.bonus, after_miss)
    of_recovery, of_bonus, of_random = (law.ranks(rng, count) for law in laws)
    drafted = np.where(accepted == engine.lookahead, of_bonus, of_recovery)
    return np.where(is_drafted, drafted, of_random)


def _rates(law: RankLaw) -> NDArray[np.float64]:
    """Of each rank."""
    until = [law.hit_rate(count) for count in range(_MOST_RANKS + 1)]
    return np.diff(until)


def _seconds(steps: FrozenSteps, num_rows: int, num_tokens: int) -> float:
    return float(steps.at(num_rows, 0).seconds(np.array([num_tokens]))[0])
