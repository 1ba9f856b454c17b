# pyright: strict
"""The tables of `bench.sweep`, for people; decides nothing."""

from collections.abc import Sequence

from bench.bootstrap import Interval
from bench.goals import HIGH, LOW, Summary, verdict_lines
from bench.sweep.figures import Percentiles
from bench.sweep.results import Results, Row
from bench.sweep.summary import GOALS
from bench.tables import Table, with_spread

TITLE = "# What the service gains at every load"


def verdict(results: Results) -> str:
    """The goals in one line each."""
    return verdict_lines(GOALS, _figures(results))


def _figures(results: Results) -> Summary:
    """The summary without its lists."""
    found = results.summary.items()
    return {key: value for key, value in found if not isinstance(value, list)}


def tables(results: Results, plots: Sequence[str] = ()) -> list[Table]:
    """The summary with `plots`, what the latency target and interactivity allow, every load."""
    found = [_summary(results, plots), _interactive(results)]
    for temperature in dict.fromkeys(row.temperature for row in results.rows):
        own = [row for row in results.rows if row.temperature == temperature]
        found += [_speed(own, temperature), _latency(own, temperature), _rounds(own, temperature)]
    flags = [(name, f"`{words}`") for name, words in results.flags.items()]
    return [*found, Table("Flags", ("arm", "of `specserve launch`"), flags)]


def _summary(results: Results, plots: Sequence[str]) -> Table:
    summary = _figures(results)
    keys = [key for key in summary if f"{key}{LOW}" in summary]
    body = [(key, _figure(*(summary[key + end] for end in ("", LOW, HIGH)))) for key in keys]
    budgets = results.summary.get("budget_by_load")
    if isinstance(budgets, list):
        body.append(("budget_by_load", ", ".join(f"{n}: {tokens:.2f}" for n, tokens in budgets)))
    note = (
        "Of the highest temperature where none is named. The best of several arms is picked on the "
        "other repeats than it is compared on. Paying: the whole interval of the best speculating "
        "mode lies above plain decoding. Budget: drafted tokens that `auto` verified in a row and "
        "round, by requests in flight."
    )
    return Table("Summary", ("figure", "value"), body, note, plots)


