# pyright: strict
"""The tables of `bench.configurations`, for people; decides nothing."""

from bench.configurations.results import GOALS, ArmRow, Results
from bench.configurations.rows import QUIET_SHARE
from bench.goals import verdict_lines
from bench.loops import loops_line
from bench.tables import Table, with_spread

TITLE = "# Services with flags given by hand"


def verdict(results: Results) -> str:
    """The goals in one line each."""
    return verdict_lines(GOALS, results.summary)


def tables(results: Results) -> list[Table]:
    """One a temperature, and the flags of every arm."""
    samplings = dict.fromkeys(arm.row.setting.temperature for arm in results.arms)
    found = [
        _speed([arm for arm in results.arms if arm.row.setting.temperature == sampling])
        for sampling in samplings
    ]
    return [*found, _flags(results)]


def _speed(arms: list[ArmRow]) -> Table:
    body = [
        (
            arm.row.arm, arm.row.method, with_spread(arm.row.tokens_per_s, 1),
            with_spread(arm.row.ratio_to_off), _figure(arm.row.predicted),
            _held(with_spread(arm.over_best_sync), arm.best_sync),
            _held(with_spread(arm.over_equal_cores), arm.equal_cores),
            *_times(arm), with_spread(arm.row.accept_len), with_spread(arm.row.hit_rate),
            _share(arm.row.late_drafts), _share(arm.row.equal_texts), f"{arm.mean_answer_len:.0f}",
            arm.row.num_groups, arm.row.num_disturbed, f"{arm.row.foreign_share:.0%}",
        )
        for arm in arms
    ]  # fmt: skip
    header = (
        "arm", "method", "tok/s", "over plain", "Theorem 7", "over the best sync on one core",
        "over sync with as many cores", "T_verify ms", "T_draft ms", "before it ms", "waiting ms",
        "round ms", "accept length", "hit rate", "late draft batches", "texts equal to plain",
        "answer tokens", "requests", "left out", "others' use",
    )  # fmt: skip
    note = (
        "tok/s: while decoding, at the client. Theorem 7 (SSD): what measured hit rates, lengths "
        "and times should make of it, to be read beside `over plain`. T_verify: the target's "
        "forward, a round; T_draft: sync, what is drafted before it, async, the draft process's "
        "batches beside it; before it: drafting, or looking up and reporting, on the target's "
        "path."
    )
    return Table(f"Temperature {arms[0].row.setting.temperature:g}", header, body, note)


def _times(arm: ArmRow) -> tuple[str, ...]:
    parts = arm.row.parts
    if parts is None:
        return ("-",) * 5
    drafts = parts.draft_ms if arm.row.mode == "sync" else parts.draft_node_ms
    on_path = None if arm.row.mode == "sync" else parts.draft_ms
    times = (parts.verify_ms, drafts, on_path, parts.wait_ms, parts.round_ms)
    return tuple(_figure(value) for value in times)


def _flags(results: Results) -> Table:
    flags = {arm.row.arm: arm.flags for arm in results.arms}
    body = [(name, f"`{words}`" if words else "-") for name, words in flags.items()]
    return Table("Flags", ("arm", "of `specserve launch`"), body)


def conditions(results: Results) -> str:
    """What was measured, how, on what; as a Markdown list."""
    plan = results.plan
    ballast = "" if results.ballast == "none" else f" padded with ballast to {results.ballast}"
    sampling = "".join(f", **{name} {value:g}**" for name, value in plan.sampling.items())
    lines = [
        f"- Target: {results.target},{ballast} {results.num_params / 1e6:.1f}M parameters. Ballast "
        "costs and changes nothing: a drafter of the target's own weights drafts as it would, "
        "so that what is left to see is the mechanism.",
        f"- {results.questions.line}.",
        f"- Answers of up to {plan.max_tokens} tokens{sampling}, one request at a time"
        + (", until the model ends them." if results.questions.is_chat else "."),
        f"- {loops_line(results.loops)}",
        f"- One service at a time, {plan.num_passes} passes in each of which every arm is started "
        f"and asked its share of the requests; warm-up {plan.warm_up_s:g} s of what learns. "
        + ("Pinned" if results.is_pinned else "**Not pinned: times mean little**")
        + f"; {results.num_cores} cores.",
        "- 95 % bootstrap intervals over requests; ratios draw the same ones for both arms. Those "
        f"in which other processes used over {QUIET_SHARE:.0%} of a core are left out where enough "
        "others remain.",
        f"- {results.machine.line}.",
        f"- `{results.command}`, {results.elapsed_s / 60:.0f} minutes"
        + ("." if results.is_complete else "; **stopped before the end**."),
    ]
    return "\n".join(lines)


def _held(figure: str, name: str | None) -> str:
    return figure if name is None else f"{figure}: {name}"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
