# pyright: strict
"""What forwards of a model take on a machine, kept from one service to the next.

One file for each model, topology and dtype.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from specserve.settings.config import ResolvedConfig
from specserve.settings.hardware import Hardware
from specserve.settings.kept_files import Count, Kept, KeptFile, Seconds, computed_by, mark_of

_FORMAT = 2  # of the file


class StepCell(msgspec.Struct, frozen=True):
    """Forwards of one number of tokens."""

    num_tokens: Annotated[int, Meta(ge=1, le=2**24)]
    seconds: Seconds  # without what rows and keys add
    num_takes: Count  # rounds that have run so, those of the profile included


class StepRecord(Kept, frozen=True, kw_only=True):
    """The contents of a file."""

    format: int = _FORMAT
    cells: Annotated[list[StepCell], Meta(min_length=1)]  # by tokens, ascending
    row_s: Seconds  # that a row adds, ...
    key_s: Seconds  # ... and a key that is attended to
    num_rounds: Count = 0  # that have refreshed it
    median_error: float | None = None  # of predictions of the latest of them, as a share


class StepFile(KeptFile[StepRecord]):
    """Where the times of one configuration are kept.

    Make it before the model is loaded: its files may change later.
    """

    def __init__(self, config: ResolvedConfig, hardware: Hardware) -> None:
        engine = config.engine
        made_for = {
            "model's files": mark_of(Path(config.model.target or "")),
            "limits": f"{engine.max_batch_tokens} tokens and {engine.max_batch_rows} rows a "
            f"forward, {config.model.max_model_len} tokens a row",
            **computed_by(config.placement("target").device, hardware),
        }
        super().__init__(
            StepRecord, "forwards", folder="steps", identity=_identity(config), made_for=made_for
        )


def _identity(config: ResolvedConfig) -> dict[str, str]:
    """What files are told apart by."""
    topology, model = config.topology, config.model
    return {
        "model": model.target or "",
        "ballast": model.ballast or "none",
        "dtype": f"{model.dtype}, keys and values in {config.engine.kv_dtype}",
        "topology": f"{topology.topology} on {topology.device}, threads {topology.threads}",
        "engine": f"deterministic {config.engine.deterministic}, "
        f"cuda_graphs {config.engine.cuda_graphs}, {config.sharing}",
    }
