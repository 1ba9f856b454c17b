# pyright: strict
"""The tables of `bench.flag_grid`, for people; decides nothing."""

from bench.bootstrap import against
from bench.flag_grid.results import FIRST_GOAL, GOAL, Against, Results
from bench.tables import Table, with_spread

TITLE = "# No flags against flags"


def verdict(results: Results) -> str:
    """The goals in one line each."""
    lines: list[str] = []
    for each in results.against:
        goal = FIRST_GOAL if each.is_first else GOAL
        says = against(goal, each.over_best.value, each.over_best.high)
        names = ", ".join(dict.fromkeys(each.best))
        what = f"{_situation(each)}: {with_spread(each.over_best)} of the best ({names})"
        lines.append(f"{what}; goal {goal:g}: {says}.")
    return "\n\n".join(lines)


def _situation(each: Against) -> str:
    return f"{each.load}" + (", what a fresh service is asked first" if each.is_first else "")


def tables(results: Results) -> list[Table]:
    """One row a service, one column a load."""
    columns = list(dict.fromkeys((s.load, s.is_first) for s in results.speeds))
    speeds = {(s.cell, s.load, s.is_first): s.tokens_per_s for s in results.speeds}
    header = ("service", *(f"{load}" + (", fresh" if first else "") for load, first in columns))
    body = [
        (name, *(with_spread(speeds.get((name, *column)), 1) for column in columns))
        for name in results.flags
    ]
    note = (
        "tok/s, of all requests from when they are sent to the last token. g: `--gamma`, f: "
        "`--fan-out`, b: outcomes that are drafted at once, which is no flag: the bench sets it."
    )
    flags = [(name, f"`{words}`" if words else "-") for name, words in results.flags.items()]
    return [
        Table("Tokens a second", header, body, note),
        Table("Flags", ("service", "of `specserve launch`"), flags),
    ]


def conditions(results: Results) -> str:
    """What was measured, how, on what; as a Markdown list."""
    plan = results.plan
    padded = f" padded with ballast to {results.ballast}" if results.ballast != "none" else ""
    lines = [
        f"- Target: {results.target}{padded}; {results.drafter} drafts. Topology 1+1.",
        f"- {results.prompts}.",
        f"- Answers of up to {plan.max_tokens} tokens, until the model ends them, unseeded.",
        f"- {plan.num_drawn} cells of the grid, drawn by seed {plan.seed}. One service at a time, "
        f"{plan.num_passes} passes in each of which every service is started once. First of all it "
        f"is asked {plan.num_first} requests, one by one; then {plan.num_asked} under every load, "
        "two groups at least, after one group that is not counted.",
        "- 95 % bootstrap intervals over groups. The best is picked in one pass and compared in "
        "the others; of fresh services in the same.",
        f"- {results.machine.line}.",
        f"- `{results.command}`, {results.elapsed_s / 60:.0f} minutes"
        + ("." if results.is_complete else "; **stopped before the end**."),
    ]
    return "\n".join(lines)
