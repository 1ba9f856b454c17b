"""The suite finds what it is there to find: sixteen bugs, planted one at a time, and nothing else.

Each case names a check, and a plant that breaks the real code or one policy around it. The check
has to pass without the plant and to fail with it. The first twelve are bugs that other services had
or could have had; the last four break the rules that docs/decisions/0008 lists.
"""

import contextlib
import dataclasses
from collections.abc import Callable

import pytest
import torch

from specserve.decoding.batch import SamplingBatch
from specserve.decoding.draft_law import DraftLaw
from specserve.decoding.sampling import NO_TOKEN, TargetLaws, sample
from specserve.decoding.verification import batch as batch_module
from specserve.decoding.verification import verify as verify_module
from specserve.decoding.verification.batch import RowToVerify, VerificationBatch
from specserve.decoding.verification.rule import VerificationRule
from specserve.noise import OnceKeys, Purpose
from tests.exactness.simulation import policies
from tests.exactness.simulation.streams import TARGET, Streams, cells, expected_law, p_value
from tests.specserve.decoding.test_sampling import state

FALSE_ALARMS = 1e-6
NUM_STREAMS = 16_000
TWO_TOKENS = {"target": [[0.7, 0.3]], "draft": [[0.1, 0.9]]}
RATIO_RULES = [VerificationRule.REJECTION, VerificationRule.FORESEEABLE]


# --- checks: true if nothing is wrong --------------------------------------------------------


def has_the_law(policy, rule, num_streams=NUM_STREAMS, **laws):
    target = laws.get("target", TARGET)
    tokens = policy(rule, num_streams, **laws).run(3)
    return p_value(cells(tokens, len(target[0])), expected_law(3, target)) > FALSE_ALARMS


def has_independent_samples(policy, rule):
    """Jointly, the first tokens of two samples of each request."""
    first = policy(rule, NUM_STREAMS).run(1).view(-1, 2)
    law = torch.outer(expected_law(1), expected_law(1)).flatten()
    return p_value(cells(first, 3), law) > FALSE_ALARMS


def follows_its_seed(policy, rule):
    """Rows with seeds of their own, against `sample` under those seeds."""
    states = [state(seed=seed) for seed in range(50)]
    logits = torch.zeros(50, 16)
    rows = [RowToVerify(rule, s) for s in states]
    found = verify_module.verify(logits, VerificationBatch.build(rows))
    return torch.equal(found.next_tokens, sample(logits, SamplingBatch.build(states)).token_ids)


