# pyright: strict
"""`summary` of results.json: figures by name, with their intervals, and the goals set for them."""

import msgspec

from bench.bootstrap import Interval, against

Summary = dict[str, float | None]
LOW, HIGH = "_lo", "_hi"
_PRECISION = 4


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the summary, and what it should at least be."""

    key: str
    least: float
    text: str


def verdict_on(goal: Goal, summary: Summary) -> str:
    """Whether its figure reaches it, if there is one."""
    value, high = summary.get(goal.key), summary.get(goal.key + HIGH)
    if value is None or high is None:
        return "not measured"
    return against(goal.least, value, high)


def entries(key: str, figure: Interval | None) -> Summary:
    """The figure and both ends of its interval; None, what was not measured."""
    names = (key, key + LOW, key + HIGH)
    if figure is None:
        return dict.fromkeys(names)
    values = (figure.value, figure.low, figure.high)
    return {name: round(value, _PRECISION) for name, value in zip(names, values, strict=True)}


def verdict_lines(goals: tuple[Goal, ...], summary: Summary) -> str:
    """Every goal in a paragraph, for a report."""
    lines: list[str] = []
    for goal in goals:
        value, low, high = (summary.get(goal.key + end) for end in ("", LOW, HIGH))
        figure = "-"
        if value is not None and low is not None and high is not None:
            figure = f"{value:.2f} [{low:.2f}, {high:.2f}]"
        lines.append(f"{goal.text}: {figure}, goal {goal.least:g}: {verdict_on(goal, summary)}.")
    return "\n\n".join(lines)
