# pyright: strict
"""The tables of `bench.regimes`, for people; decides nothing."""

from collections.abc import Mapping, Sequence

from bench.domains import greedy_table
from bench.loops import loops_line
from bench.regimes.results import QUIET_SHARE, Results, Row
from bench.regimes.summary import GOALS, verdict_on
from bench.tables import Table, with_spread

_SOUND = (
    "- Temperature 0 on prompts whose greedy text does not repeat itself; rows marked *looping* "
    "had to do without: such text is easy to draft, read their ratios as such."
)
TITLE = "# Plain, synchronous and asynchronous decoding"


def verdict(results: Results) -> str:
    """The goals in one line each."""
    lines = [
        f"{goal.text}: {_summary_figure(results, goal.key)}, goal {goal.least:g}: "
        f"{verdict_on(goal, results.summary)}."
        for goal in GOALS
    ]
    return "\n\n".join(lines)


def tables(results: Results, plots: Sequence[str] = ()) -> list[Table]:
    """The summary with `plots`, every contest's speed and parts of a round, greedy text."""
    found = [_summary(results, plots)]
    keys = dict.fromkeys(_place(row) for row in results.rows)
    for key in keys:
        rows = [row for row in results.rows if _place(row) == key]
        found += [_speed(rows), _rounds(rows)]
    if results.greedy:
        found.append(greedy_table(results.greedy, results.plan.min_greedy_prompts))
    return found


def conditions(results: Results) -> str:
    """What was measured, how, on what; as a Markdown list."""
    served, plan = results.served, results.plan
    sizes = ", ".join(f"{name}: {count / 1e6:.1f}M" for name, count in served.num_params.items())
    drafters = ", ".join(f"{name}: {place}" for name, place in served.drafters.items())
    lines = [
        f"- Target: {served.target}, padded with **ballast** (layers that cost and change "
        f"nothing) to {sizes} parameters. Acceptance is that of the small model, plain decoding "
        "pays for the ballast too, and the ratio of drafter to target size is a choice: read these "
        "as speed given an acceptance, not as what a model of this size would gain. Drafters: "
        f"{drafters}.",
        "- Real services (`specserve launch`, gRPC, one stream a row), several alive at a time, "
        "one of them asked: target on the first core, draft process on the second, client beside "
        "it. In `1+0` the API process has the second core; in `1+1` and with two threads it has "
        "none of its own and takes time from target or draft."
        + ("" if served.is_pinned else " **Not pinned: times mean little.**"),
        f"- {results.prompts}. {loops_line(results.loops)}",
        f"- {plan.num_tokens} new tokens a prompt"
        f"{', end of text ignored, ' if plan.ignore_eos else ' at most, '}"
        f"{_sampling(plan.sampling)}"
        f"{served.device}, {served.dtype}"
        f"{' with weights in 16 bits' if served.half_weights else ''}, keys and values in "
        f"{served.kv_dtype}; every group of "
        "prompts goes to all arms of its contest in rotated order, the first group once more "
        "beforehand as warm-up (`auto`, and async that chooses what to do about misses: for "
        f"{plan.warm_up_s:g} s). Ratios are taken inside of a contest.",
        "- tok/s: while every row decodes; 95 % bootstrap intervals over groups, ratios draw the "
        f"same groups for both arms. Groups in which other processes used over {QUIET_SHARE:.0%} "
        "of a core are left out where enough others remain.",
        *([_SOUND] if results.greedy else []),
        f"- {results.machine.line}.",
        f"- `{results.command}`, {results.elapsed_s / 60:.0f} minutes"
        + ("." if results.is_complete else "; **stopped before the end**."),
    ]
    return "\n".join(lines)


def _sampling(fields: Mapping[str, float]) -> str:
    return "".join(f"**{name} {value:g}**, " for name, value in fields.items())


def _place(row: Row) -> tuple[str, str, int]:
    return row.setting.contest, row.setting.ballast, row.setting.batch_size


def _title(rows: Sequence[Row]) -> str:
    contest, ballast, batch_size = _place(rows[0])
    return f"{contest}: {ballast} target, batch {batch_size}"


