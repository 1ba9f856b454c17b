"""What a wave looks like to those who receive it."""

from dataclasses import replace

import numpy as np

from specserve.link.frames import LinkLimits
from specserve.link.push_frames import decode_push, encode_push
from tests.draft_node.rounds import TEXT, VOCAB, Rounds

LIMITS = LinkLimits(
    vocab_size=VOCAB, gamma=8, feature_size=0, max_positions=128, max_rows=8, max_kept=16
)


def test_a_confidence_that_is_no_number_costs_no_other_block_its_push(dspark_drafter, monkeypatch):
    draft = dspark_drafter.draft

    def spoilt(batch, rule):
        drawn = draft(batch, rule)
        confidences = drawn.confidences.clone()
        confidences[0, 1] = float("nan")
        return replace(drawn, confidences=confidences)

    monkeypatch.setattr(dspark_drafter, "draft", spoilt)
    rounds = Rounds(dspark_drafter)
    for stream in (1, 2):
        rounds.take(TEXT, stream=stream, awaits=True)
    (push,) = rounds.finish()
    assert len(push.keys) == 2
    assert push.confidences[0, 1] == 0.0
    assert np.all(push.confidences[1] > 0.0)
    frame = b"".join(encode_push(push, 1, 0))
    assert decode_push(frame, 1, LIMITS) is not None
