# pyright: strict
"""Our own measurements, from their parts: what the simulator makes of those in `bench/results/`.

Parts are taken from the plain and the synchronous arm alone: what a forward takes with and without
drafted tokens, what drafting takes, how often drafted tokens stand, and what is left of a round.
Asynchronous arms are predicted, once from these alone, and once with what only they can tell: how
much longer a forward takes beside a busy draft process, and how often tokens of prepared blocks
stand. What a draft process's batches take was never written down: they are taken to grow with their
blocks as the target's forwards grow with their tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.simulate.results import Measured
from bench.simulate.service import simulate
from bench.simulate.setting import Drafters, Requests, Setting, Topology
from bench.simulate.step_models import chains, measured_steps
from bench.simulate.texts import RankLaw, Texts
from bench.ssd_formulas import accept_rate_of

FOLDER = Path(__file__).parents[1] / "results"
GAMMA = 5  # of every drafter there by default
_RECOVERY, _BONUS = RankLaw(0.3, 1.0), RankLaw(0.15, 1.0)
_AT_ONCE = (1, 4, 16, 64)  # blocks
Row = Mapping[str, Any]


class Source(NamedTuple):
    """Some arms of one report, measured together."""

    folder: str
    arms: Mapping[str, str]  # by mode
    batch_size: int = 1
    temperature: float = 0.0
    why: str = ""  # parts that are not known

    @property
    def method(self) -> str:
        return "any" if self.temperature == 0 else "coupled"


_PAPERS = {"off": "plain", "sync": "sync", "async": "async"}
_LM = {"off": "off", "sync": "sync lm", "async": "async lm", "auto": "auto"}
_NGRAM = {"off": "off", "sync": "sync ngram", "async": "async ngram", "auto": "auto"}
_SMALL = "what a draft batch costs besides its passes: as long as these"
_PLANNED = "an earlier planner verified other lengths, which were not recorded"
SOURCES = (
    Source("configurations", _PAPERS),
    Source("configurations", _PAPERS, temperature=1.0),
    Source("regimes/smollm2", _NGRAM, why="most rows find nothing to look up"),
    Source("regimes/int8-intel-two-tiles-100M", _LM),
    Source("regimes/int8-intel-two-tiles-100M", _LM, temperature=1.0),
    Source("regimes/amd-lm-100M", _LM),
    Source("regimes/amd-lm-100M", _LM, temperature=1.0),
    Source("regimes/avx2-batches-100M", _LM, 2, 1.0, _PLANNED),
    Source("regimes/avx2-batches-100M", _LM, 4, 1.0, _PLANNED),
    Source("regimes/avx2-batches-100M", _LM, 16, 1.0, _PLANNED),
    Source("regimes/amd-lm-30M", _LM, why=_SMALL),
    Source("regimes/amd-lm-30M", _LM, temperature=1.0, why=_SMALL),
)


def compare(source: Source, num_tokens: int) -> list[Measured]:
    """Every arm of one source; `num_tokens` are simulated of each."""
    rows = {mode: row_of(source, arm) for mode, arm in source.arms.items()}
    setting = setting_of(source, rows["off"], rows["sync"])
    found: list[Measured] = []
    for mode, row in rows.items():
        own = replace(setting, mode=mode)
        if mode in ("off", "sync"):
            found.append(compared(source, own, row, "given", num_tokens))
            continue
        found.append(compared(source, own, row, "predicted", num_tokens))
        with_parts = _with_parts(own, rows["sync"], rows["async"])
        found.append(compared(source, with_parts, row, "with its parts", num_tokens))
    return found


def compared(source: Source, setting: Setting, row: Row, role: str, num_tokens: int) -> Measured:
    """One arm, simulated; `role` says how much of it was told."""
    made = simulate(setting, tokens_each=max(1, num_tokens // source.batch_size))
    measured, hits = row["tokens_per_s"]["value"], row["hit_rate"]
    return Measured(
        source=source.folder,
        arm=setting.mode,
        batch_size=source.batch_size,
        temperature=source.temperature,
        measured=measured,
        simulated=made.tokens_per_s,
        off_by=made.tokens_per_s / measured - 1,
        hit_rate=None if hits is None else hits["value"],
        simulated_hit_rate=made.hit_rate,
        role=role,
        why="" if role == "given" else source.why,
    )


def _with_parts(setting: Setting, sync: Row, asynchronous: Row) -> Setting:
    """What the asynchronous arm alone can tell."""
    slower = asynchronous["parts"]["verify_ms"] / sync["parts"]["verify_ms"]
    of_hits = accept_rate_of(asynchronous["hit_len"], GAMMA)
    prepared = min(1.0, of_hits / setting.texts.accept[0])
    texts = replace(setting.texts, prepared=prepared)
    return replace(setting, texts=texts, slower=max(1.0, slower))


def setting_of(source: Source, off: Row, sync: Row, verify_len: int = GAMMA) -> Setting:
    """The parts of both arms, in seconds; drafted for by one process.

    `verify_len`: drafted tokens of a row that the synchronous arm verified.
    """
    plain, drafted, size = _seconds(off), _seconds(sync), source.batch_size
    steps = measured_steps({size: plain["verify"], size * (verify_len + 1): drafted["verify"]})
    token_share = max(0.0, drafted["verify"] / plain["verify"] - 1) / (verify_len * size)
    token_s = drafted["draft"] / verify_len / (1 + token_share * (size - 1))
    passes = {n: (0.0, token_s * (1 + token_share * (n - 1))) for n in _AT_ONCE}
    accept = accept_rate_of(sync["accept_len"]["value"], verify_len)
    rest_s = plain["round"] - plain["verify"]
    more_s = drafted["round"] - drafted["verify"] - drafted["draft"] - rest_s
    return Setting(
        steps,
        Texts((accept,), recovery=_RECOVERY, bonus=_BONUS),
        Drafters(verify_len, chains(passes)),
        Topology(num_processes=1),
        Requests(size, answer_len=128, temperature=source.temperature),
        rest_s=rest_s,
        drafted_rest_s=max(0.0, more_s),
    )


def _seconds(row: Row) -> dict[str, float]:
    parts = row["parts"]
    return {name: parts[f"{name}_ms"] / 1000 for name in ("verify", "draft", "round")}


def row_of(source: Source, arm: str) -> Row:
    """An arm of its report. Raises LookupError where that has none of it."""
    document = msgspec.json.decode((FOLDER / source.folder / "results.json").read_bytes())
    rows: Sequence[Row] = document.get("rows") or [each["row"] for each in document["arms"]]
    for row in rows:
        setting = row["setting"]
        is_load = (setting["batch_size"], setting["temperature"]) == (
            source.batch_size,
            source.temperature,
        )
        if is_load and row["arm"] == arm and row["rule"] in (source.method, "any"):
            return row
    raise LookupError(f"{source.folder}: no arm {arm!r} of {source.batch_size} requests")
