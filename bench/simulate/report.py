# pyright: strict
"""report.md of `bench.simulate`: figures beside what they are to be, and what they rest on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bench.simulate.loads import SYSTEM
from bench.simulate.placement import KEPT, MARGIN
from bench.simulate.predictions import HOST_ROW_S
from bench.simulate.results import (
    CLOSE_TO_OURS,
    CLOSE_TO_PAPER,
    Load,
    Results,
    close,
)
from bench.tables import Table

_ASSUMED = (
    "Published and stated, not measured here: H100 at 80 % of 3.35 TB/s and 60 % of 989 TFLOP/s, "
    "50 us a layer and 10 us an all-reduce; plain decoding brought to the speed that SSD's table "
    "gives (the roofline alone is within 7 % of it); the next token among three guesses 91 % of "
    "the time; no prompts, memory for every request."
)


def heading(results: Results) -> list[str]:
    """Before the tables."""
    kind = "**Quick: few tokens, figures scatter.** " if results.is_quick else ""
    return [
        "# Simulated services",
        f"{kind}What is called measured is quoted from papers and from other reports; all else is "
        "predicted: simulated around the shipped planner, policies, fan-out and forecasts, by no "
        f"clock. Computed on {results.machine.line}. `{results.command}`, "
        f"{results.elapsed_s:.0f} s.",
        _ASSUMED,
        verdict(results),
    ]


def verdict(results: Results) -> str:
    """Goals, in a paragraph."""
    found, rows = results.summary, [row.off_by for row in results.published if row.accept]
    known, with_parts = (
        [each.off_by for each in results.measured if each.role == role and not each.why]
        for role in ("predicted", "with its parts")
    )
    lines = [
        f"SSD's table: {close(rows, CLOSE_TO_PAPER)} within {CLOSE_TO_PAPER:.0%}, the worst off by "
        f"{found['paper_worst']:+.1%}.",
        f"Our own, where parts are known: {close(known, CLOSE_TO_OURS)} within "
        f"{CLOSE_TO_OURS:.0%} from plain and synchronous parts alone, "
        f"{close(with_parts, CLOSE_TO_OURS)} with two parts of the asynchronous arm.",
        f"Verify budget: {found['budget_at_least_load']:.2f} tokens a request at the smallest "
        f"load, {found['budget_at_most_load']:.2f} at the largest, largest rise between two loads "
        f"{found['budget_largest_rise']:.2f}.",
        results.conclusion,
        f"auto: at least {found['auto_over_off_min']:.2f} of plain decoding, and "
        f"{found['auto_over_best_min']:.2f} of the best mode on the same devices.",
        f"The rule for a device and simulation agree in {found['placed_as_the_rule_says']:.0f} of "
        f"{found['placed_clear']:.0f} cases that differ by more than {MARGIN:.0%}; the bound that "
        f"launch goes by is contradicted by {found['placed_against_the_bound']:.0f}.",
    ]
    return " ".join(lines)


def tables(results: Results, plots: Mapping[str, str]) -> list[Table]:
    """All, in order. `plots`: file names by what they show."""
    found = [*tables_of(results).items(), ("placed", placed(results))]
    shown = [
        replace(table, plots=[plots[name]]) if name in plots else table for name, table in found
    ]
    systems = predicted(results)
    systems[-1] = replace(systems[-1], plots=[plots["predicted"]])
    return [*shown[:-3], *systems, *shown[-3:]]


def tables_of(results: Results) -> dict[str, Table]:
    """By name, but for those of systems and of where a device serves better."""
    return {
        "vectors": _vectors(results),
        "published": _published(results),
        "sensitivity": _sensitivity(results),
        "backups": _backups(results),
        "draft_devices": _draft_devices(results),
        "measured": _measured(results),
        "budgets": _budgets(results),
        "beliefs": _beliefs(results),
        "hosted": _hosted(results),
        "shared": _shared(results),
    }


def _vectors(results: Results) -> Table:
    rows = [
        (
            each.name, f"{each.stated:.4f}", f"{each.formula:.4f}",
            "-" if each.simulated is None else f"{each.simulated:.4f}",
        )
        for each in results.vectors
    ]  # fmt: skip
    note = (
        "Stated: found by Monte Carlo or brute force beforehand, or the formula where there is no "
        "such figure. Simulated: what such a system made; a dash where no whole system has it."
    )
    return Table("Equations", ("figure", "stated", "formula", "simulated"), rows, note)


def _published(results: Results) -> Table:
    header = (
        "models", "data", "plain, paper", "sync, paper", "async, paper", "async, predicted",
        "off by", "our service, predicted", "tokens stand", "drafting", "tree", "hits",
        "tokens a round",
    )  # fmt: skip
    rows = [
        (
            row.family, row.data_set, f"{row.plain:.1f}", f"{row.sync:.0f}", f"{row.paper:.0f}",
            f"{row.predicted:.0f}", f"{row.off_by:+.1%}", f"{row.ours:.0f}",
            *(_dash(value, row.accept) for value in (
                row.accept, row.draft_share, row.tree_share, row.hit_rate, row.accept_len,
            )),
        )
        for row in results.published
    ]  # fmt: skip
    note = (
        "SSD, table B.3; tokens a second of one request, greedy, four H100 and one that drafts. "
        "How often tokens stand is what the paper's synchronous speed needs; drafting and tree are "
        "in forwards of the target. The engine is theirs: it waits for late trees, and for misses. "
        "Ours, with the same parts and no host, cuts chains to the time there is."
    )
    return Table(
        "SSD's table (measured by its authors) and what its parts make", header, rows, note
    )


def _sensitivity(results: Results) -> Table:
    rows = [(name, f"{off_by:+.1%}") for name, off_by in results.sensitivity.items()]
    note = "What a layer takes at least is the part of a draft's time that no published size tells."
    return Table(
        "The same, if a layer takes at least", ("a layer", "the largest error"), rows, note
    )


def _backups(results: Results) -> Table:
    header = (
        "models", "requests", "misses drafted again", "random tokens", "sync", "hits",
        "hits, random",
    )  # fmt: skip
    rows = [
        (
            each.family, each.batch_size, f"{each.jit:.2f}", f"{each.random:.2f}",
            f"{each.sync:.2f}", f"{each.hit_rate_jit:.2f}", f"{each.hit_rate_random:.2f}",
        )
        for each in results.backups
    ]  # fmt: skip
    sizes = ", ".join(f"{name}: {size:.2f}" for name, size in results.critical_sizes.items())
    note = (
        "Over plain decoding. The paper gives figure 6 without numbers: as requests become more, "
        "random tokens after a miss overtake drafting again. Theorem 17's critical batch size from "
        f"the same parts: {sizes}."
    )
    return Table("SSD, figure 6, left (predicted)", header, rows, note)


def _draft_devices(results: Results) -> Table:
    rows = [
        (each.family, each.num_devices, f"{each.over_plain:.2f}", f"{each.hit_rate:.2f}")
        for each in results.draft_devices
    ]
    note = "16 requests, random tokens after a miss; every device drafts three outcomes a prefix."
    header = ("models", "devices that draft", "over plain", "hits")
    return Table("SSD, figure 6, right (predicted)", header, rows, note)


def _measured(results: Results) -> Table:
    header = (
        "report", "requests", "T", "arm", "measured", "simulated", "off by", "hits, measured",
        "simulated", "role", "not known",
    )  # fmt: skip
    rows = [
        (
            each.source, each.batch_size, f"{each.temperature:g}", each.arm,
            f"{each.measured:.1f}", f"{each.simulated:.1f}", f"{each.off_by:+.1%}",
            "-" if each.hit_rate is None else f"{each.hit_rate:.2f}",
            "-" if each.hit_rate is None else f"{each.simulated_hit_rate:.2f}", each.role, each.why,
        )
        for each in results.measured
    ]  # fmt: skip
    note = (
        "Tokens a second. Parts of plain and synchronous arms are given, asynchronous ones are "
        "predicted from these alone; with its parts: with how much longer a forward takes beside "
        "the draft process and how often prepared tokens stand, which only that arm tells. "
        "Measured speeds are known to some 5 % themselves."
    )
    return Table("Our own measurements", header, rows, note)


def _budgets(results: Results) -> Table:
    arms = list(dict.fromkeys(each.arm for each in results.budgets))
    rows = _across(
        results.budgets, arms, lambda each: f"{each.verify_budget:.2f} ({each.over_off:.2f})"
    )
    note = (
        f"{SYSTEM}. Verify budget: tokens of the target's forward, a request and round; in "
        "brackets speed over plain decoding."
    )
    title = "DSpark, figure 8: verify budgets at each load (predicted)"
    return Table(title, ("requests", *arms), rows, note)


def _beliefs(results: Results) -> Table:
    arms = list(dict.fromkeys(each.arm for each in results.beliefs))
    rows = _across(results.beliefs, arms, _speed)
    note = (
        f"{SYSTEM}, policy causal; in brackets over plain. none: running averages stand in; raw: "
        "too sure; exact: the chance itself; oracle: what will stand, which no drafter knows."
    )
    title = "Confidences: tokens a second at each load (predicted)"
    return Table(title, ("requests", *arms), rows, note)


def predicted(results: Results) -> list[Table]:
    """One a system."""
    found: list[Table] = []
    for system in dict.fromkeys(each.system for each in results.predicted):
        loads = [each for each in results.predicted if each.system == system]
        arms = list(dict.fromkeys(each.arm for each in loads))
        runs = {each.num_at_once: _most(each) for each in loads if each.arm.startswith("auto")}
        rows = [
            [*row, run]
            for row, run in zip(_across(loads, arms, _speed), runs.values(), strict=True)
        ]
        note = (
            "Tokens a second of all requests; in brackets over plain decoding with fewer devices."
        )
        header = ("requests", *arms, "auto runs")
        found.append(Table(f"{system} (predicted)", header, rows, note))
    return found


def _hosted(results: Results) -> Table:
    arms = list(dict.fromkeys(each.arm for each in results.hosted))
    rows = _across(results.hosted, arms, _speed)
    note = (
        f"{results.hosted[0].system}, with {1000 * HOST_ROW_S:g} ms of the host for every row of a "
        "round, as an H200's host was measured to take for rows with seeds (bench/results/gpu/"
        "NOTES.md): what our service would do today."
    )
    title = "The same with the host as it is (predicted)"
    return Table(title, ("requests", *arms), rows, note)


def _shared(results: Results) -> Table:
    header = ("devices", "requests a target", "tok/s a target", "over plain", "hits", "drafting")
    rows = [
        (
            each.topology, each.num_at_once, f"{each.tokens_per_s / _targets(each):.0f}",
            f"{each.over_off / _targets(each):.2f}", f"{each.hit_rate:.2f}", f"{each.busy:.0%}",
        )
        for each in results.shared
    ]  # fmt: skip
    note = "Qwen3-32B on four devices each, misses decode plainly. Drafting: of the process's time."
    return Table("Targets that share one draft process (predicted)", header, rows, note)


def placed(results: Results) -> Table:
    """Where one more device serves better."""
    scalings = sorted({each.target_scaling for each in results.placed})
    shares = sorted({each.draft_share for each in results.placed})
    shown = {
        (each.draft_share, each.target_scaling): f"{each.simulated:.2f} ({each.by_rule:.2f})"
        for each in results.placed
    }
    rows = [[f"{share:g}", *(shown[share, scaling] for scaling in scalings)] for share in shares]
    note = (
        "Tokens a second with the device drafting over those with it in the target: simulated, and "
        f"in brackets by the rule with {KEPT:.3f} of the tokens kept (hits of .9). Columns: times "
        "as fast that the target's forwards get with it. Where drafting takes more than half of a "
        "forward, what follows a miss is not there in time, and the rule counts on too much."
    )
    header = ("drafting, of a forward", *(f"{scaling:g}" for scaling in scalings))
    return Table("One more device (predicted)", header, rows, note)


def _across(
    loads: Sequence[Load], arms: Sequence[str], shown: Callable[[Load], str]
) -> list[list[object]]:
    """A row a load, a column an arm."""
    found: dict[int, dict[str, str]] = {}
    for each in loads:
        found.setdefault(each.num_at_once, {})[each.arm] = shown(each)
    return [[size, *(by_arm.get(arm, "-") for arm in arms)] for size, by_arm in found.items()]


def _speed(load: Load) -> str:
    return f"{load.tokens_per_s:.0f} ({load.over_off:.2f})"


def _most(load: Load) -> str:
    mode, share = max(load.shares.items(), key=lambda item: item[1])
    return f"{mode} {share:.0%}"


def _targets(load: Load) -> int:
    return int(load.topology.split()[0])


def _dash(value: float, known: float) -> str:
    return f"{value:.2f}" if known else "-"
