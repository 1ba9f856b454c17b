from dataclasses import replace

import torch

from draft_node.prespeculation.speculation_cache import DraftedBlock, SpeculationCache
from specserve.drafters.protocol import SpeculationBatch
from specserve.drafters.slot_scores import BatchScores
from specserve.transport.link.messages import BlockKey
from tests.draft_node.prespeculation.rounds import Rounds, tokens
from tests.specserve.sampling.random_probs import likeliest_probs

TEXT = tokens(10).tolist()


class NoFeatures:
    feature_size, gamma, stops_in_time = 0, 3, False


def row(**fields):
    return Rounds(NoFeatures()).row(TEXT, **fields)


def add(cache, round_id, position=9, anchor_id=TEXT[-1], stream=1):
    block = DraftedBlock(
        cache.next_id(), BlockKey(stream, round_id, position, anchor_id), (1, 2, 3), None, None, 0
    )
    cache.add([block])
    return block


def test_the_block_that_a_report_names_is_found_and_counted_a_hit():
    cache = SpeculationCache()
    block = add(cache, 4)
    assert cache.settle(row(round=4, speculation_id=block.speculation_id)) is block
    assert (cache.statistics.num_hits, cache.statistics.num_misses) == (1, 0)


def test_a_block_for_another_anchor_is_not_what_follows_this_one():
    cache = SpeculationCache()
    block = add(cache, 4, anchor_id=TEXT[-1] + 1)
    assert cache.settle(row(round=4, speculation_id=block.speculation_id)) is None
    assert cache.statistics.num_misses == 1


def test_a_block_for_another_round_is_not_what_follows_this_one():
    cache = SpeculationCache()
    later, other = add(cache, 5), add(cache, 4, stream=2)
    for named in (0, later.speculation_id, other.speculation_id):
        assert cache.settle(row(round=4, speculation_id=named)) is None


def test_a_block_that_came_too_late_still_tells_what_follows():
    cache = SpeculationCache()
    block = add(cache, 4)
    assert cache.settle(row(round=4)) is block
    assert (cache.statistics.num_late, cache.statistics.num_hits) == (1, 0)


def test_only_the_block_pending_and_those_for_later_rounds_are_kept():
    cache = SpeculationCache()
    block = add(cache, 4)
    for anchor_id in range(5):
        add(cache, 4, anchor_id=64 + anchor_id)
        add(cache, 3, anchor_id=64 + anchor_id)
        add(cache, 5, position=10, anchor_id=anchor_id)
    add(cache, 4, stream=2)
    cache.settle(row(round=4, speculation_id=block.speculation_id))
    assert len(cache) == 1 + 5 + 1
    cache.free([2])
    assert len(cache) == 6


def test_ids_are_above_zero_and_never_repeat():
    cache = SpeculationCache()
    ids = [cache.next_id() for _ in range(50)]
    cache.clear()
    ids += [cache.next_id() for _ in range(50)]
    assert min(ids) > 0
    assert len(set(ids)) == 100


def test_scores_are_those_of_the_blocks_own_slots(monkeypatch):
    logits = torch.randn(3, 4, 30)
    scales = torch.tensor([1.0, 2.0, 0.5])
    drawn = SpeculationBatch(torch.zeros(3, 4, dtype=torch.int64), None, None, logits=logits)
    lazy = BatchScores.of(drawn, scales, 6)
    monkeypatch.setattr("specserve.drafters.slot_scores._MAX_KEPT_COLUMNS", 10)
    eager = BatchScores.of(drawn, scales, 6)
    assert eager.logits is None
    for scores in (lazy, eager):
        slots = scores.slots(1, 3)  # in no order
        expected = logits[1, :3].topk(6)
        assert torch.equal(slots.ids.sort().values, expected.indices.sort().values)
        torch.testing.assert_close(slots.scores, 2 * logits[1, :3].gather(1, slots.ids))


def test_all_columns_are_there_where_they_are_few_enough(monkeypatch):
    logits, scales = torch.randn(3, 4, 30), torch.tensor([1.0, 2.0, 0.5])
    target_ids = torch.arange(30) + 7
    drawn = SpeculationBatch(
        torch.zeros(3, 4, dtype=torch.int64), None, None, logits=logits, target_ids=target_ids
    )
    scores = BatchScores.of(drawn, scales, 6)
    torch.testing.assert_close(scores.whole(1, 3), 2 * logits[1, :3])
    assert scores.are_whole
    assert not BatchScores.of(replace(drawn, logits=None), scales, 6)
    monkeypatch.setattr("specserve.drafters.slot_scores._MAX_SAMPLED", 29)
    assert not scores.are_whole


def test_scores_of_a_distribution_are_its_logarithms():
    draft_probs = likeliest_probs(torch.rand(8, 30), 5)
    drawn = SpeculationBatch(torch.zeros(2, 4, dtype=torch.int64), draft_probs, None)
    slots = BatchScores.of(drawn, torch.ones(2), 6).slots(1, 2)
    assert torch.equal(slots.ids, draft_probs.ids[4:6])
    torch.testing.assert_close(slots.scores.exp(), draft_probs.probs[4:6])


def test_a_drafter_without_distributions_has_no_scores():
    drawn = SpeculationBatch(torch.zeros(2, 4, dtype=torch.int64), None, None)
    assert BatchScores.of(drawn, torch.ones(2), 6) is None
