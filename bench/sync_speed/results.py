# pyright: strict
"""results.json of `bench.sync_speed`: from interleaved groups to figures.

Rates are tokens over seconds, summed over groups, of turns in which every row decodes. A ratio and
its interval draw the same groups for both arms.
"""

from collections.abc import Sequence

import msgspec

from bench.bootstrap import Interval, Rate, interval, ratio
from bench.domains import GreedyCheck
from bench.loops import LoopCount
from bench.machine import Machine
from bench.stats import median
from bench.sync_speed.measure import Group, Setting
from bench.sync_speed.plan import Plan
from bench.sync_speed.records import Arm, SpeculateTrace
from specserve.sampling.verification.method import VerificationMethod

QUIET_SHARE = 0.05  # waiting for a core; groups above it count only for want of others
MIN_QUIET = 10


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Mean milliseconds of a turn, by what it was spent on."""

    draft_ms: float
    verify_ms: float  # the target's forward
    rest_ms: float  # sampling and verification, scheduling, messages
    round_ms: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one setting."""

    setting: Setting
    drafter: str  # or "plain"
    method: str
    tokens_per_s: Interval
    ratio: Interval | None  # to plain decoding; None for that itself
    call_ratio: Interval | None  # the same of whole calls, prompts included
    cpu_ratio: Interval | None  # and by processor time, which other load disturbs less
    accept_len: Interval  # tokens of a row and round, those cut short at the end included
    round: Round
    round_cost: float  # mean round by the mean plain round
    predicted: float | None  # accept length by round cost, both from medians of the spans
    ratio_at_common_len: float | None  # by the round cost alone
    common_accept_len: float  # the mean of all speculating arms in the setting
    equal_texts: float | None  # share of rows with the text of plain decoding, where promised
    num_groups: int
    num_disturbed: int  # that were left out
    waited_share: float  # the largest among those that count


