"""What the service's own drawing and verification emit has the distribution of plain decoding,
sampled.

Chi-square over the outputs of three tokens, of all kinds of rows together, by every way in which a
batch can be verified. False-alarm rate 1e-6 a test; all seeds are fixed, so a test that passes once
always does. With probability above 0.9 a distribution is found that is off by a total variation of
at least

    0.07    by one method in one way
    0.03    by all methods in all ways together
    0.02    by all together, in the token at one place

in the direction that is hardest to see. `python -m tests.plants` shows what that is good for.
"""

import contextlib

import pytest
import torch

from draft_node.prespeculation.outcomes import NO_TOKEN, SlotNoise, rank_candidates
from specserve.audit.chi_square import power
from specserve.backends.torch import verification
from specserve.drafters.slot_scores import SlotScores
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import sample
from specserve.sampling.verification.method import VerificationMethod
from tests.exactness.simulation.distributions import DIFFERENT, VOCAB_SIZE, cells, fit
from tests.exactness.simulation.streams import PROMPT, Streams

pytestmark = pytest.mark.slow

FALSE_ALARMS = 1e-6
NUM_STREAMS = 12_000
REJECTION, FORESEEABLE, COUPLED = VerificationMethod
RATIO_METHODS = [REJECTION, FORESEEABLE]

# How a batch is verified.
RATIO = "rows, by ratio"
MIXED = "beside coupled rows, by ratio"
EQUALITY = "rows, by equality"
CASES = [(method, way) for method in RATIO_METHODS for way in (RATIO, MIXED)]
CASES.append((COUPLED, EQUALITY))


@contextlib.contextmanager
def verifying(way):
    """A machine on which batches are verified in this way, and in no other."""
    name = "verify" if way is EQUALITY else "_by_equality"

    def refuse(*_):
        raise AssertionError(f"{name} is not how {way} is verified")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, name, refuse)
        yield


@pytest.fixture(scope="module")
def outputs():
    """The streams of a case, and what they said; each case has noise of its own."""
    known = {}

    def outputs(method, way):
        if (method, way) not in known:
            first_nonce = 1 + CASES.index((method, way)) * NUM_STREAMS
            streams = Streams(method, NUM_STREAMS, first_nonce=first_nonce, are_mixed=way == MIXED)
            with verifying(way):
                known[method, way] = streams, streams.run()
        return known[method, way]

    return outputs


@pytest.mark.parametrize(("method", "way"), CASES)
def test_outputs_have_their_distribution(outputs, method, way):
    streams, tokens = outputs(method, way)
    assert fit(streams.counts(tokens), streams.expected()).p_value > FALSE_ALARMS


def test_all_outputs_together_have_their_distribution(outputs):
    found = [outputs(*case) for case in CASES]
    counts = sum(streams.counts(tokens) for streams, tokens in found)
    assert fit(counts, found[0][0].expected()).p_value > FALSE_ALARMS


@pytest.mark.parametrize("place", range(3))
def test_tokens_at_one_place_have_their_distribution(outputs, place):
    distributions = outputs(*CASES[0])[0].distributions
    tokens = [outputs(*case)[1][:, place] for case in CASES]
    counts = sum(distributions.counts(each, VOCAB_SIZE) for each in tokens)
    expected = [
        distributions.outputs(kind, len(PROMPT) + place, 1)
        for kind in range(distributions.num_kinds)
    ]
    assert fit(counts, expected).p_value > FALSE_ALARMS


@pytest.mark.parametrize(("method", "way"), CASES)
def test_the_samples_of_a_request_are_independent(outputs, method, way):
    """Jointly, the first tokens of both."""
    streams, tokens = outputs(method, way)
    kinds = range(streams.distributions.num_kinds)
    first = [streams.distributions.outputs(kind, len(PROMPT), 1) for kind in kinds]
    # Rows 2 r and 2 r + 1 are of kinds 2 r and 2 r + 1, counted around.
    siblings = [(2 * kind % len(kinds), (2 * kind + 1) % len(kinds)) for kind in kinds]
    distribution = [torch.outer(first[left], first[right]).flatten() for left, right in siblings]
    counts = streams.distributions.counts(cells(tokens[:, 0].view(-1, 2)), VOCAB_SIZE**2)
    assert fit(counts, distribution).p_value > FALSE_ALARMS


def test_the_power_is_as_stated(outputs):
    """By the degrees of freedom that tests of these sizes have."""
    streams, tokens = outputs(*CASES[0])
    counts, expected = streams.counts(tokens), streams.expected()
    one, together = fit(counts, expected), fit(counts * len(CASES), expected)
    assert power(NUM_STREAMS, one.freedom, 0.07, FALSE_ALARMS) > 0.9
    num_streams = NUM_STREAMS * len(CASES)
    assert power(num_streams, together.freedom, 0.03, FALSE_ALARMS) > 0.9
    most = streams.distributions.num_kinds * (VOCAB_SIZE - 1)
    assert power(num_streams, most, 0.02, FALSE_ALARMS) > 0.9


