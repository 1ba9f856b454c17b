# pyright: strict
"""How long a drafter was trained, as its folder says: depths compare at equal budgets only."""

from pathlib import Path

import msgspec

_FILE = "held_out.json"  # what `specserve train` writes beside the weights


class TrainingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Of the run that wrote the weights; what it went on from is not counted."""

    steps: int
    tokens: int


class _Figures(msgspec.Struct, frozen=True):
    training: TrainingBudget | None = None


def read_budget(folder: Path) -> TrainingBudget | None:
    """None for a folder that does not say."""
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=_Figures).training
    except (OSError, msgspec.DecodeError):
        return None
