# pyright: strict
"""The tables of `bench.drafters`, for people; decides nothing."""

from collections.abc import Sequence

from bench.domains import greedy_table
from bench.drafters.plan import TrainingBudget
from bench.drafters.results import Cell, RatioRow, Results
from bench.loops import loops_line
from bench.tables import Table, with_spread

TITLE = "# Drafters: accept length by drafter, domain, temperature and method"


def tables(results: Results) -> list[Table]:
    """Those that have something to show, in the order of the report."""
    found = [_main(results), _ratios(results.ratios), _conditional(results)]
    if results.gamma_sweep:
        found.append(_gamma(results.gamma_sweep))
    if results.depth_sweep:
        found += [_depth(results), _depth_ratios(results.depth_ratios)]
    if results.threshold_sweep:
        found.append(_thresholds(results.threshold_sweep))
    if results.calibration:
        found.append(_calibration(results))
    if results.greedy:
        found.append(greedy_table(results.greedy, results.plan.min_greedy_prompts))
    return [table for table in found if table.rows]


_GOALS = {
    "accept_len_dspark_t1": 2.6,
    "accept_len_dspark_t0": 3.0,
    "dspark_over_dflash": 1.15,
    "dspark_over_eagle3": 1.15,
    "dels_over_dflash": 1.04,
    "async_over_sync_accept_len": 1.08,
}


def verdict(results: Results) -> str:
    """The figures that goals are set for, in one paragraph."""
    summary, parts = results.summary, list[str]()
    for name, goal in _GOALS.items():
        value, low, high = (summary[name + end] for end in ("", "_lo", "_hi"))
        if value is not None:
            parts.append(f"{name} {value:.3f} [{low:.3f}, {high:.3f}] (goal {goal:.2f})")
    for name, goal in (("ece_before", ""), ("ece_after", " (goal 3%)")):
        value = summary[name]
        if value is not None:
            parts.append(f"{name} {value:.2%}{goal}")
    for row in results.depth_ratios:
        if row.domain is None:
            parts.append(f"{row.over} layers over {row.under}: {with_spread(row.ratio, 3)}")
    found = "; ".join(parts) or "nothing that a goal is set for was measured"
    return f"Foreseeable method, temperature 1 but for _t0, ratios are means over domains: {found}."


def conditions(results: Results) -> str:
    """What was measured, how, on what; as a Markdown list."""
    target, plan = results.target, results.plan
    drafters = "; ".join(
        f"{info.choice.label}: {info.kind}, gamma {info.gamma}, "
        f"the {info.choice.num_kept} likeliest tokens of a distribution kept"
        for info in results.drafters
    )
    depths = ", ".join(info.layers for info in results.depth_drafters)
    if depths:
        drafters = "; ".join([*filter(None, [drafters]), f"of the depth sweep: layers {depths}"])
    lines = [
        f"- Target: {target.folder}, {target.num_params / 1e6:.1f}M parameters, no ballast. "
        "**Acceptance is that of a target of this size**: a larger one is another distribution.",
        f"- Drafters: {drafters}.",
        f"- {results.prompts}. {loops_line(results.loops)}",
        f"- Up to {plan.num_prompts} prompts a domain, {plan.num_tokens} new tokens each"
        f"{', end of text ignored' if plan.ignore_eos else ' at most'}; gamma {plan.gamma}, "
        "everything verified unless a table says otherwise.",
        "- Accept length: tokens a round, the recovery or bonus token included, over rounds that "
        "began with room for a whole block; the cut rounds at a text's end are left out.",
        "- Spread: 95 % bootstrap intervals over prompts; ratios draw the same prompts for both.",
        "- Measured with the real node loop and synchronous speculation, in one process, float32.",
        f"- {results.machine.line}.",
        f"- `{results.command}`",
    ]
    return "\n".join(lines)


def _sampling(cell: Cell) -> tuple[str, str]:
    return f"{cell.condition.temperature:g}", cell.condition.method_name


def _main(results: Results) -> Table:
    rows = [
        (
            cell.drafter, cell.condition.domain, *_sampling(cell), with_spread(cell.accept_len),
            with_spread(cell.accepted_share), cell.accept_len.num_prompts, int(sum(cell.rounds)),
        )
        for cell in results.cells
    ]  # fmt: skip
    header = (
        "drafter", "domain", "T", "method", "accept length", "accepted share", "prompts", "rounds",
    )  # fmt: skip
    note = "Accepted share: of the drafted tokens that were verified. No draft counts as a round."
    return Table("Accept length", header, rows, note, ("accept_len.png",))


def _ratios(ratios: Sequence[RatioRow]) -> Table:
    header = ("accept length of", "domain", "T", "method", "ratio", "prompts")
    note = "The mean counts every domain alike, whatever its prompts."
    return Table("Ratios on the same prompts", header, _ratio_rows(ratios), note)


