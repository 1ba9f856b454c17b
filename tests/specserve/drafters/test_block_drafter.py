"""Contexts, batches, branches and gaps of a drafter with a serial head and a confidence head."""

from dataclasses import replace

import pytest
import torch

from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Coupled, Greedy, Sampled
from tests.golden_blocks import Recorder, by_torch
from tests.specserve.drafters.checkpoints import DFLASH, DSPARK, ZLAB, make_drafter

VOCAB, HIDDEN = 64, 32


@pytest.fixture(params=["vanilla", "vanilla-torch", "gated", "rnn", "dflash", "zlab", "zlab-torch"])
def drafter(request, target, tmp_path):
    name, _, way = request.param.partition("-")
    config = {"dflash": DFLASH, "zlab": ZLAB}.get(name, DSPARK)
    changes = {"markov_head_type": name} if config is DSPARK else {}
    made = make_drafter(tmp_path / "draft", config, target, **changes)
    return by_torch(made) if way else made


def verified(count, seed=0):
    """Tokens and projected features of `count` positions."""
    generator = torch.Generator().manual_seed(seed)
    token_ids = torch.randint(VOCAB, (count,), generator=generator)
    return token_ids, torch.randn(count, HIDDEN, generator=generator)


def extend(drafter, row, token_ids, features):
    start = drafter.context_len(row)
    drafter.extend(ContextUpdate([row], [start], [len(token_ids)], token_ids, features))


def logits_of(drafter, row, anchor_id, **batch):
    """Draft logits [G, V] of one block, along its greedy path."""
    recorder = Recorder()
    drafter.draft(DraftBatch([row], torch.tensor([anchor_id]), **batch), recorder)
    return recorder.logits


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)


def test_rows_of_a_batch_draft_as_they_do_alone(drafter):
    lengths = {0: 5, 1: 37, 2: 16}
    for row, length in lengths.items():
        extend(drafter, row, *verified(length, seed=row))
    rows, anchors = [2, 0, 2, 1, 2, 0], torch.tensor([3, 9, 40, 5, 3, 11])
    together = drafter.draft(DraftBatch(rows, anchors), Greedy())
    assert together.token_ids.shape == (6, drafter.gamma)
    for place, row in enumerate(rows):
        alone = drafter.draft(DraftBatch([row], anchors[place : place + 1]), Greedy())
        assert torch.equal(alone.token_ids[0], together.token_ids[place])
        if alone.confidences is not None:
            close(alone.confidences[0], together.confidences[place])


def test_one_update_of_many_rows_equals_many_updates(drafter):
    parts = [verified(count, seed=count) for count in (20, 3, 9)]
    for row, part in enumerate(parts):
        extend(drafter, row, *part)
    tokens, features = (torch.cat(kind) for kind in zip(*parts, strict=True))
    drafter.extend(ContextUpdate([10, 11, 12], [0] * 3, [20, 3, 9], tokens, features))
    for row in range(3):
        close(logits_of(drafter, row + 10, 7), logits_of(drafter, row, 7))


def test_a_context_in_pieces_with_rollbacks_equals_one_from_scratch(drafter):
    token_ids, features = verified(40)
    extend(drafter, 0, token_ids, features)
    expected = logits_of(drafter, 0, 7)

    for start, end in ((0, 17), (17, 18), (18, 33)):
        extend(drafter, 1, token_ids[start:end], features[start:end])
    extend(drafter, 1, *verified(9, seed=8))
    drafter.draft(DraftBatch([1], torch.tensor([2])), Greedy())
    drafter.truncate(1, 30)
    extend(drafter, 1, token_ids[30:], features[30:])
    close(logits_of(drafter, 1, 7), expected)

    drafter.free(1)
    drafter.free(1)
    assert drafter.context_len(1) == 0
    extend(drafter, 1, token_ids, features)
    close(logits_of(drafter, 1, 7), expected)


def test_a_block_may_follow_a_prefix_of_its_row(drafter):
    token_ids, features = verified(40)
    extend(drafter, 0, token_ids, features)
    for length in (1, 16, 23):
        extend(drafter, length, token_ids[:length], features[:length])
        expected = logits_of(drafter, length, 7)
        close(logits_of(drafter, 0, 7, context_lens=[length]), expected)


def test_drafting_leaves_the_context_alone(drafter):
    extend(drafter, 0, *verified(21))
    before = [entry.clone() for entry in drafter.context.read(0, 1)]
    first = logits_of(drafter, 0, 7)
    logits_of(drafter, 0, 8)
    assert torch.equal(logits_of(drafter, 0, 7), first)
    assert all(map(torch.equal, before, drafter.context.read(0, 1)))


