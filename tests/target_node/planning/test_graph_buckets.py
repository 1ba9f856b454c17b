"""Backends that pad forwards to buckets: the table knows these, and rounds fill them up."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.forward import TorchForward
from specserve.sampling.verification.admission import PlanningSnapshot, RoundFacts
from target_node.blocks import BlockPool
from target_node.planning import step_profile
from target_node.planning.policies import policy_named
from target_node.planning.step_table import Cell, Slopes, StepSize, StepTable, ends_of_steps
from target_node.runner import Runner
from tests.backends.chosen import CPU
from tests.target_node import in_process
from tests.target_node.in_process import InProcessTarget, fixture_model, request

EDGES = (1, 2, 4, 8, 16, 24)
PROMPT = list(range(1, 8))


class PaddedForward(TorchForward):
    """Says that it pads what it computes, but for prompts."""

    def run(self, token_ids, taps=()):
        found = super().run(token_ids, taps)
        if len(token_ids) < len(PROMPT):
            self.num_computed = int(ends_of_steps(np.array(EDGES), np.array([len(token_ids)]))[0])
        return found


class PaddingBackend(TorchBackend):
    def step_edges(self, *, deterministic: bool) -> Sequence[int]:
        return EDGES

    def make_forward(self, model, **sizes):
        return PaddedForward(model, **sizes)


BACKEND = PaddingBackend(CPU)


@pytest.fixture
def runner() -> Runner:
    return Runner(
        fixture_model(), backend=BACKEND, num_blocks=40, block_size=4, deterministic=False
    )


def test_a_runner_s_table_has_the_edges_of_its_backend(runner: Runner):
    assert runner.steps.edges == EDGES
    plain = Runner(
        runner.model, backend=TorchBackend(CPU), num_blocks=4, block_size=4, deterministic=False
    )
    assert plain.steps.edges == ()


def test_the_profile_times_every_step_once(runner: Runner):
    sizes = set()

    def forward(batch):
        sizes.add(len(batch.token_ids))
        return runner.forward(batch)

    pool = BlockPool(40, 4, prefix_cache=True)
    step_profile.measure(runner.steps, forward, pool, max_tokens=64)
    assert list(runner.steps.cells) == list(EDGES)
    assert sizes == set(EDGES)


def test_rounds_teach_the_step_that_they_ran_in(monkeypatch: pytest.MonkeyPatch):
    """Three tokens are computed as four; 21 of prompts are not padded, and teach nothing."""
    monkeypatch.setattr(in_process, "BACKEND", BACKEND)
    target = InProcessTarget(fixture_model())
    for name in ("a", "b", "c"):
        target.submit(request(name, PROMPT, max_tokens=6, temperature=0.0))
    target.run_until_idle()
    assert list(target.runner.steps.cells) == [4]
    assert target.runner.steps.cells[4].num_takes == 5


def stairs(edges: Sequence[int], *, rise: float) -> StepTable:
    """A second, and with each step so many times as long; between edges nothing costs anything."""
    table = StepTable(edges)
    table.learn({edge: Cell(rise**k, 8) for k, edge in enumerate(edges)}, Slopes())
    return table


def test_what_was_not_padded_says_nothing_of_steps():
    table = stairs(EDGES, rise=1.1)
    before = table.freeze()
    for num_tokens in (3, 9, 20):
        table.observe(StepSize(1, num_tokens, 100), 50.0)
    assert table.freeze() is before
    assert table.num_predicted == 0
    table.observe(StepSize(1, 40, 100), 2.0)  # beyond the last edge nothing is padded
    assert 40 in table.cells
    table.observe(StepSize(3, 4, 100), 1.5)
    assert table.cells[4].seconds > 1.2


def allocated(name: str, survivals: list[list[float]], table: StepTable) -> int:
    """Tokens of the forward that a policy makes, anchors included."""
    facts = RoundFacts(
        PlanningSnapshot(costs=table.freeze().at(len(survivals), 0)),
        num_tokens=len(survivals),
        before=survivals,
    )
    return len(survivals) + sum(policy_named(name).allocate(survivals, 99, facts))


@pytest.mark.parametrize("name", ["causal", "barrier"])
def test_a_round_fills_a_step_up(name: str):
    """Places that are left in a bucket are free, however unlikely their tokens are to stand."""
    likely = [[0.9, 0.1, 0.02, 0.01]] * 6
    assert allocated(name, likely, stairs(EDGES, rise=1.9)) == 8  # no step more
    assert allocated(name, likely, stairs(EDGES, rise=1.05)) == 16  # .1 gets a place, too


@pytest.mark.parametrize("name", ["causal", "barrier"])
def test_rounds_end_where_steps_do(name: str):
    """Or where nothing is left to verify; without edges they end anywhere."""
    source = random.Random(name)
    inside = {True: 0, False: 0}
    for _ in range(400):
        survivals = [
            np.cumprod([source.uniform(0.3, 1) for _ in range(source.randint(1, 6))]).tolist()
            for _ in range(source.randint(1, 8))
        ]
        most = len(survivals) + sum(map(len, survivals))
        rise = source.choice([1.02, 1.2, 1.8])
        padded = stairs(EDGES, rise=rise)
        for table, has_edges in ((padded, True), (StepTable(), False)):
            if not has_edges:
                table.learn(padded.cells, Slopes())
            found = allocated(name, survivals, table)
            inside[has_edges] += found not in (most, *EDGES) and found < EDGES[-1]
    assert inside[True] == 0
    assert inside[False] > 20
