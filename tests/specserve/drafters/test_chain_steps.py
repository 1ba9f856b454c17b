"""Chains step by step: confidences come from probabilities, known before a token is drawn."""

import torch

from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Greedy, Sampled
from tests.backends.chosen import BACKEND
from tests.specserve.models.checkpoints import load


class Watching:
    """A `ProbsConfidence` by the largest probability, and a sampler that tells its draws."""

    def __init__(self, inner):
        self.inner = inner
        self.events = []

    def __call__(self, first_slot, logits):
        self.events.append(("confidence", first_slot))
        return logits.softmax(-1).amax(-1)

    def begin(self, layout):
        self.draws = self.inner.begin(layout)
        return self

    def draw(self, first_slot, logits):
        self.events.append(("draw", first_slot))
        return self.draws.draw(first_slot, logits)

    def draft_probs(self):
        return self.draws.draft_probs()


def drafted(target, sampler):
    watching = Watching(sampler)
    drafter = LanguageModelDrafter(
        load(target.folder),
        backend=BACKEND,
        gamma=4,
        num_context_tokens=256,
        probs_confidence=watching,
    )
    drafter.extend(ContextUpdate([0], [0], [5], torch.tensor([5, 9, 2, 30, 7]), None))
    batch = DraftBatch([0, 0], torch.tensor([3, 14]), keep_logits=True)
    return drafter.draft(batch, watching), watching.events


def test_confidences_are_those_of_the_distributions_whatever_is_drawn(target):
    zeros = [0, 0]
    keys = OnceKeys.build([1, 2], zeros, zeros, [1, 2], zeros)
    for sampler in (Greedy(), Sampled(torch.ones(2), keys, 16)):
        found, _ = drafted(target, sampler)
        assert found.logits is not None
        torch.testing.assert_close(found.confidences, found.logits.softmax(-1).amax(-1))


def test_a_slots_confidences_are_known_before_its_tokens_are_drawn(target):
    _, events = drafted(target, Greedy())
    assert events == [(kind, slot) for slot in range(4) for kind in ("confidence", "draw")]
