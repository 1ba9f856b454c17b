"""Sampling and the ratio test, captured and not captured, asked the same."""

import random

import torch

from specserve.backends.cuda import sampling as captured_sampling
from specserve.backends.cuda import verification as captured_ratio
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.torch.backend import TorchBackend
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.draft_probs import PAD_ID, DraftProbs
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod
from tests.specserve.sampling.random_probs import likeliest_probs
from tests.specserve.sampling.test_sampling import state

NUM_TOKENS, NUM_KEPT = 301, 9  # more than a nucleus is looked for among at first
CUTS = ({"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.95})


def random_rows(source: random.Random, method: VerificationMethod) -> list[RowToVerify]:
    """In every other round some truncate."""
    cuts = ({}, source.choice(CUTS), source.choice(CUTS)) if source.random() < 0.5 else ({},)
    return [
        RowToVerify(
            method,
            state(
                seed=source.getrandbits(63),
                temperature=source.choice([0.3, 0.8, 1.0, 1.4]),
                sample_index=source.randrange(3),
                **source.choice(cuts),
            ),
            [source.randrange(NUM_TOKENS) for _ in range(source.randrange(7))],
            round_id=source.randrange(99),
            branch=source.randrange(9),
        )
        for _ in range(source.randrange(1, 10))
    ]


def random_probs(
    rows: list[RowToVerify], generator: torch.Generator
) -> tuple[DraftProbs, torch.Tensor]:
    """And logits [N, V] under which some tokens stand; a few distributions and rows are broken."""
    drafted = torch.tensor([token for row in rows for token in row.drafted], dtype=torch.int64)
    scores = 2 * torch.randn(len(drafted), NUM_TOKENS, generator=generator)
    scores[torch.arange(len(drafted)), drafted] += 8
    draft_probs = likeliest_probs(scores.softmax(1), NUM_KEPT)
    judges = torch.tensor(
        [k < len(row.drafted) for row in rows for k in range(len(row.drafted) + 1)]
    )
    logits = torch.randn(len(judges), NUM_TOKENS, generator=generator)
    logits[judges] += scores
    for kind in torch.randint(0, 12, (3,), generator=generator).tolist():
        place = int(torch.randint(0, max(1, len(drafted)), (), generator=generator))
        if kind == 0 and len(drafted):
            draft_probs.probs[place] *= 1.1
        elif kind == 1 and len(drafted):
            draft_probs.ids[place, 0] = NUM_TOKENS
        elif kind == 2 and len(drafted):
            draft_probs.ids[place], draft_probs.probs[place] = PAD_ID, 0
        elif kind == 3:
            logits[place, 3] = torch.nan
        elif kind == 4:
            logits[place] = -torch.inf
    return draft_probs, logits


def compare_tests(device: torch.device, method: VerificationMethod, num_rounds: int) -> int:
    """Of random rounds; how many tokens stood."""
    captured_ratio._graphs.cache_clear()
    source, generator = random.Random(str(method)), torch.Generator().manual_seed(5)
    plain, captured = TorchBackend(device), CudaGraphBackend(device)
    num_accepted = 0
    for _ in range(num_rounds):
        rows = random_rows(source, method)
        draft_probs, logits = random_probs(rows, generator)
        draft_probs, logits = (
            DraftProbs(draft_probs.ids.to(device), draft_probs.probs.to(device)),
            logits.to(device),
        )
        kept = logits.clone()
        given = draft_probs if draft_probs.ids.numel() or source.random() < 0.5 else None
        found = captured.verify(logits, rows, given)
        assert found == plain.verify(logits, rows, draft_probs)
        assert torch.equal(logits.nan_to_num(), kept.nan_to_num())
        num_accepted += sum(found.num_accepted)
    kinds = {(key.num_rows, key.cuts) for key in captured_ratio._graphs()._found}
    assert len(kinds) > 8
    assert len(captured_ratio._graphs()) < 128  # which is what is kept
    return num_accepted


def compare_samples(device: torch.device, num_rounds: int) -> None:
    """Of random batches that draw, unedited, from all tokens."""
    captured_sampling._captured_samples.cache_clear()
    source, generator = random.Random(7), torch.Generator().manual_seed(6)
    plain, captured = TorchBackend(device), CudaGraphBackend(device)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(num_rounds):
        rows = random_rows(source, VerificationMethod.COUPLED)
        logits = torch.randn(len(rows), NUM_TOKENS, generator=generator).to(device)
        if source.random() < 0.3:
            logits[0, 3] = torch.nan
        batch = SamplingBatch.build([row.state for row in rows], device)
        ours = captured.sample(logits, batch).token_ids
        found.append((ours, plain.sample(logits, batch).token_ids))
    for ours, theirs in found:  # at last: nothing overwrites what was found before
        assert torch.equal(ours, theirs)
    assert len(captured_sampling._captured_samples()) > 10  # of 1, 2, 4, 8 and 16 rows, cut or not
