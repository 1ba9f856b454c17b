# pyright: strict
"""An audit's report as people and programs read it. Decides nothing."""

import msgspec
from rich.console import Console
from rich.table import Table

from specserve.audit.report import (
    ANSWER_TOKENS,
    DISTANCE,
    FALSE_ALARMS,
    LIKELY,
    Check,
    DistributionCheck,
    EqualityCheck,
    LogprobCheck,
    Plan,
    Report,
    Status,
)

_HEADINGS = ("check", "method", "of", "asked", "drafts", "kept", "result", "power", "reach", "")
_WIDTH = 120  # of a table that goes to a file
_MORE = "ask more (--samples)"
_EVERY_DRAFT = "--min-survival 0"  # whatever it costs


def as_json(report: Report, plan: Plan) -> dict[str, object]:
    """All figures, the verdict first."""
    checks: list[dict[str, object]] = []
    for check in report.checks:
        fields: dict[str, object] = msgspec.to_builtins(check)
        checks.append({**fields, **_sureness(report, check), "status": check.status.value})
    return {
        "verdict": report.verdict.value,
        "false_alarm_rate": FALSE_ALARMS,
        "power_at_total_variation": DISTANCE,
        "reach_at_power": LIKELY,
        "service": msgspec.to_builtins(report.served),
        "plan": msgspec.to_builtins(plan),
        "checks": checks,
    }


def print_report(report: Report) -> None:
    """A table, what it means, and the verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in _HEADINGS:
        table.add_column(heading)
    for check in report.checks:
        if isinstance(check, EqualityCheck):
            what = "temperature 0 to 1.5"
            table.add_row(*_exact_row(check, "equal text", what, check.num_requests))
        elif isinstance(check, LogprobCheck):
            what = f"to {check.rounding:g}"
            table.add_row(*_exact_row(check, "log probabilities", what, check.num_tokens))
        else:
            table.add_row(*_probs_row(check, **_sureness(report, check)))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(table)
    served = report.served
    console.print(
        f"\n{served.model}, drafted for by {served.drafter}, {served.gamma} tokens at most\n\n"
        "drafts  tokens that a verified draft decided, but for the first of each answer\n"
        "kept    those of them that were drafted, and accepted\n"
        f"places  in drafted blocks, in answers of {ANSWER_TOKENS} tokens; asked: tokens there\n"
        f"power   least probability to fail for one that is {DISTANCE:g} off (total variation)\n"
        f"reach   what a distribution has to be off to fail with a probability of {LIKELY:g}\n"
        f"A lossless service fails with a probability of {FALSE_ALARMS:g} at most.\n",
        markup=False,
    )
    for check in report.checks:
        if isinstance(check, EqualityCheck) and check.first_difference:
            console.print(f"first difference under {check.method}: {check.first_difference}")
    console.print(f"verdict: {report.verdict.value}{_doubt(report)}", style="bold")


def _doubt(report: Report) -> str:
    """What would have passed all the same, or would say more."""
    if report.verdict is Status.NOT_EXERCISED:
        return f"; drafts decided too little: {_EVERY_DRAFT} verifies all of them"
    distributions = [check for check in report.checks if isinstance(check, DistributionCheck)]
    if report.verdict is not Status.PASSED or not distributions:
        return ""
    reach = f"less than {_reach(distributions)} off"
    return f"; a distribution that is {reach} may pass, too: {_MORE}{_unreached(report)}"


def _reach(distributions: list[DistributionCheck]) -> str:
    """Of the first tokens of answers, and at places in blocks, which fewer tokens have."""
    asked = [check for check in distributions if check.is_exercised]
    first = [check.reach(len(distributions)) for check in asked if not check.subject.is_of_places]
    placed = [check.reach(len(distributions)) for check in asked if check.subject.is_of_places]
    text = f"{max(first):.2g}"
    return text + f", or {max(placed):.2g} at places in blocks," if placed else text


def _unreached(report: Report) -> str:
    if not report.unreached:
        return ""
    names = dict.fromkeys(f"{c.method}, {c.sampling}, {c.subject}" for c in report.unreached)
    return f"; next to no drafts got to ({'; '.join(names)}): {_EVERY_DRAFT} verifies all"


def _sureness(report: Report, check: Check) -> dict[str, float]:
    """What a sampled check would have found; nothing for the others, which are exact."""
    if not isinstance(check, DistributionCheck):
        return {}
    num_tests = sum(isinstance(other, DistributionCheck) for other in report.checks)
    return {"power": round(check.power(num_tests), 4), "reach": round(check.reach(num_tests), 4)}


def _exact_row(
    check: EqualityCheck | LogprobCheck, name: str, what: str, count: int
) -> tuple[str, ...]:
    return (
        name,
        check.method,
        what,
        str(count),
        f"{check.origins.verified:.0%}",
        f"{check.origins.accepted:.0%}",
        f"{check.num_different} differ",
        "-",
        "-",
        check.status.value,
    )


def _probs_row(check: DistributionCheck, power: float, reach: float) -> tuple[str, ...]:
    look = check.screening
    result = f"p = {look.p_value:.2g}"
    if check.repetition is not None:
        result += f", then {check.repetition.p_value:.2g} of {check.repetition.num_samples}"
    return (
        "distribution of " + check.subject.value,
        check.method,
        check.sampling,
        str(look.num_samples),
        f"{check.origins.verified:.0%}",
        f"{check.origins.accepted:.0%}",
        result,
        f"{power:.2f}",
        f"{reach:.3f}",
        check.status.value,
    )
