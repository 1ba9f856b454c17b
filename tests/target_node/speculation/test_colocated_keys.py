"""By which noise the drafter beside the target draws: that of request, sample, round and position.

Every token is drawn again by hand from the distribution that is shipped with it. A key without one
of its parts leaves distributions as they are, and makes what is drafted depend on what was drafted
before.
"""

import pytest
import torch

from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.noise import OnceKeys, Purpose
from specserve.sampling.draft_sampler import Coupled
from specserve.sampling.verification.method import VerificationMethod
from target_node.sequence import Sequence
from target_node.speculation.drafting import ColocatedDraft, RowToDraft
from tests.backends.chosen import BACKEND
from tests.draft_node.prespeculation.rounds import TEXT, VOCAB, language_model
from tests.specserve.drafters.conftest import target
from tests.specserve.sampling.test_sampling import state
from tests.target_node.in_process import request

__all__ = ["target"]

NUM_KEPT = 16
REJECTION, COUPLED = VerificationMethod.REJECTION, VerificationMethod.COUPLED
RATIO_METHODS = [REJECTION, VerificationMethod.FORESEEABLE]
# Of all rows: two requests, three samples of one, in different rounds and at different places.
ROWS = [(41, 3, 2, 20), (41, 0, 2, 20), (41, 7, 2, 20), (42, 3, 2, 20), (41, 3, 6, 30)]


def row_of(seed, sample_index, num_rounds, length, method=REJECTION, temperature=0.8):
    """A decoding row of `length` tokens, of which the last is the anchor."""
    asked = request("r", TEXT[: length - 1], seed=seed, temperature=temperature)
    sequence = Sequence(asked, sample_index, arrival=0, num_rounds=num_rounds)
    sequence.token_ids.append(TEXT[length - 1])
    sequence.num_computed = length - 1
    own = state(
        seed, TEXT[: length - 1], TEXT[length - 1 : length], sample_index, temperature=temperature
    )
    assert own.position == length
    return RowToDraft(sequence, own, method)


@pytest.fixture
def drafter(target):
    return language_model(target)


@pytest.fixture
def colocated(drafter):
    return ColocatedDraft(drafter, None, vocab_size=VOCAB, num_kept=NUM_KEPT, backend=BACKEND)


def blocks_of(colocated, rows):
    found = colocated.speculate(rows)
    return [list(found[row.sequence].token_ids) for row in rows]


def drawn_by_hand(draft_probs, seed, sample_index, round_id, position):
    """What each distribution [G] says at positions from `position` on."""
    num_slots = len(draft_probs.ids)
    keys = OnceKeys.build(
        [seed] * num_slots,
        [sample_index] * num_slots,
        [round_id] * num_slots,
        [0] * num_slots,
        range(position, position + num_slots),
    )
    winners = (keys.exponential(Purpose.DRAFT, NUM_KEPT) / draft_probs.probs).argmin(
        1, keepdim=True
    )
    return draft_probs.ids.gather(1, winners)[:, 0].tolist()


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_blocks_are_drawn_by_the_keys_of_their_rows(colocated, method):
    rows = [row_of(*row, method) for row in ROWS]
    blocks = blocks_of(colocated, rows)
    for place, ((seed, sample_index, round_id, length), block) in enumerate(
        zip(ROWS, blocks, strict=True)
    ):
        draft_probs = colocated.draft_probs([(place, len(block))])
        assert block == drawn_by_hand(draft_probs, seed, sample_index, round_id, length)
    same_text = blocks[:4]
    assert len(set(map(tuple, same_text))) == 4


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_another_round_draws_anew_from_the_same_distribution(colocated, method):
    """As after a round that verified none of its block."""
    row, blocks, first = row_of(41, 3, 0, 20, method), [], []
    for round_id in range(6):
        row.sequence.num_rounds = round_id
        blocks += blocks_of(colocated, [row])
        first.append(colocated.draft_probs([(0, 1)]))
        draft_probs = colocated.draft_probs([(0, len(blocks[-1]))])
        assert blocks[-1] == drawn_by_hand(draft_probs, 41, 3, round_id, 20)
    for each in first:
        assert torch.equal(each.ids, first[0].ids)
        assert torch.equal(each.probs, first[0].probs)
    assert len(set(map(tuple, blocks))) == 6


def test_shared_noise_is_the_same_in_every_round(colocated, drafter):
    rows = [row_of(*row, COUPLED) for row in ROWS]
    blocks = blocks_of(colocated, rows)
    assert len(set(map(tuple, blocks[:4]))) == 4
    for (seed, sample_index, _, length), row, block in zip(ROWS, rows, blocks, strict=True):
        row.sequence.num_rounds += 5
        drafter.extend(
            ContextUpdate([99], [0], [length - 1], torch.tensor(TEXT[: length - 1]), None)
        )
        method = Coupled(torch.tensor([0.8]), torch.tensor([seed]), torch.tensor([sample_index]))
        alone = drafter.draft(DraftBatch([99], torch.tensor([TEXT[length - 1]])), method)
        drafter.free(99)
        assert block == alone.token_ids[0].tolist()
    assert blocks_of(colocated, rows) == blocks