class Target(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    core: tuple[int, ...]
    num_params: dict[str, int]  # by ballast


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in results.json. `summary`: ratios at batch 1."""

    summary: dict[str, float]
    rows: list[Row]
    loops: LoopCount | None  # of plain decoding at temperature 0
    greedy: list[GreedyCheck]
    prompts: str  # what was asked, in words
    plan: Plan
    target: Target
    machine: Machine
    command: str


def rows_of(setting: Setting, groups: Sequence[Group]) -> list[Row]:
    """Figures of every arm; plain decoding first. None without groups."""
    if not groups:
        return []
    counted = quiet(groups)
    arms = sorted(groups[0], key=lambda arm: arm.drafter is not None)
    lengths = {arm: _accept_len(_traces(counted, arm)) for arm in arms}
    speculating = [lengths[arm].value for arm in arms if arm.drafter is not None]
    common = sum(speculating) / len(speculating)
    return [
        _row(setting, arm, counted, common, num_disturbed=len(groups) - len(counted))
        for arm in arms
    ]


def quiet(groups: Sequence[Group]) -> list[Group]:
    """Those in which no arm waited long for its core, or else the few with the least waiting.

    The rule looks at what the rest of the machine did, never at a result.
    """
    ranked = sorted(groups, key=_waited_share)
    num_quiet = sum(_waited_share(group) <= QUIET_SHARE for group in ranked)
    return ranked[: max(num_quiet, MIN_QUIET)]


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """The ratio to plain decoding of every arm at batch 1, with the ends of its interval."""
    summary: dict[str, float] = {}
    for row in rows:
        setting = row.setting
        if row.ratio is None or setting.batch_size != 1:
            continue
        sampling = f"t{setting.temperature:g}" + (f"_{row.method}" if setting.temperature else "")
        key = f"{row.drafter}_{setting.domain}_{sampling}_{setting.ballast}"
        summary[key] = row.ratio.value
        summary[f"{key}_lo"], summary[f"{key}_hi"] = row.ratio.low, row.ratio.high
    return summary


def _row(
    setting: Setting, arm: Arm, groups: Sequence[Group], common: float, *, num_disturbed: int
) -> Row:
    own, plain = _traces(groups, arm), _traces(groups, _plain(groups[0]))
    spent, plain_ms = _round(own), _round(plain).round_ms
    accept_len = _accept_len(own)
    speculates = arm.drafter is not None
    return Row(
        setting=setting,
        drafter=arm.label,
        method=arm.method if setting.temperature and speculates else "any",
        tokens_per_s=interval(_decode_rate(own)),
        ratio=ratio(_decode_rate(own), _decode_rate(plain)) if speculates else None,
        call_ratio=ratio(_call_rate(own), _call_rate(plain)) if speculates else None,
        cpu_ratio=_cpu_ratio(own, plain) if speculates else None,
        accept_len=interval(accept_len),
        round=spent,
        round_cost=spent.round_ms / plain_ms,
        predicted=_predicted(accept_len, own, plain) if speculates else None,
        ratio_at_common_len=common * plain_ms / spent.round_ms if speculates else None,
        common_accept_len=common,
        equal_texts=_equal_texts(setting, arm, own, plain) if speculates else None,
        num_groups=len(groups),
        num_disturbed=num_disturbed,
        waited_share=max(map(_waited_share, groups)),
    )


def _traces(groups: Sequence[Group], arm: Arm) -> list[SpeculateTrace]:
    return [group[arm] for group in groups]


def _plain(group: Group) -> Arm:
    return next(arm for arm in group if arm.drafter is None)


def _waited_share(group: Group) -> float:
    return max(trace.waited_share for trace in group.values())


def _decode_rate(traces: Sequence[SpeculateTrace]) -> Rate:
    """Tokens a second while every row decodes."""
    turns = [trace.full_turns for trace in traces]
    return Rate.of(
        [(sum(t.num_emitted for t in some), sum(t.turn_s for t in some)) for some in turns]
    )


def _call_rate(traces: Sequence[SpeculateTrace]) -> Rate:
    """Tokens a second of whole calls."""
    return Rate.of([(trace.num_tokens, trace.total_s) for trace in traces])


def _cpu_ratio(own: Sequence[SpeculateTrace], plain: Sequence[SpeculateTrace]) -> Interval | None:
    """None where calls were shorter than the scheduler's steps of counting."""
    if any(not sum(trace.usage.ran_s for trace in traces) for traces in (own, plain)):
        return None
    return ratio(_cpu_rate(own), _cpu_rate(plain))


def _cpu_rate(traces: Sequence[SpeculateTrace]) -> Rate:
    """Tokens a second of processor time, whole calls."""
    return Rate.of([(trace.num_tokens, trace.usage.ran_s) for trace in traces])


def _accept_len(traces: Sequence[SpeculateTrace]) -> Rate:
    turns = [trace.full_turns for trace in traces]
    return Rate.of(
        [(sum(t.num_emitted for t in some), sum(t.num_rows for t in some)) for some in turns]
    )


def _round(traces: Sequence[SpeculateTrace]) -> Round:
    turns = [turn for trace in traces for turn in trace.full_turns]

    def mean_ms(seconds: Sequence[float]) -> float:
        return 1e3 * sum(seconds) / len(seconds)

    return Round(
        draft_ms=mean_ms([turn.draft_s for turn in turns]),
        verify_ms=mean_ms([turn.forward_s for turn in turns]),
        rest_ms=mean_ms([turn.rest_s for turn in turns]),
        round_ms=mean_ms([turn.turn_s for turn in turns]),
    )


def _predicted(
    accept_len: Rate, own: Sequence[SpeculateTrace], plain: Sequence[SpeculateTrace]
) -> float:
    """accept length * T_plain / (T_draft + T_verify + rest), of medians: no rare slow round."""
    turns = [turn for trace in own for turn in trace.full_turns]
    spent_s = (
        median([turn.draft_s for turn in turns])
        + median([turn.forward_s for turn in turns])
        + median([turn.rest_s for turn in turns])
    )
    plain_s = median([turn.turn_s for trace in plain for turn in trace.full_turns])
    return accept_len.value * plain_s / spent_s


def _equal_texts(
    setting: Setting, arm: Arm, own: Sequence[SpeculateTrace], plain: Sequence[SpeculateTrace]
) -> float | None:
    """Coupled and greedy decoding promise the text of plain decoding; None for other methods."""
    if setting.temperature and arm.method is not VerificationMethod.COUPLED:
        return None
    pairs = [
        (ours, theirs)
        for mine, other in zip(own, plain, strict=True)
        for ours, theirs in zip(mine.texts, other.texts, strict=True)
    ]
    return sum(ours == theirs for ours, theirs in pairs) / len(pairs)
