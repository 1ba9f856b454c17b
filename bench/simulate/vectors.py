# pyright: strict
"""The figures that SSD's equations are tested with, beside what formulas and simulation make.

They were found by Monte Carlo and by brute force, apart from both. Not every one is of a system
that can be simulated: tokens of a miss that are no whole number of blocks, for one.
"""

import msgspec
import numpy as np

from bench.simulate.lockstep import Lockstep, run
from bench.simulate.results import Vector
from bench.simulate.service import simulate
from bench.simulate.setting import Drafters, Requests, Setting
from bench.simulate.step_models import chains, measured_steps
from bench.simulate.texts import RankLaw, Texts
from bench.ssd_formulas import (
    accept_rate_of,
    batch_speedup,
    critical_batch_size,
    expected_tokens,
    geometric_fan_out,
    hit_rate,
    over_synchronous,
    prepared_share,
    speedup,
    synchronous_speedup,
)
from draft_node.prespeculation.fan_out import allocate
from draft_node.prespeculation.outcomes import outcome_weights

_FORWARD_S = 0.01
_MOST_RANKS = 32


def compare(num_tokens: int) -> list[Vector]:
    """All that concern speed; `num_tokens` are simulated of each that can be."""
    return [
        *_lengths(num_tokens),
        *_theorem_7(num_tokens),
        *_batches(num_tokens),
        *_fan_outs(),
    ]


def _lengths(num_tokens: int) -> list[Vector]:
    found = [
        Vector(
            name=f"tokens a round, a .8, K {lookahead}",
            stated=stated,
            formula=expected_tokens(0.8, lookahead),
            simulated=simulate(
                _synchronous(0.8, lookahead, 0.3), tokens_each=num_tokens
            ).accept_len,
        )
        for lookahead, stated in ((7, 4.161139), (5, 3.689280))
    ]
    made = simulate(_synchronous(0.8, 5, 0.3), tokens_each=num_tokens)
    formula = synchronous_speedup(expected_tokens(0.8, 5), 0.3)
    simulated = made.tokens_per_s * _FORWARD_S
    name = "synchronous over plain, a .8, K 5, drafting .3 of a forward"
    return [*found, Vector(name=name, stated=formula, formula=formula, simulated=simulated)]


def _theorem_7(num_tokens: int) -> list[Vector]:
    rows = [
        ("Theorem 7: .9, .6, 4, 1.5, .8, .1", 3.591549, (0.9, 0.6, 4, 1.5, 0.8, 0.1)),
        ("Theorem 7: .85, .85, 4.16, 4.16, .6, .6", 3.817559,
         (0.85, 0.85, expected_tokens(0.8, 7), expected_tokens(0.8, 7), 0.6, 0.6)),
        ("Theorem 7: .9, .3, 4.16, 1, 1.2, 0", 2.931178,
         (0.9, 0.3, expected_tokens(0.8, 7), 1, 1.2, 0)),
    ]  # fmt: skip
    found: list[Vector] = []
    for name, stated, (primary, backup, hit_len, miss_len, draft, more) in rows:
        share = hit_rate(primary, backup)
        formula = speedup(share, hit_len, miss_len, draft_time=draft, backup_time=more)
        found.append(Vector(name=name, stated=stated, formula=formula))
    # The second is a system: misses are drafted again by the same drafter.
    ran = run(_jit(0.8, 0.85, 0.6, num_rows=1), num_rounds=num_tokens)
    found[1] = msgspec.structs.replace(found[1], simulated=ran.over_plain)
    low, high = over_synchronous(0.85, 4.2, 3.8, 0.5)
    found.append(Vector(name="Corollary 9, least", stated=1.468421, formula=low))
    found.append(Vector(name="Corollary 9, most", stated=1.657895, formula=high))
    return found


def _batches(num_tokens: int) -> list[Vector]:
    found: list[Vector] = []
    for size, stated in ((1, 3.256881), (4, 2.758790), (16, 2.282299)):
        formula = batch_speedup(size, 0.85, 4, 1, 0.6)
        found.append(Vector(name=f"Corollary 16, {size} rows", stated=stated, formula=formula))
    accept = accept_rate_of(4.0, 7)
    for size in (1, 4, 16):
        ran = run(_jit(accept, 0.85, 0.6, num_rows=size), num_rounds=max(200, num_tokens // size))
        formula = batch_speedup(size, 0.85, 4, 4, 0.6)
        name = f"Corollary 16, {size} rows that are all drafted again"
        found.append(Vector(name=name, stated=formula, formula=formula, simulated=ran.over_plain))
    for stated, parts in (
        (1.460311, (0.85, 4, 1, 0.6)), (1.377955, (0.9, 4, 1, 0.6)), (1.696350, (0.95, 5, 1, 0.5)),
    ):  # fmt: skip
        formula = critical_batch_size(*parts)
        words = ", ".join(f"{part:g}" for part in parts)
        found.append(Vector(name=f"Theorem 17: {words}", stated=stated, formula=formula))
    return found


def _fan_outs() -> list[Vector]:
    """The closed form under a power law; the shipped allocator where greedy is exact."""
    found: list[Vector] = []
    for stated, (budget, lookahead, rate, power) in (
        (0.683951, (24, 7, 0.8, 1)), (0.738804, (24, 7, 0.6, 1)), (0.432130, (12, 3, 0.7, 0.5)),
    ):  # fmt: skip
        share = prepared_share(geometric_fan_out(budget, lookahead, rate, power), rate, power)
        name = f"Theorem 12: {budget}, {lookahead}, {rate:g}, {power:g}"
        found.append(Vector(name=name, stated=stated, formula=share))
    for stated, (budget, lookahead, rate, missed, power) in (
        (0.907467, (16, 3, 0.8, 0.4, 1)),
        (0.774223, (12, 3, 0.6, 0.5, 0.7)),
        (0.790504, (10, 4, 0.7, 0.3, 0.5)),
    ):
        law = RankLaw(missed, power)
        weights = outcome_weights([rate] * lookahead, lookahead, lookahead + 1)
        until = np.array([law.hit_rate(count) for count in range(_MOST_RANKS + 1)])
        rates = np.tile(np.diff(until), (lookahead + 1, 1))
        fan_out = allocate(weights, rates, budget)
        share = float((weights * until[fan_out]).sum())
        name = f"shipped fan-out: {budget}, {lookahead}, {rate:g}, {missed:g}, {power:g}"
        found.append(Vector(name=name, stated=stated, formula=stated, simulated=share))
    return found


def _synchronous(accept: float, lookahead: int, draft_time: float) -> Setting:
    """Tokens are free, a block takes one pass."""
    return Setting(
        measured_steps({1: _FORWARD_S, 4096: _FORWARD_S}),
        Texts((accept,)),
        Drafters(lookahead, chains({1: (draft_time * _FORWARD_S, 0.0)})),
        requests=Requests(answer_len=4096),
        mode="sync",
        policy="fixed",
        weighs_costs=False,
    )


def _jit(accept: float, hits: float, draft_time: float, *, num_rows: int) -> Lockstep:
    """Every outcome is hit as often; a tree takes no longer than a block."""
    token_s = draft_time * _FORWARD_S / 7
    law = RankLaw(1 - hits, 0.0)
    return Lockstep(
        measured_steps({1: _FORWARD_S, 65536: _FORWARD_S}),
        chains({1: (0.0, token_s), 65536: (0.0, token_s)}),
        accept,
        fan_out=1,
        num_rows=num_rows,
        recovery=law,
        bonus=law,
        extra_passes=0,
    )
