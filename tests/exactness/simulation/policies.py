"""Policies of an asynchronous service around verification, each sound and with its planted bug.

The sound ones keep the rules of docs/decisions/0008; the planted ones break one each.
"""

import torch

from specserve.decoding.draft_law import PAD_ID, DraftLaw
from tests.exactness.simulation.streams import Streams, once_keys

# --- rule 1: noise inside one position only --------------------------------------------------


class ConfidentFanOut(Streams):
    """One outcome is prepared a round: which k, is drawn from the round; which token, by noise."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.hit = torch.zeros_like(self.streams, dtype=torch.bool)

    def verify_lens(self, drafted):
        return torch.where(self.hit, 1, 0) if self.round_id % 2 else torch.ones_like(self.lengths)

    def prepared(self):
        """The k that is prepared for each stream."""
        return (self.streams + self.round_id) % 2

    def observe(self, drafted, verify_lens, num_accepted, next_tokens):
        guess = self.guess(drafted, verify_lens, num_accepted)
        self.hit = (num_accepted == self.prepared()) & (guess == next_tokens)


class MarginFanOut(ConfidentFanOut):
    """Prefers the k whose noise leaves least doubt, although k = 1 lies beyond an outcome of 0."""

    def prepared(self):
        margins = []
        for k in range(2):
            positions = self.lengths + k
            weights = self.draft_weights[positions % len(self.draft_weights)]
            times = (self.shared_noise(positions) / weights).sort(dim=1).values
            margins.append(times[:, 1] / times[:, 0])
        return (margins[1] > margins[0]).long()


# --- rule 2: keys never reused ---------------------------------------------------------------


class LateCapacity(Streams):
    """This round's length follows from confidences of two rounds ago, which knew tokens."""

    gamma = 4

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.past = []

    def verify_lens(self, drafted):
        self.past.append(drafted)
        if len(self.past) < 3:
            return torch.zeros_like(self.lengths)
        return (self.past[-3][:, 2] == 0).long()


class KeysOfPosition(LateCapacity):
    """Draft noise by position alone: what was drafted two rounds ago is drafted again."""

    def draft_keys(self, positions):
        return once_keys(self.nonces, self.sample_indices, positions, 0)


# --- rule 3: confidence before the draw ------------------------------------------------------


class ConfidenceOfLaw(Streams):
    """A drafter without a confidence head: the maximum of its law stands in."""

    threshold = 0.38

    def confidence(self, law, drafted):
        return law.probs.amax(dim=1)

    def verify_lens(self, drafted):
        sure = [
            self.confidence(self.drawn_law(self.lengths + k), drafted[:, k]) > self.threshold
            for k in range(self.gamma)
        ]
        return torch.stack(sure, dim=1).long().cumprod(dim=1).sum(dim=1)


class ConfidenceOfToken(ConfidenceOfLaw):
    def confidence(self, law, drafted):
        return law.at(drafted)


# --- rule 4: token-independent lateness ------------------------------------------------------


class FixedWaves(Streams):
    """A wave carries two streams' blocks; every third wave is late, and late blocks are lost."""

    def late(self, drafted):
        return (self.streams // 2 + self.round_id) % 3 == 0

    def verify_lens(self, drafted):
        return torch.where(self.late(drafted), 0, self.gamma)


class WavesByContent(FixedWaves):
    """Rare tokens take more bytes, and a wave of many bytes comes late."""

    def late(self, drafted):
        size = (drafted == 2).sum(dim=1).view(-1, 2).sum(dim=1)
        return (size > 1).repeat_interleave(2)


class LateDrops(FixedWaves):
    """A block is dropped when its first token took the draft long."""

    def late(self, drafted):
        return drafted[:, 0] == 2


# --- what is shipped, and to whom ------------------------------------------------------------


class NarrowLaw(Streams):
    """Draws from the two likeliest tokens, and says so."""

    def drawn_law(self, positions):
        return DraftLaw.top(self.draft_weights[positions % len(self.draft_weights)], 2)


class RawLaw(NarrowLaw):
    """Draws from two tokens and ships the law over three."""

    def shipped_law(self, positions):
        return Streams.drawn_law(self, positions)


class StaleLaw(Streams):
    """Ships the law of the position before."""

    def shipped_law(self, positions):
        return self.drawn_law(positions + len(self.draft_weights) - 1)


class TwoSamples(Streams):
    """Streams come in pairs: two samples of one request."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.nonces = self.streams // 2 + 1
        self.sample_indices = self.streams % 2


class SharedCache(TwoSamples):
    """Both samples verify the block that was drafted for one."""

    def draft_keys(self, positions):
        return once_keys(self.nonces, torch.zeros_like(self.nonces), positions, self.round_id)


class Fillers(Streams):
    """On a miss the row carries random tokens under empty laws, which count as no draft."""

    def is_miss(self):
        return (self.streams + self.round_id) % 2 == 0

    def verify_lens(self, drafted):
        return torch.full_like(self.lengths, self.gamma)

    def drawn_law(self, positions):
        law = super().drawn_law(positions)
        if len(positions) != len(self.streams):  # laws of one round, flattened
            miss = self.is_miss().repeat_interleave(self.gamma).unsqueeze(1)
            return DraftLaw(torch.where(miss, PAD_ID, law.ids), torch.where(miss, 0.0, law.probs))
        return law