def test_every_method_fills_the_block(drafter):
    extend(drafter, 0, *verified(21))
    batch = DraftBatch([0] * 3, torch.tensor([1, 2, 3]))
    temperatures, zeros = torch.tensor([0.0, 1.0, 0.7]), torch.zeros(3, dtype=torch.int64)
    keys = OnceKeys.build([4] * 3, [0] * 3, [0] * 3, range(3), [0] * 3)
    greedy = drafter.draft(batch, Greedy())
    sampled = drafter.draft(batch, Sampled(temperatures, keys, num_kept=8))
    coupled = drafter.draft(batch, Coupled(temperatures, zeros, zeros))
    assert greedy.draft_probs is None
    assert coupled.draft_probs is None
    assert sampled.draft_probs.ids.shape == (3 * drafter.gamma, 8)
    chances = sampled.draft_probs.at(sampled.token_ids.flatten())
    assert bool((chances > 0).all())
    assert bool((chances[: drafter.gamma] == 1).all())
    for speculation in (sampled, coupled):
        assert torch.equal(speculation.token_ids[0], greedy.token_ids[0])
        assert not torch.equal(speculation.token_ids, greedy.token_ids)


def test_confidences_never_depend_on_the_token_they_judge(target, tmp_path):
    drafter = make_drafter(tmp_path / "draft", DSPARK, target)
    extend(drafter, 0, *verified(21))
    batch, path = DraftBatch([0], torch.tensor([9])), torch.tensor([5, 6, 7, 8])
    expected = drafter.draft(batch, Recorder(path)).confidences[0]
    for slot in range(drafter.gamma):
        changed = path.clone()
        changed[slot] = 50
        confidences = drafter.draft(batch, Recorder(changed)).confidences[0]
        assert torch.equal(confidences[: slot + 1], expected[: slot + 1])
        assert not torch.equal(confidences[slot + 1 :], expected[slot + 1 :]) or slot == 3


def test_probs_confidences_are_asked_before_the_draw_and_only_without_a_head(target, tmp_path):
    events = []

    class Spy(Recorder):
        def draw(self, first_slot, logits):
            events.append(("draw", first_slot))
            return super().draw(first_slot, logits)

    def probs_confidence(first_slot, logits):
        events.append(("confidence", first_slot))
        return torch.full(logits.shape[:2], 0.25)

    changes = {"enable_confidence_head": False, "confidence_head_with_markov": None}
    headless = make_drafter(tmp_path / "a", DSPARK, target, **changes)
    headless.probs_confidence = probs_confidence
    extend(headless, 0, *verified(5))
    speculation = headless.draft(DraftBatch([0], torch.tensor([1])), Spy())
    assert speculation.confidences.tolist() == [[0.25] * 4]
    assert events == [(kind, slot) for slot in range(4) for kind in ("confidence", "draw")]

    events.clear()
    with_head = make_drafter(tmp_path / "b", DSPARK, target)
    with_head.probs_confidence = probs_confidence
    extend(with_head, 0, *verified(5))
    assert 0.25 not in with_head.draft(DraftBatch([0], torch.tensor([1])), Spy()).confidences
    assert ("confidence", 0) not in events

    events.clear()
    at_once = make_drafter(tmp_path / "c", DFLASH, target)
    at_once.probs_confidence = probs_confidence
    extend(at_once, 0, *verified(5))
    assert at_once.draft(DraftBatch([0], torch.tensor([1])), Spy()).confidences.eq(0.25).all()
    assert events == [("confidence", 0), ("draw", 0)]


def test_calibration_divides_the_logits(target, tmp_path):
    drafter = make_drafter(tmp_path / "draft", DSPARK, target)
    extend(drafter, 0, *verified(5))
    batch = DraftBatch([0], torch.tensor([1]))
    raw = drafter.draft(batch, Greedy()).confidences
    temperatures = torch.tensor([0.5, 1.0, 2.0, 4.0])
    drafter.confidence_head = drafter.confidence_head.calibrated(temperatures)
    close(drafter.draft(batch, Greedy()).confidences, (raw.logit() / temperatures).sigmoid())


def test_a_gap_is_bridged_by_provisional_tokens(drafter):
    """Only the gap's own tokens count, in order; other branches' gaps and padding do not."""
    extend(drafter, 0, *verified(21))
    gaps = [[5, 6, 7], [], [8], [5, 6, 9]]
    anchors = torch.tensor([11, 11, 11, 11])
    recorder = Recorder()
    together = drafter.draft(DraftBatch([0] * 4, anchors, gaps), recorder)
    assert bool(torch.isfinite(torch.cat(recorder._logits, 1)).all())
    for place, gap in enumerate(gaps):
        alone = drafter.draft(DraftBatch([0], anchors[:1], [gap]), Greedy())
        assert torch.equal(alone.token_ids[0], together.token_ids[place])
    without = logits_of(drafter, 0, 11)
    close(logits_of(drafter, 0, 11, gap_ids=[[]]), without)
    one = logits_of(drafter, 0, 11, gap_ids=[[5, 6]])
    assert not torch.allclose(one, logits_of(drafter, 0, 11, gap_ids=[[6, 5]]), atol=1e-3)
    assert not torch.allclose(one, without, atol=1e-3)


