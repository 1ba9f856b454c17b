# pyright: strict
"""Our measurements of synchronous speculation alone (`bench/results/sync`), from their parts.

All parts are given: this says whether simulated rounds add up, not whether anything is foreseen.
Whole blocks are verified, as they were there.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from bench.simulate.own import FOLDER, GAMMA
from bench.simulate.results import Measured
from bench.simulate.service import simulate
from bench.simulate.setting import Drafters, Requests, Setting
from bench.simulate.step_models import chains, measured_steps
from bench.simulate.texts import Texts
from bench.ssd_formulas import accept_rate_of

_SOURCE, _PLAIN = "sync", "plain"
Row = Mapping[str, Any]


def compare(num_tokens: int) -> list[Measured]:
    """Both drafters at every load, greedy and coupled."""
    document = msgspec.json.decode((FOLDER / _SOURCE / "results.json").read_bytes())
    rows: list[Row] = [row for row in document["rows"] if row["rule"] in ("any", "coupled")]
    plain = {_load(row): row for row in rows if row["drafter"] == _PLAIN}
    drafted = [row for row in rows if row["drafter"] != _PLAIN]
    return [_compared(plain[_load(row)], row, num_tokens) for row in drafted]


def _load(row: Row) -> tuple[str, int, float]:
    setting = row["setting"]
    return setting["ballast"], setting["batch_size"], setting["temperature"]


def _compared(plain: Row, row: Row, num_tokens: int) -> Measured:
    ballast, size, temperature = _load(row)
    made = simulate(_setting(plain, row), tokens_each=max(1, num_tokens // size))
    measured = row["tokens_per_s"]["value"]
    return Measured(
        source=_SOURCE,
        arm=f"{row['drafter']}, {ballast}",
        batch_size=size,
        temperature=temperature,
        measured=measured,
        simulated=made.tokens_per_s,
        off_by=made.tokens_per_s / measured - 1,
        hit_rate=None,
        simulated_hit_rate=0.0,
        role="given",
    )


def _setting(plain: Row, row: Row) -> Setting:
    _, size, temperature = _load(row)
    alone, parts = (_seconds(each) for each in (plain, row))
    steps = measured_steps({size: alone["verify"], size * (GAMMA + 1): parts["verify"]})
    accept = accept_rate_of(row["accept_len"]["value"], GAMMA)
    base = Setting(
        steps,
        Texts((accept,)),
        Drafters(GAMMA, chains({size: (parts["draft"], 0.0)})),
        requests=Requests(size, answer_len=400, temperature=temperature),
        mode="sync",
        policy="fixed",
        weighs_costs=False,
    )
    return replace(base, rest_s=parts["rest"])


def _seconds(row: Row) -> dict[str, float]:
    return {name: row["round"][f"{name}_ms"] / 1000 for name in ("verify", "draft", "rest")}
