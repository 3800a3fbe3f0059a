"""The alerts: Prometheus accepts them, they fire when they should, and they ask for metrics that workers export."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from agentrt.settings import Settings
from tests.databases import CHECKOUT
from tests.deploy import kustomize, promised
from tests.deploy.promised import ALERTS, GROUPS, RECORDS, RULES

PROMETHEUS = CHECKOUT / "deploy" / "prometheus"
RULE_TESTS = Path(__file__).with_name("rules_test.yml")


@pytest.fixture
def promtool():
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")

    def run(*words: str | Path, text: str | None = None) -> str:
        done = subprocess.run(
            [program, *words], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


def test_prometheus_accepts_the_configuration_and_the_rules(promtool):
    told = promtool("check", "config", "--lint=all", "--lint-fatal", PROMETHEUS / "prometheus.yml")
    assert "1 rule files found" in told
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_alerts_fire_when_they_should_and_are_silent_otherwise(promtool):
    promtool("test", "rules", RULE_TESTS)


def test_every_alert_is_tested_both_ways():
    tests = yaml.safe_load(RULE_TESTS.read_text(encoding="utf-8"))
    assert [(RULE_TESTS.parent / name).resolve() for name in tests["rule_files"]] == [RULES]
    checks = [check for test in tests["tests"] for check in test.get("alert_rule_test", ())]
    fired = {check["alertname"] for check in checks if check["exp_alerts"]}
    silent = {check["alertname"] for check in checks if not check["exp_alerts"]}
    assert fired == silent == set(ALERTS)


@pytest.mark.parametrize("rule", [*ALERTS.values(), *RECORDS.values()], ids=lambda rule: rule.get("alert", "record"))
def test_a_rule_asks_for_series_and_labels_that_exist(rule):
    promised.assert_answerable(rule["expr"])


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_what_happened_and_what_to_do(name):
    assert ALERTS[name]["labels"]["severity"] in ("critical", "warning")
    assert ALERTS[name]["annotations"].keys() == {"summary", "description"}


def test_a_query_of_what_nobody_exports_is_noticed():
    for query in (
        "agentrt_nothing_total > 0",
        'rate(agentrt_claims_total{agent="x"}[5m])',
        "sum by (colour) (agentrt_slots)",
        "1 + 1",
    ):
        with pytest.raises(AssertionError):
            promised.assert_answerable(query)


def test_what_workers_export_is_clean(promtool):
    assert promtool("check", "metrics", text=promised.exposition()) == ""


def test_the_heartbeat_is_late_before_the_worker_stops_everything():
    settings = Settings()
    threshold = float(ALERTS["AgentrtHeartbeatLate"]["expr"].split(">")[1])
    assert 3 * settings.heartbeat_seconds < threshold < settings.lease_seconds - settings.stop_seconds


def test_the_prometheus_operator_is_given_the_same_rules():
    [rule] = kustomize.documents(kustomize.KUBERNETES / "components" / "monitoring" / "prometheusrule.yaml")
    assert rule["spec"]["groups"] == GROUPS
