"""What drafts must not do to a row beyond proposing: spoil its KV or take its blocks."""

import pytest
import torch

from specserve.drafters.context import ContextCapacity
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import DraftBatch, SpeculationBatch
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import Coupled, DraftSampler, Greedy
from specserve.sampling.logits_processors import ProcessedSampler
from specserve.types import Terminal
from target_node.planning.acceptance import survival_of
from target_node.planning.policies import ThresholdPolicy
from target_node.speculation.drafting import MAX_FAILURES
from tests.exactness.speculative import make_models
from tests.target_node.in_process import InProcessTarget, fixture_model, request

POISON = 5
PROMPT = [11, 23, 42, 7, 9, 31]


class StubbornDrafter(NgramDrafter):
    """Drafts one and the same token, whatever the context."""

    def __init__(self, token_id: int, gamma: int = 4) -> None:
        super().__init__(gamma=gamma)
        self._token_id = token_id

    def draft(self, batch: DraftBatch, method: DraftSampler) -> SpeculationBatch:
        token_ids = torch.full((len(batch.rows), self.gamma), self._token_id)
        return SpeculationBatch(token_ids, DraftProbs.certain(token_ids.flatten()), None)


class ListeningDrafter(NgramDrafter):
    """Hears by which methods it is to draw, and drafts nothing."""

    def __init__(self) -> None:
        super().__init__(gamma=4)
        self.methods: list[DraftSampler] = []

    def draft(self, batch: DraftBatch, method: DraftSampler) -> SpeculationBatch:
        self.methods.append(method)
        return super().draft(batch, Greedy())


def poisoned_model():
    """Whoever feeds token POISON gets keys, values and logits that are not finite."""
    model = fixture_model()
    model.embedding = model.embedding.clone()
    model.embedding[POISON] = torch.inf
    return model


def answer(target: InProcessTarget, **fields) -> list[int]:
    bias = {POISON: -100.0}  # so that only a draft can bring it up
    target.submit(request("r", PROMPT, max_tokens=24, logit_bias=bias, ignore_eos=True, **fields))
    target.run_until_idle()
    assert target.ends["r"].terminal is Terminal.FINISHED
    return target.tokens["r", 0]


@pytest.mark.slow
def test_a_draft_that_spoils_its_own_kv_changes_nothing():
    plain = answer(InProcessTarget(poisoned_model()), temperature=1.0, seed=3)
    target = InProcessTarget(poisoned_model(), draft=StubbornDrafter(POISON))
    assert answer(target, temperature=1.0, seed=3) == plain
    assert target.scheduler.num_preemptions == 1  # the one round that was drafted for


