"""Reference case of calibration: figures of confidences by position, and temperatures fitted."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from draft_node.calibration.fit import fit_temperatures
from draft_node.calibration.metrics import Floats, Metrics, bins, measure, survivals
from tests.golden_case import Case

# The reference multiplies confidences in float32. Means over all rows hardly show it, those of a
# bin with a row or two do.
TOLERANCE, BIN_TOLERANCE = 1e-7, 1e-6
_FIGURES = {
    "total_weight": "num_samples",
    "ece": "ece",
    "auc": "auroc",
    "brier": "brier",
    "pred_mean": "mean_prediction",
    "target_mean": "mean_target",
}
_SUMMARY = {"ece_mean": "ece", "auc_mean": "auroc", "brier_mean": "brier"}
_SUMMARY |= {name: _FIGURES[name] for name in ("pred_mean", "target_mean")}
_BINS = {"avg_pred": "predictions", "avg_target": "targets", "weight": "counts"}


def is_calibration(case: Case) -> bool:
    return {"confidence_logits", "accept_prefix_mask"} <= case.expected.keys()


def compare_calibration(case: Case) -> None:
    """Figures of raw survivals and their bins, temperatures, and errors before and after."""
    case.expected |= _written(case.folder / "expected.json")
    logits = case.input("confidence_logits").double().numpy()
    stood = case.input("accept_prefix_mask").double().numpy()
    lengths = case.input("effective_proposal_length").numpy()
    num_positions = logits.shape[1]
    counted = np.arange(num_positions) < lengths[:, None]

    raw = survivals(logits)
    before = [measure(raw[rows, k], stood[rows, k]) for k, rows in enumerate(counted.T)]
    for name, field in _FIGURES.items():
        _compare(case, f"expected.{name}", _all(before, field))
    weights = _all(before, "num_samples")
    for name, field in _SUMMARY.items():
        _compare(case, f"summary.{name}", np.average(_all(before, field), weights=weights))
    for k, rows in enumerate(counted.T):
        found = bins(raw[rows, k], stood[rows, k])
        for name, field in _BINS.items():
            _compare(case, f"reliability.{k}.{name}", getattr(found, field), BIN_TOLERANCE)

    temperatures = fit_temperatures(logits, stood, counted)
    scaled = survivals(logits, temperatures)
    after = [measure(scaled[rows, k], stood[rows, k]) for k, rows in enumerate(counted.T)]
    _compare(case, "sts.temperatures", temperatures)
    _compare(case, "sts.ece_before", _all(before, "ece"))
    _compare(case, "sts.ece_after", _all(after, "ece"))


def _written(path: Path) -> dict[str, torch.Tensor]:
    """What a case has in expected.json alone, as tensors; nothing without the file."""
    if not path.is_file():
        return {}
    content = json.loads(path.read_bytes())
    found = {f"summary.{name}": value for name, value in content["summary"].items()}
    for position in content["per_position"]:
        for name in _BINS:
            values = [used[name] for used in position["reliability"]]
            found[f"reliability.{position['position']}.{name}"] = values
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}


def _all(positions: Sequence[Metrics], field: str) -> Floats:
    return np.array([getattr(position, field) for position in positions], np.float64)


def _compare(case: Case, name: str, actual: Floats | float, tolerance: float = TOLERANCE) -> None:
    case.check(name, torch.as_tensor(actual, dtype=torch.float64), tolerance)
