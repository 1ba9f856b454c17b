"""The compiled ratio test finds what `verify` does by torch, which is what is enumerated."""

import random
from unittest import mock

import numpy as np
import pytest
import torch

from specserve.backends.cpu import compiled
from specserve.sampling import law_kernels
from specserve.sampling.draft_law import PAD_ID, DraftLaw
from specserve.sampling.sampling import NO_TOKEN
from specserve.sampling.verification import compiled_ratio
from specserve.sampling.verification import verify as verify_module
from specserve.sampling.verification.batch import RowToVerify, VerificationBatch
from specserve.sampling.verification.ratio import accept_probs, accepts
from specserve.sampling.verification.rule import VerificationRule
from tests.specserve.sampling.laws import law_of_likeliest
from tests.specserve.sampling.test_sampling import state

pytestmark = pytest.mark.skipif(compiled.numba is None, reason="no numba here")

RATIO_RULES = (VerificationRule.REJECTION, VerificationRule.FORESEEABLE)
CUTS = ({}, {}, {"top_p": 0.7}, {"top_k": 5}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.9})
FIELDS = ("num_accepted", "next_tokens", "bad_rows", "broken_laws", "spoiled_rows")


@pytest.fixture(autouse=True)
def seeds():
    """Of whatever is drawn without a generator of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def rows_of(source, num_rows, num_tokens, rules=RATIO_RULES):
    rows = []
    for place in range(num_rows):
        own = state(
            seed=source.getrandbits(60),
            temperature=source.choice([0.3, 0.8, 1.0, 1.4]),
            sample_index=source.randrange(3),
            **source.choice(CUTS),
        )
        drafted = [source.randrange(num_tokens) for _ in range(source.randrange(6))]
        rows.append(RowToVerify(source.choice(rules), own, drafted, round_id=place, branch=place))
    return rows


def laws_of(rows, num_tokens, num_kept, generator):
    """Of every drafted token, which is likely under it; as drafts do, truncated."""
    drafted = torch.tensor([token for row in rows for token in row.drafted], dtype=torch.int64)
    scores = torch.randn(len(drafted), num_tokens, generator=generator) * 2
    scores[torch.arange(len(drafted)), drafted] += 3
    return law_of_likeliest(scores.softmax(1), num_kept), scores


def both(logits, rows, law):
    batch = VerificationBatch.build(rows)
    found = verify_module.verify(logits, batch, law)
    with mock.patch.object(verify_module, "by_compiled_ratio", return_value=None):
        expected = verify_module.verify(logits, batch, law)
    return found, expected


def assert_same(found, expected):
    """Bit for bit, of every row.

    Laws differ by a few units in the last place, so what ties to rounding might end otherwise: of
    a decision about once in a million. All draws here are from fixed seeds, and none of them does.
    """
    for field in FIELDS:
        assert torch.equal(getattr(found, field), getattr(expected, field)), field


@pytest.mark.parametrize("num_tokens", [2, 7, 300, pytest.param(4099, marks=pytest.mark.slow)])
@pytest.mark.parametrize("num_kept", [1, 6, 512])
def test_outcomes_are_torchs(num_tokens, num_kept):
    source, generator = random.Random(num_tokens), torch.Generator().manual_seed(num_kept)
    num_accepted = num_drafted = 0
    for _ in range(20):
        rows = rows_of(source, 12, num_tokens)
        law, scores = laws_of(rows, num_tokens, num_kept, generator)
        num_logits = sum(len(row.drafted) + 1 for row in rows)
        logits = 2 * torch.randn(num_logits, num_tokens)
        places = [n for n, last in enumerate(is_last(rows)) if not last]
        logits[places] += scores  # so that some stand
        found, expected = both(logits, rows, law)
        assert_same(found, expected)
        num_accepted += int(found.num_accepted.sum())
        num_drafted += sum(len(row.drafted) for row in rows)
    assert num_drafted > 600
    assert num_accepted > 0  # hardly any of many tokens, and half of few


def is_last(rows):
    return [k == len(row.drafted) for row in rows for k in range(len(row.drafted) + 1)]


def test_it_is_what_runs():
    rows = rows_of(random.Random(0), 4, 20)
    law, _ = laws_of(rows, 20, 5, torch.Generator().manual_seed(0))
    logits = torch.randn(sum(len(row.drafted) + 1 for row in rows), 20)
    with mock.patch.object(verify_module, "_by_ratio", side_effect=AssertionError):
        verify_module.verify(logits, VerificationBatch.build(rows), law)


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_rows_on_the_host_have_the_outcomes_of_a_batch_of_tensors(rule):
    for seed in range(10):
        rows = rows_of(random.Random(seed), 1 + seed, 300, rules=(rule,))
        law, scores = laws_of(rows, 300, 64, torch.Generator().manual_seed(seed))
        logits = torch.randn(sum(len(row.drafted) + 1 for row in rows), 300)
        logits[[n for n, last in enumerate(is_last(rows)) if not last]] += scores
        if seed > 5:
            logits[seed, 7], law.probs[seed] = torch.nan, 0.5
        expected = verify_module.verify(logits, VerificationBatch.build(rows), law)
        found = compiled_ratio.judge_rows(logits, rows, law)
        assert found is not None
        bad_rows, broken_laws, spoiled_rows = found.flags.T
        assert found.num_accepted.tolist() == expected.num_accepted.tolist()
        assert found.next_tokens.tolist() == expected.next_tokens.tolist()
        assert bad_rows.tolist() == expected.bad_rows.tolist()
        assert broken_laws.tolist() == expected.broken_laws.tolist()
        assert spoiled_rows.tolist() == expected.spoiled_rows.tolist()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "other",
    [
        RowToVerify(VerificationRule.COUPLED, state(), [3]),
        RowToVerify(VerificationRule.FORESEEABLE, state(), [3]),
        RowToVerify(VerificationRule.REJECTION, state(temperature=0.0), [3]),
    ],
)
def test_rows_of_another_kind_are_left_to_verify(other, place):
    rows = [RowToVerify(VerificationRule.REJECTION, state(), [3])] * 2
    rows[place] = other
    law = DraftLaw.certain(torch.tensor([3, 3]))
    assert compiled_ratio.judge_rows(torch.randn(4, 8), rows, law) is None
    twice = [rows[1 - place]] * 2
    assert compiled_ratio.judge_rows(torch.randn(4, 8), twice, law) is not None
    assert compiled_ratio.judge_rows(torch.randn(4, 8).double(), twice, law) is None


def test_rows_on_the_host_are_refused_where_they_do_not_fit():
    rows = [RowToVerify(VerificationRule.REJECTION, state(), [3])]
    law, logits = DraftLaw.certain(torch.tensor([3])), torch.randn(2, 8)
    with pytest.raises(ValueError, match="no draft law"):
        compiled_ratio.judge_rows(logits, rows, None)
    with pytest.raises(ValueError, match="rows of logits"):
        compiled_ratio.judge_rows(logits[:1], rows, law)
    with pytest.raises(IndexError):
        compiled_ratio.judge_rows(logits, rows, DraftLaw(law.ids[:0], law.probs[:0]))
    for changes in ({"round_id": 1 << 20}, {"branch": -1}):
        with pytest.raises(ValueError, match="a key would be used twice"):
            compiled_ratio.judge_rows(
                logits, [RowToVerify(VerificationRule.REJECTION, state(), [3], **changes)], law
            )


EDITS = (
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"logit_bias": {3: 2.0, 4: -100.0}, "top_p": 0.8},
    {"repetition_penalty": 1.5},
    {"min_tokens": 3, "stop_token_ids": (1, 4)},
    {},
)


def edited_rows(source, num_tokens):
    """Drafted tokens come twice, so that penalties along the path matter."""
    rows = []
    for place, fields in enumerate(EDITS * 4):
        own = state(seed=source.getrandbits(60), **fields)
        drafted = [source.randrange(num_tokens) for _ in range(3)] * 2
        rule = VerificationRule.REJECTION
        rows.append(RowToVerify(rule, own, drafted, round_id=place, branch=place))
    return rows


@pytest.mark.parametrize("num_tokens", [6, 300])
def test_laws_that_are_edited_are_torchs_too(num_tokens):
    num_accepted = 0
    for seed in range(10):
        rows = edited_rows(random.Random(seed), num_tokens)
        law, scores = laws_of(rows, num_tokens, 64, torch.Generator().manual_seed(seed))
        num_logits = sum(len(row.drafted) + 1 for row in rows)
        logits = 0.3 * torch.randn(num_logits, num_tokens)
        logits[[n for n, last in enumerate(is_last(rows)) if not last]] += scores
        before = logits.clone()
        found, expected = both(logits, rows, law)
        assert_same(found, expected)
        num_accepted += int(expected.num_accepted.sum())
        on_host = compiled_ratio.judge_rows(logits, rows, law)
        assert on_host is not None
        assert on_host.next_tokens.tolist() == found.next_tokens.tolist()
        assert on_host.num_accepted.tolist() == found.num_accepted.tolist()
        assert torch.equal(logits, before)
    assert num_accepted > 60


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_an_edit_hides_is_seen(value):
    """Of a token that may not come next a NaN is none any more, and yet the model is damaged."""
    held = state(min_tokens=3, stop_token_ids=(1,))
    rows = [RowToVerify(VerificationRule.REJECTION, held, [3])]
    law, logits = DraftLaw.certain(torch.tensor([3])), torch.randn(2, 8)
    logits[0, 1] = value
    assert compiled_ratio.judge_rows(logits, rows, law) is None
    found, expected = both(logits, rows, law)
    assert found.bad_rows.tolist() == expected.bad_rows.tolist() == [True]


BROKEN = {
    "descending": lambda ids, probs: ids.copy_(ids.flip(0)),
    "twice": lambda ids, probs: ids[1:2].copy_(ids[:1]),
    "beyond": lambda ids, probs: ids[-1:].fill_(50),
    "negative": lambda ids, probs: ids[:1].fill_(-1),
    "no number": lambda ids, probs: probs[:1].fill_(torch.nan),
    "below zero": lambda ids, probs: probs[:1].neg_(),
    "too much": lambda ids, probs: probs.mul_(1.01),
    "too little": lambda ids, probs: probs.mul_(0.99),
    "padding that weighs": lambda ids, probs: ids[-1:].fill_(PAD_ID),
    "a gap": lambda ids, probs: (ids[1:2].fill_(PAD_ID), probs[1:2].fill_(0)),
    "nothing": lambda ids, probs: (ids.fill_(PAD_ID), probs.fill_(0)),
    "another token's": lambda ids, probs: ids.add_(1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_laws_count_as_no_draft(name):
    rows = [RowToVerify(rule, state(seed=n), [4, 6, 8]) for n in range(40) for rule in RATIO_RULES]
    ids = torch.tensor([[1, 4, 9], [2, 6, 9], [5, 8, 11]]).repeat(len(rows), 1)
    probs = torch.tensor([[0.3, 0.5, 0.2]]).repeat(len(ids), 1)
    for place in range(1, len(ids), 3):
        BROKEN[name](ids[place], probs[place])
    logits = torch.randn(4 * len(rows), 50)
    logits[::4, 4] += 5  # the first token stands mostly
    found, expected = both(logits, rows, DraftLaw(ids, probs))
    assert expected.broken_laws.all()
    assert (expected.num_accepted == 1).sum() > 20
    assert_same(found, expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", [0, 1, 2, 3])
def test_logits_nobody_can_sample_from(value, where):
    rows = [RowToVerify(rule, state(seed=n), [4, 6, 8]) for n in range(30) for rule in RATIO_RULES]
    law = DraftLaw.certain(torch.tensor([4, 6, 8]).repeat(len(rows)))
    logits = torch.randn(4 * len(rows), 20)
    logits[torch.arange(len(logits)), torch.tensor([4, 6, 8, 1]).repeat(len(rows))] += 4
    if value == -torch.inf:
        logits[where::4] = value
    else:
        logits[where::4, 7] = value
    found, expected = both(logits, rows, law)
    assert expected.spoiled_rows.all()
    assert expected.bad_rows.any()
    assert_same(found, expected)
    assert (found.next_tokens[found.bad_rows] == NO_TOKEN).all()


def test_nothing_left_of_a_law_is_the_law():
    rows = [RowToVerify(VerificationRule.REJECTION, state(seed=n), [1]) for n in range(60)]
    logits = torch.zeros(120, 2)
    law = DraftLaw(torch.tensor([[0, 1]]).repeat(60, 1), torch.full((60, 2), 0.5))
    with mock.patch.object(law_kernels, "judge_by_ratio", wraps=refusing_all):
        found = verify_module.verify(logits, VerificationBatch.build(rows), law)
    assert set(found.next_tokens.tolist()) == {0, 1}


KERNEL = law_kernels.judge_by_ratio


def refusing_all(logits, rows, found):
    with_uniform(1.0)(logits, rows, found)


def with_uniform(uniform):
    """The kernel, where all variates are this one."""
    return lambda logits, rows, found: KERNEL(
        logits, rows._replace(uniforms=np.full_like(rows.uniforms, uniform)), found
    )


@pytest.mark.parametrize("rule", RATIO_RULES)
@pytest.mark.parametrize(
    ("ratio", "uniform", "stands"),
    [
        (0.5, 0.5, False),
        (0.5, np.nextafter(np.float32(0.5), np.float32(0)), True),
        (0.0, 0.0, False),
    ],
    ids=["at it", "just below", "at none"],
)
def test_a_token_stands_strictly_below_its_ratio(rule, ratio, uniform, stands):
    """1/4, or nothing, under the target's law by 1/2 under its own, all exact in binary."""
    logits = torch.zeros(2, 4)
    if ratio == 0:
        logits[0, 1] = -200.0
    law = DraftLaw(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.5]]))
    batch = VerificationBatch.build([RowToVerify(rule, state(), [1])])
    assert law_kernels.are_usable()  # asked now: what stands in for the kernel is none
    with mock.patch.object(law_kernels, "judge_by_ratio", with_uniform(uniform)):
        found = verify_module.verify(logits, batch, law)
    standing = accept_probs(torch.tensor([ratio]), torch.tensor([1.0]))
    assert bool(found.num_accepted[0]) is bool(accepts(torch.tensor([uniform]), standing)) is stands


