"""Many samples decoded round by round by the real `verify`, with the policies of a service around.

Laws depend on the position alone, so plain decoding emits independent tokens with known laws, and
what a wrong row, key or policy does to them shows. A policy is a method; planted bugs override it.
"""

import torch

from specserve.decoding.batch import SamplingBatch
from specserve.decoding.draft_law import DraftLaw
from specserve.decoding.sampling import NO_TOKEN
from specserve.decoding.verification import verify as verify_module
from specserve.decoding.verification.batch import RatioKeys, RowGroup, VerificationBatch
from specserve.decoding.verification.rule import VerificationRule
from specserve.noise import OnceKeys, Purpose, exponential_noise_at

_PERIOD = 3  # positions after which the laws repeat
TARGET = [[0.55, 0.3, 0.15], [0.1, 0.3, 0.6], [0.4, 0.4, 0.2]]
DRAFT = [[0.3, 0.3, 0.4], [0.4, 0.35, 0.25], [0.25, 0.65, 0.1]]


class Streams:
    """`num_streams` samples under one rule; every round drafts `gamma` tokens for each."""

    gamma = 2

    def __init__(self, rule, num_streams, target=TARGET, draft=DRAFT, first_nonce=1):
        self.rule = rule
        self.target = torch.tensor(target).log()
        self.draft_weights = torch.tensor(draft)
        self.streams = torch.arange(num_streams)
        self.nonces = self.streams + first_nonce
        self.sample_indices = torch.zeros_like(self.nonces)
        self.lengths = torch.zeros_like(self.nonces)
        self.round_id = 0

    # --- policies ----------------------------------------------------------------------------

    def drawn_law(self, positions):
        """What drafts are drawn from at these positions, [N]."""
        return DraftLaw.top(self.draft_weights[positions % len(self.draft_weights)], 3)

    def shipped_law(self, positions):
        return self.drawn_law(positions)

    def draft_keys(self, positions):
        return once_keys(self.nonces, self.sample_indices, positions, self.round_id)

    def verify_lens(self, drafted):
        """int64 [N]. Here: any length, by stream and round, whatever was drafted."""
        return (self.streams + self.round_id) % (self.gamma + 1)

    def observe(self, drafted, verify_lens, num_accepted, next_tokens):
        """Sees each round's outcomes before `lengths` advance."""

    # --- the round ---------------------------------------------------------------------------

    def run(self, num_tokens):
        """The first `num_tokens` tokens of every stream, int64 [N, num_tokens]."""
        output = torch.full((len(self.streams), num_tokens + self.gamma + 1), NO_TOKEN)
        while bool((self.lengths < num_tokens).any()):
            drafted, num_accepted, next_tokens = self.play_round()
            tokens = torch.cat((drafted, next_tokens.unsqueeze(1)), dim=1)
            tokens = tokens.scatter(1, num_accepted.unsqueeze(1), next_tokens.unsqueeze(1))
            for place in range(self.gamma + 1):
                # What lies beyond the accepted tokens is overwritten by the next round.
                at = (self.lengths + place).clamp(max=output.shape[1] - 1)
                output.scatter_(1, at.unsqueeze(1), tokens[:, place : place + 1])
            self.lengths = (self.lengths + num_accepted + 1).clamp(max=num_tokens)
        return output[:, :num_tokens]

    def play_round(self):
        drafted = torch.stack([self.draft_at(i) for i in range(self.gamma)], dim=1)
        verify_lens = self.verify_lens(drafted)
        batch, row_of, offsets = self.batch_of(drafted, verify_lens)
        positions = self.lengths[row_of] + offsets
        judging = offsets < verify_lens[row_of]
        law = self.shipped_law(positions[judging])
        logits = self.target[positions % len(self.target)]
        coupled = self.rule is VerificationRule.COUPLED
        found = verify_module.verify(logits, batch, None if coupled else law)
        self.observe(drafted, verify_lens, found.num_accepted, found.next_tokens)
        self.round_id += 1
        return drafted, found.num_accepted, found.next_tokens

    def draft_at(self, offset):
        positions = self.lengths + offset
        law = self.drawn_law(positions)
        if self.rule is not VerificationRule.COUPLED:
            return law.draw(self.draft_keys(positions))
        winners = (self.output_noise(positions, law.ids) / law.probs).argmin(dim=1, keepdim=True)
        return law.ids.gather(1, winners).squeeze(1)

    def shared_noise(self, positions):
        """The same for the whole vocabulary."""
        ids = torch.arange(self.target.shape[1]).expand(len(positions), -1)
        return self.output_noise(positions, ids)

    def guess(self, drafted, verify_lens, k):
        """What the draft takes for the next token if k tokens stand, int64 [N] as k: its own law
        raced on the shared noise, without the token that was then rejected."""
        positions = self.lengths + k
        weights = self.draft_weights[positions % len(self.draft_weights)]
        rejected = drafted.gather(1, k.clamp(max=self.gamma - 1).unsqueeze(1))
        others = weights.scatter(1, rejected, 0.0)
        weights = torch.where((k < verify_lens).unsqueeze(1), others, weights)
        return (self.shared_noise(positions) / weights).argmin(dim=1)

    def output_noise(self, positions, ids):
        """The noise that target and draft share, float32 [N, M]."""
        keys = (self.nonces, self.sample_indices, positions)
        return exponential_noise_at(*keys, Purpose.OUTPUT, ids)

    def batch_of(self, drafted, verify_lens):
        """The round's batch, and for every logits row its stream and place; no Python a row."""
        row_of = torch.repeat_interleave(self.streams, verify_lens + 1)
        starts = (verify_lens + 1).cumsum(0) - verify_lens - 1
        offsets = torch.arange(len(row_of)) - starts[row_of]
        judging = offsets < verify_lens[row_of]
        tokens = drafted[row_of, offsets.clamp(max=self.gamma - 1)]
        nonces, samples = self.nonces[row_of], self.sample_indices[row_of]
        positions = self.lengths[row_of] + offsets
        places = judging.nonzero().squeeze(1)
        coupled = self.rule is VerificationRule.COUPLED
        group = RowGroup(
            rule=self.rule,
            rows=self.streams,
            logits_rows=None,
            sampling=SamplingBatch(
                num_rows=len(row_of),
                greedy_rows=None,
                random_rows=torch.arange(len(row_of)),
                temperatures=torch.ones(len(row_of), dtype=torch.float64),
                keys=torch.stack((positions, samples, nonces)),
                edits=None,
                truncation=None,
            ),
            drafted=torch.where(judging, tokens, NO_TOKEN),
            starts=starts,
            verify_lens=verify_lens,
            max_verify_len=self.gamma,
            ratio=None
            if coupled
            else RatioKeys(
                once=once_keys(nonces, samples, positions, self.round_id),
                law_rows=torch.arange(len(places)),
                law_places=places,
            ),
        )
        batch = VerificationBatch(len(self.streams), len(row_of), len(places), (group,))
        return batch, row_of, offsets


def once_keys(nonces, sample_indices, positions, round_id):
    """`OnceKeys.build` for tensors; branch 0."""
    return OnceKeys(nonces, positions, sample_indices | round_id << 12, torch.zeros_like(nonces))


def expected_law(num_tokens, target=TARGET):
    """Probabilities of all outputs of this length, flattened, float64."""
    law = torch.ones(1, dtype=torch.float64)
    for position in range(num_tokens):
        probs = torch.tensor(target[position % len(target)], dtype=torch.float64)
        law = torch.outer(law, probs).flatten()
    return law


def cells(tokens, num_values):
    """Each row of `tokens` [N, T] as one index into `expected_law`."""
    index = torch.zeros_like(tokens[:, 0])
    for column in tokens.unbind(dim=1):
        index = index * num_values + column
    return index


def p_value(indices, law):
    """Chi-square test of indices int64 [N] against a law over all of them, float64."""
    counts = torch.bincount(indices, minlength=len(law)).double()
    if counts[law == 0].sum() > 0:
        return 0.0
    expected = law[law > 0] * len(indices)
    assert expected.min() >= 5, "merge cells: too few draws expected in one"
    statistic = ((counts[law > 0] - expected) ** 2 / expected).sum()
    half = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(half, statistic / 2).item()
