"""The real tensor code, sampled: its output has the law of plain decoding.

Chi-square over the 27 outputs of three tokens. False-alarm rate 1e-6 a case; all seeds are fixed,
so a case that passes once always does. A law that is off by a total variation of 0.02 is found with
a probability above 0.9 by 60,000 streams, one that is off by 0.008 by 400,000.
"""

import pytest
import torch

from specserve.decoding.verification.rule import VerificationRule
from tests.exactness.simulation.streams import (
    DRAFT,
    TARGET,
    Streams,
    cells,
    expected_law,
    p_value,
)

pytestmark = pytest.mark.slow

FALSE_ALARMS = 1e-6
NUM_STREAMS = 60_000


def law_p_value(streams, num_tokens=3, target=TARGET):
    tokens = streams.run(num_tokens)
    return p_value(cells(tokens, len(target[0])), expected_law(num_tokens, target))


@pytest.mark.parametrize("rule", VerificationRule)
@pytest.mark.parametrize(
    ("target", "draft"),
    [
        pytest.param(TARGET, DRAFT, id="different"),
        pytest.param(TARGET, TARGET, id="equal"),
        pytest.param(TARGET, [[0.0, 0.0, 1.0]], id="one-hot"),
        pytest.param(
            [[0.6, 0.4, 0.0], [0.0, 0.3, 0.7]],
            [[0.1, 0.1, 0.8], [0.9, 0.0, 0.1]],
            id="zeros",
        ),
    ],
)
def test_three_tokens_have_their_law(rule, target, draft):
    streams = Streams(rule, NUM_STREAMS, target, draft)
    assert law_p_value(streams, target=target) > FALSE_ALARMS


@pytest.mark.parametrize("rule", VerificationRule)
def test_three_tokens_have_their_law_to_a_hundredth(rule):
    class Long(Streams):
        gamma = 3

    assert law_p_value(Long(rule, 400_000, first_nonce=10**6)) > FALSE_ALARMS


@pytest.mark.parametrize(
    ("num_streams", "distance"),
    [(NUM_STREAMS, 0.02), pytest.param(400_000, 0.008)],
)
def test_the_power_is_as_stated(num_streams, distance):
    """For the direction that is hardest to see: all probabilities of one half of the law scaled."""
    law = expected_law(3)
    order = law.sort(descending=True).indices
    half = torch.zeros_like(law)
    half[order[::2]] = 1.0
    up, down = (law * half).sum(), (law * (1 - half)).sum()
    wrong = law * torch.where(half > 0, 1 + distance / up, 1 - distance / down)
    assert (wrong - law).abs().sum() / 2 == pytest.approx(distance)
    generator = torch.Generator().manual_seed(0)
    found = 0
    for _ in range(60):
        draws = torch.multinomial(wrong, num_streams, replacement=True, generator=generator)
        found += p_value(draws, law) < FALSE_ALARMS
    assert found >= 54


def test_p_values_of_a_sound_rule_are_uniform():
    """Kolmogorov-Smirnov over 100 independent runs, at 1e-4."""
    values = torch.tensor(
        [
            law_p_value(Streams(VerificationRule.REJECTION, 4000, first_nonce=1 + 4000 * i))
            for i in range(100)
        ]
    )
    steps = torch.arange(1, 101) / 100
    assert (values.sort().values - steps).abs().max() < 0.223 + 0.01


# --- foreseeable ----------------------------------------------------------------------------


class Foreseeing(Streams):
    """Prepares one outcome for each k, the likeliest by noise; what it got right is counted."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.hit = torch.zeros_like(self.streams, dtype=torch.bool)
        self.guesses = self.hits = 0

    def verify_lens(self, drafted):
        return torch.where(self.hit, self.gamma, 0) if self.round_id else 0 * self.lengths + 2

    def observe(self, drafted, verify_lens, num_accepted, next_tokens):
        self.hit = self.guess(drafted, verify_lens, num_accepted) == next_tokens
        self.guesses += len(self.hit)
        self.hits += int(self.hit.sum())


@pytest.mark.parametrize("rule", [VerificationRule.FORESEEABLE, VerificationRule.REJECTION])
def test_hits_that_depend_on_noise_up_to_their_token_leave_the_law_alone(rule):
    streams = Foreseeing(rule, NUM_STREAMS, first_nonce=77)
    assert law_p_value(streams) > FALSE_ALARMS
    assert 0.3 < streams.hits / streams.guesses < 0.9


def test_the_next_token_can_be_foreseen_under_shared_noise_only():
    """By a draft that has the exact residual, and noise that plain rejection does not use."""

    class Knowing(Foreseeing):
        def observe(self, drafted, verify_lens, num_accepted, next_tokens):
            positions = self.lengths + num_accepted
            probs = self.target[positions % len(self.target)].exp()
            law = self.draft_weights[positions % len(self.draft_weights)]
            residual = (probs - law).clamp(min=0)
            probs = torch.where((num_accepted < verify_lens).unsqueeze(1), residual, probs)
            guess = (self.shared_noise(positions) / probs).argmin(dim=1)
            self.hit = guess == next_tokens
            self.guesses += len(guess)
            self.hits += int(self.hit.sum())

    rates = {}
    for rule in (VerificationRule.FORESEEABLE, VerificationRule.REJECTION):
        streams = Knowing(rule, 5000)
        streams.run(4)
        rates[rule] = streams.hits / streams.guesses
    assert rates[VerificationRule.FORESEEABLE] > 0.999
    assert rates[VerificationRule.REJECTION] < 0.8


def test_acceptance_is_independent_of_the_noise_that_the_draft_knows():
    """Accepted or not, against the winner of the shared race and the drafted token: 1e-6."""
    streams = Streams(VerificationRule.FORESEEABLE, NUM_STREAMS)
    streams.verify_lens = lambda drafted: torch.ones_like(streams.lengths)
    drafted, num_accepted, _ = streams.play_round()
    winners = (streams.shared_noise(streams.lengths) / streams.target[0].exp()).argmin(dim=1)
    p, q = (torch.tensor(law[0], dtype=torch.float64) for law in (TARGET, DRAFT))
    accept = (p / q).clamp(max=1)
    by_draft = torch.stack((q * (1 - accept), q * accept), dim=1)  # [drafted, accepted]
    law = torch.einsum("da,w->daw", by_draft, p).flatten()
    indices = (drafted[:, 0] * 2 + num_accepted) * 3 + winners
    assert p_value(indices, law) > FALSE_ALARMS