def test_p_values_of_sound_methods_are_uniform(outputs):
    """Kolmogorov-Smirnov over 100 independent runs, at 1e-4."""
    values = []
    for case in CASES:
        streams, tokens = outputs(*case)
        size = (
            NUM_STREAMS // 20 // streams.distributions.num_kinds * streams.distributions.num_kinds
        )
        values += [
            fit(streams.counts(tokens[start : start + size]), streams.expected()).p_value
            for start in range(0, 20 * size, size)
        ]
    steps = torch.arange(1, len(values) + 1) / len(values)
    assert len(values) == 100
    assert (torch.tensor(values).sort().values - steps).abs().max() < 0.222 + 0.01


# --- foreseeable -----------------------------------------------------------------------------


class Foreseeing(Streams):
    """One outcome is prepared, the one that the draft expects; a row without it drafts nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.was_hit = {}
        self.num_guesses = self.num_hits = 0

    def verify_len(self, sequence):
        return self.gamma if self.was_hit.get(sequence, True) else 0

    def observe(self, rows, results):
        pairs = zip(rows, results, strict=True)
        going_on = [(row, result) for row, result in pairs if result.finish_reason is None]
        if not going_on:
            return
        guesses = self.guesses(*zip(*going_on, strict=True))
        self.num_guesses += len(guesses)
        for (row, result), guess in zip(going_on, guesses, strict=True):
            self.was_hit[row.sequence] = guess == result.token_ids[-1]
            self.num_hits += self.was_hit[row.sequence]

    def guesses(self, rows, results):
        """The next token of each, as the draft foresees it."""
        states = [self.sampler.state(row.sequence) for row in rows]
        # the sampler has advanced them: to the token behind the one that is guessed.
        seeds, samples, positions = torch.tensor(
            [(state.seed_bits, state.sample_index, state.position - 1) for state in states]
        ).T
        rejected = torch.tensor(
            [
                (*row.drafted, NO_TOKEN)[result.num_accepted]
                for row, result in zip(rows, results, strict=True)
            ]
        )
        numbers = torch.tensor([row.sequence.arrival for row in rows])
        probs = self.expected_probs(numbers, positions, rejected)
        slots = SlotScores(torch.arange(VOCAB_SIZE).expand(len(rows), -1), probs.log())
        noise = SlotNoise(seeds, samples, positions, torch.ones_like(seeds, dtype=torch.bool))
        return rank_candidates(slots, noise, rejected, 1)[:, 0].tolist()

    def expected_probs(self, numbers, positions, rejected):
        """By rows, where their next tokens stand, and what was rejected there: [N, V]."""
        return self.distributions.at(self.distributions.drafts, numbers, positions)


class Knowing(Foreseeing):
    """By the distribution that the next token is drawn from, which no draft has."""

    def expected_probs(self, numbers, positions, rejected):
        target = self.distributions.at(self.distributions.targets, numbers, positions)
        residual = (target - super().expected_probs(numbers, positions, rejected)).clamp(min=0)
        return torch.where((rejected == NO_TOKEN)[:, None], target, residual)


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_hits_that_depend_on_noise_up_to_their_token_leave_the_distribution_alone(method):
    streams = Foreseeing(method, NUM_STREAMS, first_nonce=10**6)
    tokens = streams.run()
    assert fit(streams.counts(tokens), streams.expected()).p_value > FALSE_ALARMS
    assert 0.15 < streams.num_hits / streams.num_guesses < 0.9


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_the_next_token_can_be_foreseen_under_shared_noise_only(method):
    streams = Knowing(method, 1000, pairs=[DIFFERENT], num_tokens=6)
    streams.run()
    rate = streams.num_hits / streams.num_guesses
    assert rate > 0.99 if method is FORESEEABLE else rate < 0.8


class Once(Streams):
    """One drafted token a row."""

    def verify_len(self, sequence):
        return 1


def test_acceptance_is_independent_of_the_noise_that_the_draft_knows():
    """Drafted token, whether it stood, and the token that shared noise draws."""
    streams = Once(FORESEEABLE, NUM_STREAMS, pairs=[DIFFERENT], first_nonce=2 * 10**6)
    states = [streams.sampler.state(sequence).fork() for sequence in streams.sequences]
    rows, results = streams.play_round(streams.sequences)
    positions = torch.full((NUM_STREAMS,), len(PROMPT))
    targets = streams.distributions.at(
        streams.distributions.targets, torch.arange(NUM_STREAMS), positions
    )
    winners = sample(targets.log(), SamplingBatch.build(states)).token_ids
    stood = torch.tensor([result.num_accepted for result in results])
    drafted = torch.tensor([row.drafted[0] for row in rows])
    expected = []
    for kind in range(streams.distributions.num_kinds):
        p, q = (
            tables[kind, len(PROMPT)].double()
            for tables in (streams.distributions.targets, streams.distributions.drafts)
        )
        accept = (p / q).clamp(max=1).nan_to_num()
        by_draft = torch.stack((q * (1 - accept), q * accept), dim=1)  # [drafted, stood]
        expected.append(torch.einsum("da,w->daw", by_draft, p / p.sum()).flatten())
    found = (drafted * 2 + stood) * VOCAB_SIZE + winners
    counts = streams.distributions.counts(found, 2 * VOCAB_SIZE**2)
    assert fit(counts, expected).p_value > FALSE_ALARMS
