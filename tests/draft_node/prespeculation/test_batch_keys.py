"""By which noise a draft batch's blocks are drawn: that of their request, sample, round and branch.

Samples of one request have the same text at first, so nothing but their keys tells them apart: a
key without one of its parts leaves every block likely and makes what is drawn depend on each other.
"""

import pytest
import torch

from draft_node.prespeculation.draft_batches import MAX_BRANCHES
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import DraftBatch
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Coupled, Sampled
from specserve.transport.link.messages import BlockKey
from tests.draft_node.prespeculation.rounds import END, TEXT, Rounds, blocks_of, language_model
from tests.specserve.drafters.checkpoints import options, write_part

SEED, EPOCH, ROUND = 41, 5, 9
SAMPLES, SEEDS = [3, 0, 7, 3], [SEED, SEED, SEED, SEED + 1]  # three of a request, one of another
KINDS = [*((method, 1.0) for method in ("rejection", "foreseeable")), ("rejection", 0.7)]


def take_samples(rounds, seeds, sample_indices, **fields):
    """One stream a sample, numbered from 1 on, all at the same place of the same text."""
    for stream, (seed, sample_index) in enumerate(zip(seeds, sample_indices, strict=True), 1):
        rounds.take(TEXT, stream=stream, seed=seed, sample_index=sample_index, **fields)


def roots(drafter, seeds, sample_indices, **fields):
    """The blocks that all of them wait for, drafted together: tokens by stream."""
    rounds = Rounds(drafter, epoch=EPOCH, draft_batch=16)
    take_samples(rounds, seeds, sample_indices, round=ROUND, awaits=True, **fields)
    assert rounds.prespeculation.step()
    (push,) = rounds.pushes
    assert [key.stream for key in push.keys] == list(range(1, 1 + len(seeds)))
    rounds.streams.clear()
    return push.token_ids.tolist()


def alone(drafter, anchor_id, method, gap=()):
    """What the drafter says by itself, by `method`."""
    rounds = Rounds(drafter)
    rounds.take(TEXT, stream=99)
    (stream,) = rounds.streams
    if gap:
        rounds.streams.provide([(stream, gap)])
    batch = DraftBatch([stream.number], torch.tensor([anchor_id]), context_lens=[END + len(gap)])
    drawn = drafter.draft(batch, method)
    rounds.streams.clear()
    return drawn.token_ids[0].tolist()


def sampled(seed, sample_index, round_id, branch, temperature=1.0):
    keys = OnceKeys.build([seed], [sample_index], [round_id], [EPOCH << 16 | branch], [0])
    return Sampled(torch.tensor([temperature]), keys, 16)


def coupled(seed, sample_index):
    return Coupled(torch.tensor([1.0]), torch.tensor([seed]), torch.tensor([sample_index]))


@pytest.fixture(params=["dspark", "language model", "a part of the target"])
def holding_drafter(request, target, dspark_drafter, tmp_path):
    if request.param == "a part of the target":
        return load_drafter(write_part(tmp_path), target, options(gamma=4))
    return dspark_drafter if request.param == "dspark" else language_model(target)


@pytest.mark.parametrize(("method", "temperature"), KINDS)
def test_samples_of_a_request_are_drafted_for_by_noise_of_their_own(
    holding_drafter, method, temperature
):
    found = roots(holding_drafter, SEEDS, SAMPLES, method=method, temperature=temperature)
    for seed, sample_index, token_ids in zip(SEEDS, SAMPLES, found, strict=True):
        own = sampled(seed, sample_index, ROUND, 1, temperature)
        assert token_ids == alone(holding_drafter, TEXT[-1], own)
    assert len(set(map(tuple, found))) == 4


def test_shared_noise_is_that_of_the_sample(holding_drafter):
    found = roots(holding_drafter, SEEDS, SAMPLES, method="coupled")
    for seed, sample_index, token_ids in zip(SEEDS, SAMPLES, found, strict=True):
        assert token_ids == alone(holding_drafter, TEXT[-1], coupled(seed, sample_index))
    assert len(set(map(tuple, found))) == 4


@pytest.mark.parametrize("method", ["rejection", "coupled"])
def test_the_same_holds_for_what_may_follow(holding_drafter, method):
    """Blocks after outcomes, whose round is the next one."""
    rounds = Rounds(holding_drafter, epoch=EPOCH, draft_batch=8, fan_out=8)
    take_samples(rounds, SEEDS, SAMPLES, round=ROUND, method=method)
    found = blocks_of(rounds.finish())
    rounds.streams.clear()
    branches = dict.fromkeys(range(1, 5), 0)
    for key, (token_ids, *_) in found.items():
        branches[key.stream] += 1
        whose = SEEDS[key.stream - 1], SAMPLES[key.stream - 1]
        own = sampled(*whose, ROUND + 1, branches[key.stream])
        if method == "coupled":
            own = coupled(*whose)
        assert (key.round, key.position) == (ROUND + 1, END + 1)
        assert token_ids == alone(holding_drafter, key.anchor_id, own, gap=[TEXT[-1]])
    assert set(branches.values()) == {8}


@pytest.mark.parametrize(
    "changes", [{"seed": SEED + 1}, {"sample_index": 4}, {"round": ROUND + 1}, {"epoch": EPOCH + 1}]
)
def test_every_part_of_a_key_makes_another_draw(holding_drafter, changes):
    key = {"seed": SEED, "sample_index": 3, "round": ROUND, "epoch": EPOCH}

    def block(seed, sample_index, round, epoch):
        rounds = Rounds(holding_drafter, epoch=epoch)
        fields = {"seed": seed, "sample_index": sample_index, "round": round, "method": "rejection"}
        rounds.take(TEXT, awaits=True, **fields)
        rounds.prespeculation.step()
        rounds.streams.clear()
        return blocks_of(rounds.pushes)[BlockKey(1, round, END, TEXT[-1])][0]

    assert block(**key) == block(**key)
    assert block(**key) != block(**(key | changes))


def keys_of(drafter):
    """Those that blocks are drawn by from now on, as they are packed."""
    found, draft = [], drafter.draft

    def recorded(batch, sampler):
        keys = sampler.keys
        found.extend(
            zip(
                keys.nonces.tolist(),
                keys.sample_words.tolist(),
                keys.branch_words.tolist(),
                strict=True,
            )
        )
        return draft(batch, sampler)

    drafter.draft = recorded
    return found


def test_no_two_blocks_have_one_key_whatever_attachment_made_them(dspark_drafter):
    """The same rounds reported again, to a draft that came back and to its successor."""
    found = keys_of(dspark_drafter)
    for epoch in (1, 2, 255):
        rounds = Rounds(dspark_drafter, epoch=epoch, fan_out=6)
        for round_id in (1, 2, 2):
            take_samples(rounds, SEEDS, SAMPLES, round=round_id, method="rejection", block=[5])
            rounds.finish()
        rounds.streams.clear()
    assert len(found) > 3 * 3 * 4 * 6
    assert len(set(found)) == len(found)


def test_a_round_of_more_blocks_than_there_are_keys_for_drafts_no_more(dspark_drafter, caplog):
    rounds = Rounds(dspark_drafter)
    rounds.take(TEXT, round=ROUND, method="rejection", awaits=True)
    (stream,) = rounds.streams
    stream.num_branches[ROUND] = MAX_BRANCHES
    assert rounds.finish() == []
    assert "more branches than there are keys for" in caplog.text
