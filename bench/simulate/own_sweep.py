# pyright: strict
"""Our own sweeps (`bench/results/sweep`), from their parts, load by load.

Speeds are those of decoding, after first tokens: simulated requests have no prompts. Parts are of
plain decoding and of the synchronous arm that verifies whole blocks; where the planner verifies as
many tokens as pay, in whatever mode, it is predicted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from bench.simulate.own import FOLDER, GAMMA, Source, compared, setting_of
from bench.simulate.results import Measured

_OFF, _WHOLE = "off", "sync fixed"
_PREDICTED = ("sync", "async", "auto")
Row = Mapping[str, Any]


class Sweep(NamedTuple):
    """One report."""

    folder: str
    why: str = ""  # parts that are not known


_LOOKS_UP = "most rows find nothing to look up, and draft processes run another drafter"
SWEEPS = (
    Sweep("sweep/smollm2", _LOOKS_UP),
    Sweep("sweep/smollm2-sizes", _LOOKS_UP),
    Sweep("sweep/smollm2-lm"),
)


def compare(sweep: Sweep, num_tokens: int) -> list[Measured]:
    """All closed loops of which both parts were measured; `num_tokens` are simulated of each."""
    document = msgspec.json.decode((FOLDER / sweep.folder / "results.json").read_bytes())
    found: list[Measured] = []
    for source, arms in _places(sweep, document["rows"]):
        if _OFF in arms and _WHOLE in arms:
            found += _compared(source, arms, num_tokens)
    return found


def _places(sweep: Sweep, rows: Sequence[Row]) -> Iterator[tuple[Source, dict[str, Row]]]:
    """Every load at every temperature, with its arms as `own` reads them."""
    by_place: dict[tuple[float, int], dict[str, Row]] = {}
    for row in rows:
        size = row["load"].get("in_flight", 0)
        if size and row["tokens_per_s_per_user"] is not None:
            place = by_place.setdefault((row["temperature"], size), {})
            place[row["arm"]] = _as_own(row, size)
    for (temperature, size), arms in by_place.items():
        yield Source(sweep.folder, {}, size, temperature, sweep.why), arms


def _as_own(row: Row, size: int) -> Row:
    """Tokens a second and milliseconds of a round of all rows."""
    per_user, accept_len = row["tokens_per_s_per_user"]["value"], row["accept_len"]["value"]
    spent = row["round_ms"]
    return {
        "tokens_per_s": {"value": size * per_user},
        "accept_len": {"value": accept_len},
        "hit_rate": row["hit_rate"],
        "verify_len": row["verified"]["value"],
        "parts": {
            "verify_ms": spent["forward"],
            "draft_ms": spent["draft"],
            "round_ms": 1000 * accept_len / per_user,
        },
    }


def _compared(source: Source, arms: Mapping[str, Row], num_tokens: int) -> list[Measured]:
    off, whole = arms[_OFF], arms[_WHOLE]
    verify_len = min(GAMMA, max(1, round(whole["verify_len"])))
    setting = setting_of(source, off, whole, verify_len)
    fixed = replace(setting, mode="sync", policy="fixed", weighs_costs=False)
    found = [
        compared(source, replace(setting, mode="off"), off, "given", num_tokens),
        msgspec.structs.replace(compared(source, fixed, whole, "given", num_tokens), arm=_WHOLE),
    ]
    for mode in _PREDICTED:
        if mode in arms:
            own = replace(setting, mode=mode)
            found.append(compared(source, own, arms[mode], "predicted", num_tokens))
    return found
