"""The rules for Prometheus: they parse, fire when they must, and speak of metrics that exist; each alert has its runbook."""

import os
import re

import common
import promql_parser
import pytest
import yaml
from common import DEPLOY, ROOT, run, tool

FOLDER = DEPLOY / "prometheus"
RULES = yaml.safe_load((FOLDER / "ocelli.rules.yml").read_text())
TESTS = yaml.safe_load((FOLDER / "ocelli.rules.test.yml").read_text())["tests"]
ALL = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL if "alert" in rule}
# Of Prometheus itself.
FOREIGN = {"up"}


def metrics():
    """The names of `docs/metrics.md`, as Prometheus knows them."""
    names = set()
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE):
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    assert len(names) > 40
    return names


def named(expression):
    """The metrics that an expression asks for."""
    promql_parser.parse(expression)
    text = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\b(?:ocelli|process|nv|kube)_\w+|\bocelli:[\w:]+|\bup\b", text))


def test_prometheus_takes_the_rules_and_the_configuration():
    run(tool("promtool"), "check", "rules", FOLDER / "ocelli.rules.yml")
    run(tool("promtool"), "check", "config", FOLDER / "prometheus.yml")


def test_alerts_fire_when_they_must_and_only_then():
    run(tool("promtool"), "test", "rules", FOLDER / "ocelli.rules.test.yml")


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_tested_where_it_fires_and_where_it_does_not(alert):
    expected = [check["exp_alerts"] for test in TESTS for check in test["alert_rule_test"] if check["alertname"] == alert]
    assert any(expected) and not all(expected), f"{alert} needs a case with alerts and one without"


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_what_is_the_matter_and_has_a_runbook(alert):
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == alert.lower()
    sections = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)[1:]
    (section,) = [text for text in sections if text.splitlines()[0] == alert]
    assert "**Means**" in section and "**Do**" in section


def test_every_runbook_has_its_alert():
    found = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert found == list(ALERTS), "docs/runbooks.md has the alerts, in the order of the rules"


def test_rules_ask_for_metrics_that_exist():
    known = metrics() | FOREIGN | {rule["record"] for rule in ALL if "record" in rule}
    for rule in ALL:
        unknown = named(rule["expr"]) - known
        assert not unknown, f"{rule.get('alert') or rule['record']} asks for {unknown}"


def test_outcomes_are_all_either_good_bad_or_left_out():
    """A new outcome must be put on one side."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    outcomes = set(re.findall(r"`(\w+)`", re.search(r"^\| `outcome` \|(.*)$", text, re.MULTILINE)[1]))
    counted = set(re.search(r'outcome=~"([^"]*ok[^"]*)"', str(ALL))[1].split("|"))
    assert counted < outcomes
    # One that begins refuses what another takes: where none is ready, OcelliNotReady tells.
    assert outcomes - counted == {"bad_request", "decode", "too_large", "input", "cancelled", "hasty", "loading"}


def test_the_latency_objective_is_a_bound_of_the_histogram():
    rust = (ROOT / "src" / "telemetry" / "metrics" / "model.rs").read_text()
    text = re.search(r"DURATION_BUCKETS: .*? = \[(.*?)\]", rust, re.DOTALL)[1]
    bounds = {float(number) for number in text.replace("_", "").replace(",", " ").split()}
    assert {float(bound) for bound in re.findall(r'le="([^"]+)"', str(ALL))} <= bounds


def test_routes_of_inference_are_those_that_a_model_answers_at_and_no_probe():
    (pattern,) = set(re.findall(r'route=~"([^"]+)"', str(ALL) + (DEPLOY / "grafana" / "make_dashboard.py").read_text()))
    paths = yaml.safe_load((ROOT / "openapi.yaml").read_text())["paths"]
    counted = {path for path in paths if re.fullmatch(pattern, path)}
    assert counted == {path for path in paths if path.startswith("/predictions/") or path.endswith(("/infer", ":predict"))}
    # Of gRPC, all that run a model but streams, which last as long as their callers like.
    calls = re.findall(r'"(/[\w.]+/\w+)"', (ROOT / "src" / "grpc" / "calls.rs").read_text())
    counted_calls = {call.rsplit("/", 1)[1] for call in calls if re.fullmatch(pattern, call)}
    assert counted_calls == {"ModelInfer", "Predictions", "StreamPredictions"}
    # What is posted to `/v1/models/{model}:predict` is counted under that name: the path without the verb is that of KServe's probe.
    for path in ("/v1/models/{model}", "/v1/models/{model}/versions/{version}"):
        assert path in paths and f"{path}:predict" in counted
    # A stack takes as long as its caller sends it.
    (stacks,) = re.findall(r"STACKS: .*?=\s*\[(.*?)\]", (ROOT / "src" / "http" / "observe.rs").read_text(), re.DOTALL)
    stacks = re.findall(r'"([^"]+)"', stacks)
    assert {stack.removesuffix(" (stack)") for stack in stacks} == {path for path in paths if path.startswith("/predictions/")}
    assert not any(re.fullmatch(pattern, stack) for stack in stacks)


def test_the_operators_rules_are_the_same():
    """`OCELLI_BLESS=1` writes them."""
    path = DEPLOY / "kubernetes" / "components" / "monitoring" / "rules.yaml"
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ocelli"},
        "spec": RULES,
    }
    if os.environ.get("OCELLI_BLESS"):
        text = yaml.safe_dump(resource, sort_keys=False, width=120, allow_unicode=True)
        path.write_text(f"# Made from deploy/prometheus/ocelli.rules.yml by `OCELLI_BLESS=1 make test-deploy`.\n{text}")
    assert common.documents(path.read_text()) == [resource], "OCELLI_BLESS=1 make test-deploy writes it anew"
