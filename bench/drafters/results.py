# pyright: strict
"""results.json of `bench.drafters`: cells, ratios of drafters on the same prompts, the summary."""

from collections.abc import Sequence

import msgspec
import numpy as np

from bench.acceptance import (
    accept_len,
    accepted_share,
    conditional_acceptance,
    verified_len,
    whole_rounds,
)
from bench.bootstrap import Interval, Rate, interval, mean_ratio, ratio
from bench.domains import GreedyCheck
from bench.drafter_choice import (
    DFLASH,
    DSPARK,
    DSPARK_ASYNC,
    EAGLE3,
    LOCAL_HEAD,
    DrafterChoice,
)
from bench.drafters.plan import Condition, Plan, TrainingBudget
from bench.loops import LoopCount
from bench.machine import Machine
from bench.rounds import Answer
from specserve.drafters.stored_calibration import Evaluation
from specserve.sampling.verification.method import VerificationMethod


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One drafter under one condition. `tokens` and `rounds` are by prompt, of whole rounds."""

    drafter: str
    condition: Condition
    accept_len: Interval  # tokens a round, the recovery or bonus token included
    verified_len: Interval  # drafted tokens a round that were verified
    accepted_share: Interval | None  # of the verified ones
    conditional: list[Interval | None]  # by position; None where no round got there
    tokens: list[float]
    rounds: list[float]

    @property
    def rate(self) -> Rate:
        return Rate.of(list(zip(self.tokens, self.rounds, strict=True)))


class RatioRow(msgspec.Struct, frozen=True, kw_only=True):
    """Accept length of `over` by that of `under` on the same prompts; no domain: mean of all."""

    over: str
    under: str
    domain: str | None
    temperature: float
    method: str
    ratio: Interval


class CalibrationRow(msgspec.Struct, frozen=True, kw_only=True):
    """How far survival probabilities are from the truth; `after` only for a calibrated drafter."""

    drafter: str
    temperature: float
    method: str
    num_prompts: int
    num_blocks: int
    evaluation: Evaluation  # `after` is empty without a calibration
    ece_before: float  # means over positions
    ece_after: float | None
    unseen: bool  # no prompt can have been used for fitting


class DrafterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded for a label."""

    choice: DrafterChoice
    kind: str
    gamma: int


class DepthInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter of the depth sweep."""

    layers: str  # its label
    training: TrainingBudget | None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    num_params: int


Summary = dict[str, float | str | list[str] | None]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in results.json."""

    summary: Summary
    drafters: list[DrafterInfo]
    cells: list[Cell]  # the whole block verified
    ratios: list[RatioRow]
    gamma_sweep: list[Cell]
    depth_drafters: list[DepthInfo]
    depth_sweep: list[Cell]  # labels are numbers of layers
    depth_ratios: list[RatioRow]  # over the shallowest
    threshold_sweep: list[Cell]
    calibration: list[CalibrationRow]
    loops: LoopCount | None  # at temperature 0
    greedy: list[GreedyCheck]
    prompts: str  # what was asked, in words
    plan: Plan
    target: Target
    machine: Machine
    command: str


def make_cell(
    drafter: str, condition: Condition, answers: Sequence[Answer], block_len: int
) -> Cell:
    """The figures of some answers; `block_len` is the most that a round could verify."""
    rounds = [whole_rounds(answer, block_len) for answer in answers]
    lengths = accept_len(rounds)
    by_position = [conditional_acceptance(rounds, k) for k in range(block_len)]
    return Cell(
        drafter=drafter,
        condition=condition,
        accept_len=interval(lengths),
        verified_len=interval(verified_len(rounds)),
        accepted_share=_interval_if_any(accepted_share(rounds)),
        conditional=[_interval_if_any(rate) for rate in by_position],
        tokens=lengths.over.tolist(),
        rounds=lengths.under.tolist(),
    )


def _interval_if_any(rate: Rate) -> Interval | None:
    return interval(rate) if rate.under.sum() > 0 else None


