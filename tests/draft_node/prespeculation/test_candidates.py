"""Candidates for what follows the pending tokens, of rows that are verified in different ways."""

import numpy as np
import pytest
import torch

from draft_node.prespeculation.candidates import PendingVerification, candidates_of
from draft_node.prespeculation.outcomes import OutcomeKind
from draft_node.prespeculation.plan import pending_block
from draft_node.prespeculation.speculation_cache import DraftedBlock, told_block
from specserve.drafters.protocol import SpeculationBatch
from specserve.drafters.slot_scores import BatchScores
from specserve.noise import Purpose, exponential_noise
from specserve.sampling.noise_table import NoiseTable
from specserve.transport.link.messages import BlockKey, DraftTopK, RowReport
from tests.specserve.sampling.random_probs import likeliest_probs

VOCAB, LENGTH, CPU = 2000, 4, torch.device("cpu")
# Flat, so that often a token is drawn that no list of likely ones would hold.
LOGITS = 0.1 * torch.randn(1, LENGTH + 1, VOCAB, generator=torch.Generator().manual_seed(3))
IDS = LOGITS[0].argmax(dim=1).tolist()


def report_of(method="coupled", temperature=1.0, seed=5, position=30) -> RowReport:
    return RowReport(
        stream=1,
        round=2,
        seed=seed,
        sample_index=1,
        method=method,
        temperature=temperature,
        start=position,
        token_ids=np.array([7], dtype=np.int32),
        features=np.empty((0, 0), dtype=np.float32),
        block=np.array(IDS[:LENGTH], dtype=np.int32),
        speculation_id=9,
    )


def flight_of(report: RowReport, scores: BatchScores | None) -> PendingVerification:
    key = BlockKey(report.stream, report.round, report.position, report.anchor_id)
    block = DraftedBlock(9, key, tuple(IDS), None, scores, place=0)
    kind = OutcomeKind.of(report.method, report.temperature)
    return PendingVerification(report, kind, block, pending_block(report, block, [0.7] * 5, 100))


def scores_of(logits=LOGITS, draft_probs=None) -> BatchScores | None:
    shape = (1, LENGTH + 1)
    drawn = SpeculationBatch(
        torch.zeros(shape, dtype=torch.int64), draft_probs, None, logits=logits
    )
    return BatchScores.of(drawn, torch.ones(1), 64)


def order_of(report: RowReport) -> torch.Tensor:
    """Ids of every slot, the one the target would draw coming first; rejected ones left out."""
    count = LENGTH + 1
    keys = torch.full((count,), report.seed), torch.full((count,), report.sample_index)
    positions = torch.arange(count) + report.position + 1
    noise = exponential_noise(*keys, positions, Purpose.OUTPUT, VOCAB).log_()
    scores = LOGITS[0] - noise
    scores[torch.arange(LENGTH), IDS[:LENGTH]] = -torch.inf
    return scores.argsort(dim=1, descending=True)


@pytest.mark.parametrize("method", ["coupled", "foreseeable"])
def test_all_tokens_take_part_in_sampling(method):
    report = report_of(method)
    (found,) = candidates_of([flight_of(report, scores_of())], 8, NoiseTable(), CPU)
    expected = order_of(report)[:, :8]
    assert found.tolist() == expected.tolist()
    # Where only some tokens are known, one of them is drawn, and all others may draw another.
    likely = LOGITS[0].topk(64).indices
    assert not (expected[:, :1, None] == likely[:, None]).any(dim=2).all()


def test_rows_of_every_form_are_ranked_as_if_alone():
    draft_probs = likeliest_probs(LOGITS[0].softmax(dim=1), 40)
    told = told_block(
        report_of(seed=6),
        DraftTopK(
            confidences=np.full(LENGTH, 0.5, dtype=np.float32),
            slot_ids=LOGITS[0].topk(50).indices.int().numpy(),
            slot_scores=LOGITS[0].topk(50).values.numpy(),
        ),
        CPU,
    )
    verifications = [
        flight_of(report_of(), scores_of()),
        flight_of(report_of("rejection"), scores_of(None, draft_probs)),
        flight_of(report_of(temperature=0.0), scores_of()),
        flight_of(report_of(), None),
        flight_of(report_of(seed=6), told.scores),
        flight_of(report_of("foreseeable", seed=8, position=31), scores_of()),
    ]
    together = candidates_of(verifications, 8, NoiseTable(), CPU)
    for pending, found in zip(verifications, together, strict=True):
        (alone,) = candidates_of([pending], 8, NoiseTable(), CPU)
        assert found.tolist() == alone.tolist()
    greedy = LOGITS[0].argsort(dim=1, descending=True)
    assert together[2][:, 0].tolist() == [*greedy[:LENGTH, 1].tolist(), int(greedy[LENGTH, 0])]
