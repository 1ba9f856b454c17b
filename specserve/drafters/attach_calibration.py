"""Hands confidences to a loaded drafter: those of a calibration, or those of somebody listening."""

import torch

from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.confidence_head import ConfidenceHead
from specserve.drafters.eagle3 import Eagle3Drafter
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.probs_confidence import FittedConfidence
from specserve.drafters.protocol import Drafter, ProbsConfidence
from specserve.drafters.stored_calibration import Calibration
from specserve.errors import Unsupported


def confidence_head(drafter: Drafter) -> ConfidenceHead | None:
    return drafter.confidence_head if isinstance(drafter, BlockDrafter) else None


def listen(drafter: Drafter, confidence: ProbsConfidence) -> None:
    """Make a drafter without a head ask `confidence`. `Unsupported` without probabilities."""
    if not isinstance(drafter, BlockDrafter | Eagle3Drafter | LanguageModelDrafter):
        raise Unsupported(
            f"{type(drafter).__name__} has no distributions that confidences could be read of"
        )
    drafter.probs_confidence = confidence


def attach(drafter: Drafter, calibration: Calibration, device: torch.device) -> None:
    """Calibrate what `drafter` says from now on. `Unsupported` for one of another kind."""
    head, temperatures = confidence_head(drafter), calibration.temperatures
    if head is None:
        if calibration.confidence_model is None:
            raise Unsupported("it is that of a confidence head, and there is none")
        if not temperatures or len(temperatures) != len(calibration.confidence_model.biases):
            raise Unsupported("its positions do not match")
        listen(drafter, FittedConfidence.of(calibration.confidence_model, temperatures, device))
        return
    if calibration.confidence_model is not None or len(temperatures) < drafter.gamma:
        raise Unsupported("it is not that of this confidence head")
    assert isinstance(drafter, BlockDrafter)
    drafter.confidence_head = head.calibrated(
        torch.tensor(temperatures[: drafter.gamma], device=device)
    )
