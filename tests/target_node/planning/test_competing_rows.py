"""Where a policy holds rows against each other, no drafted token may say how long blocks are."""

import numpy as np
import pytest

from specserve.drafters.chain_stopping import ChainStopping
from specserve.drafters.protocol import DraftBatch
from specserve.types import Speculation
from target_node.planning.acceptance import survival_of
from target_node.planning.policies import EXACT_FOR, policy_named
from target_node.planning.round_prices import RoundPrices
from target_node.planning.step_table import Cell, Slopes, StepTable
from tests.backends.chosen import BACKEND
from tests.target_node.speculation.test_speculation import Round

GAMMA = 3


def steps(seconds: dict[int, float]) -> StepTable:
    table = StepTable()
    table.learn({size: Cell(s, 8) for size, s in seconds.items()}, Slopes())
    return table


def round_of(name: str, lengths: list[int], table: StepTable, *, gamma: int = GAMMA) -> Round:
    least = 0.3 if name == "threshold" else None
    prices = RoundPrices(BACKEND, table)
    policy = policy_named(name, least)
    return Round(lengths, places=50, spare=20, gamma=gamma, prices=prices, budget=policy)


COMPETING = {"causal", "barrier"}


@pytest.mark.parametrize("name", sorted(EXACT_FOR))
def test_chains_do_not_look_where_a_policy_holds_rows_against_each_other(name):
    """There is room for all, and still what one row gets another does not."""
    subject = round_of(name, [7, 8], steps({1: 0.9, 2: 1.0, 5: 1.0, 6: 1.5, 9: 1.5}))
    subject.verify_lens([Speculation((1, 2, 3), (0.5, 0.9, 0.9)), Speculation((1,), (0.9,))])
    assert subject.draft.threshold.may_look is (name not in COMPETING)


def length_of_chains(confidences: list[list[float]], subject: Round) -> int:
    """As `ChainStopping` ends them, all together."""
    stopping = ChainStopping()
    threshold = subject.draft.threshold
    stopping.begin(DraftBatch(rows=range(len(confidences)), anchor_ids=None, threshold=threshold))
    for k in range(GAMMA):
        if not stopping.goes_on([row[k] for row in confidences], 1e-4):
            return k + 1
    return GAMMA


@pytest.mark.parametrize("name", sorted(COMPETING))
def test_a_token_that_would_end_its_neighbours_chains_takes_no_place_by_it(name):
    """The first token of the first row decides whether its second can stand, and nothing else."""
    verified = []
    for second in (0.99, 0.0):  # after the one first token, and after the other
        subject = round_of(name, [7, 8], steps({1: 0.9, 2: 1.0, 5: 1.0, 6: 1.5, 9: 1.5}))
        confidences = [[0.5, second, 0.99], [0.9, 0.95, 0.95]]
        whole = [Speculation((1, 2, 3), tuple(row)) for row in confidences]
        subject.verify_lens(whole)  # tells the threshold
        length = length_of_chains(confidences, subject)
        blocks = [Speculation((1, 2, 3)[:length], tuple(row[:length])) for row in confidences]
        verified.append(subject.verify_lens(blocks)[0] > 0)
    assert verified[0] == verified[1]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_blocks_length_says_nothing_of_how_many_places_there_are(length):
    """A row that had no block two rounds before counts with as much of the prior as it may have."""
    subject = round_of("barrier", [7], steps({1: 1.0, 2: 1.01, 3: 1.02, 4: 1.03}))
    told = []
    allocate = subject.admission._budget.allocate

    def listening(survivals, capacity, facts):
        told.append(facts.before)
        return allocate(survivals, capacity, facts)

    subject.admission._budget.allocate = listening
    subject.verify_lens([Speculation((1, 2, 3)[:length], (0.9, 0.9, 0.9)[:length])])
    assert [len(row) for row in told[0]] == [GAMMA]


def test_what_is_no_confidence_is_none_for_every_policy():
    assert survival_of([0.5, float("nan"), 0.9]) == [0.5, 0.0, 0.0]
    assert survival_of([float("nan")]) == [0.0]
    assert survival_of([2.0, -1.0]) == [1.0, 0.0]
    assert np.isfinite(survival_of([float("inf"), 0.5])).all()
