# pyright: strict
"""The tables of `bench.sync_speed`, for people; decides nothing."""

from collections.abc import Sequence

from bench.domains import greedy_table
from bench.loops import loops_line
from bench.sync_speed.results import QUIET_SHARE, Results, Row
from bench.tables import Table, with_spread

TITLE = "# Synchronous speculation against plain decoding on one core"
GOAL = 1.8  # DSpark on code at temperature 0, batch 1


def verdict(results: Results) -> str:
    """The figure that the goal is set for, or why there is none."""
    found = [
        f"{row.ratio.value:.2f} [{row.ratio.low:.2f}, {row.ratio.high:.2f}] at "
        f"{row.setting.ballast} (accept length {row.accept_len.value:.2f} over a round that costs "
        f"{row.round_cost:.2f} plain ones)"
        for row in results.rows
        if row.ratio is not None
        and (row.drafter, row.setting.domain, row.setting.temperature) == ("dspark", "code", 0)
        and row.setting.batch_size == 1
    ]
    figures = "; ".join(found) or "not measured"
    return f"dspark on code at temperature 0, batch 1, goal {GOAL}: {figures}."


def tables(results: Results) -> list[Table]:
    """Speed and the parts of a round for every target and batch size; then the greedy check."""
    found: list[Table] = []
    keys = dict.fromkeys((row.setting.ballast, row.setting.batch_size) for row in results.rows)
    for ballast, batch_size in keys:
        rows = [
            row
            for row in results.rows
            if (row.setting.ballast, row.setting.batch_size) == (ballast, batch_size)
        ]
        found += [_speed(rows), _rounds(rows)]
    if results.greedy:
        found.append(greedy_table(results.greedy, results.plan.min_greedy_prompts))
    return found


def conditions(results: Results) -> str:
    """What was measured, how, on what; as a Markdown list."""
    target, plan = results.target, results.plan
    sizes = ", ".join(f"{name}: {count / 1e6:.1f}M" for name, count in target.num_params.items())
    lines = [
        f"- Target: {target.folder}, padded with **ballast** (layers that cost and change "
        f"nothing) to {sizes} parameters. Acceptance is that of the small model, plain decoding "
        "pays for the ballast too, and the ratio of drafter to target size is a choice: read these "
        "as speed given an acceptance, not as what a model of this size would gain.",
        f"- All arms in one process on core {','.join(map(str, target.core))}, one thread, "
        "float32, one copy of the weights, huge pages as in the service; the real node loop, "
        "without the frames to and from the API process (about 0.15 ms a round, in every arm).",
        f"- {results.prompts}. {loops_line(results.loops)}",
        f"- {plan.num_tokens} new tokens a prompt"
        f"{', end of text ignored' if plan.ignore_eos else ' at most'}; every group of prompts "
        "goes to all arms in rotated order, the first group once more beforehand as warm-up.",
        "- tok/s: over turns in which every row decodes; 95 % bootstrap intervals over groups, "
        "ratios draw the same groups for both arms. Groups in which an arm was ready but had no "
        f"core for over {QUIET_SHARE:.0%} of its time are left out where enough others remain.",
        f"- {results.machine.line}.",
        f"- `{results.command}`",
    ]
    return "\n".join(lines)


def _names(row: Row) -> tuple[str, str, str, str]:
    setting = row.setting
    return row.drafter, setting.domain, f"{setting.temperature:g}", row.method


def _title(rows: Sequence[Row]) -> str:
    setting = rows[0].setting
    return f"{setting.ballast} target, batch {setting.batch_size}"


def _speed(rows: Sequence[Row]) -> Table:
    body = [
        (
            *_names(row), with_spread(row.tokens_per_s, 1), with_spread(row.ratio),
            with_spread(row.call_ratio), with_spread(row.cpu_ratio), with_spread(row.accept_len),
            _figure(row.predicted), _figure(row.ratio_at_common_len),
            "-" if row.equal_texts is None else f"{row.equal_texts:.0%}",
            row.num_groups, row.num_disturbed, f"{row.waited_share:.0%}",
        )
        for row in rows
    ]  # fmt: skip
    header = (
        "drafter", "domain", "T", "method", "tok/s", "ratio to plain", "of whole calls",
        "by cpu time", "accept length", "predicted", "ratio at equal accept length",
        "texts equal to plain", "groups", "left out", "waited",
    )  # fmt: skip
    common = ", ".join(
        f"{domain} at {temperature:g}: {length:.2f}"
        for (domain, temperature), length in {
            (row.setting.domain, row.setting.temperature): row.common_accept_len for row in rows
        }.items()
    )
    note = (
        "Predicted: accept length x T_plain / (T_draft + T_verify + rest), from medians. Ratio at "
        "equal accept length: what the round cost alone makes of the arms' mean accept length "
        f"({common}), without luck or loss in acceptance."
    )
    return Table(f"{_title(rows)}: speed", header, body, note, ("speed.png",))


def _rounds(rows: Sequence[Row]) -> Table:
    body = [
        (
            *_names(row), f"{row.round.draft_ms:.2f}", f"{row.round.verify_ms:.2f}",
            f"{row.round.rest_ms:.2f}", f"{row.round.round_ms:.2f}", f"{row.round_cost:.3f}",
        )
        for row in rows
    ]  # fmt: skip
    header = (
        "drafter",
        "domain",
        "T",
        "method",
        "T_draft",
        "T_verify",
        "rest",
        "round",
        "by plain",
    )
    note = (
        "Mean milliseconds of a turn. T_verify is the target's forward; rest is sampling and "
        "verification, scheduling and commit; in plain decoding `round` is T_plain."
    )
    return Table(f"{_title(rows)}: a round", header, body, note)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
