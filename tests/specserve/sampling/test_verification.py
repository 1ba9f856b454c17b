"""Outcomes of mixed batches: equal to plain decoding where promised, sound at every edge."""

import dataclasses
import random

import msgspec
import pytest
import torch

from specserve.sampling.batch import SamplingBatch
from specserve.sampling.draft_probs import PAD_ID, DraftProbs
from specserve.sampling.sampling import NO_TOKEN, sample, target_probs
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.batch import RowToVerify, VerificationBatch
from specserve.sampling.verification.method import VerificationMethod, method_for_life
from specserve.sampling.verification.ratio import accept_probs, accepts, residual_probs
from specserve.sampling.verification.verify import verify
from tests.specserve.sampling.random_probs import likeliest_probs
from tests.specserve.sampling.test_sampling import random_state, state

METHODS = list(VerificationMethod)
RATIO_METHODS = [VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE]
NUM_TOKENS = 23


def logits_after(row, path):
    """A toy target: the logits of a row after some tokens."""
    rng = random.Random(f"{row} {path}")
    return [round(rng.gauss(0, 2) * 4) / 4 for _ in range(NUM_TOKENS)]


def row_logits(row, generated, drafted):
    """One logits row for the anchor and one for each drafted token."""
    path = list(generated)
    rows = [logits_after(row, path)]
    for token_id in drafted:
        path.append(token_id)
        rows.append(logits_after(row, path))
    return rows


def random_probs(rng, width=6):
    ids = rng.sample(range(NUM_TOKENS), width)
    return {i: rng.random() + 0.01 for i in ids}


def probs_of(rows):
    ids = torch.tensor([list(row) for row in rows])
    return DraftProbs.of_entries(ids, torch.tensor([list(row.values()) for row in rows]))


def random_rows(rng, num_rows, methods=METHODS):
    """Rows of every kind, with their logits and the distributions of those that need one."""
    rows, logits, draft_probs = [], [], []
    for place in range(num_rows):
        verify_len = rng.randint(0, 5)
        choices = [random_probs(rng) for _ in range(verify_len)]
        drafted = [rng.choices(list(probs), probs.values())[0] for probs in choices]
        row = RowToVerify(
            rng.choice(methods),
            random_state(rng, NUM_TOKENS),
            drafted,
            round_id=rng.randrange(1000),
            branch=rng.randrange(1000),
        )
        rows.append(row)
        logits.append(torch.tensor(row_logits(place, [], drafted)))
        draft_probs.append([] if row.verified_by is VerificationMethod.COUPLED else choices)
    return rows, logits, draft_probs


def outcomes(rows, logits, draft_probs):
    flat = [probs for row in draft_probs for probs in row]
    found = verify(
        torch.cat(list(logits)), VerificationBatch.build(rows), probs_of(flat) if flat else None
    )
    return list(
        zip(
            found.num_accepted.tolist(),
            found.next_tokens.tolist(),
            found.bad_rows.tolist(),
            found.broken_probs.tolist(),
            strict=True,
        )
    )


