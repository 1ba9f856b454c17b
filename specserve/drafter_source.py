# pyright: strict
"""Where the drafter's files are: embedded, a local folder, or a download from the hub.

The counterpart of `specserve.target_source`, run in the supervisor too. Reads no model.
"""

from pathlib import Path

import msgspec

from specserve.config import SpeculationConfig
from specserve.errors import InvalidField
from specserve.model.config import CONFIG_FILE
from specserve.target_source import EMBEDDED_TARGET, locate_folder

EMBEDDED_DRAFTERS = EMBEDDED_TARGET.parent / "drafters"
NGRAM = "ngram"  # prompt lookup: no files
_DEFAULT = "dspark"


def locate_drafter(speculation: SpeculationConfig, target: Path) -> SpeculationConfig:
    """`speculation` with folders for names; as it is in modes in which nobody drafts.

    Raises InvalidField for what is none, and where nothing fits the target by itself.
    """
    if speculation.mode != "sync":
        return speculation
    name, head = speculation.drafter, speculation.local_head
    if name is None:
        if target != EMBEDDED_TARGET:
            problem = f"is needed for a target of your own: a folder, a hub id, or {NGRAM}"
            raise InvalidField("speculation.drafter", problem)
        name = _DEFAULT
    if name == NGRAM and head is not None:
        raise InvalidField("speculation.local_head", f"can be added to a DFlash, not to {NGRAM}")
    return msgspec.structs.replace(
        speculation,
        drafter=name if name == NGRAM else str(_locate(name, "speculation.drafter")),
        local_head=None if head is None else str(_locate(head, "speculation.local_head")),
    )


def embedded_drafters() -> list[str]:
    """Names of the drafters that come with the embedded target."""
    if not EMBEDDED_DRAFTERS.is_dir():
        return []
    return sorted(folder.name for folder in EMBEDDED_DRAFTERS.iterdir() if folder.is_dir())


def _locate(name: str, field: str) -> Path:
    known = embedded_drafters()
    if name in known:
        return EMBEDDED_DRAFTERS / name
    try:
        folder = locate_folder(name, field)
    except InvalidField as error:
        if "/" in name:
            raise
        names = ", ".join((*known, NGRAM))
        raise InvalidField(field, f"{name!r} is no folder and none of {names}") from error
    if not (folder / CONFIG_FILE).is_file():
        raise InvalidField(field, f"{folder} is no drafter's folder, {CONFIG_FILE} is missing")
    return folder
