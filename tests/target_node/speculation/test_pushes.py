"""What pushes teach of the pace of drafts, and one that holds nothing."""

from types import SimpleNamespace

import numpy as np
import pytest

from specserve.drafters.draft_times import DraftTimes
from specserve.transport.link.messages import BlockKey, Push
from specserve.types import DraftTime
from target_node.planning.draft_pace import DraftPace
from target_node.speculation.asynchronous import AsynchronousSpeculation
from target_node.speculation.link_streams import LinkStreams
from target_node.speculation.miss_policy import MissPolicy
from target_node.speculation.table import SpeculationTable

TIMES = DraftTimes([DraftTime(1, 0.0, 0.01), DraftTime(16, 0.0, 0.01)])


def push(num_blocks: int, seconds: float) -> Push:
    shape = (num_blocks, 3)
    return Push(
        keys=[BlockKey(1, 2, 3, token) for token in range(num_blocks)],
        speculation_ids=list(range(1, num_blocks + 1)),
        lengths=[3] * num_blocks,
        token_ids=np.zeros(shape, np.int32),
        confidences=np.empty((num_blocks, 0), np.float32),
        kept_ids=np.empty((*shape, 0), np.int32),
        kept_probs=np.empty((*shape, 0), np.float32),
        draft_batch_s=seconds,
    )


def taking(*pushes: Push) -> DraftPace:
    """The pace that is known once they were taken."""
    source = AsynchronousSpeculation.__new__(AsynchronousSpeculation)
    pace = DraftPace(lambda: TIMES)
    source.links = SimpleNamespace(receive=lambda: [(1, each) for each in pushes], pace=pace)
    source.policy = MissPolicy()
    source._table, source._streams = SpeculationTable(), LinkStreams()
    source._take_pushes()
    return pace


def test_pushes_say_how_long_drafts_take():
    pace = taking(*[push(4, 0.06)] * 8)
    assert pace.seconds(4, 3) == pytest.approx(0.06)  # twice as long as at the start


def test_a_push_without_blocks_disturbs_nobody():
    """No sound draft process sends one."""
    pace = taking(push(0, 0.5), *[push(4, 0.06)] * 8, push(0, 0.5))
    assert pace.seconds(4, 3) == pytest.approx(0.06)