def test_a_row_has_the_same_outcome_alone_and_in_any_mixed_batch():
    rng = random.Random(1)
    rows, logits, draft_probs = random_rows(rng, 120)
    together = outcomes(rows, logits, draft_probs)
    assert {accepted for accepted, *_ in together} >= {0, 1, 2}
    for place in range(len(rows)):
        alone = outcomes(rows[place : place + 1], logits[place : place + 1], [draft_probs[place]])
        assert alone == [together[place]]
    order = rng.sample(range(len(rows)), len(rows))
    shuffled = outcomes(*([part[i] for i in order] for part in (rows, logits, draft_probs)))
    assert shuffled == [together[i] for i in order]


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods", [METHODS, pytest.param([VerificationMethod.COUPLED], marks=pytest.mark.slow)]
)
def test_coupled_and_greedy_rows_give_the_text_of_plain_decoding(methods):
    """Every sampling field, drafts right and wrong, any length: token for token."""
    rng = random.Random(2)
    states = [random_state(rng, NUM_TOKENS) for _ in range(60)]
    methods = [rng.choice(methods) if s.is_greedy else VerificationMethod.COUPLED for s in states]
    plain = [plain_text(row, s.fork(), 24) for row, s in enumerate(states)]
    texts = [[] for _ in states]
    drafted_and_accepted = 0
    while any(len(text) < 24 for text in texts):
        rows, logits = [], []
        for row, (text, s) in enumerate(zip(texts, states, strict=True)):
            ahead = plain[row][len(text) : len(text) + rng.randint(0, 5)]
            drafted = [t if rng.random() < 0.8 else rng.randrange(NUM_TOKENS) for t in ahead]
            rows.append(RowToVerify(methods[row], s, drafted))
            logits += row_logits(row, text, drafted)
        found = verify(torch.tensor(logits), VerificationBatch.build(rows))
        for row, num_accepted in enumerate(found.num_accepted.tolist()):
            tokens = [*rows[row].drafted[:num_accepted], int(found.next_tokens[row])]
            drafted_and_accepted += num_accepted
            for token_id in tokens:
                states[row].append(token_id)
            texts[row] += tokens
    assert drafted_and_accepted > 300
    for text, expected in zip(texts, plain, strict=True):
        assert text[:24] == expected


def plain_text(row, s, length):
    text = []
    for _ in range(length):
        logits = torch.tensor([logits_after(row, text)])
        text.append(int(sample(logits, SamplingBatch.build([s])).token_ids))
        s.append(text[-1])
    return text


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_the_ratio_test_at_a_one_hot_target_is_the_greedy_method(method):
    """The limit from above: at a tiny temperature, through distributions, as at 0, by equality."""
    rng = random.Random(3)
    for _ in range(40):
        drafted = [rng.randrange(NUM_TOKENS) for _ in range(3)]
        best = [max(range(NUM_TOKENS), key=row.__getitem__) for row in row_logits(7, [], drafted)]
        drafted = [b if rng.random() < 0.7 else d for b, d in zip(best, drafted, strict=False)]
        logits = torch.tensor(row_logits(7, [], drafted))
        logits += torch.arange(NUM_TOKENS) * -1e-3  # no ties
        draft_probs = [{d: 1.0, (d + 1) % NUM_TOKENS: 1.0} for d in drafted]
        cold, zero = (
            outcomes(
                [RowToVerify(method, state(seed=4, temperature=t), drafted)],
                [logits],
                [draft_probs],
            )
            for t, draft_probs in ((1e-30, draft_probs), (0.0, []))
        )
        # Half of the draft's mass is elsewhere, and the one-hot target still accepts all of it.
        assert cold == zero


# --- bad rows, broken distributions ---------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_logits_end_the_walk_where_it_meets_them(method, temperature):
    """A certain draft of the target's own token stands, so the prefix goes as far as it can."""
    logits = torch.full((4, NUM_TOKENS), -50.0)
    logits[:, 3] = 50.0
    rows = [RowToVerify(method, state(seed=1, temperature=temperature), [3, 3, 3])]
    draft_probs = [] if rows[0].verified_by is VerificationMethod.COUPLED else [{3: 1.0}] * 3
    assert outcomes(rows, [logits], [draft_probs]) == [(3, 3, False, False)]
    for place in range(4):
        for value in (float("nan"), float("inf")):
            broken = logits.clone()
            broken[place, 11] = value
            assert outcomes(rows, [broken], [draft_probs]) == [(place, NO_TOKEN, True, False)]


