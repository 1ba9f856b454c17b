# pyright: strict
"""Where the drafters' files are: embedded, a local folder, or a download from the hub.

The counterpart of `specserve.settings.target_source`, run in the supervisor too. Reads no model.

Two places can draft: the target's own process (`sync`, `auto` when that is faster, and `async` for
what nothing was prepared for), and draft processes (`async`, and `auto` where there are any).
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from specserve.errors import InvalidField
from specserve.models.config import CONFIG_FILE
from specserve.models.model_files import only_pickles
from specserve.settings.config import SpeculationConfig
from specserve.settings.target_source import (
    EMBEDDED_TARGET,
    GGUF_SUFFIX,
    SMOLLM2,
    find_smollm2,
    locate_model,
)

EMBEDDED_DRAFTERS = EMBEDDED_TARGET.parent / "drafters"
SMOLLM2_DRAFTERS = EMBEDDED_TARGET.parent / "smollm2"
NGRAM = "ngram"  # prompt lookup: no files
# The first that comes with this installation, in the target's process and in draft processes. For
# the tiny target, a chain of the language model on a CPU takes thrice as long as a block of
# DSpark's and is kept so much longer that it is faster at every batch size measured: see
# bench/results/sync. On CUDA its passes cost what a target's forward does: .64 of plain decoding
# where DSpark has 1.8 (results/gpu).
_COLOCATED_DEFAULTS = {"cpu": ("lm", "dspark"), "cuda": ("dspark",)}
_ASYNC_DEFAULTS = {"cpu": ("lm", "dspark"), "cuda": ("dspark",)}
# For SmolLM2 on a CPU a lookup gains most of greedy text, and costs nothing where it finds nothing;
# a draft process has the time for the language model. What was measured is in bench/LOG.md. On
# CUDA it is the design's DSpark, and its deeper kind ahead.
_SMOLLM2_COLOCATED = {"cpu": (NGRAM,), "cuda": ("dspark", "lm", NGRAM)}
_SMOLLM2_ASYNC = {"cpu": ("lm", "dspark", NGRAM), "cuda": ("dspark-async", "dspark", "lm", NGRAM)}


def locate_drafter(
    speculation: SpeculationConfig,
    target: Path,
    num_draft_processes: int = 0,
    *,
    device: str = "cpu",
) -> SpeculationConfig:
    """`speculation` with folders for names; as it is in modes in which nobody drafts.

    What nobody named is what is fastest on the kind of `device`.

    `auto` without a drafter that fits becomes `off`. Raises InvalidField for what is no drafter,
    and for a mode that needs one where nothing fits the target by itself.
    """
    if speculation.mode not in ("sync", "async", "auto"):
        return speculation
    _refuse_idle_names(speculation, num_draft_processes)
    shipped = shipped_drafters(target)
    # First: one place may draft with the other's name.
    speculation = _located(speculation, shipped)
    speculation = _located(_named(speculation, target, num_draft_processes, device), shipped)
    if speculation.drafter is None:
        if speculation.mode == "auto" and num_draft_processes == 0:
            return msgspec.structs.replace(speculation, mode="off")
        problem = f"is needed for a target of your own: a folder, a hub id, or {NGRAM}"
        raise InvalidField("speculation.drafter", problem)
    head = speculation.local_head
    if head is None:
        return speculation
    if speculation.drafter == NGRAM:
        raise InvalidField("speculation.local_head", f"can be added to a DFlash, not to {NGRAM}")
    folder = str(_locate(head, "speculation.local_head", shipped))
    return msgspec.structs.replace(speculation, local_head=folder)


def _refuse_idle_names(speculation: SpeculationConfig, num_drafts: int) -> None:
    """A drafter that is named and would never draft is a mistake, not a wish."""
    drafter, colocated = speculation.drafter, speculation.colocated_drafter
    if num_drafts or speculation.mode == "async" or None in (drafter, colocated):
        return  # async without a draft process is refused for that
    if colocated == drafter:
        return
    problem = f"{colocated!r} beside drafter {drafter!r}: without draft processes one place drafts"
    raise InvalidField("speculation.colocated_drafter", problem)


def _named(
    speculation: SpeculationConfig, target: Path, num_drafts: int, device: str
) -> SpeculationConfig:
    """With the names of defaults; `drafter` stays None where there is none."""
    drafter, colocated = speculation.drafter, speculation.colocated_drafter
    async_default, colocated_default = _defaults(target, device)
    match speculation.mode:
        case "sync":
            drafter, colocated = drafter or colocated or colocated_default, None
        case "async":
            # Beside the target, for misses: not without being asked where it was not sized for it.
            if drafter is None:
                colocated = colocated or colocated_default
            drafter = drafter or async_default
        case _ if num_drafts:
            drafter, colocated = (
                drafter or async_default or colocated,
                colocated or colocated_default or drafter,
            )
        case _:  # one place drafts, so either name means the same
            drafter = colocated = colocated or drafter or colocated_default
    return msgspec.structs.replace(speculation, drafter=drafter, colocated_drafter=colocated)


def _defaults(target: Path, device: str) -> tuple[str | None, str | None]:
    """Of draft processes, and of the target's; None where nothing fits a target by itself."""
    known = shipped_drafters(target)
    if target == EMBEDDED_TARGET:
        # The last one where none is there, for the message.
        wanted = _ASYNC_DEFAULTS[device], _COLOCATED_DEFAULTS[device]
        ahead, beside = (next((n for n in names if n in known), names[-1]) for names in wanted)
        return ahead, beside
    if target == find_smollm2():
        wanted = _SMOLLM2_ASYNC[device], _SMOLLM2_COLOCATED[device]
        ahead, beside = (next(n for n in names if n in (*known, NGRAM)) for names in wanted)
        return ahead, beside
    return None, None


def shipped_drafters(target: Path) -> dict[str, Path]:
    """The folders of the drafters that come along for a target, by name."""
    if target == EMBEDDED_TARGET:
        place = EMBEDDED_DRAFTERS
    elif target == find_smollm2():
        place = SMOLLM2_DRAFTERS
    else:
        return {}
    folders = sorted(place.iterdir()) if place.is_dir() else []
    return {folder.name: folder for folder in folders if folder.is_dir()}


def _located(speculation: SpeculationConfig, shipped: Mapping[str, Path]) -> SpeculationConfig:
    """With folders for those names of drafters that it has."""
    drafter, colocated = speculation.drafter, speculation.colocated_drafter
    return msgspec.structs.replace(
        speculation,
        drafter=_drafter(drafter, "speculation.drafter", shipped),
        colocated_drafter=_drafter(colocated, "speculation.colocated_drafter", shipped),
    )


def _drafter(name: str | None, field: str, shipped: Mapping[str, Path]) -> str | None:
    return name if name is None or name == NGRAM else str(_locate(name, field, shipped))


def _locate(name: str, field: str, shipped: Mapping[str, Path]) -> Path:
    if name in shipped:
        return shipped[name]
    try:
        folder = locate_model(name, field)
    except InvalidField as error:
        if "/" in name or name == SMOLLM2 or name.lower().endswith(GGUF_SUFFIX):
            raise
        names = ", ".join((*shipped, SMOLLM2, NGRAM))
        raise InvalidField(field, f"{name!r} is no folder and none of {names}") from error
    if folder.is_file():
        return folder
    if not (folder / CONFIG_FILE).is_file():
        problem = only_pickles(folder) or f"{CONFIG_FILE} is missing"
        raise InvalidField(field, f"{folder} is no drafter's folder: {problem}")
    return folder
