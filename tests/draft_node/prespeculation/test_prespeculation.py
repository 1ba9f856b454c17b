"""Hand-made reports against real small drafters."""

import numpy as np
import pytest
import torch

from draft_node.draft_slots import MAX_FAILURES, DraftingFailed
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Coupled, Greedy, Sampled
from specserve.transport.link.messages import DraftTopK
from tests.draft_node.prespeculation.rounds import (
    END,
    TEXT,
    VOCAB,
    Rounds,
    blocks_of,
    features_of,
    pending_of,
    tokens,
)


def extend(drafter, row, token_ids):
    width = drafter.feature_size
    features = torch.from_numpy(features_of(token_ids, 0, width)) if width else None
    update = ContextUpdate([row], [0], [len(token_ids)], torch.tensor(token_ids), features)
    drafter.extend(update)


def coupled(seed, temperature=1.0):
    return Coupled(torch.tensor([temperature]), torch.tensor([seed]), torch.tensor([0]))


def draft_alone(drafter, row, key, pending, method):
    """What the drafter says by itself after the outcome that `key` stands for."""
    number = key.position - END - 1
    gap = [TEXT[-1], *pending[:number]]
    if drafter.feature_size:
        batch = DraftBatch([row], torch.tensor([key.anchor_id]), [gap], [END])
    else:
        drafter.free(row)
        extend(drafter, row, TEXT[:END] + gap)
        batch = DraftBatch([row], torch.tensor([key.anchor_id]))
    return drafter.draft(batch, method)


def test_blocks_are_what_the_drafter_says_after_each_outcome(drafter):
    rounds = Rounds(drafter)
    block = pending_of(rounds)
    found = blocks_of(rounds.finish())
    assert len(found) == 8
    extend(drafter, 99, TEXT[:END])
    for key, (token_ids, confidences, draft_probs, _) in found.items():
        assert (key.stream, key.round) == (1, 2)
        assert END < key.position <= END + 1 + len(block)
        expected = draft_alone(drafter, 99, key, block, coupled(8))
        assert token_ids == expected.token_ids[0].tolist()
        assert draft_probs.ids.numel() == 0
        if expected.confidences is not None:
            torch.testing.assert_close(torch.from_numpy(confidences), expected.confidences[0])


def test_no_outcome_repeats_what_was_rejected(drafter):
    rounds = Rounds(drafter, fan_out=40)
    block = pending_of(rounds)
    for key in blocks_of(rounds.finish()):
        number = key.position - END - 1
        if number < len(block):
            assert key.anchor_id != block[number]


def test_a_block_that_the_target_drafted_is_foreseen_without_being_drafted_again(drafter):
    rounds = Rounds(drafter)
    slots = np.array([[4, 8, 12, 16], [5, 9, 13, 17], [6, 10, 14, 18]], np.int32)
    scores = np.tile(np.array([0.0, -1.0, -2.0, -np.inf], np.float32), (3, 1))
    draft_top_k = DraftTopK(np.array([0.5, 0.5], np.float32), slots, scores)
    block = [4, 9]
    rounds.take(TEXT, block=block, temperature=0.0, draft_top_k=draft_top_k)
    found = blocks_of(rounds.finish())
    # Padding is no candidate, and neither is the token that was rejected.
    expected = {(0, 8), (0, 12), (1, 5), (1, 13), (2, 6), (2, 10), (2, 14)}
    assert {(key.position - END - 1, key.anchor_id) for key in found} == expected
    assert all(key.round == 2 for key in found)
    extend(drafter, 99, TEXT[:END])
    for key, (token_ids, *_) in found.items():
        alone = draft_alone(drafter, 99, key, block, Greedy())
        assert token_ids == alone.token_ids[0].tolist()


def test_the_likeliest_bonus_token_under_shared_noise_is_the_blocks_own(drafter):
    rounds = Rounds(drafter, fan_out=40)
    rounds.take(TEXT, awaits=True)
    rounds.prespeculation.step()
    (own, _, _, speculation_id) = blocks_of(rounds.pushes)[(1, 1, END, TEXT[-1])]
    rounds.take(TEXT, start=END, block=own[:2], speculation_id=speculation_id)
    rounds.finish()
    bonus = [key for key in blocks_of(rounds.pushes) if key.position == END + 3]
    assert bonus[0].anchor_id == own[2]


