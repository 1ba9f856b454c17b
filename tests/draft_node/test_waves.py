"""What a wave looks like to those who receive it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draft_node.waves import USUAL_TOKENS
from specserve.link.frames import LinkLimits
from specserve.link.push_frames import decode_push, encode_push
from tests.draft_node.rounds import TEXT, VOCAB, Rounds, in_flight_of, language_model

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


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize(
    ("confidence", "num_tokens"),
    [(0.99, 9), (0.7, USUAL_TOKENS), (None, USUAL_TOKENS)],
    ids=["sure", "unsure", "unknown"],
)
def test_chains_go_on_where_their_next_tokens_are_likely_to_stand(
    target, rule, confidence, num_tokens
):
    drafter = language_model(target, gamma=9)
    if confidence is not None:
        drafter.law_confidence = lambda slot, logits: torch.full(logits.shape[:2], confidence)
    rounds = Rounds(drafter)
    in_flight_of(rounds, rule=rule)
    widths = {push.token_ids.shape[1] for push in rounds.finish()}
    # Rows under the ratio test go by what is usual, since the work of their waves is fixed.
    assert widths == ({num_tokens} if rule == "coupled" else {USUAL_TOKENS})


@pytest.mark.parametrize(("rule", "size"), [("coupled", 24), ("rejection", 4)])
def test_a_wave_of_many_rows_is_larger_unless_laws_travel_with_it(target, rule, size):
    rounds = Rounds(language_model(target), wave=4, fan_out=8)
    for stream in range(1, 7):
        in_flight_of(rounds, stream=stream, rule=rule)
    rounds.pushes.clear()
    assert max(len(push.keys) for push in rounds.finish()) == size