def test_the_same_in_any_company():
    source, generator = random.Random(5), torch.Generator().manual_seed(5)
    rows = rows_of(source, 16, 300)
    law, _ = laws_of(rows, 300, 64, generator)
    counts = [len(row.drafted) for row in rows]
    logits = torch.randn(sum(counts) + 16, 300)
    together = verify_module.verify(logits, VerificationBatch.build(rows), law)
    first = first_law = 0
    for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
        alone = verify_module.verify(
            logits[first : first + count + 1],
            VerificationBatch.build([row]),
            law.rows(torch.arange(first_law, first_law + count)),
        )
        for field in FIELDS:
            assert getattr(alone, field)[0] == getattr(together, field)[place]
        first, first_law = first + count + 1, first_law + count


@pytest.mark.slow
@pytest.mark.parametrize("rule", RATIO_RULES)
def test_tokens_have_the_targets_law(rule):
    """First tokens of many rows, drafted from a law that is far from the target's."""
    count = 40_000
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 12, generator=generator) * 1.5
    target = (logits[0] / 0.8).softmax(0)
    law = law_of_likeliest((torch.randn(1, 12, generator=generator) * 2).softmax(1), 5)
    drawn = torch.multinomial(law.probs[0], count, replacement=True, generator=generator)
    drafted = law.ids[0][drawn].tolist()
    states = [state(seed=n, temperature=0.8) for n in range(count)]
    rows = [RowToVerify(rule, own, [token]) for own, token in zip(states, drafted, strict=True)]
    laws = DraftLaw(law.ids.expand(count, -1), law.probs.expand(count, -1))
    with mock.patch.object(verify_module, "_by_ratio", side_effect=AssertionError):
        found = verify_module.verify(logits.repeat(count, 1), VerificationBatch.build(rows), laws)
    stood = found.num_accepted == 1
    first = torch.where(stood, torch.tensor(drafted), found.next_tokens)
    shares = torch.bincount(first, minlength=12) / count
    # Six standard deviations of each; the least that a wrong residual changes here is three times
    # as much.
    assert ((shares - target).abs() <= 6 * (target * (1 - target) / count).sqrt() + 1e-4).all()
    followed = torch.bincount(found.next_tokens[stood], minlength=12) / stood.sum()
    bonus = (logits[1] / 0.8).softmax(0)
    spread = (bonus * (1 - bonus) / stood.sum()).sqrt()
    assert ((followed - bonus).abs() <= 6 * spread + 1e-4).all()


