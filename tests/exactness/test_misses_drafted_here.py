"""Misses are drafted for beside a draft process, and answers keep their law: no noise comes twice.

Loaded dice, as in `test_asynchronous_law`. The drafter's confidence in the third token follows from
the second, so what the draft process prepares depends on it. Where the first token falls, the
second is never judged; the row then misses the more often for what that token was, and is drafted
for here at the same position. Were that draw by the same noise, it would be the same token again.
"""

from dataclasses import replace

import pytest

from specserve.model.transformer import Transformer
from target_node.drafting import ColocatedDraft
from target_node.miss_policy import Miss
from tests.exactness.dice import COINS, MoodyDieDrafter, Table, throw
from tests.exactness.test_asynchronous_law import (
    FALSE_ALARMS,
    NUM_ANSWERS,
    ONE_OUTCOME,
    RULES,
    least_p_value,
)
from tests.specserve.model.checkpoints import QWEN3, load, write_checkpoint

MISSES = Table(drafting=ONE_OUTCOME, dice=COINS, drafter=MoodyDieDrafter, miss=Miss.DRAFT_HERE)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Transformer:
    """Of which the sizes count alone."""
    return load(write_checkpoint(tmp_path_factory.mktemp("model"), QWEN3, vocab_size=8))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_throws_have_their_law(model, rule):
    throws = throw(model, replace(MISSES, rule=rule), NUM_ANSWERS)
    assert least_p_value(throws) > FALSE_ALARMS
    assert 0.1 < throws.hit_rate < 0.9
    assert throws.num_accepted > 500


def forget_rounds(patch):
    """What is drafted here is drawn by the noise of its position, round after round."""
    real = ColocatedDraft._rule

    def _rule(self, rows, *, by_ratio):
        kept = [row.sequence.num_rounds for row in rows]
        for row in rows:
            row.sequence.num_rounds = 0
        try:
            return real(self, rows, by_ratio=by_ratio)
        finally:
            for row, num_rounds in zip(rows, kept, strict=True):
                row.sequence.num_rounds = num_rounds

    patch.setattr(ColocatedDraft, "_rule", _rule)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_noise_that_comes_twice_is_found(model, monkeypatch, rule):
    forget_rounds(monkeypatch)
    throws = throw(model, replace(MISSES, rule=rule), NUM_ANSWERS)
    assert least_p_value(throws) < FALSE_ALARMS
