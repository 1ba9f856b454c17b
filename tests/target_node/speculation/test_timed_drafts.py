"""What a drafter beside the target takes is learned from its drafts, apart from what they read."""

import pytest
import torch

from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch, SpeculationBatch
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import DraftSampler
from specserve.types import DraftTime
from target_node.planning.draft_pace import DraftPace
from target_node.speculation import drafting
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.target_node.in_process import InProcessTarget, fixture_model, request

PROMPT = [11, 23, 42, 7, 9, 31]
TOKEN_S, ENTER_S = 0.03, 0.5


class SlowDrafter(NgramDrafter):
    """Drafts two tokens of the four that it may, token by token; reads before that."""

    num_drafted = 2

    def __init__(self, clock: ScriptedTime, *, first_calls: bool = False) -> None:
        super().__init__(gamma=4)
        self._clock, self._first_calls = clock, first_calls

    def extend(self, update: ContextUpdate) -> None:
        self._clock.now_s += ENTER_S
        super().extend(update)

    def draft(self, batch: DraftBatch, sampler: DraftSampler) -> SpeculationBatch:
        self._clock.now_s += self.num_drafted * TOKEN_S
        BACKEND.num_first_calls += self._first_calls
        count = len(batch.rows)
        token_ids = torch.full((count, self.gamma), 5)
        certain = DraftProbs.certain(token_ids.flatten())
        return SpeculationBatch(token_ids, certain, None, [self.num_drafted] * count)


@pytest.fixture
def clock(monkeypatch) -> ScriptedTime:
    found = ScriptedTime()
    monkeypatch.setattr(drafting, "time", found)
    monkeypatch.setattr(BACKEND, "num_first_calls", 0)
    return found


def pace_after(drafter: SlowDrafter) -> DraftPace:
    """Of a drafter that was timed three times as fast, after an answer of some rounds."""
    times = DraftTimes([DraftTime(1, 0.0, TOKEN_S / 3)], enter_s=0.1)
    pace = DraftPace(lambda: times)
    target = InProcessTarget(fixture_model(), draft=drafter, pace=pace)
    target.submit(request("r", PROMPT, max_tokens=24, seed=3, ignore_eos=True))
    target.run_until_idle()
    assert target.ends["r"].stats.num_drafts > 8
    return pace


def test_a_draft_counts_by_the_tokens_that_it_has_and_without_what_it_reads(clock):
    pace = pace_after(SlowDrafter(clock))
    assert pace.seconds(1, 4) == pytest.approx(4 * TOKEN_S)
    assert pace.entering_s(1) == pytest.approx(ENTER_S)


def test_a_draft_in_which_something_was_recorded_does_not_count(clock):
    """It takes longer than it ever will again."""
    pace = pace_after(SlowDrafter(clock, first_calls=True))
    assert pace.seconds(1, 4) == pytest.approx(4 * TOKEN_S / 3)
    assert pace.entering_s(1) == pytest.approx(0.1)


def test_where_the_device_runs_behind_what_is_read_counts_as_drafting(clock, monkeypatch):
    """Reading returns before it is done, and the draft waits for both."""
    monkeypatch.setattr(BACKEND, "is_asynchronous", True)
    pace = pace_after(SlowDrafter(clock))
    assert pace.seconds(1, 2) == pytest.approx(ENTER_S + 2 * TOKEN_S)
    assert pace.entering_s(1) == pytest.approx(0.1)