def _figure(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return "-"
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _interactive(results: Results) -> Table:
    """The load that serves most while every user still gets enough."""
    least = results.targets.interactivity
    body: list[tuple[object, ...]] = []
    for temperature, arm in dict.fromkeys((row.temperature, row.arm) for row in results.rows):
        own = [row for row in results.rows if (row.temperature, row.arm) == (temperature, arm)]
        fitting = [row for row in own if row.load.is_closed and _gives(row, least)]
        best = max(fitting, key=_speed_of, default=None)
        load, speed = ("-", None) if best is None else (best.load, best.tokens_per_s)
        body.append((f"{temperature:g}", arm, load, with_spread(speed, 1)))
    title = f"The most that is served with {least:g} tok/s for each user"
    note = "Of the closed loops that were measured, the best."
    return Table(title, ("T", "arm", "load", "tok/s"), body, note)


def _gives(row: Row, tokens_per_s: float) -> bool:
    found = row.tokens_per_s_per_user
    return found is not None and found.value >= tokens_per_s


def _speed_of(row: Row) -> float:
    return 0.0 if row.tokens_per_s is None else row.tokens_per_s.value


def _speed(rows: Sequence[Row], temperature: float) -> Table:
    body = [
        (
            row.load, row.arm, with_spread(row.tokens_per_s, 1),
            with_spread(row.tokens_per_s_per_user, 1), with_spread(row.over_off),
            _held(row.over_equal, row.equal), with_spread(row.goodput), with_spread(row.in_time),
            row.cores, row.num_answers, row.num_repeats, f"{row.foreign_share:.0%}",
        )
        for row in rows
    ]  # fmt: skip
    header = (
        "load", "arm", "tok/s", "tok/s per user", "over off", "over equal hardware",
        "requests/s in time", "share in time", "cores", "answers", "repeats", "others' use",
    )  # fmt: skip
    note = (
        "tok/s: of all requests, while as many as said are in flight, or from the first to the "
        "last of an open loop. Over equal hardware: the fastest arm without draft processes that "
        "has as many cores."
    )
    return Table(f"Temperature {temperature:g}: speed", header, body, note)


def _latency(rows: Sequence[Row], temperature: float) -> Table:
    body = [
        (row.load, row.arm, *_percentiles(row.ttft_ms), *_percentiles(row.tpot_ms)) for row in rows
    ]
    header = (
        "load", "arm", "TTFT p50 ms", "p95", "p99", "TPOT p50 ms", "p95", "p99",
    )  # fmt: skip
    note = "TTFT: from sending (of an open loop, arriving) to the first token. TPOT: mean after it."
    return Table(f"Temperature {temperature:g}: latency", header, body, note)


def _percentiles(found: Percentiles | None) -> tuple[str, str, str]:
    if found is None:
        return "-", "-", "-"
    return with_spread(found.p50, 1), with_spread(found.p95, 1), with_spread(found.p99, 1)


def _rounds(rows: Sequence[Row], temperature: float) -> Table:
    body = [
        (
            row.load, row.arm, with_spread(row.accept_len), with_spread(row.verified),
            with_spread(row.hit_rate),
            ", ".join(f"{mode} {share:.0%}" for mode, share in row.mode_shares.items()),
            *("-" if ms is None else f"{ms:.1f}" for ms in row.round_ms.values()),
        )
        for row in rows
    ]  # fmt: skip
    header = (
        "load", "arm", "accept length", "verified", "hit rate", "rounds by mode", "forward ms",
        "drafting ms", "of that, waiting ms", "draft batches ms",
    )  # fmt: skip
    note = (
        "A row and round. Verified: drafted tokens. Milliseconds: a decode round of all rows, by "
        "the service's own counters; draft batches are made beside it."
    )
    return Table(f"Temperature {temperature:g}: rounds", header, body, note)


def _held(figure: Interval | None, name: str | None) -> str:
    return with_spread(figure) if name is None else f"{with_spread(figure)}: {name}"


def conditions(results: Results) -> str:
    """What was measured, how, on what; as a Markdown list."""
    measured, plan, targets = results.measured, results.measured.plan, results.targets
    padded = "" if measured.ballast == "none" else f" padded with ballast to {measured.ballast}"
    sampling = "".join(f", **{name} {value:g}**" for name, value in plan.sampling.items())
    commits = list(dict.fromkeys(machine.commit for machine in results.machines))
    lines = [
        f"- Target: {measured.target}{padded}, on {measured.device}; drafts: {measured.drafter}.",
        f"- {results.prompts}.",
        f"- Answers of up to {plan.max_tokens} tokens{sampling}, seeded, so that every arm gives "
        "the same texts: they were compared, and are equal.",
        f"- Real services, all alive, one of them asked; {plan.repeats} repeats, in each of which "
        "the arms take turns with the same requests, in another order"
        + (", asked of services started anew. " if plan.fresh else ". ")
        + ("Pinned." if measured.is_pinned else "**Not pinned: times mean little.**"),
        "- 95 % bootstrap intervals: turns are drawn, then answers within them; ratios draw the "
        "same ones for both arms.",
        f"- In time: first token within {targets.ttft_ms:g} ms, then {targets.tpot_ms:g} ms a "
        "token.",
        *_shortcomings(results),
        *(f"- {machine.line}." for machine in results.machines[:1]),
        *([f"- Measured by {len(results.machines)} runs, at {', '.join(commits)}."]
          if len(results.machines) > 1 else []),
        f"- `{results.command}`, {results.elapsed_s / 60:.0f} minutes"
        + ("." if results.is_complete else "; **stopped before the end**."),
    ]  # fmt: skip
    return "\n".join(lines)


def _shortcomings(results: Results) -> list[str]:
    lines: list[str] = []
    if results.shortened:
        said = "; ".join(results.shortened)
        lines.append(f"- **Shortened, to end in {results.measured.plan.budget_s:g} s**: {said}.")
    if results.num_broken:
        lines.append(f"- A stop lies within {results.num_broken} comparisons.")
    return lines
