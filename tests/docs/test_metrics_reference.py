"""Every metric is documented, and the board and the rules in deploy/ ask for nothing that isn't there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml

from tests.fixtures.fences import ROOT
from worker.metrics import CODES, FAMILIES, INFOS

REFERENCE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
RUNBOOK = (ROOT / "docs" / "howto" / "alerts.md").read_text(encoding="utf-8")
ERRORS = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
BOARD = json.loads((ROOT / "deploy" / "grafana" / "collimate.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
EVERY_RULE = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in EVERY_RULE if "alert" in rule]
RECORDED = {rule["record"]: rule for rule in EVERY_RULE if "record" in rule}
SCRAPED = {"job", "instance"}
INFO_LABELS = {"collimate_build_info": {"version", "python"}, "collimate_node_info": {"node", "queue"}}


def series() -> dict[str, set[str]]:
    """Every series of a scrape, with its labels."""
    found = {"up": SCRAPED, **{name: labels | SCRAPED for name, labels in INFO_LABELS.items()}}
    for name, family in FAMILIES.items():
        labels = SCRAPED | ({family.label} if family.label else set())
        if family.kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    return found


def selectors(expr: str) -> Iterator[promql_parser.VectorSelector]:
    """Every selector of an expression; raises `ValueError` where it isn't PromQL."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: Any) -> bool:
        selector = getattr(node, "vector_selector", node)
        if isinstance(selector, promql_parser.VectorSelector):
            found.append(selector)
        return True

    promql_parser.walk(promql_parser.parse(expr), pre_visit=visit)
    names = set(re.findall(r"collimate[_:][a-z0-9_:]+", expr))
    assert {selector.name for selector in found} >= names - {""}, "the walk missed a selector"
    yield from found


def check(expr: str) -> None:
    known = series()
    found = list(selectors(expr))
    assert found, expr
    for selector in found:
        assert selector.name in known or selector.name in RECORDED, f"{selector.name} is no metric of ours: {expr}"
        for matcher in selector.matchers.matchers:
            assert matcher.name in known[selector.name], f"{selector.name} has no label {matcher.name}: {expr}"
            family = FAMILIES.get(selector.name)
            if family is not None and matcher.name == family.label:
                assert set(matcher.value.split("|")) <= set(family.values), f"{matcher} can never be: {expr}"


def rows() -> dict[str, list[str]]:
    """The reference's rows by metric."""
    cells = [re.split(r"\s*\|\s*", line.strip("| ")) for line in REFERENCE.splitlines() if line.startswith("| `coll")]
    assert len({cell[0] for cell in cells}) == len(cells), "a metric stands there twice"
    return {cell[0].strip("`"): cell[1:] for cell in cells}


def test_the_reference_lists_every_metric_and_no_other() -> None:
    assert set(rows()) == set(FAMILIES) | set(INFOS)


def test_the_reference_says_each_kind_and_label_value() -> None:
    for name, (kind, label, _) in rows().items():
        if name in INFOS:
            assert {word.strip("`") for word in label.split(", ")} == INFO_LABELS[name]
            continue
        family = FAMILIES[name]
        assert kind == family.kind, name
        words = re.findall(r"`(\w+)`", label)
        if family.values is CODES or family.label == "outcome":
            assert words == [family.label]
            missing = [value for value in family.values if f"`{value}`" not in ERRORS and value != "other"]
            assert not missing, f"docs/reference/errors.md lacks {missing}"
        else:
            assert words == ([family.label, *family.values] if family.label else []), name


def test_every_metric_that_the_documents_name_is_there() -> None:
    for text in (REFERENCE, RUNBOOK):
        for name in re.findall(r"collimate_[a-z_]+[a-z]", re.sub(r"collimate_rl\b", "", text)):
            assert name in series() or name in FAMILIES, name


def test_the_runbooks_queries_are_promql_of_our_metrics() -> None:
    queries = re.findall(r"```promql\n(.*?)```", RUNBOOK, re.DOTALL)
    assert queries
    for query in queries:
        check(query)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.get("alert") or rule["record"])
def test_each_rule_is_promql_of_our_metrics(rule: dict[str, Any]) -> None:
    check(rule["expr"])


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_says_what_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert alert["labels"]["severity"] in ("critical", "warning")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert len(notes["summary"]) > 20
    assert len(notes["description"]) > 40
    path, _, anchor = notes["runbook_url"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    assert alert["alert"] in headings
    assert anchor == alert["alert"].lower()


def test_the_runbook_knows_no_alert_that_is_not_there() -> None:
    headings = re.findall(r"^## (Collimate\w+)$", RUNBOOK, re.MULTILINE)
    assert sorted(headings) == sorted(alert["alert"] for alert in ALERTS)


def test_the_rules_are_a_rule_file() -> None:
    assert set(RULES) == {"groups"}
    assert len({group["name"] for group in RULES["groups"]}) == len(RULES["groups"])
    for rule in EVERY_RULE:
        assert ("alert" in rule) != ("record" in rule)
        assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))


def test_the_rules_raise_what_they_should_and_nothing_else() -> None:
    """By Prometheus' own tool: its check of the file, and the series and alerts of alerts-test.yml."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool on this machine")
    folder = ROOT / "deploy" / "prometheus"
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts-test.yml"]):
        done = subprocess.run([tool, *words], cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_tests_speak_of_metrics_that_are_there() -> None:
    text = (ROOT / "deploy" / "prometheus" / "alerts-test.yml").read_text(encoding="utf-8")
    tested = yaml.safe_load(text)["tests"]
    for case in tested:
        for given in case["input_series"]:
            check(given["series"])
    raised = set(re.findall(r'alertname="(\w+)"\}\'', text))
    assert raised == {alert["alert"] for alert in ALERTS}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def test_the_board_is_one_that_grafana_loads() -> None:
    """What its importer relies on: an id and a title, a schema version, panels with ids, places and data sources."""
    assert BOARD["uid"]
    assert BOARD["title"]
    assert BOARD.get("id") is None, "an id is of one Grafana alone"
    assert BOARD["schemaVersion"] >= 30
    assert set(BOARD["time"]) == {"from", "to"}
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(isinstance(number, int) and number > 0 for number in ids)
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert set(place) == {"h", "w", "x", "y"}
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        assert place["h"] > 0
    assert len(panels()) > 20
    for panel in panels():
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - {"__rate_interval", "__all"}
    assert used == set(variables)


def test_no_two_panels_lie_on_one_another() -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"], panel["title"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_each_panels_queries_are_promql_of_our_metrics(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        expr = target["expr"].replace("$__rate_interval", "5m")
        check(expr.replace('"$job"', '".*"').replace('"$node"', '".*"'))


def test_the_boards_variables_ask_for_metrics_that_are_there() -> None:
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.match(r"label_values\((\w+)", variable["query"]["query"])
            assert match is not None
            assert match[1] in series()
