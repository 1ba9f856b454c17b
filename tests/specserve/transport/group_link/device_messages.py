"""Messages whose device part is in a device's memory, or back on the host to be compared."""

from dataclasses import replace

import numpy as np
import torch

from specserve.transport.link.messages import DraftTopK, Push, Report, RowReport
from tests.specserve.transport.link.messages import numbered_push


def on_device(message, device="cpu"):
    """What only a device reads, as tensors there."""
    return _moved(message, lambda array: torch.from_numpy(array).to(device))


def on_host(message):
    """The same, as numpy arrays."""
    return _moved(message, lambda array: torch.as_tensor(array).cpu().numpy())


def _moved(message, move):
    if isinstance(message, Push):
        return replace(
            message, kept_ids=move(message.kept_ids), kept_probs=move(message.kept_probs)
        )
    assert isinstance(message, Report)
    return replace(message, rows=[_moved_row(row, move) for row in message.rows])


def _moved_row(row: RowReport, move) -> RowReport:
    top_k = row.draft_top_k
    if top_k is not None:
        slots = move(top_k.slot_ids), move(top_k.slot_scores)
        top_k = DraftTopK(top_k.confidences, *slots)
    return replace(row, features=move(row.features), draft_top_k=top_k)


def numbered_report(number: int, device="cpu") -> Report:
    """A report of one row whose every entry follows from its number."""
    row = RowReport(
        stream=number, round=number % 1000, seed=number, sample_index=0, method="coupled",
        temperature=0.0, start=0, token_ids=np.arange(number % 7 + 1, dtype=np.int32),
        features=torch.full((number % 7, 8), float(number), device=device),
        block=np.empty(0, np.int32), speculation_id=0,
    )  # fmt: skip
    return Report([row], round_latency_s=float(number))


def is_numbered(report: Report) -> bool:
    """Whether nothing of it is another's."""
    (row,) = report.rows
    features = torch.as_tensor(row.features)
    is_own = tuple(features.shape) == (row.stream % 7, 8) and bool((features == row.stream).all())
    return is_own and report.round_latency_s == row.stream


def pushed(number: int, stream: int, device="cpu") -> Push:
    """`numbered_push` with its distributions on the device."""
    return on_device(numbered_push(number, stream), device)