def _ratio_rows(ratios: Sequence[RatioRow]) -> list[tuple[object, ...]]:
    return [
        (
            f"{row.over} / {row.under}", row.domain or "mean of domains", f"{row.temperature:g}",
            row.method, with_spread(row.ratio, 3), row.ratio.num_prompts,
        )
        for row in ratios
    ]  # fmt: skip


def _conditional(results: Results) -> Table:
    gamma = max((len(cell.conditional) for cell in results.cells), default=0)
    rows = [
        (
            cell.drafter, cell.condition.domain, *_sampling(cell), cell.accept_len.num_prompts,
            *(with_spread(found) for found in cell.conditional),
            *("-" for _ in range(gamma - len(cell.conditional))),
        )
        for cell in results.cells
    ]  # fmt: skip
    header = ("drafter", "domain", "T", "method", "prompts", *(str(k + 1) for k in range(gamma)))
    note = "P(token k stands | those before it stood), over rounds that got there (DSpark, Fig. 2)."
    return Table("Conditional acceptance by position", header, rows, note, ("conditional.png",))


def _gamma(cells: Sequence[Cell]) -> Table:
    rows = [
        (
            cell.drafter, cell.condition.domain, *_sampling(cell), len(cell.conditional),
            with_spread(cell.accept_len), cell.accept_len.num_prompts,
        )
        for cell in cells
    ]  # fmt: skip
    header = ("drafter", "domain", "T", "method", "gamma", "accept length", "prompts")
    note = (
        "The same drafters, with at most gamma drafted tokens verified a round; DSpark's Fig. 4 "
        "trains one for each length."
    )
    return Table("Accept length by gamma", header, rows, note, ("gamma.png",))


def _depth(results: Results) -> Table:
    budgets = {info.layers: info.training for info in results.depth_drafters}
    rows = [
        (
            cell.drafter, _budget(budgets[cell.drafter]), cell.condition.domain, *_sampling(cell),
            with_spread(cell.accept_len), cell.accept_len.num_prompts,
        )
        for cell in results.depth_sweep
    ]  # fmt: skip
    header = ("layers", "trained for", "domain", "T", "method", "accept length", "prompts")
    note = (
        "DSpark, Fig. 3. Comparable among each other as far as they were trained alike; after a "
        "short training no figure here is what its depth is capable of."
    )
    return Table("Accept length by depth", header, rows, note, ("depth.png",))


def _budget(training: TrainingBudget | None) -> str:
    if training is None:
        return "-"
    return f"{training.steps:,} steps, {training.tokens / 1e6:.2f}M tokens"


def _depth_ratios(ratios: Sequence[RatioRow]) -> Table:
    header = ("layers", "domain", "T", "method", "ratio", "prompts")
    note = "Accept lengths over that of the shallowest."
    return Table("Depths on the same prompts", header, _ratio_rows(ratios), note)


def _thresholds(cells: Sequence[Cell]) -> Table:
    rows = [
        (
            cell.drafter, cell.condition.domain, *_sampling(cell),
            f"{cell.condition.min_survival:g}", with_spread(cell.accept_len),
            with_spread(cell.verified_len), with_spread(cell.accepted_share),
            cell.accept_len.num_prompts,
        )
        for cell in cells
    ]  # fmt: skip
    header = (
        "drafter", "domain", "T", "method", "least survival", "accept length", "verified a round",
        "accepted share", "prompts",
    )  # fmt: skip
    note = (
        "Only tokens whose survival (product of confidences) reaches the threshold are verified; "
        "DSpark, Fig. 5, has the same over a threshold of confidence."
    )
    plots = tuple(f"threshold_{name}.png" for name in dict.fromkeys(c.drafter for c in cells))
    return Table("Confidence threshold", header, rows, note, plots)


def _calibration(results: Results) -> Table:
    rows = [
        (
            row.drafter, f"{row.temperature:g}", row.method, f"{row.ece_before:.2%}",
            "-" if row.ece_after is None else f"{row.ece_after:.2%}",
            " ".join(f"{one.ece:.1%}" for one in row.evaluation.before),
            " ".join(f"{one.ece:.1%}" for one in row.evaluation.after) or "-",
            row.num_prompts, row.num_blocks, "yes" if row.unseen else "no",
        )
        for row in results.calibration
    ]  # fmt: skip
    header = (
        "drafter", "T", "method", "ECE raw", "calibrated", "raw by position",
        "calibrated by position", "prompts", "blocks", "prompts unseen by the fit",
    )  # fmt: skip
    note = "Expected calibration error of survival, 20 bins, mean over positions; no sums."
    return Table("Calibration", header, rows, note)