def never_accepts_the_impossible(policy, rule):
    """At the least variate there could be, which noise of 24 bits would reach now and then."""
    logits = torch.tensor([[0.0, float("-inf")], [0.0, 0.0]])
    batch = VerificationBatch.build([RowToVerify(rule, state(), [1])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnceKeys, "uniform", lambda keys, purpose: torch.zeros(len(keys.nonces)))
        found = verify_module.verify(logits, batch, DraftLaw.certain(torch.tensor([1])))
    return found.num_accepted.tolist() == [0] and found.next_tokens.tolist() == [0]


def stops_at_nan(policy, rule):
    logits = torch.full((2, 4), float("nan"))
    batch = VerificationBatch.build([RowToVerify(rule, state(), [1])])
    found = verify_module.verify(logits, batch, DraftLaw.certain(torch.tensor([1])))
    outcome = (int(found.num_accepted), int(found.next_tokens), bool(found.bad_rows))
    return outcome == (0, NO_TOKEN, True)


# --- plants in the real code -----------------------------------------------------------------


def by_torch(patch):
    """The compiled test has its own checks: it finds what these parts find."""
    patch.setattr(verify_module, "by_compiled_ratio", lambda *_: None)


def shift_rows(patch):
    by_torch(patch)
    real = verify_module.target_laws

    def target_laws(logits, batch):
        laws = real(logits, batch)
        return TargetLaws(laws.weights.roll(1, 0), laws.totals.roll(1), laws.bad_rows.roll(1))

    patch.setattr(verify_module, "target_laws", target_laws)


def accept_at_equality(patch):
    by_torch(patch)
    patch.setattr(verify_module, "accepts", lambda uniforms, probs: uniforms <= probs)


def reuse_draft_noise(patch):
    """The variate that accepts is the one that decided the drafted token's race."""
    real = OnceKeys.uniform
    patch.setattr(OnceKeys, "uniform", lambda keys, purpose: real(keys, Purpose.DRAFT))


def forget_the_residual(patch):
    by_torch(patch)
    patch.setattr(verify_module, "residual_probs", lambda probs, law: probs)


def accept_the_likeliest_without_a_law(patch):
    """Greedy acceptance of whatever fills a missed row."""
    by_torch(patch)
    real_probs, real_target = verify_module.accept_probs, verify_module.target_laws
    largest = []

    def target_laws(logits, batch):
        laws = real_target(logits, batch)
        largest[:] = [laws.rows(slice(None)).amax(dim=1)]
        return laws

    def accept_probs(target, draft):
        is_best = (target == largest[0]).double()
        return torch.where(draft == 0, is_best, real_probs(target, draft))

    patch.setattr(verify_module, "target_laws", target_laws)
    patch.setattr(verify_module, "accept_probs", accept_probs)


def ignore_seeds(patch):
    class OneSeed(SamplingBatch):
        @staticmethod
        def build(states, device="cpu"):
            batch = SamplingBatch.build(states, device)
            no_seeds = torch.zeros_like(batch.seeds)
            keys = torch.stack((batch.positions, batch.sample_indices, no_seeds))
            return dataclasses.replace(batch, keys=keys)

    patch.setattr(batch_module, "SamplingBatch", OneSeed)


def accept_unless_refused(patch):
    by_torch(patch)
    patch.setattr(verify_module, "accepts", lambda uniforms, probs: ~(uniforms >= probs))


def take_the_bonus_from_the_row_before(patch):
    by_torch(patch)
    real = verify_module.walk_ends

    def walk_ends(num_accepted, group):
        full = (num_accepted == group.verify_lens) & (group.verify_lens > 0)
        return real(num_accepted, group) - full.long()

    patch.setattr(verify_module, "walk_ends", walk_ends)


# --- the sixteen -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Bug:
    """`check` of `policy` under `rules`, which `plant` or the policy `planted` makes fail."""

    check: Callable = has_the_law
    policy: type = Streams
    plant: Callable | None = None
    planted: type | None = None
    rules: tuple = tuple(RATIO_RULES)
    fields: dict = dataclasses.field(default_factory=dict)


FORESEEABLE_ONLY = (VerificationRule.FORESEEABLE,)
BUGS = {
    "shifted row": Bug(plant=shift_rows),
    "raw law": Bug(policy=policies.NarrowLaw, planted=policies.RawLaw),
    "accept at equality": Bug(never_accepts_the_impossible, plant=accept_at_equality),
    "noise used twice": Bug(plant=reuse_draft_noise),
    "no residual": Bug(plant=forget_the_residual),
    "greedy acceptance on a miss": Bug(
        policy=policies.Fillers, plant=accept_the_likeliest_without_a_law
    ),
    "stale law": Bug(planted=policies.StaleLaw),
    "late drop": Bug(policy=policies.FixedWaves, planted=policies.LateDrops),
    "cache shared by samples": Bug(
        has_independent_samples, policies.TwoSamples, planted=policies.SharedCache
    ),
    "seed ignored": Bug(follows_its_seed, plant=ignore_seeds, rules=(VerificationRule.COUPLED,)),
    "NaN accepted": Bug(stops_at_nan, plant=accept_unless_refused),
    "bonus from the wrong row": Bug(plant=take_the_bonus_from_the_row_before),
    "rule 1, noise of later positions": Bug(
        policy=policies.ConfidentFanOut,
        planted=policies.MarginFanOut,
        rules=FORESEEABLE_ONLY,
        fields=TWO_TOKENS,
    ),
    "rule 2, keys used twice": Bug(policy=policies.LateCapacity, planted=policies.KeysOfPosition),
    "rule 3, confidence after the draw": Bug(
        policy=policies.ConfidenceOfLaw, planted=policies.ConfidenceOfToken
    ),
    "rule 4, lateness by content": Bug(policy=policies.FixedWaves, planted=policies.WavesByContent),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name, bug in BUGS.items() for rule in bug.rules]
)
def test_a_planted_bug_is_found(name, rule):
    bug = BUGS[name]
    assert bug.check(bug.policy, rule, **bug.fields)
    with pytest.MonkeyPatch.context() if bug.plant else contextlib.nullcontext() as patch:
        if bug.plant:
            bug.plant(patch)
        assert not bug.check(bug.planted or bug.policy, rule, **bug.fields)


def test_all_sixteen_are_planted():
    assert len(BUGS) == 16
    assert all((bug.plant is None) != (bug.planted is None) for bug in BUGS.values())


@pytest.mark.slow
def test_coupled_text_feels_no_policy_and_none_of_its_bugs():
    """One text for every policy above, sound or not, and for the draft that was drawn from."""
    expected = Streams(VerificationRule.COUPLED, 2000).run(6)
    for bug in BUGS.values():
        if bug.check is has_the_law:
            for policy in (bug.policy, bug.planted or bug.policy):
                text = policy(VerificationRule.COUPLED, 2000).run(6)
                assert torch.equal(text, expected)
    other_draft = Streams(VerificationRule.COUPLED, 2000, draft=[[0.1, 0.1, 0.8]])
    assert torch.equal(other_draft.run(6), expected)


def test_late_and_timely_first_tokens_have_one_law():
    """What the documentation promises of waves, and how a deployment would test it."""
    for policy, sound in ((policies.FixedWaves, True), (policies.LateDrops, False)):
        values = []
        for late in (True, False):
            streams = policy(VerificationRule.REJECTION, NUM_STREAMS)
            was_late = []
            streams.observe = lambda drafted, lens, *rest, seen=was_late: seen.append(lens == 0)
            tokens = streams.run(1)[was_late[0] == late]
            values.append(p_value(cells(tokens, 3), expected_law(1)))
        assert (min(values) > FALSE_ALARMS) is sound
