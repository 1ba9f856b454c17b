"""A pushed block is found in one place and one round, and nothing a draft sends can fill memory."""

from dataclasses import replace

import numpy as np

from specserve.transport.link.messages import BlockKey, Push
from target_node.speculation import table as module
from target_node.speculation.table import MAX_BLOCKS, SpeculationTable

KEY = BlockKey(stream=3, round=5, position=20, anchor_id=7)


def push(*keys: BlockKey, first_id: int = 1, lengths=None, confidences=True, num_kept=0) -> Push:
    """Block i holds tokens 10 i, 10 i + 1, ..."""
    count, width = len(keys), 3
    return Push(
        keys=list(keys),
        speculation_ids=list(range(first_id, first_id + count)),
        lengths=lengths or [width] * count,
        token_ids=(10 * np.arange(count)[:, None] + np.arange(width)).astype(np.int32),
        confidences=np.full((count, width if confidences else 0), 0.5, np.float32),
        kept_ids=np.zeros((count, width, num_kept), np.int32),
        kept_probs=np.ones((count, width, num_kept), np.float32),
    )


def test_a_block_is_found_by_its_key_alone():
    for other in (
        KEY._replace(stream=4),
        KEY._replace(round=6),
        KEY._replace(position=21),
        KEY._replace(anchor_id=8),
    ):
        table = SpeculationTable()
        table.add(push(KEY), {3: 5, 4: 5}.get)
        assert table.find(other) is None
    table = SpeculationTable()
    table.add(push(KEY._replace(anchor_id=1), KEY), {3: 5}.get)
    block = table.find(KEY)
    assert block is not None
    assert (block.token_ids, block.speculation_id) == ((10, 11, 12), 2)


def test_the_first_push_of_a_key_wins():
    table = SpeculationTable()
    for first_id in (8, 9):
        table.add(push(KEY, first_id=first_id), {3: 5}.get)
    assert table.find(KEY).speculation_id == 8


def test_only_blocks_of_the_coming_round_of_a_live_stream_are_kept():
    table = SpeculationTable()
    table.add(push(KEY), {3: 6}.get)
    table.add(push(KEY), {3: 4}.get)
    table.add(push(KEY), {}.get)
    assert table.find(KEY) is None


def test_looking_a_stream_up_drops_its_other_blocks_and_nobody_elses():
    table = SpeculationTable()
    other, elsewhere = KEY._replace(anchor_id=8), KEY._replace(stream=4)
    table.add(push(KEY, other, elsewhere), {3: 5, 4: 5}.get)
    assert table.find(KEY._replace(anchor_id=9)) is None
    assert table.find(KEY) is None
    assert table.find(elsewhere) is not None


def test_a_flood_is_cut_off():
    table = SpeculationTable()
    for start in range(0, MAX_BLOCKS + 10, 10):
        keys = [KEY._replace(position=position) for position in range(start, start + 10)]
        table.add(push(*keys), {3: 5}.get)
    assert table.find(KEY._replace(position=MAX_BLOCKS)) is None
    table.add(push(*keys), {3: 5}.get)
    assert table.find(keys[0]) is not None


def test_distributions_take_so_much_memory_and_no_more(monkeypatch):
    """A push has them until nobody has the push; what comes beyond that has tokens alone."""
    one = push(KEY, num_kept=4)
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 2 * (one.kept_ids.nbytes + one.kept_probs.nbytes))
    table, streams = SpeculationTable(), (3, 4, 5)
    for stream in streams:
        table.add(push(KEY._replace(stream=stream), num_kept=4), dict.fromkeys(streams, 5).get)
    found = [table.find(KEY._replace(stream=stream)) for stream in streams]
    assert [block.token_ids for block in found] == [(0, 1, 2)] * 3
    assert [block.has_probs for block in found] == [True, True, False]
    del found
    table.add(push(KEY, num_kept=4), {3: 5}.get)
    assert table.find(KEY).has_probs


def test_an_ended_stream_leaves_nothing():
    table = SpeculationTable()
    table.add(push(KEY), {3: 5}.get)
    table.forget(3)
    table.forget(3)
    assert table.find(KEY) is None


def test_what_is_behind_a_blocks_length_does_not_count():
    table = SpeculationTable()
    table.add(push(KEY, lengths=[2], num_kept=4), {3: 5}.get)
    block = table.find(KEY)
    assert (block.token_ids, block.confidences, block.has_probs) == ((0, 1), (0.5, 0.5), True)
    table.add(push(KEY, confidences=False), {3: 5}.get)
    block = table.find(KEY)
    assert (block.confidences, block.has_probs) == (None, False)


def test_the_time_of_draft_batches_adds_up_whether_or_not_they_were_of_use():
    table = SpeculationTable()
    for round_id, seconds in ((5, 0.25), (4, 0.5)):
        draft_batch = replace(push(KEY._replace(round=round_id)), draft_batch_s=seconds)
        table.add(draft_batch, {3: 5}.get)
    assert (table.num_draft_batches, table.num_late_draft_batches, table.draft_batch_s) == (
        2,
        1,
        0.75,
    )
