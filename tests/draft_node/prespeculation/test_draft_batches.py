"""What a draft batch looks like to those who receive it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draft_node.prespeculation.draft_batches import BatchSettings
from specserve.drafters.ngram import NgramDrafter
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.push_frames import encode_push
from tests.draft_node.prespeculation.rounds import TEXT, VOCAB, Rounds, language_model, pending_of
from tests.specserve.transport.link.messages import decode_push

LIMITS = LinkLimits(
    vocab_size=VOCAB, gamma=8, feature_size=0, max_positions=128, max_rows=8, max_kept=16
)


def test_a_confidence_that_is_no_number_costs_no_other_block_its_push(dspark_drafter, monkeypatch):
    draft = dspark_drafter.draft

    def spoilt(batch, method):
        drawn = draft(batch, method)
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
    frame = b"".join(encode_push(push, 1, 0).parts)
    assert decode_push(frame, 1, LIMITS) is not None


USUAL = 6


def sure(confidence):
    return lambda slot, logits: torch.full(logits.shape[:2], confidence)


def batches_of(drafter):
    """Those that it drafts from now on."""
    found, draft = [], drafter.draft

    def recorded(batch, method):
        found.append(batch)
        return draft(batch, method)

    drafter.draft = recorded
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["coupled", "rejection", pytest.param("foreseeable", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("confidence", "num_tokens"), [(0.99, 9), (0.7, USUAL)], ids=["sure", "unsure"]
)
def test_chains_go_on_where_their_next_tokens_are_likely_to_stand(
    target, method, confidence, num_tokens
):
    drafter = language_model(target, gamma=9, num_context_tokens=4096)
    drafter.probs_confidence = sure(confidence)
    rounds = Rounds(drafter, usual_tokens=USUAL, goes_beyond=True)
    for number in range(1, 41):  # what was sure before does not matter to others
        pending_of(rounds, stream=number, method="coupled")
        rounds.finish()
    rounds.pushes.clear()
    pending_of(rounds, stream=50, method=method)
    rounds.pushes.clear()
    widths = {push.token_ids.shape[1] for push in rounds.finish()}
    assert widths == ({num_tokens} if method == "coupled" else {USUAL})


def test_a_root_that_is_waited_for_is_no_longer_than_usual(target):
    drafter = language_model(target, gamma=9)
    drafter.probs_confidence = sure(0.99)
    rounds = Rounds(drafter, usual_tokens=USUAL, goes_beyond=True)
    rounds.take(TEXT, awaits=True)
    rounds.prespeculation.step()
    assert [push.token_ids.shape[1] for push in rounds.pushes] == [USUAL]


@pytest.mark.parametrize(
    ("settings", "num_tokens"),
    [({}, 9), ({"usual_tokens": USUAL}, USUAL), ({"usual_tokens": 20}, 9)],
    ids=["fixed", "usual", "more than gamma"],
)
def test_chains_that_know_nothing_are_as_long_as_usual(target, settings, num_tokens):
    rounds = Rounds(language_model(target, gamma=9), **settings)
    pending_of(rounds)
    assert {push.token_ids.shape[1] for push in rounds.pushes + rounds.finish()} == {num_tokens}


def test_a_draft_batch_knows_how_likely_its_blocks_are_to_be_asked_for(target):
    drafter = language_model(target, gamma=9)
    drafter.probs_confidence = sure(0.8)
    rounds = Rounds(drafter, usual_tokens=USUAL, goes_beyond=True, draft_batch=8, fan_out=8)
    pending_of(rounds)
    batches = batches_of(drafter)
    rounds.finish()
    chances = list(batches[0].chances)
    values = rounds.prespeculation._rounds[1].plan.values[:8]
    assert chances == pytest.approx(values.tolist())
    assert chances[0] > 2 * chances[-1]


@pytest.mark.parametrize(
    ("method", "num_rows", "size"),
    [("coupled", 3, 2), ("coupled", 8, 4), ("coupled", 40, 8), ("rejection", 40, 2)],
)
def test_a_draft_batch_of_many_rows_is_larger_unless_distributions_travel_with_it(
    target, method, num_rows, size
):
    rounds = Rounds(language_model(target, num_context_tokens=4096), draft_batch=2, fan_out=8)
    for stream in range(1, num_rows + 1):
        pending_of(rounds, stream=stream, method=method)
    rounds.pushes.clear()
    assert max(len(push.keys) for push in rounds.finish()) == size


def test_a_chain_of_many_rows_has_to_bring_more(target):
    """Their time is worth what other outcomes of all of them would bring."""
    threshold = {}
    for num_rows in (1, 6):
        drafter = language_model(target, gamma=9)
        drafter.probs_confidence = sure(0.9)
        rounds = Rounds(drafter, usual_tokens=USUAL, goes_beyond=True, draft_batch=8)
        for stream in range(1, num_rows + 1):
            pending_of(rounds, stream=stream)
        batches = batches_of(drafter)
        rounds.finish()
        threshold[num_rows] = max(batch.threshold.tokens_per_s for batch in batches)
    assert threshold[6] > 4 * threshold[1]


def test_no_draft_batch_has_more_blocks_than_a_push_may_have():
    for size in (16, 64, 128, 256):
        for num_rows in (1, 12, 64, 1024):
            assert BatchSettings(size=size).most_blocks(num_rows) <= LIMITS.max_blocks
    assert BatchSettings(size=16).most_blocks(64) == 64


def test_blocks_without_a_token_are_left_out():
    rounds = Rounds(NgramDrafter(gamma=3), draft_batch=8)
    texts = {1: [9, 8, 7, 6], 2: [1, 2, 3, 4, 1, 2], 3: [5, 6, 7], 4: [8, 9, 1, 8, 9]}
    for stream, text in texts.items():
        rounds.take(text, stream=stream, awaits=True)
    (push,) = rounds.finish()
    assert [key.stream for key in push.keys] == [2, 4]
    assert push.token_ids.tolist() == [[3, 4, 1], [1, 8, 9]]
