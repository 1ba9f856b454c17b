"""Calibrations as files: beside the drafter, and valid for one drafter and one target only."""

import functools
import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from specserve.drafters.probs_confidence import ConfidenceModel
from specserve.models.config import CONFIG_FILE, PositiveFloat

log = logging.getLogger(__name__)

FILE_NAME = "calibration.json"
_CHUNK = 1 << 20

Probability = Annotated[float, Meta(ge=0, le=1)]


class PositionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Survival up to one position, on texts that were not fitted."""

    ece: float
    auroc: float | None  # None: all outcomes alike
    brier: float
    mean_prediction: float
    mean_target: float
    num_samples: int


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What calibration changed, position by position; positions nothing reached are left out."""

    before: list[PositionFigures]
    after: list[PositionFigures]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What turns a drafter's raw confidences into probabilities, and what that is known from."""

    drafter_hash: str
    target_hash: str
    method: str = msgspec.field(name="rule")  # as files know it
    temperature: float  # of the request
    num_texts: int  # fitted and evaluated
    num_blocks: int  # fitted
    temperatures: list[PositiveFloat]  # of the confidence logits, by position
    # Where the drafter has no confidence head; files know it by an older name.
    confidence_model: ConfidenceModel | None = msgspec.field(default=None, name="law")
    evaluation: Evaluation
    # Mean survivals by position, by how rows are verified: "greedy" or a method. What a service
    # expects of the drafter before it has seen any of its blocks.
    acceptance: dict[str, list[Probability]] = {}
    asked: str = ""  # what the texts answer: a name and a digest; older files do not say


def weights_hash(models: Sequence[Path]) -> str:
    """Of configuration and weights of these folders or GGUF files, in order.

    It changes when a distribution may change. Files that are as they were are read once a process.
    """
    files: list[tuple[Path, int, int]] = []
    for model in models:
        in_folder = [model / CONFIG_FILE, *sorted(model.glob("*.safetensors"))]
        for path in [model] if model.is_file() else in_folder:
            files.append((path, path.stat().st_size, path.stat().st_mtime_ns))
    return _hash_of(tuple(files))


@functools.lru_cache(maxsize=64)
def _hash_of(files: tuple[tuple[Path, int, int], ...]) -> str:
    """`files`: paths, sizes and times of change."""
    digest = hashlib.sha256()
    for path, _, _ in files:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def write_calibration(folder: Path, calibration: Calibration) -> Path:
    """The file that was written, in whole or not at all."""
    path = folder / FILE_NAME
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
    os.replace(temporary, path)
    return path


def find_calibration(drafter: Sequence[Path], target: Path) -> Calibration | None:
    """The calibration beside the last of the drafter's folders; None without a usable one.

    A file that cannot be read, or was made for other weights, is left out with a warning: drafts
    are correct without it, only less well scheduled.
    """
    path = drafter[-1] / FILE_NAME
    if not path.is_file():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s: not used: %s", path, error)
        return None
    made_for = {"drafter": found.drafter_hash, "target": found.target_hash}
    given = {"drafter": weights_hash(drafter), "target": weights_hash([target])}
    for role, value in made_for.items():
        if value != given[role]:
            log.warning("%s: not used: it was made for another %s", path, role)
            return None
    return found