def _summary(results: Results, plots: Sequence[str]) -> Table:
    goals = {goal.key: goal for goal in GOALS}
    keys = [key for key in results.summary if not key.endswith(("_lo", "_hi"))]
    shown = [key for key in keys if f"{key}_lo" in results.summary]
    body = [
        (
            key, _summary_figure(results, key),
            f"{goals[key].least:g}" if key in goals else "-",
            verdict_on(goals[key], results.summary) if key in goals else "-",
        )
        for key in shown
    ]  # fmt: skip
    note = (
        "Means over domains, of the first target where no other is named. Where several arms "
        "compete for best, it is picked on every other group and compared on the rest. A goal is "
        "missed when the whole interval misses it."
    )
    if results.summary.get("t0_is_looping_text"):
        note += (
            " **Temperature 0: not measurable on sound text here; figures are of looping text.**"
        )
    return Table("Summary", ("figure", "value", "goal", "verdict"), body, note, plots)


def _summary_figure(results: Results, key: str) -> str:
    names = (key, f"{key}_lo", f"{key}_hi")
    value, low, high = (results.summary.get(name) for name in names)
    if value is None or low is None or high is None:
        return "-"
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _names(row: Row) -> tuple[str, str, str, str]:
    setting = row.setting
    sampling = f"{setting.temperature:g}" + (" looping" if setting.is_looping else "")
    return row.arm, setting.domain, sampling, row.method


_NAMES = ("arm", "domain", "T", "method")


def _speed(rows: Sequence[Row]) -> Table:
    body = [
        (
            *_names(row), with_spread(row.tokens_per_s, 1), with_spread(row.ratio_to_off),
            with_spread(row.ratio_to_sync), _figure(row.predicted), _figure(row.equal_len_to_off),
            _figure(row.equal_len_to_sync), with_spread(row.accept_len),
            with_spread(row.hit_rate), _share(row.late_drafts), _share(row.equal_texts),
            _modes(row), row.num_groups, row.num_disturbed, f"{row.foreign_share:.0%}",
            f"{row.waited_share:.0%}",
        )
        for row in rows
    ]  # fmt: skip
    header = (
        *_NAMES, "tok/s", "to off", "to sync", "predicted", "equal length, to off",
        "equal length, to sync", "accept length", "hit rate", "late drafts", "texts equal to off",
        "rounds by mode", "groups", "left out", "others' use", "waited",
    )  # fmt: skip
    note = (
        "To sync: the synchronous arm of this contest under the same method. Predicted: SSD's "
        "Theorem 7 from measured hit rates, lengths and times, to be read beside `to off`. Equal "
        "length: by the cost of a round alone, at the mean accept length of the arms. Others' use: "
        "of a core, by other processes. Waited: the target was ready without a core."
    )
    return Table(f"{_title(rows)}: speed", header, body, note)


def _rounds(rows: Sequence[Row]) -> Table:
    body: list[tuple[object, ...]] = []
    for row in rows:
        parts = row.parts
        cells: tuple[object, ...] = ("-",) * 7
        if parts is not None:
            cells = tuple(
                _figure(value)
                for value in (
                    parts.round_ms, parts.verify_ms, parts.draft_ms, parts.wait_ms,
                    parts.draft_node_ms, parts.target_cpu_ms, parts.draft_cpu_ms,
                )
            )  # fmt: skip
        lengths = _figure(row.hit_len), _figure(row.miss_len)
        sent = _bytes(row.bytes_sent), _bytes(row.bytes_received)
        body.append((*_names(row), *cells, *lengths, *sent))
    header = (
        *_NAMES, "round", "T_verify", "before it", "waiting", "T_draft", "target cpu",
        "draft cpu", "accept length, hit", "miss", "bytes sent", "received",
    )  # fmt: skip
    note = (
        "Mean milliseconds a round. T_verify: the target's forward; before it: drafting, or "
        "looking up and reporting; T_draft: a draft process's batches, beside the target. Cpu: "
        "processor time of the process, of the draft with polling. Bytes: over the link, a round."
    )
    return Table(f"{_title(rows)}: a round", header, body, note)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _bytes(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _modes(row: Row) -> str:
    """Worth telling where there was a choice."""
    if row.mode != "auto":
        return "-"
    return ", ".join(f"{name} {share:.0%}" for name, share in row.mode_shares.items())