def compare(cells: Sequence[Cell]) -> list[RatioRow]:
    """Every drafter over the baseline, which is DFlash or else the first: by domain, and the mean.

    A mean is over the domains in which both have a figure.
    """
    labels = list(dict.fromkeys(cell.drafter for cell in cells))
    if len(labels) < 2:
        return []
    under = DFLASH if DFLASH in labels else labels[0]
    rows: list[RatioRow] = []
    for over in labels:
        if over != under:
            rows += _ratio_rows(cells, over, under)
    return rows


def _ratio_rows(cells: Sequence[Cell], over: str, under: str) -> list[RatioRow]:
    found = {(cell.drafter, cell.condition): cell.rate for cell in cells}
    pairs: dict[tuple[float, str], dict[str, tuple[Rate, Rate]]] = {}
    for cell in cells:
        condition = cell.condition
        other = found.get((under, condition))
        if cell.drafter == over and other is not None:
            sampling = (condition.temperature, condition.method_name)
            pairs.setdefault(sampling, {})[condition.domain] = (cell.rate, other)
    rows: list[RatioRow] = []
    for (temperature, method), by_domain in pairs.items():
        figures = {domain: ratio(*pair) for domain, pair in by_domain.items()}
        for domain, figure in (*figures.items(), (None, mean_ratio(list(by_domain.values())))):
            rows.append(
                RatioRow(
                    over=over,
                    under=under,
                    domain=domain,
                    temperature=temperature,
                    method=method,
                    ratio=figure,
                )
            )
    return rows


_RATIOS = {  # goals are set for these: the key, who, over whom
    f"{DSPARK}_over_{DFLASH}": (DSPARK, DFLASH),
    f"{DSPARK}_over_{EAGLE3}": (DSPARK, EAGLE3),
    f"{LOCAL_HEAD}_over_{DFLASH}": (LOCAL_HEAD, DFLASH),
    "async_over_sync_accept_len": (DSPARK_ASYNC, DSPARK),
}


def summarise(cells: Sequence[Cell], calibration: Sequence[CalibrationRow], plan: Plan) -> Summary:
    """The figures that goals are set for; None for what was not measured.

    Ratios are means over domains at temperature 1: foreseeable without a suffix, and coupled.
    Accept lengths of DSpark are over all prompts, at temperature 1 (foreseeable) and 0.
    """
    summary: Summary = {
        "temperature": 1.0,
        "method": VerificationMethod.FORESEEABLE,
        "domains": list(plan.domains),
        "num_prompts": float(plan.num_prompts * max(1, len(plan.domains))),
        "gamma": float(plan.gamma),
    }
    for key, (over, under) in _RATIOS.items():
        means = {
            row.method: row.ratio
            for row in _ratio_rows(cells, over, under)
            if row.domain is None and row.temperature == 1
        }
        for method, suffix in (
            (VerificationMethod.FORESEEABLE, ""),
            (VerificationMethod.COUPLED, "_coupled"),
        ):
            summary |= _with_ends(f"{key}{suffix}", means.get(method))
    for temperature in (1.0, 0.0):
        found = _pooled(cells, DSPARK, temperature)
        summary |= _with_ends(f"accept_len_{DSPARK}_t{temperature:.0f}", found)
    row = next((row for row in calibration if row.drafter == DSPARK), None)
    summary["ece_before"] = None if row is None else row.ece_before
    summary["ece_after"] = None if row is None else row.ece_after
    return summary


def _with_ends(key: str, found: Interval | None) -> Summary:
    ends = {"": "value", "_lo": "low", "_hi": "high"}
    return {key + end: None if found is None else getattr(found, ends[end]) for end in ends}


def _pooled(cells: Sequence[Cell], drafter: str, temperature: float) -> Interval | None:
    """Tokens a round over the prompts of all domains."""
    rates = [
        cell.rate
        for cell in cells
        if cell.drafter == drafter
        and cell.condition.temperature == temperature
        and cell.condition.method == VerificationMethod.FORESEEABLE
    ]
    if not rates:
        return None
    over, under = (np.concatenate([getattr(r, side) for r in rates]) for side in ("over", "under"))
    return interval(Rate(over, under))
