import pytest
import torch

from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch, StoppingThreshold
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Greedy, Sampled
from tests.backends.chosen import BACKEND
from tests.golden_case import Session
from tests.specserve.models.checkpoints import load


@pytest.fixture(scope="module")
def model(target):
    return load(target.folder)


@pytest.fixture
def drafter(model):
    return LanguageModelDrafter(model, backend=BACKEND, gamma=5, num_context_tokens=512)


def extend(drafter, row, token_ids):
    start = drafter.context_len(row)
    drafter.extend(ContextUpdate([row], [start], [len(token_ids)], torch.tensor(token_ids), None))


def greedy(model, token_ids, count):
    """What the model itself continues with, one token at a time."""
    session, text = Session(model, 128), list(token_ids)
    hidden, _ = session.feed(torch.tensor(text))
    for _ in range(count):
        text.append(int(session.logits(hidden[-1:]).argmax()))
        hidden, _ = session.feed(torch.tensor(text[-1:]))
    return text[len(token_ids) :]


def test_greedy_drafts_are_what_the_model_itself_would_say(model, drafter):
    texts = {0: [5, 9, 33, 2], 1: list(range(40)), 2: [7]}
    for row, text in texts.items():
        extend(drafter, row, text)
    rows, anchors = [2, 0, 1, 0], [3, 9, 40, 12]
    drafted = drafter.draft(DraftBatch(rows, torch.tensor(anchors)), Greedy()).token_ids
    for place, row in enumerate(rows):
        assert drafted[place].tolist() == greedy(model, [*texts[row], anchors[place]], 5)


def test_the_context_may_run_ahead_and_be_rolled_back(model, drafter):
    text, flight = list(range(30, 50)), [1, 2, 3, 4, 5, 6]
    extend(drafter, 0, text)
    extend(drafter, 0, flight)
    lengths, anchors = [21, 23, 26], [8, 9, 10]
    batch = DraftBatch([0] * 3, torch.tensor(anchors), context_lens=lengths)
    drafted = drafter.draft(batch, Greedy()).token_ids
    whole = text + flight
    for place, length in enumerate(lengths):
        expected = greedy(model, [*whole[:length], anchors[place]], 5)
        assert drafted[place].tolist() == expected
    drafter.truncate(0, 22)
    extend(drafter, 0, [60])
    drafted = drafter.draft(DraftBatch([0], torch.tensor([7])), Greedy()).token_ids
    assert drafted[0].tolist() == greedy(model, [*whole[:22], 60, 7], 5)


def test_many_rows_are_extended_at_once(model, drafter):
    texts = [[5, 9, 33], list(range(20)), [7]]
    flat = torch.tensor([token for text in texts for token in text])
    drafter.extend(ContextUpdate([4, 5, 6], [0] * 3, [3, 20, 1], flat, None))
    drafted = drafter.draft(DraftBatch([4, 5, 6], torch.tensor([1, 2, 3])), Greedy()).token_ids
    for place, text in enumerate(texts):
        assert drafted[place].tolist() == greedy(model, [*text, place + 1], 5)


def test_logits_are_kept_when_asked_for(drafter):
    extend(drafter, 0, [5, 9, 33, 2])
    batch = DraftBatch([0, 0], torch.tensor([3, 4]), keep_logits=True)
    kept = drafter.draft(batch, Greedy())
    assert torch.equal(kept.logits.argmax(2), kept.token_ids)
    assert kept.logits.shape == (2, 5, 64)


@pytest.mark.parametrize(
    ("threshold", "width"), [(StoppingThreshold(1e9, 0.0), 1), (StoppingThreshold(0.0, 0.0), 5)]
)
def test_a_chain_that_does_not_pay_is_the_beginning_of_the_whole(drafter, threshold, width):
    extend(drafter, 0, [5, 9, 33, 2])
    drafter.probs_confidence = lambda slot, logits: logits.softmax(-1).amax(-1)
    anchors = torch.tensor([3, 4])
    whole = drafter.draft(DraftBatch([0, 0], anchors), Greedy())
    found = drafter.draft(DraftBatch([0, 0], anchors, threshold=threshold), Greedy())
    assert torch.equal(found.token_ids, whole.token_ids[:, :width])
    torch.testing.assert_close(found.confidences, whole.confidences[:, :width])


def test_without_confidences_no_chain_ends_early(drafter):
    extend(drafter, 0, [5, 9, 33, 2])
    batch = DraftBatch([0], torch.tensor([3]), threshold=StoppingThreshold(1e9, 1.0))
    assert drafter.draft(batch, Greedy()).token_ids.shape == (1, 5)


def test_tokens_of_many_rows_wait_for_the_next_draft_and_long_ones_do_not(model, drafter):
    texts = {row: list(range(1, 9 + row)) for row in range(6)}
    for row, text in texts.items():
        extend(drafter, row, text)
    assert drafter._waiting.most == 13
    extend(drafter, 6, list(range(40)))
    assert drafter._waiting.most == 0
    for row, text in texts.items():
        extend(drafter, row, [50, 51])
        text += [50, 51]
    drafted = drafter.draft(DraftBatch([1, 4, 6], torch.tensor([7, 8, 9])), Greedy()).token_ids
    for place, text in enumerate(([*texts[1], 7], [*texts[4], 8], [*range(40), 9])):
        assert drafted[place].tolist() == greedy(model, text, 5)


@pytest.mark.parametrize(("due_s", "width"), [(0.0, 2), (float("inf"), 5)])
def test_a_chain_that_is_cut_off_is_the_beginning_of_the_whole(drafter, due_s, width):
    extend(drafter, 0, [5, 9, 33, 2])
    anchors = torch.tensor([3, 4])
    whole = drafter.draft(DraftBatch([0, 0], anchors, keep_logits=True), Greedy())
    batch = DraftBatch([0, 0], anchors, keep_logits=True, due_s=due_s)
    zeros = [0, 0]
    keys = OnceKeys.build([1, 2], zeros, zeros, zeros, zeros)
    sampler = Sampled(torch.ones(2), keys, num_kept=16)
    found, sampled = drafter.draft(batch, Greedy()), drafter.draft(batch, sampler)
    assert torch.equal(found.token_ids, whole.token_ids[:, :width])
    torch.testing.assert_close(found.logits, whole.logits[:, :width])
    assert sampled.token_ids.shape == (2, width)
    assert sampled.draft_probs.ids.shape == (2 * width, 16)


def test_tokens_that_entered_with_a_draft_wait_no_longer_and_its_end_is_timed(drafter):
    extend(drafter, 0, [5, 9, 2, 7])
    assert drafter._waiting.most == 4
    drafter.draft(DraftBatch([0], torch.tensor([3])), Greedy())
    assert drafter._waiting.most == 0
    assert drafter._ending.timer._after_s > 0