def test_drafts_are_drawn_as_their_rows_are_judged():
    """Greedy ones need no noise; a request's own sampling parameters shape them all the same."""
    drafter = ListeningDrafter()
    target = InProcessTarget(fixture_model(), draft=drafter)
    answers = {
        "greedy": ({"temperature": 0.0}, Greedy),
        "banned": ({"temperature": 0.0, "logit_bias": {POISON: -100.0}}, ProcessedSampler),
        "drawn": ({"temperature": 1.0, "seed": 3}, Coupled),
        "penalised": ({"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3}, ProcessedSampler),
    }
    for name, (fields, expected) in answers.items():
        drafter.methods.clear()
        target.submit(request(name, PROMPT, max_tokens=6, ignore_eos=True, **fields))
        target.run_until_idle()
        assert {type(method) for method in drafter.methods} == {expected}
        inner = [method.inner for method in drafter.methods if isinstance(method, ProcessedSampler)]
        kind = Coupled if fields["temperature"] else Greedy
        assert all(isinstance(method, kind) for method in inner)


def test_drafts_take_no_block_that_a_running_row_will_need():
    target = InProcessTarget(
        fixture_model(), num_blocks=10, block_size=2, draft=StubbornDrafter(POISON, gamma=6)
    )
    for i in range(2):
        target.submit(request(f"r{i}", PROMPT[:3], max_tokens=7, seed=i, ignore_eos=True))
    target.run_until_idle()
    # Two rows of ten positions fit exactly: only a greedy guess could have pushed one out.
    assert target.scheduler.num_preemptions == 0
    assert sum(end.stats.num_drafted_tokens for end in target.ends.values()) > 0


def test_a_prompt_from_the_prefix_cache_is_drafted_for_as_well_as_a_computed_one(tmp_path):
    models = make_models(tmp_path)
    target = InProcessTarget(models.model(), draft=models.drafter("dspark vanilla"))
    stats = []
    for name in ("computed", "cached"):
        target.submit(request(name, list(range(3, 40)), seed=9, max_tokens=30, ignore_eos=True))
        target.run_until_idle()
        stats.append(target.ends[name].stats)
    computed, cached = stats
    assert (computed.num_cached_tokens, cached.num_cached_tokens) == (0, 36)
    assert cached.num_accepted_tokens == computed.num_accepted_tokens > 0
    assert cached.num_rounds == computed.num_rounds


def test_a_row_without_memory_for_its_context_is_decoded_without_drafts(tmp_path, caplog):
    models = make_models(tmp_path)
    drafter = models.drafter("dspark vanilla")
    drafter.context.rows._free = drafter.context.rows._free[:2]  # two pages of 16 positions
    target = InProcessTarget(models.model(), draft=drafter)
    target.speculation._draft.capacity = ContextCapacity(
        num_tokens=32, token_bytes=2**10, max_len=128
    )
    for name, prompt in (("long", list(range(2, 60))), ("short", [4, 5, 6])):
        target.submit(request(name, prompt, seed=1, max_tokens=8, ignore_eos=True))
    target.run_until_idle()
    assert target.ends["long"].stats.num_drafted_tokens == 0
    assert target.ends["short"].stats.num_drafted_tokens > 0
    assert not target.speculation._draft.catching_up  # it never will
    assert "draft contexts hold 32; set engine.kv_memory=1MiB for what" in caplog.text


@pytest.mark.slow
def test_the_context_of_a_preempted_row_makes_room_for_one_that_runs(tmp_path):
    models = make_models(tmp_path)

    def stats(num_pages: int | None):
        drafter = models.drafter("dspark vanilla")
        drafter.context.rows._free = drafter.context.rows._free[:num_pages]
        target = InProcessTarget(models.model(), num_blocks=16, draft=drafter)
        for name, prompt in (("first", list(range(2, 22))), ("last", list(range(22, 42)))):
            target.submit(request(name, prompt, seed=1, max_tokens=40, ignore_eos=True))
        target.run_until_idle()
        assert target.scheduler.num_preemptions > 0
        return {name: end.stats.num_drafted_tokens for name, end in target.ends.items()}

    # Five pages of 16 hold what 16 blocks of 4 do, but not what a preempted row had besides.
    assert stats(5) == stats(None)


def test_a_context_that_cannot_grow_gives_its_memory_to_the_others(tmp_path):
    models = make_models(tmp_path)
    drafter = models.drafter("dspark vanilla")
    drafter.context.rows._free = drafter.context.rows._free[:4]  # of 16 positions
    target = InProcessTarget(models.model(), draft=drafter)
    for i in range(2):
        target.submit(request(f"r{i}", PROMPT, seed=i, max_tokens=50, ignore_eos=True))
    while not target.ends:
        target.turn()
    # Both grow until one of them needs a fifth page; the other goes on to its end.
    (end,) = target.ends.values()
    assert end.stats.num_drafts >= end.stats.num_rounds - 2  # but for the prompt and the last token


class BrokenDrafter(NgramDrafter):
    """Raises whenever it is asked."""

    def draft(self, batch: DraftBatch, method: DraftSampler) -> SpeculationBatch:
        raise RuntimeError("out of memory")


@pytest.mark.slow
def test_a_drafter_that_raises_costs_no_request_and_is_soon_asked_no_more(caplog):
    plain = InProcessTarget(fixture_model())
    broken = InProcessTarget(fixture_model(), draft=BrokenDrafter(gamma=4))
    for target in (plain, broken):
        target.submit(request("r", PROMPT, max_tokens=20, seed=4, ignore_eos=True))
        target.run_until_idle()
    assert broken.tokens == plain.tokens
    assert caplog.text.count("drafting failed") == MAX_FAILURES


class FlakyDrafter(NgramDrafter):
    """Raises every other time."""

    num_asked = 0

    def draft(self, batch: DraftBatch, method: DraftSampler) -> SpeculationBatch:
        self.num_asked += 1
        if self.num_asked % 2:
            raise RuntimeError("out of memory")
        return super().draft(batch, method)


@pytest.mark.slow
def test_a_drafter_that_recovers_each_time_goes_on_being_asked():
    flaky = FlakyDrafter(gamma=4)
    target = InProcessTarget(fixture_model(), draft=flaky)
    target.submit(request("r", PROMPT, max_tokens=40, seed=4, ignore_eos=True))
    target.run_until_idle()
    assert flaky.num_asked > 2 * MAX_FAILURES


def test_a_context_catches_up_in_pieces_and_is_drafted_for_once_it_has(tmp_path):
    models = make_models(tmp_path)
    drafter, sizes = models.drafter("dspark vanilla"), []
    extend = drafter.extend
    drafter.extend = lambda update: (sizes.append(sum(update.counts)), extend(update))
    target = InProcessTarget(models.model(), draft=drafter, max_extension=8)
    target.submit(request("r", list(range(2, 52)), seed=1, max_tokens=20, ignore_eos=True))
    has_read = []
    while not target.ends:
        target.turn()
        if sizes:
            has_read.append(not target.speculation._draft.catching_up)
    assert max(sizes) <= 8
    assert has_read == sorted(has_read)
    assert has_read.count(False) == 50 // 8
    assert target.ends["r"].stats.num_drafted_tokens > 0


def test_rejected_drafts_leave_no_blocks_behind():
    target = InProcessTarget(
        fixture_model(), num_blocks=64, block_size=2, draft=StubbornDrafter(POISON, gamma=8)
    )
    target.submit(request("r", PROMPT, max_tokens=12, seed=2, ignore_eos=True))
    while not target.ends:
        target.turn()
        for sequence in target.scheduler.running:
            assert len(sequence.block_ids) <= -(-len(sequence.token_ids) // 2)


def test_likely_positions_get_the_places_and_never_out_of_order():
    survivals = [survival_of([0.9, 0.9, 0.9]), survival_of([0.5, 1.0, 1.0]), []]
    assert ThresholdPolicy().allocate(survivals, 9) == [3, 3, 0]
    assert ThresholdPolicy().allocate(survivals, 4) == [3, 1, 0]
    assert ThresholdPolicy(0.6).allocate(survivals, 9) == [3, 0, 0]
    assert ThresholdPolicy().allocate(survivals, 0) == [0, 0, 0]
    assert ThresholdPolicy(0.01).allocate([survival_of([float("nan")])], 3) == [0]
