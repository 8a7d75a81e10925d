"""Names and units by the conventions of Prometheus; documentation, dashboard and alerts speak of what exists."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from kit.places import ROOT
from unbroken.observe.metrics.definitions import BY_NAME, DEFINITIONS, Definition, reference

DASHBOARD = ROOT / "deploy" / "grafana" / "unbroken.json"
RULES = ROOT / "deploy" / "prometheus" / "unbroken.rules.yml"
OPERATIONS = ROOT / "docs" / "operations.md"

NOT_BASE = ("_ms", "_milliseconds", "_minutes", "_hours", "_kb", "_mb", "_gb", "_kilobytes", "_percent", "_bits")
TAKEN = ("_count", "_sum", "_bucket", "_info_total")
NAME = re.compile(r"\bunbroken_[a-z0-9_]+")

every_metric = pytest.mark.parametrize("one", DEFINITIONS, ids=lambda one: one.name)


@every_metric
def test_names_say_kind_and_unit(one: Definition) -> None:
    assert re.fullmatch(r"unbroken(_[a-z0-9]+)+", one.name)
    assert (one.kind == "counter") == one.name.endswith("_total")
    assert not one.name.removesuffix("_total").endswith((*NOT_BASE, *TAKEN))
    if "byte" in one.name:
        assert "bytes" in one.name.split("_")
    for unit in ("seconds", "bytes"):
        parts = one.name.removesuffix("_total").split("_")
        # The unit comes last, unless what is counted is itself bytes that came or went.
        assert unit not in parts or parts[-1] == unit or one.kind == "counter", one.name


@every_metric
def test_meanings_are_sentences_and_labels_begin_with_where(one: Definition) -> None:
    assert one.help.endswith((".", "...")) and one.help[0].isupper() | one.help[0].isdigit()
    assert one.labels[:2] == ("flow", "node")
    assert all(re.fullmatch(r"[a-z]+", label) for label in one.labels)
    assert len(set(one.labels)) == len(one.labels)
    assert "replica" not in one.labels or "shard" in one.labels


def test_no_name_is_used_twice() -> None:
    assert len(BY_NAME) == len(DEFINITIONS)


def test_the_documentation_has_the_table_of_all_metrics() -> None:
    text = OPERATIONS.read_text()
    begin, end = "<!-- metrics -->\n", "<!-- end of metrics -->\n"
    assert text.count(begin) == text.count(end) == 1
    table = text.partition(begin)[2].partition(end)[0]
    assert table == reference(), "write unbroken.observe.metrics.definitions.reference() between the marks"


def test_the_documentation_speaks_of_no_other_metric() -> None:
    assert not missing([OPERATIONS.read_text()])


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def questions() -> list[str]:
    """What the panels ask, and the marks on the axis of time."""
    marks = [mark["expr"] for mark in json.loads(DASHBOARD.read_text())["annotations"]["list"] if "expr" in mark]
    return [*marks, *(target["expr"] for panel in panels() for target in panel.get("targets", []))]


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def missing(texts: list[str]) -> set[str]:
    return {name for text in texts for name in NAME.findall(text)} - set(BY_NAME)


def test_the_dashboard_asks_for_what_exists() -> None:
    assert questions() and all(NAME.search(question) for question in questions())
    dashboard = json.loads(DASHBOARD.read_text())
    variables = [str(variable["query"]) for variable in dashboard["templating"]["list"]]
    assert not missing([*questions(), *variables])


@pytest.mark.parametrize(
    "needed",
    ["output_gap_seconds", "redundancy_degraded", "replica_lag_seconds", "micro_batch_seconds", "failovers_total"],
)
def test_the_dashboard_shows_what_matters(needed: str) -> None:
    assert any(f"unbroken_{needed}" in question for question in questions())


def test_failures_are_marked_on_the_axis_of_time() -> None:
    marks = json.loads(DASHBOARD.read_text())["annotations"]["list"]
    (failovers,) = [mark for mark in marks if "unbroken_failovers_total" in mark.get("expr", "")]
    assert failovers["enable"] and not failovers["hide"]


def test_the_panels_of_the_dashboard_have_places_of_their_own() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or (panel["targets"] and panel["description"] and panel["fieldConfig"])
        references = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(references)) == len(references)


def test_alerts_ask_for_what_exists_and_say_what_to_do() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        assert NAME.search(alert["expr"]) and not missing([alert["expr"]]), alert["alert"]
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        assert alert["annotations"]["summary"] and alert["annotations"]["description"]
        assert re.fullmatch(r"[0-9]+[smh]", alert.get("for", "0s"))


@pytest.mark.parametrize(
    "needed",
    [
        "sink_stopped",
        "units_set_aside_total",
        "sink_busy_seconds",
        "source_asking_seconds",
        "source_unreached_seconds",
        "source_stuck_seconds",
        "source_rows_bad_total",
        "ingress_busy_seconds",
        "ingress_log_busy_seconds",
        "ingress_entries_set_aside_total",
        "dead_letters_lost_total",
    ],
)
def test_what_stops_or_is_set_aside_raises_an_alert(needed: str) -> None:
    assert any(f"unbroken_{needed}" in NAME.findall(alert["expr"]) for alert in alerts())


def test_the_documentation_says_what_to_do_at_every_alert() -> None:
    section = OPERATIONS.read_text().partition("## Alerts\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "`Unbroken" in line
    ]
    told = {row[0].strip("`"): row[1] for row in rows}
    assert told == {alert["alert"]: alert["labels"]["severity"] for alert in alerts()} and len(told) == len(rows)
    assert all(len(row) == 4 and all(row) for row in rows)


def test_questions_name_labels_that_their_metrics_have() -> None:
    """Every label that is summed over or chosen by belongs to the metrics of its question."""
    for question in [*questions(), *(alert["expr"] for alert in alerts())]:
        found = [BY_NAME[name] for name in NAME.findall(question)]
        known = {label for definition in found for label in definition.labels}
        grouped = [label.strip() for group in re.findall(r"\bby \(([^)]*)\)", question) for label in group.split(",")]
        chosen = [label for chooser in re.findall(r"{([^}]*)}", question) for label in re.findall(r"(\w+)=", chooser)]
        assert set(grouped) | set(chosen) <= known, question
