# pyright: strict
"""From measurements to figures: medians, ratios within passes, and what they say of goals."""

from collections.abc import Sequence

import msgspec

from bench.bootstrap import against
from bench.machine import Machine
from bench.peers.arms import reference
from bench.peers.environments import LLAMA_CPP, VLLM
from bench.peers.plan import Plan
from bench.peers.records import Absent, Arm, Measurement
from bench.peers.starting import PLAIN
from bench.peers.weights import BFLOAT16, FLOAT16
from bench.stats import Ratio, median, paired_ratio

# Plain decoding of ours over theirs, with weights of 16 bits in both.
GOALS = {VLLM: 1.3, LLAMA_CPP: 1.5}
_SIXTEEN_BITS = (BFLOAT16, FLOAT16)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one number of requests; medians over passes."""

    arm: Arm
    num_requests: int
    tokens_per_s: float  # of all requests together, prompts included
    first_token_ms: float  # mean over the requests of a call
    # Plain decoding of ours on as many cores over this arm, by passes; None for want of either.
    plain_over_this: Ratio | None
    # Characters until the first that differs from that arm's answers, over all; 16-bit arithmetic
    # differs between engines, so texts part somewhere, but from the first word on only by a defect.
    same_text_share: float | None
    num_passes: int
    foreign_share: float


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison that has to come out well."""

    peer: str
    threads: int
    num_requests: int
    against: str  # the arm: the fastest plain one of that peer with weights of 16 bits
    goal: float
    ratio: Ratio
    verdict: str


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """results.json. `summary` has the ratios of the goals, with the ends of their intervals."""

    summary: dict[str, float]
    goals: list[Goal]
    rows: list[Row]
    absent: list[Absent]
    model: str
    prompts: str  # what was asked, in words
    precisions: dict[str, str]  # of weights, by name: what lies in memory
    versions: dict[str, dict[str, str]]  # packages by peer, of those that are installed
    drafter: str
    plan: Plan
    command: str
    machine: Machine
    is_complete: bool
    measurements: list[Measurement]


def rows_of(measurements: Sequence[Measurement]) -> list[Row]:
    """By threads, then requests; arms in the order in which they were first asked."""
    groups: dict[tuple[int, int, Arm], list[Measurement]] = {}
    for one in measurements:
        groups.setdefault((one.arm.threads, one.num_requests, one.arm), []).append(one)
    in_order = sorted(groups, key=lambda key: key[:2])  # stable: arms stay as they were
    return [_row(groups[key], groups.get((*key[:2], reference(key[0])), [])) for key in in_order]


def _row(own: Sequence[Measurement], plain: Sequence[Measurement]) -> Row:
    pairs = _pairs(plain, own)
    return Row(
        arm=own[0].arm,
        num_requests=own[0].num_requests,
        tokens_per_s=median([one.call.tokens_per_s for one in own]),
        first_token_ms=1e3 * median([one.call.first_token_s for one in own]),
        plain_over_this=_ratio(pairs),
        same_text_share=_same_text_share(pairs),
        num_passes=len(own),
        foreign_share=median([one.foreign_share for one in own]),
    )


def _pairs(
    over: Sequence[Measurement], under: Sequence[Measurement]
) -> list[tuple[Measurement, Measurement]]:
    """Of the same pass: neighbours in time, with the same prompts."""
    by_pass = {one.pass_number: one for one in over}
    return [(by_pass[one.pass_number], one) for one in under if one.pass_number in by_pass]


def _ratio(pairs: Sequence[tuple[Measurement, Measurement]]) -> Ratio | None:
    if not pairs:
        return None
    over = [first.call.tokens_per_s for first, _ in pairs]
    return paired_ratio(over, [second.call.tokens_per_s for _, second in pairs])


def _same_text_share(pairs: Sequence[tuple[Measurement, Measurement]]) -> float | None:
    same = total = 0
    for first, second in pairs:
        for one, other in zip(first.call.answers, second.call.answers, strict=True):
            same += _same_length(one.text, other.text)
            total += max(len(one.text), len(other.text))
    return same / total if total else None


def _same_length(one: str, other: str) -> int:
    differing = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def goals_of(rows: Sequence[Row]) -> list[Goal]:
    """For every number of threads and requests at which both are there."""
    found: list[Goal] = []
    for peer, goal in GOALS.items():
        comparable = [row for row in rows if _counts(row, peer)]
        for place in dict.fromkeys((row.arm.threads, row.num_requests) for row in comparable):
            here = [row for row in comparable if (row.arm.threads, row.num_requests) == place]
            fastest = max(here, key=lambda row: row.tokens_per_s)
            ratio = fastest.plain_over_this
            if ratio is None:
                continue
            found.append(
                Goal(
                    peer=peer,
                    threads=place[0],
                    num_requests=place[1],
                    against=fastest.arm.name,
                    goal=goal,
                    ratio=ratio,
                    verdict=against(goal, ratio.value, ratio.high),
                )
            )
    return found


def _counts(row: Row, peer: str) -> bool:
    arm = row.arm
    return arm.peer == peer and arm.mode == PLAIN and arm.weights in _SIXTEEN_BITS


def summary_of(goals: Sequence[Goal]) -> dict[str, float]:
    """`plain_over_vllm_threads_1_requests_4`, and the same with _lo and _hi."""
    summary: dict[str, float] = {}
    for goal in goals:
        peer = goal.peer.replace(".", "_")
        key = f"plain_over_{peer}_threads_{goal.threads}_requests_{goal.num_requests}"
        summary[key] = goal.ratio.value
        summary[f"{key}_lo"], summary[f"{key}_hi"] = goal.ratio.low, goal.ratio.high
    return summary
