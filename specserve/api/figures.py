# pyright: strict
"""Figures of an interval, from two counts of a target: what its log line and `specserve top` show.

Accept lengths include the bonus token, as everybody's do.
"""

from collections.abc import Sequence

import msgspec

from specserve.api.info import ServerLoad, SpecStats
from specserve.types import Load


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a target since its start, at one time."""

    uptime_s: float
    num_prompt_tokens: int  # that were computed
    num_cached_tokens: int
    num_generated_tokens: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_per_position: tuple[int, ...]
    num_lookups: int
    num_hits: int
    num_prepared_blocks: int
    num_decode_rounds: int
    verify_budget_tokens: int
    wait_s: float
    bytes_sent: tuple[int, ...]  # to each draft process
    bytes_received: tuple[int, ...]

    @classmethod
    def of_report(cls, load: Load) -> "Counts":
        """As the target's own process tells them."""
        return cls(
            num_draft_tokens=load.num_drafted_tokens,
            num_accepted_per_position=tuple(load.num_accepted_per_position),
            verify_budget_tokens=int(load.verify_budget.total),
            bytes_sent=tuple(each.bytes_sent for each in load.drafts),
            bytes_received=tuple(each.bytes_received for each in load.drafts),
            **{name: getattr(load, name) for name in _ALIKE},
        )

    @classmethod
    def of_service(cls, load: ServerLoad, stats: SpecStats) -> "Counts":
        """As clients are told."""
        of_load = {name: getattr(load, name) for name in _ALIKE if hasattr(load, name)}
        of_stats = {name: getattr(stats, name) for name in _ALIKE if hasattr(stats, name)}
        return cls(
            num_draft_tokens=stats.num_draft_tokens,
            num_accepted_per_position=stats.num_accepted_tokens_per_pos,
            verify_budget_tokens=stats.verify_budget_tokens,
            bytes_sent=tuple(each.bytes_sent for each in stats.drafts),
            bytes_received=tuple(each.bytes_received for each in stats.drafts),
            **(of_stats | of_load),
        )


_ALIKE = (
    "uptime_s", "num_prompt_tokens", "num_cached_tokens", "num_generated_tokens", "num_drafts",
    "num_lookups", "num_hits", "num_prepared_blocks", "num_decode_rounds", "wait_s",
)  # fmt: skip


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the time between two counts. None: nothing has happened that it could be told of."""

    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    prefix_hit_rate: float | None  # of prompt tokens
    num_accepted: int
    num_drafted: int
    accepted_per_s: float
    drafted_per_s: float
    accept_len: float | None  # tokens a row and round that verified any
    accept_rate: float | None  # of drafted tokens
    accept_rates: tuple[float, ...]  # by position, of all blocks
    verify_len: float | None  # drafted tokens of a row, in rounds that verified any
    verify_budget: float | None  # drafted tokens of a round
    hit_rate: float | None  # of rows looked up
    fan_out: float | None  # blocks that were ready for one
    wait_s: float | None  # for drafts, a round
    sent_per_s: tuple[float, ...]  # bytes, to each draft process
    received_per_s: tuple[float, ...]


def figures_of(reports: Sequence[Load]) -> Figures | None:
    """From the first to the last of one target's reports; None: there is no time between them."""
    if not reports or reports[0].uptime_s >= reports[-1].uptime_s:
        return None
    return figures_between(Counts.of_report(reports[0]), Counts.of_report(reports[-1]))


def figures_between(before: Counts, after: Counts) -> Figures:
    """Of one target, whose counts only grow."""
    seconds = max(after.uptime_s - before.uptime_s, 1e-9)

    def grown(name: str) -> float:
        return getattr(after, name) - getattr(before, name)

    def share(part: str, whole: str) -> float | None:
        return _ratio(grown(part), grown(whole))

    accepted = _differences(before.num_accepted_per_position, after.num_accepted_per_position)
    num_drafts, num_drafted = grown("num_drafts"), grown("num_draft_tokens")
    num_accepted = sum(accepted)
    per_draft = _ratio(num_accepted, num_drafts)
    return Figures(
        prompt_tokens_per_s=grown("num_prompt_tokens") / seconds,
        generated_tokens_per_s=grown("num_generated_tokens") / seconds,
        prefix_hit_rate=_ratio(
            grown("num_cached_tokens"), grown("num_cached_tokens") + grown("num_prompt_tokens")
        ),
        num_accepted=num_accepted,
        num_drafted=int(num_drafted),
        accepted_per_s=num_accepted / seconds,
        drafted_per_s=num_drafted / seconds,
        accept_len=None if per_draft is None else 1 + per_draft,
        accept_rate=_ratio(num_accepted, num_drafted),
        accept_rates=tuple(count / num_drafts for count in accepted) if num_drafts else (),
        verify_len=_ratio(num_drafted, num_drafts),
        verify_budget=share("verify_budget_tokens", "num_decode_rounds"),
        hit_rate=share("num_hits", "num_lookups"),
        fan_out=share("num_prepared_blocks", "num_lookups"),
        wait_s=share("wait_s", "num_decode_rounds"),
        sent_per_s=tuple(n / seconds for n in _differences(before.bytes_sent, after.bytes_sent)),
        received_per_s=tuple(
            n / seconds for n in _differences(before.bytes_received, after.bytes_received)
        ),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _differences(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    """One by one; later counts may be of more."""
    known = before + (0,) * (len(after) - len(before))
    return [now - then for now, then in zip(after, known, strict=True)]
