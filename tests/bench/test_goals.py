"""Figures of a summary against their goals."""

from bench.bootstrap import Interval
from bench.goals import Goal, entries, verdict_lines, verdict_on

GOAL = Goal(key="hit_rate", least=0.9, text="hits")


def test_a_goal_is_missed_only_by_the_whole_interval():
    assert verdict_on(GOAL, {"hit_rate": 0.8, "hit_rate_hi": 0.89}) == "missed"
    assert verdict_on(GOAL, {"hit_rate": 0.8, "hit_rate_hi": 0.95}).startswith("open")
    assert verdict_on(GOAL, {"hit_rate": 0.93, "hit_rate_hi": 0.95}) == "reached"
    assert verdict_on(GOAL, entries("hit_rate", None)) == "not measured"


def test_a_figure_has_both_ends_of_its_interval():
    figure = Interval(value=0.912345, low=0.9, high=0.95, num_prompts=3)
    summary = entries("hit_rate", figure)
    assert summary == {"hit_rate": 0.9123, "hit_rate_lo": 0.9, "hit_rate_hi": 0.95}
    assert verdict_lines((GOAL,), summary) == "hits: 0.91 [0.90, 0.95], goal 0.9: reached."