@pytest.mark.parametrize("method", METHODS)
def test_bad_logits_behind_a_rejection_harm_nobody(method):
    logits = torch.full((3, NUM_TOKENS), -50.0)
    logits[:, 3] = 50.0
    logits[1:] = float("nan")
    rows = [RowToVerify(method, state(seed=1), [5, 3]), RowToVerify(method, state(seed=2))]
    draft_probs = [] if method is VerificationMethod.COUPLED else [{5: 1.0}, {3: 1.0}]
    found = outcomes(rows, [logits, logits[:1]], [draft_probs, []])
    assert found == [(0, 3, False, False), (0, 3, False, False)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bad_row_never_walks_into_the_next(method, temperature):
    """A short one, whose last logits are bad, before a long one that is all right."""
    logits = torch.full((6, NUM_TOKENS), -50.0)
    logits[:, 3] = 50.0
    logits[1] = float("nan")
    rows = [
        RowToVerify(method, state(seed=seed, temperature=temperature), drafted)
        for seed, drafted in enumerate(([3], [3, 3, 3]))
    ]
    needs_probs = rows[0].verified_by is not VerificationMethod.COUPLED
    draft_probs = [[{3: 1.0}] * len(row.drafted) if needs_probs else [] for row in rows]
    found = outcomes(rows, [logits[:2], logits[2:]], draft_probs)
    assert found == [(1, NO_TOKEN, True, False), (3, 3, False, False)]


@pytest.mark.parametrize("method", RATIO_METHODS)
@pytest.mark.parametrize(
    ("ids", "probs"),
    [
        ([3, 5], [0.5, float("nan")]),
        ([3, 5], [0.2, 0.2]),
        ([5, 3], [0.5, 0.5]),
        ([3, 999], [0.5, 0.5]),
        ([4, 5], [0.5, 0.5]),  # says that 3 cannot have been drafted
        ([PAD_ID, PAD_ID], [0.0, 0.0]),
    ],
)
def test_a_broken_distribution_counts_as_no_draft(method, ids, probs):
    """The next token is then drawn as if nothing had been drafted there."""
    logits = torch.tensor(row_logits(0, [], [3, 5]))
    s = state(seed=8)
    batch = VerificationBatch.build([RowToVerify(method, s, [3, 5])])
    missed = VerificationBatch.build([RowToVerify(method, s)])
    draft_probs = DraftProbs(torch.tensor([ids, [5, PAD_ID]]), torch.tensor([probs, [1.0, 0.0]]))
    found, expected = verify(logits, batch, draft_probs), verify(logits[:1], missed)
    assert found.broken_probs.tolist() == [True]
    assert found.num_accepted.tolist() == [0]
    assert found.next_tokens.tolist() == expected.next_tokens.tolist()


def test_drafted_tokens_without_a_distribution_are_an_error():
    batch = VerificationBatch.build([RowToVerify(VerificationMethod.REJECTION, state(), [1])])
    with pytest.raises(ValueError, match="no draft distribution"):
        verify(torch.zeros(2, NUM_TOKENS), batch)


# --- the arithmetic of the ratio test --------------------------------------------------------


def test_acceptance_is_strict_at_both_ends():
    target = torch.tensor([0.0, 0.3, 0.5, 0.1, 0.4])
    draft = torch.tensor([0.5, 0.3, 0.1, 0.4, 0.0])
    probs = accept_probs(target, draft)
    assert probs.tolist() == pytest.approx([0.0, 1.0, 1.0, 0.25, 0.0])
    assert probs[1] == 1.0
    assert accepts(torch.zeros(5), probs).tolist() == [False, True, True, True, False]
    almost_one = torch.full((5,), 1 - 2.0**-24)
    assert accepts(almost_one, probs).tolist() == [False, True, True, False, False]
    nan = accept_probs(torch.tensor([float("nan"), 0.5]), torch.tensor([0.5, float("nan")]))
    assert accepts(torch.zeros(2), nan).tolist() == [False, False]


def test_acceptance_is_decided_in_float64():
    """In float32 this probability would be 1, which no variate refuses."""
    probs = torch.tensor([1 - 2.0**-25], dtype=torch.float64)
    assert accepts(torch.tensor([1 - 2.0**-25], dtype=torch.float64), probs).tolist() == [False]
    assert accepts(torch.tensor([1 - 2.0**-24]), probs).tolist() == [True]


def test_what_was_rejected_leaves_mass_behind():
    """(p - q)+ has the mass of (q - p)+, which is above zero wherever a rejection is possible."""
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.rand(200, 8, generator=generator).double() ** 4 for _ in range(2))
    p, q = (probs / probs.sum(dim=1, keepdim=True) for probs in (p, q))
    residual = residual_probs(p, likeliest_probs(q, 8))
    rejected = (q * (1 - accept_probs(p.flatten(), q.flatten()).view_as(p))).sum(dim=1)
    assert torch.allclose(residual.sum(dim=1), rejected, atol=1e-14)


