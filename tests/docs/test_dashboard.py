"""The Grafana dashboard asks for metrics and labels that there are, of the chosen source."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "specserve.json").read_text(encoding="utf-8"))
METRICS = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")  # which has those of /metrics
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"s", "none", "percentunit", "ops", "Bps"}


def series() -> dict[str, set[str]]:
    """Labels by the name of what a query can ask for."""
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \|(.*?)\|", METRICS, re.MULTILINE)
    found: dict[str, set[str]] = {}
    for name, kind, cell in rows:
        labels = {"model_name", *re.findall(r"`(\w+)`", cell)}
        if kind == "histogram":
            found |= {f"{name}_sum": labels, f"{name}_count": labels}
            found[f"{name}_bucket"] = labels | {"le"}
        else:
            found[name] = labels
    return found


def shown() -> list[dict]:
    """Panels with queries."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in shown() for target in panel["targets"]]


def test_it_is_a_dashboard_that_grafana_imports():
    assert DASHBOARD["schemaVersion"] >= 36  # Grafana 9: sources by type and uid
    assert DASHBOARD["id"] is None  # given by whoever imports it
    assert DASHBOARD["uid"] == DASHBOARD["title"] == "specserve"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) > 20


def test_the_source_is_a_variable_and_so_is_the_model():
    source, model = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    assert (model["name"], model["type"], model["datasource"]) == ("model", "query", SOURCE)
    (asked,) = re.findall(r"label_values\(([\w:]+), model_name\)", model["query"]["query"])
    assert asked in series()
    for panel in shown():
        assert panel["datasource"] == SOURCE, panel["title"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"]), panel["title"]


@pytest.mark.parametrize("expression", expressions())
def test_every_query_asks_for_what_there_is(expression):
    known = series()
    names = re.findall(r"\bspecserve:\w+", expression)
    assert names
    assert set(names) <= set(known)
    assert expression.count('{model_name=~"$model"}') == len(names)  # of the chosen model
    for group in re.findall(r"by \(([\w, ]+)\)", expression):
        for label in group.split(", "):
            assert any(label in known[name] for name in names), label
    for name in names:  # a counter by itself says nothing
        is_counter = re.search(r"_(total|sum|count|bucket)$", name)
        assert bool(is_counter) == (f"rate({name}{{" in expression), name
    assert expression.count("(") == expression.count(")")


def test_every_panel_says_what_it_shows():
    for panel in shown():
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))


def test_legends_name_labels_that_queries_keep():
    for panel in shown():
        for target in panel["targets"]:
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, target["expr"]


def test_panels_lie_side_by_side_within_the_page():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_all_metrics_of_speculation_are_on_it():
    asked = " ".join(expressions())
    names = {name for name in series() if name.startswith("specserve:")}
    wanted = [
        name
        for name in names
        if re.search(r":(spec|calibration|verify|step|draft|link|rounds_by|prepared|stand)", name)
        and not name.endswith(("_count", "_sum"))
    ]
    assert [name for name in wanted if name not in asked] == ["specserve:speculation_mode"]
