# pyright: strict
"""What `launch` says where another drafter was measured to be faster here than the default one.

Decides nothing: which drafter runs is as it would be without any figures.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from specserve.settings.config import Config, ResolvedConfig
from specserve.settings.drafter_source import NGRAM, shipped_drafters
from specserve.settings.hardware import probe
from specserve.settings.speed_files import SpeedRecord, measured_speeds

_Pair = tuple[SpeedRecord, SpeedRecord]  # of the default drafter, and of another


def faster_drafter_remark(wish: Config, config: ResolvedConfig) -> str | None:
    """Which measured drafter is faster than the one that runs because nobody named any.

    None with draft processes, whose drafts nobody has measured.
    """
    named, speculation = wish.speculation, config.speculation
    is_named = any((named.drafter, named.colocated_drafter, named.local_head))
    is_alone = speculation.mode in ("sync", "auto") and not config.num_draft_processes
    if is_named or not is_alone or speculation.drafter is None:
        return None
    usual = speculation.drafter
    default = usual if usual == NGRAM else str(Path(usual).resolve())
    pair = _faster(measured_speeds(config, probe()), default)
    if pair is None:
        return None
    usual, other = pair
    names = {
        str(folder.resolve()): name
        for name, folder in shipped_drafters(Path(config.model.target or "")).items()
    }
    words = ["--drafter", names.get(other.drafter, other.drafter)]
    if other.local_head is not None:
        words += ["--local-head", names.get(other.local_head, other.local_head)]
    return (
        f"{' and '.join(words[1::2])} was measured to be {other.figure} times as fast here as "
        f"plain decoding, the default drafter {names.get(usual.drafter, usual.drafter)} "
        f"{usual.figure} times (specserve calibrate: one request, temperature "
        f"{other.asked.temperature:g}); to draft with the faster one: {shlex.join(words)}"
    )


def _faster(records: Sequence[SpeedRecord], default: str) -> _Pair | None:
    """The drafter that gains most on the default one, where requests were the same.

    It is beyond the spread: intervals do not overlap, and at no other temperature, nor with other
    prompts, they do not the other way round.
    """
    own = {
        record.asked: record
        for record in records
        if record.local_head is None and record.drafter == default
    }
    pairs: dict[tuple[str, str | None], list[_Pair]] = {}
    for record in records:
        usual = own.get(record.asked)
        if usual is not None and usual is not record:
            pairs.setdefault((record.drafter, record.local_head), []).append((usual, record))
    faster = [
        (usual, other)
        for measured in pairs.values()
        if not any(other.high < usual.low for usual, other in measured)
        for usual, other in measured
        if other.low > usual.high
    ]
    return max(faster, key=lambda pair: pair[1].value / pair[0].value, default=None)