def test_one_compilation_serves_every_shape():
    """Another would be made in the middle of a round."""
    for num_rows, num_tokens in ((1, 2), (3, 40), (7, 5)):
        rows = rows_of(random.Random(num_rows), num_rows, num_tokens)
        law, _ = laws_of(rows, num_tokens, 1, torch.Generator())
        logits = torch.randn(sum(len(row.drafted) + 1 for row in rows), num_tokens)
        verify_module.verify(logits, VerificationBatch.build(rows), law)
        plain = [RowToVerify(row.rule, row.state) for row in rows]
        verify_module.verify(logits[:num_rows], VerificationBatch.build(plain))
    assert len(law_kernels.judge_by_ratio.signatures) == 1


@pytest.mark.parametrize("missing", ["logits", "too many logits", "laws", "probabilities"])
def test_what_does_not_fit_together_is_refused(missing):
    rows = rows_of(random.Random(2), 6, 20, rules=(VerificationRule.REJECTION,))
    law, _ = laws_of(rows, 20, 5, torch.Generator())
    logits = torch.randn(sum(len(row.drafted) + 1 for row in rows), 20)
    if missing == "logits":
        logits = logits[:-2]
    if missing == "too many logits":
        logits = torch.cat([logits, logits])
    if missing == "laws":
        law = law.rows(torch.arange(len(law.ids) - 1))
    if missing == "probabilities":
        law = DraftLaw(law.ids, law.probs[:, :-1])
    with pytest.raises((IndexError, ValueError)):
        verify_module.verify(logits, VerificationBatch.build(rows), law)


def test_laws_of_other_types_are_read_as_what_they_say():
    rows = rows_of(random.Random(3), 6, 20)
    law, _ = laws_of(rows, 20, 5, torch.Generator().manual_seed(1))
    logits = torch.randn(sum(len(row.drafted) + 1 for row in rows), 20)
    batch = VerificationBatch.build(rows)
    expected = verify_module.verify(logits, batch, law)
    wide = DraftLaw(law.ids.int(), law.probs.double())
    assert_same(verify_module.verify(logits, batch, wide), expected)
    assert len(law_kernels.judge_by_ratio.signatures) == 1
