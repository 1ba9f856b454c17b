# pyright: strict
"""From what the arms answered to their figures, in the same requests.

Rates are sums over sums, of rounds in which every row decodes. A ratio and its interval draw the
same groups for both arms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench import ssd_formulas
from bench.bootstrap import Interval
from bench.loops import LoopCount, count_loops
from bench.services import rates
from bench.services.records import Trace
from bench.services.service import Arm
from specserve.sampling.verification.method import VerificationMethod

QUIET_SHARE = 0.10  # of a core, used by others; groups above it count only for want of others
MIN_QUIET = 10


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What all arms of a comparison share."""

    ballast: str
    domain: str
    temperature: float


@dataclass(frozen=True)
class Group:
    """The same prompts continued by all arms; `number` is their place among the requests."""

    number: int
    traces: dict[Arm, Trace]

    @property
    def foreign_share(self) -> float:
        """The most of a core that others used while one of the arms worked."""
        return max(trace.foreign_share for trace in self.traces.values())


Found = dict[Setting, list[Group]]


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Mean milliseconds a round; None for what the service does not report."""

    round_ms: float
    verify_ms: float | None  # the target's forward
    draft_ms: float | None  # on the target's path: drafting, or looking up and reporting
    wait_ms: float | None  # of that, waiting for a draft process
    draft_node_ms: float | None  # of the draft process's batches, beside the target
    target_cpu_ms: float
    draft_cpu_ms: float  # polling included


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one setting."""

    setting: Setting
    arm: str
    mode: str
    method: str  # or "any"
    tokens_per_s: Interval | None
    ratio_to_off: Interval | None
    accept_len: Interval | None
    hit_rate: Interval | None
    late_drafts: float | None  # share
    parts: Parts | None
    predicted: float | None  # Theorem 7, from measured parts; beside ratio_to_off
    equal_texts: float | None  # share of rows with the text of plain decoding, where promised
    num_groups: int
    num_disturbed: int  # that were left out
    foreign_share: float  # the largest among those that count


def loops_in(found: Mapping[Setting, Sequence[Group]]) -> LoopCount | None:
    """Of plain decoding's greedy answers, each domain's once; None without any."""
    by_domain: dict[str, list[list[int]]] = {}
    for setting, groups in found.items():
        if setting.temperature > 0:
            continue
        plain = [
            text
            for group in groups
            for arm, trace in group.traces.items()
            if arm.is_reference
            for text in trace.texts
        ]
        by_domain[setting.domain] = max(by_domain.get(setting.domain, []), plain, key=len)
    answers = [text for texts in by_domain.values() for text in texts]
    return count_loops(answers) if answers else None


def quiet(groups: Sequence[Group]) -> list[Group]:
    """Those that nobody disturbed, or else the few disturbed least, in the order of the run.

    The rule looks at what the rest of the machine did, never at a result.
    """
    ranked = sorted(groups, key=lambda group: group.foreign_share)
    num_quiet = sum(group.foreign_share <= QUIET_SHARE for group in ranked)
    return sorted(ranked[: max(num_quiet, MIN_QUIET)], key=lambda group: group.number)


def rows_of(setting: Setting, groups: Sequence[Group]) -> list[Row]:
    """Figures of every arm, plain decoding first; none without groups."""
    if not groups:
        return []
    counted = quiet(groups)
    arms = sorted(groups[0].traces, key=lambda arm: not arm.is_plain)
    return [_Arm(setting, arm, counted).row(len(groups)) for arm in arms]