def test_provisional_tokens_do_not_see_the_block(drafter):
    """Hidden states of gap tokens are causal: they depend neither on the anchor nor on the mask."""
    layer = drafter.backbone.layers[0]
    seen = []

    def watched(x, rotary, attention):
        seen.append(layer(x, rotary, attention))
        return seen[-1]

    from dataclasses import replace

    rest = drafter.backbone.layers[1:]
    drafter.backbone = replace(drafter.backbone, layers=(watched, *rest))
    drafter = by_torch(drafter)
    extend(drafter, 0, *verified(21))
    for anchor, gap in ((1, [5, 6, 7]), (2, [5, 6, 7]), (2, [5, 6, 8])):
        drafter.draft(DraftBatch([0], torch.tensor([anchor]), [gap]), Greedy())
    close(seen[0][:3], seen[1][:3])
    close(seen[1][:2], seen[2][:2])
    assert not torch.allclose(seen[1][2], seen[2][2], atol=1e-3)
    assert not torch.allclose(seen[0][3:], seen[1][3:], atol=1e-3)


def test_wrong_calls_are_refused(drafter):
    with pytest.raises(ValueError, match="cannot follow 0 of 0"):
        drafter.draft(DraftBatch([0], torch.tensor([1])), Greedy())
    extend(drafter, 0, *verified(5))
    with pytest.raises(ValueError, match="cannot follow 6 of 5"):
        drafter.draft(DraftBatch([0], torch.tensor([1]), context_lens=[6]), Greedy())
    with pytest.raises(ValueError, match="ends at 5, not at 4"):
        drafter.extend(ContextUpdate([0], [4], [1], torch.tensor([1]), torch.randn(1, HIDDEN)))


def test_noise_positions_count_the_gap(drafter):
    extend(drafter, 0, *verified(21))
    layouts = []

    class Spy(Greedy):
        def begin(self, layout):
            layouts.append(layout)
            return super().begin(layout)

    gaps, lengths = [[5, 6, 7], [], [8]], [21, 21, 10]
    drafter.draft(DraftBatch([0] * 3, torch.tensor([1, 2, 3]), gaps, lengths), Spy())
    assert layouts[0].positions.tolist() == [25, 22, 12]
    assert layouts[0].num_slots == drafter.gamma


def test_logits_are_kept_when_asked_for(drafter):
    extend(drafter, 0, *verified(20))
    batch = DraftBatch([0], torch.tensor([3]))
    assert drafter.draft(batch, Greedy()).logits is None
    kept = drafter.draft(replace(batch, keep_logits=True), Greedy())
    assert torch.equal(kept.logits[0], logits_of(drafter, 0, 3))
    assert torch.equal(kept.logits.argmax(2), kept.token_ids)


def test_a_gap_laid_out_longer_than_it_is_changes_nothing(drafter):
    extend(drafter, 0, *verified(20))
    gaps = {"gap_ids": [[4, 5]]}
    close(logits_of(drafter, 0, 3, min_gap=6, **gaps), logits_of(drafter, 0, 3, **gaps))


def test_blocks_without_gaps_are_not_laid_out_longer(drafter, monkeypatch):
    """Pending tokens that the context holds need no places before each block."""
    extend(drafter, 0, *verified(10))
    asked, blocks = [], drafter._passes.blocks
    monkeypatch.setattr(
        drafter._passes, "blocks", lambda *given: asked.append(given[-1]) or blocks(*given)
    )
    drafter.draft(DraftBatch([0], torch.tensor([3]), None, min_gap=6), Greedy())
    drafter.draft(DraftBatch([0], torch.tensor([3]), [[4, 5]], min_gap=6), Greedy())
    assert asked == [0, 6]


def test_pending_tokens_in_the_context_are_what_they_are_as_gaps(drafter):
    extend(drafter, 0, *verified(20))
    extend(drafter, 1, *verified(20))
    for row in (1, 2):
        extend(drafter, row, *verified(30, seed=4))
    pending = [4, 5, 6, 33]
    drafter.extend(ContextUpdate([0], [20], [4], torch.tensor(pending), None))
    drafter.truncate(1, 20)
    for num_taken in (1, 2, 3, 4):
        held = logits_of(drafter, 0, 9, context_lens=[20 + num_taken])
        close(held, logits_of(drafter, 1, 9, gap_ids=[pending[:num_taken]]))
    drafter.truncate(0, 20)
    close(logits_of(drafter, 0, 9), logits_of(drafter, 1, 9))


@pytest.mark.parametrize("size", [1, 2, 33, 64])
def test_blocks_of_any_size_may_stand_behind_a_whole_one(target, tmp_path, size):
    """What was verified of a pending block, and the token that followed: the longest gap."""
    made = make_drafter(tmp_path / "draft", DFLASH, target, block_size=size)
    drafters = [made, by_torch(made)]
    gap = [token % VOCAB for token in range(size + 1)]
    found = []
    for drafter in drafters:
        extend(drafter, 0, *verified(21))
        batch = DraftBatch([0, 0], torch.tensor([3, 4]), [gap, gap[:1]], keep_logits=True)
        found.append(drafter.draft(batch, Greedy()).logits)
    close(found[0], found[1])