def test_residuals_at_their_edges():
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    disjoint = residual_probs(p, likeliest_probs(torch.tensor([[0.0, 0.0, 0.9, 0.1]]), 2))
    assert torch.equal(disjoint, p)
    equal = residual_probs(p, likeliest_probs(p, 4))
    assert torch.equal(equal, p)  # cannot be asked for: an equal distribution is never rejected
    covered = residual_probs(p, likeliest_probs(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), 1))
    assert covered.tolist() == [[0.0, 0.5, 0.0, 0.0]]
    empty = DraftProbs(torch.tensor([[PAD_ID]]), torch.zeros(1, 1))
    assert torch.equal(residual_probs(p, empty), p)
    rounding = torch.tensor([[0.5 - 2.0**-25, 0.5 - 2.0**-25, 1e-40, 0.0]])
    assert torch.equal(residual_probs(rounding, likeliest_probs(p, 2)), rounding)


def test_an_equal_distribution_is_always_accepted():
    rng = random.Random(6)
    for method in RATIO_METHODS:
        s = state(seed=rng.getrandbits(64), temperature=0.8)
        rows = [RowToVerify(method, s, [t], round_id=n) for n, t in enumerate(range(NUM_TOKENS))]
        logits = torch.tensor(row_logits(0, [], [])).expand(2 * NUM_TOKENS, -1)
        probs = target_probs(logits, SamplingBatch.build([s] * len(logits)))
        found = verify(logits, VerificationBatch.build(rows), DraftProbs(*dense(probs[::2])))
        assert found.num_accepted.tolist() == [1] * NUM_TOKENS


def dense(probs):
    """Ids and probabilities over the whole vocabulary, bit for bit as they are."""
    return torch.arange(probs.shape[1]).expand(len(probs), -1), probs


# --- methods and their noise -------------------------------------------------------------------


def test_a_seeded_request_is_coupled_for_life():
    for default in METHODS:
        assert method_for_life(default, seeded_by_user=True) is VerificationMethod.COUPLED
        assert method_for_life(default, seeded_by_user=False) is default


@pytest.mark.parametrize("method", RATIO_METHODS)
def test_round_and_branch_move_only_what_must_not_repeat(method):
    """Acceptance always; the next token under plain rejection, not what the draft foresees."""
    s = state(seed=5)
    draft_probs = {1: 1.0, 2: 1.0}
    logits = torch.zeros(2, NUM_TOKENS)
    logits[:, 1] = 2.0
    missed, drafted = set(), set()
    for round_id in range(8):
        for branch in range(8):
            row = RowToVerify(method, s, [], round_id, branch)
            missed.add(outcomes([row], [logits[:1]], [[]])[0])
            row = dataclasses.replace(row, drafted=[2])
            drafted.add(outcomes([row], [logits], [[draft_probs]])[0][0])
    assert drafted == {0, 1}
    if method is VerificationMethod.FORESEEABLE:
        plain = int(sample(logits[:1], SamplingBatch.build([s])).token_ids)
        assert missed == {(0, plain, False, False)}
    else:
        assert len(missed) > 8


@pytest.mark.parametrize("methods", [[method] for method in METHODS] + [METHODS])
def test_no_value_is_read_on_the_way(methods):
    """On a device without values; there every step that waits for one raises."""
    rng = random.Random(9)
    rows = []
    for row in random_rows(rng, 80, methods)[0]:
        params = msgspec.structs.replace(row.state.params, top_p=1.0)  # its short cut may wait
        s = SamplingState(params, seed=1, prompt_token_ids=[1, 2], end_token_ids=(3,))
        rows.append(dataclasses.replace(row, state=s))
    batch = VerificationBatch.build(rows, "meta")
    draft_probs = DraftProbs.certain(torch.empty(batch.num_probs, dtype=torch.int64, device="meta"))
    found = verify(torch.empty(batch.num_logits, NUM_TOKENS, device="meta"), batch, draft_probs)
    assert found.next_tokens.shape == (80,)
    with pytest.raises(RuntimeError):
        bool(found.bad_rows.any())