@pytest.mark.parametrize("method", ["rejection", "foreseeable"])
def test_blocks_of_the_rejection_family_ship_the_distribution_they_were_drawn_from(drafter, method):
    rounds = Rounds(drafter, epoch=258)
    block = pending_of(rounds, method=method, temperature=0.8)
    found = blocks_of(rounds.finish())
    assert len(found) == 8
    extend(drafter, 99, TEXT[:END])
    branch = 2 << 16
    for key, (token_ids, _, draft_probs, _) in found.items():
        branch += 1
        assert bool(draft_probs.sound(VOCAB).all())
        assert bool((draft_probs.at(torch.tensor(token_ids)) > 0).all())
        keys = OnceKeys.build([8], [0], [2], [branch], [0])
        expected = draft_alone(drafter, 99, key, block, Sampled(torch.tensor([0.8]), keys, 16))
        assert token_ids == expected.token_ids[0].tolist()
        torch.testing.assert_close(
            draft_probs.probs, expected.draft_probs.probs, atol=1e-5, rtol=1e-4
        )


def test_draft_batches_of_the_rejection_family_are_full_and_equally_wide(drafter):
    calls = []
    draft = drafter.draft
    drafter.draft = lambda batch, method: calls.append(batch) or draft(batch, method)
    rounds = Rounds(drafter, draft_batch=3, fan_out=8)
    pending_of(rounds, method="rejection")
    calls.clear()
    pushes = rounds.finish()
    assert [len(push.keys) for push in pushes] == [3, 3, 3]  # 8 outcomes and one that fills up
    assert {batch.max_gap() for batch in calls} == {0 if drafter.holds_pending_tokens else 4}


def test_branches_never_share_a_key(dspark_drafter, monkeypatch):
    seen = []
    build = OnceKeys.build
    monkeypatch.setattr(
        OnceKeys,
        "build",
        lambda *args, **kwargs: seen.append(kwargs) or build(*args, **kwargs),
    )
    rounds = Rounds(dspark_drafter)
    pending_of(rounds, method="rejection")
    rounds.finish()
    known = [*TEXT, 5]
    rounds.take(known, start=END, round=2, method="rejection")
    rounds.finish()
    rounds.take(known, start=len(known) - 1, round=2, method="rejection")
    found = blocks_of(rounds.finish())
    # A round whose block was prepared drafts none behind its anchor, and the next one misses.
    key = next(key for key in found if key.position == len(known))
    rounds.take(
        [*known, key.anchor_id],
        start=len(known) - 1,
        round=3,
        method="rejection",
        speculation_id=found[key][3],
    )
    found = blocks_of(rounds.finish())
    assert {key.round for key in found} == {4}
    prepared = {key.anchor_id for key in found if key.position == len(known) + 1}
    missing = next(token for token in range(VOCAB) if token not in prepared)
    rounds.take(
        [*known, key.anchor_id, missing], start=len(known), round=4, method="rejection", awaits=True
    )
    assert rounds.finish()
    keys = [key for call in seen for key in zip(call["rounds"], call["branches"], strict=True)]
    assert len(keys) == len(set(keys)) > 20


def test_methods_are_not_mixed_in_one_draft_batch(drafter):
    rounds = Rounds(drafter, draft_batch=16)
    rounds.take(TEXT, stream=1, method="coupled")
    rounds.take(TEXT, stream=2, method="rejection")
    rounds.take(TEXT, stream=3, method="coupled", temperature=0.0)
    pushes = rounds.finish()
    assert all({key.stream for key in push.keys} in ({1, 3}, {1}, {3}, {2}) for push in pushes)
    assert {key.stream for push in pushes for key in push.keys} == {1, 2, 3}


def test_rows_that_are_likely_to_hit_come_first(dspark_drafter):
    rounds = Rounds(dspark_drafter, draft_batch=1, fan_out=4)
    for stream in (1, 2):
        rounds.take(TEXT, stream=stream)
    rounds.finish()
    values = [each.plan.values for each in rounds.prespeculation._rounds.values()]
    assert all((np.diff(row[:4]) <= 0).all() for row in values)


@pytest.mark.parametrize("num_shared", [0, 1, 2])
def test_a_foreign_block_is_followed_to_where_it_leaves_ours(drafter, num_shared):
    rounds = Rounds(drafter, fan_out=60)
    ours = pending_of(rounds)
    theirs = [*ours[:num_shared], (ours[num_shared] + 1) % VOCAB, 3]
    rounds.take(TEXT, start=END, block=theirs, speculation_id=0)
    keys = list(blocks_of(rounds.finish()))
    assert len(keys) > 8
    assert {key.position for key in keys} == set(range(END + 1, END + num_shared + 2))
    for number, token_id in enumerate(theirs[: num_shared + 1]):
        at_slot = {key.anchor_id for key in keys if key.position == END + 1 + number}
        assert token_id not in at_slot
    assert ours[num_shared] in {
        key.anchor_id for key in keys if key.position == END + 1 + num_shared
    }


