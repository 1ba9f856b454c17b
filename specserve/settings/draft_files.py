# pyright: strict
"""What drafts of a drafter take on a machine, kept from one process that drafts to the next.

One file for each drafter, target, and kind of process.
"""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from specserve.errors import Unavailable
from specserve.settings.config import ResolvedConfig, SpeculationConfig
from specserve.settings.drafter_source import NGRAM
from specserve.settings.hardware import Hardware
from specserve.settings.kept_files import (
    Kept,
    KeptFile,
    Seconds,
    cache_folder,
    computed_by,
    mark_of,
)
from specserve.types import DraftTime

_FORMAT = 1  # of the file


class DraftRecord(Kept, frozen=True, kw_only=True):
    """The contents of a file."""

    format: int = _FORMAT
    times: Annotated[list[DraftTime], Meta(min_length=1)]  # by blocks, ascending
    enter_s: Seconds  # until what was verified is in a row's context


FOLDER = "drafts"


class DraftFile(KeptFile[DraftRecord]):
    """Where the times of one drafter are kept, in processes of one role (target, draft)."""

    def __init__(
        self, config: ResolvedConfig, speculation: SpeculationConfig, role: str, hardware: Hardware
    ) -> None:
        """`speculation`: with the drafter that is meant."""
        engine = config.engine
        models = [config.model.target, speculation.drafter, speculation.local_head]
        placement, threads = config.placement(role), config.topology.threads
        if role == "draft":
            threads = speculation.draft_threads or threads
        identity = {
            "models": ", ".join(each or "none" for each in models),
            "dtype": f"{config.model.dtype}",
            "blocks": f"gamma {speculation.gamma}, least survival {speculation.min_survival}",
            "process": f"{role} on {placement.device}, threads {threads}, "
            f"{config.topology.topology}, {config.sharing}",
            "engine": f"deterministic {engine.deterministic}, cuda_graphs {engine.cuda_graphs}",
        }
        files = [mark_of(Path(each)) for each in models if each and each != NGRAM]
        made_for = {
            "models' files": ", ".join(files),
            "limits": f"{engine.max_batch_rows} rows a forward, "
            f"{config.model.max_model_len} tokens a row",
            **computed_by(placement.device, hardware),
        }
        super().__init__(DraftRecord, "drafts", folder=FOLDER, identity=identity, made_for=made_for)


def forget_all() -> None:
    """Every drafter is timed anew. Raises Unavailable where that is not ours to remove."""
    for path in (cache_folder() / FOLDER).glob("*.json"):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"{path} cannot be removed: {error.strerror}") from error