class _Arm:
    """One arm beside its reference in the same groups."""

    def __init__(self, setting: Setting, arm: Arm, groups: Sequence[Group]) -> None:
        self._setting = setting
        self._arm = arm
        self._groups = groups
        off = next((other for other in groups[0].traces if other.is_reference), None)
        self._own = self._traces(arm)
        self._off = None if off in (None, arm) else self._traces(off)

    def _traces(self, arm: Arm) -> list[Trace]:
        return [group.traces[arm] for group in self._groups]

    def row(self, num_measured: int) -> Row:
        own, off = self._own, self._off
        has_method = self._setting.temperature > 0 and not self._arm.is_plain
        return Row(
            setting=self._setting,
            arm=self._arm.service.name,
            mode=self._arm.service.mode,
            method=self._arm.method.value if has_method else "any",
            tokens_per_s=rates.spread(own, rates.tokens_per_s),
            ratio_to_off=None if off is None else rates.spread_ratio(own, off, rates.tokens_per_s),
            accept_len=rates.spread(own, rates.accept_len),
            hit_rate=rates.spread(own, rates.hits),
            late_drafts=rates.value(own, rates.counted("num_late_waves", "num_waves")),
            parts=parts_of(own),
            predicted=None if off is None else predicted(own, off),
            equal_texts=self._equal_texts(),
            num_groups=len(self._groups),
            num_disturbed=num_measured - len(self._groups),
            foreign_share=max(group.foreign_share for group in self._groups),
        )

    def _equal_texts(self) -> float | None:
        """Coupled and greedy decoding promise the text of plain decoding; None for others."""
        is_promised = (
            self._setting.temperature == 0 or self._arm.method is VerificationMethod.COUPLED
        )
        if self._off is None or not is_promised:
            return None
        pairs = [
            pair
            for own, off in zip(self._own, self._off, strict=True)
            for pair in zip(own.texts, off.texts, strict=True)
        ]
        return sum(own == off for own, off in pairs) / len(pairs)


def parts_of(traces: Sequence[Trace]) -> Parts | None:
    """None if no round was measured."""

    def ms(measure: rates.Measure) -> float | None:
        found = rates.value(traces, measure)
        return None if found is None else 1e3 * found

    round_ms = ms(rates.seconds_per_round)
    if round_ms is None:
        return None
    return Parts(
        round_ms=round_ms,
        verify_ms=ms(rates.counted("forward_s", "num_decode_rounds")),
        draft_ms=ms(rates.counted("draft_s", "num_decode_rounds")),
        wait_ms=ms(rates.counted("wait_s", "num_decode_rounds")),
        draft_node_ms=ms(rates.counted("wave_s", "num_decode_rounds"))
        or None,  # nobody drafts beside
        target_cpu_ms=ms(rates.processor_s("target")) or 0.0,
        draft_cpu_ms=ms(rates.processor_s("draft")) or 0.0,
    )


def predicted(own: Sequence[Trace], off: Sequence[Trace]) -> float | None:
    """What theory makes of measured parts: speed over plain decoding.

    Lengths and hit rates as measured, costs as the target reports them or, failing that, by its
    processor time. A late block is a miss here, so drafting itself costs a hit nothing.
    """
    costs, length = _costs(own, off), rates.value(own, rates.accept_len)
    if costs is None or length is None:
        return None
    cost, wait = costs
    after_hit = rates.value(own, rates.hits_after(True))
    after_miss = rates.value(own, rates.hits_after(False))
    hit_len, miss_len = rates.value(own, rates.hit_len), rates.value(own, rates.miss_len)
    if after_hit is None or after_miss is None or hit_len is None or miss_len is None:
        return length / (cost + wait)  # nobody looked anything up, or always with one outcome
    share = ssd_formulas.hit_rate(after_hit, after_miss) if after_miss else 0.0
    backup = wait / cost / (1 - share) if share < 1 else 0.0
    return ssd_formulas.speedup(share, hit_len, miss_len, draft_time=0.0, backup_time=backup) / cost


def _costs(own: Sequence[Trace], off: Sequence[Trace]) -> tuple[float, float] | None:
    """(round without waiting for a draft, waiting), both by a plain verification."""
    ours, plain = parts_of(own), parts_of(off)
    if ours is None or plain is None:
        return None
    if ours.verify_ms is not None and plain.verify_ms:
        wait_ms = ours.wait_ms or 0.0
        on_path_ms = ours.verify_ms + (ours.draft_ms or 0.0) - wait_ms
        return on_path_ms / plain.verify_ms, wait_ms / plain.verify_ms
    if not ours.target_cpu_ms or not plain.target_cpu_ms:
        return None
    return ours.target_cpu_ms / plain.target_cpu_ms, 0.0