def test_the_rank_of_what_came_is_learnt(dspark_drafter):
    rounds = Rounds(dspark_drafter)
    block = pending_of(rounds)
    rounds.finish()
    kind = rounds.prespeculation._rounds[1].kind
    candidates = rounds.prespeculation._rounds[1].plan.candidates
    before = rounds.prespeculation.curves.rates(kind, 3, np.array([8] * 4))
    known = [*TEXT, *block[:1], int(candidates[1][2])]
    rounds.take(known, start=END, round=2)
    after = rounds.prespeculation.curves.rates(kind, 3, np.array([8] * 4))
    assert after[0, 2] > before[0, 2]
    assert after[0, 5] < before[0, 5]
    assert (after[3] == before[3]).all()
    assert (
        rounds.prespeculation.prior.confidences[0]
        > 0.7
        > rounds.prespeculation.prior.confidences[1]
    )


def test_a_prompt_lookup_drafter_foresees_its_own_next_token():
    text = [5, 6, 7, 8, 9, 1, 2, 5, 6, 7]
    rounds = Rounds(NgramDrafter(gamma=3))
    rounds.take(text, awaits=True)
    (token_ids, _, _, speculation_id) = blocks_of(rounds.finish())[(1, 1, 9, 7)]
    assert token_ids == [8, 9, 1]
    rounds.take(text, start=9, block=[8, 9], speculation_id=speculation_id)
    found = blocks_of(rounds.finish())
    assert found[(1, 2, 12, 1)][0] == [2, 5, 6]


def test_a_failing_drafter_costs_the_round_and_in_the_end_the_process(dspark_drafter, caplog):
    rounds = Rounds(dspark_drafter)
    draft = dspark_drafter.draft

    def fail(batch, method):
        raise RuntimeError("broken")

    dspark_drafter.draft = fail
    rounds.take(TEXT, round=1)
    assert rounds.finish() == []
    dspark_drafter.draft = draft
    rounds.take([*TEXT, 3], start=END, round=2)
    assert rounds.finish()
    dspark_drafter.draft = fail
    for round_id in range(3, 2 + MAX_FAILURES):
        rounds.take([*TEXT, 3], start=END + 1, round=round_id)
        rounds.finish()
    rounds.take([*TEXT, 3], start=END + 1, round=40)
    with pytest.raises(DraftingFailed):
        rounds.finish()
    assert rounds.prespeculation.failures.total == 1 + MAX_FAILURES
    assert caplog.text.count("Traceback") == 5  # times 1, 2, 4, 8, 16


def test_an_anchor_at_the_end_of_the_context_needs_no_block(drafter):
    rounds = Rounds(drafter)
    rounds.take(tokens(127).tolist())
    assert rounds.finish() == []
    rounds.take(tokens(126).tolist(), stream=2)
    assert {key.position for key in blocks_of(rounds.finish())} == {126}
    rounds.take([3], stream=3)
    assert rounds.finish() == []


def test_saguaro_draws_less_of_what_is_prepared(dspark_drafter):
    def mass_of_largest(saguaro_c, method):
        rounds = Rounds(dspark_drafter, num_kept=64, saguaro_c=saguaro_c)
        rounds.take(TEXT, method=method)
        found = blocks_of(rounds.finish())
        rounds.streams.clear()
        distributions = [draft_probs for _, _, draft_probs, _ in found.values()]
        assert all(bool(draft_probs.sound(VOCAB).all()) for draft_probs in distributions)
        return float(torch.stack([d.probs.max(1).values[0] for d in distributions]).mean())

    assert mass_of_largest(0.2, "rejection") < mass_of_largest(None, "rejection") - 0.02
    assert mass_of_largest(0.2, "foreseeable") == pytest.approx(
        mass_of_largest(None, "foreseeable"), rel=1e-3
    )


def test_what_saguaro_never_draws_is_prepared_first(dspark_drafter):
    """Outcomes are what the drafter finds likeliest, not what it was made to draw from."""
    extend(dspark_drafter, 99, TEXT[:END])
    alone = dspark_drafter.draft(DraftBatch([99], torch.tensor([TEXT[-1]])), Greedy())
    likeliest = int(alone.token_ids[0, 0])
    rounds = Rounds(dspark_drafter, num_kept=64, saguaro_c=0.0)
    block = pending_of(rounds, method="rejection")
    assert block[0] != likeliest
    anchors = [k.anchor_id for k in blocks_of(rounds.finish()) if k.position == END + 1]
    assert anchors[0] == likeliest


def test_no_round_prepares_more_than_its_budget(dspark_drafter):
    rounds = Rounds(dspark_drafter, fan_out=9, draft_batch=4)
    for stream in (1, 2, 3):
        rounds.take(TEXT, stream=stream)
    found = blocks_of(rounds.finish())
    counts = [sum(key.stream == stream for key in found) for stream in (1, 2, 3)]
    assert counts == [9, 9, 9]
