# pyright: strict
"""How fast drafters have been on this machine, as `specserve calibrate` measured it.

One file for each target, drafter, kind of service and set of prompts, so that drafters of one
target lie side by side. It belongs to the machine: nothing of it is in the drafter's folder.
"""

import logging
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from specserve.settings.config import ResolvedConfig
from specserve.settings.drafter_source import NGRAM
from specserve.settings.hardware import Hardware
from specserve.settings.kept_files import (
    Count,
    Kept,
    KeptFile,
    cache_folder,
    computed_by,
    mark_of,
)

FOLDER = "speeds"
_FORMAT = 1  # of the file

Times = Annotated[float, Meta(gt=0, le=1e4)]  # as fast as plain decoding

log = logging.getLogger(__name__)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests were: speeds are compared where all of it is the same."""

    temperature: Annotated[float, Meta(ge=0)]
    num_tokens: Count  # of an answer at most
    prompts: str  # a hash of their token ids


class SpeedRecord(Kept, frozen=True, kw_only=True):
    """The contents of a file: synchronous speculation against plain decoding of one request."""

    format: int = _FORMAT
    drafter: str  # folder, or "ngram"
    local_head: str | None
    asked: Asked
    num_pairs: Count  # of requests, one of a pair decoded plainly
    value: Times
    low: Times  # the ends of the 95 % interval
    high: Times

    @property
    def figure(self) -> str:
        """As people read it."""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class SpeedFile(KeptFile[SpeedRecord]):
    """Where the speed of one drafter is kept."""

    def __init__(
        self,
        config: ResolvedConfig,
        asked: Asked,
        hardware: Hardware,
        *,
        drafter: str,
        local_head: str | None,
    ) -> None:
        """`config`: of the service that `drafter` has drafted in, or would.

        Raises OSError for a folder that cannot be read.
        """
        models = [_resolved(each) for each in (config.model.target, drafter, local_head)]
        self.drafter, self.local_head = models[1] or "", models[2]
        identity = {
            "models": ", ".join(each or "none" for each in models),
            "asked": f"temperature {asked.temperature:g}, {asked.num_tokens} tokens behind each "
            f"of the prompts {asked.prompts}",
            **_service(config),
        }
        made_for = {
            "models' files": ", ".join(
                mark_of(Path(each)) for each in models if each not in (None, NGRAM)
            ),
            **computed_by(config.placement("target").device, hardware),
        }
        super().__init__(
            SpeedRecord,
            "rounds with this drafter",
            folder=FOLDER,
            identity=identity,
            made_for=made_for,
        )


def measured_speeds(config: ResolvedConfig, hardware: Hardware) -> list[SpeedRecord]:
    """Those of this machine, the target as it is and such a service, with drafters as they are.

    What cannot be read is left out with a warning; what was measured for something else, without.
    """
    found: list[SpeedRecord] = []
    folder = cache_folder() / FOLDER
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError as error:  # a cache folder that is not for us
        log.warning("speeds of drafters are not known: %s", error)
        return []
    for path in paths:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=SpeedRecord)
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is of no use, and is left out: %s", path, error)
            continue
        if record.format == _FORMAT and _is_of_now(record, config, hardware):
            found.append(record)
    return found


def _is_of_now(record: SpeedRecord, config: ResolvedConfig, hardware: Hardware) -> bool:
    drafter, head = record.drafter, record.local_head
    try:
        file = SpeedFile(config, record.asked, hardware, drafter=drafter, local_head=head)
    except (OSError, ValueError, RuntimeError):  # not for us, no name at all, or a loop of links
        return False
    return file.made_for == record.made_for


def _resolved(model: str | None) -> str | None:
    """By whatever way it was named; prompt lookup has no files."""
    return model if model in (None, NGRAM) else str(Path(model).resolve())


def _service(config: ResolvedConfig) -> dict[str, str]:
    """What rounds of one request depend on, besides models and machine."""
    model, topology, engine, speculation = (
        config.model, config.topology, config.engine, config.speculation,
    )  # fmt: skip
    return {
        "dtype": f"{model.dtype}, keys and values in {engine.kv_dtype}",
        "ballast": model.ballast or "none",
        "process": f"{topology.topology} on {config.placement('target').device}, "
        f"threads {topology.threads}, {config.sharing}",
        "engine": f"deterministic {engine.deterministic}, cuda_graphs {engine.cuda_graphs}",
        "blocks": f"gamma {speculation.gamma}, least survival {speculation.min_survival}, "
        f"policy {speculation.policy}",
    }
