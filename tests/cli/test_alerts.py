"""deploy/alerts.yml: its metrics exist, its runbook lines lead somewhere, and each alert fires and ends. The dashboard
shows metrics that exist. Prometheus takes its configurations, and that of a collector has the same members."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.repository import ROOT

RULES: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"))[
    "groups"
][0]["rules"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_metrics_that_are_exported(rule: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = set(re.findall(r"quorum_\w+", rule["expr"]))
    assert names or 'up{job="quorum"}' in rule["expr"]
    assert all(f"| `{name}`" in page for name in names)
    assert f"| `{rule['alert']}` |" in page


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_names_a_section_that_says_what_to_do(rule: dict[str, Any]) -> None:
    file, _, section = rule["annotations"]["runbook"].partition(": ")
    page = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^#+ {re.escape(section)}$", page, re.MULTILINE)


def promtool(*arguments: str, directory: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool (Debian: prometheus)")
    done = subprocess.run([program, *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_and_ends() -> None:
    cases = yaml.safe_load((ROOT / "deploy" / "alerts.test.yml").read_text(encoding="utf-8"))["tests"]
    assert [case["name"] for case in cases] == [rule["alert"] for rule in RULES]
    for case in cases:
        assert [bool(each["exp_alerts"]) for each in case["alert_rule_test"]] == [False, True, False]
    promtool("test", "rules", "alerts.test.yml", directory=ROOT / "deploy")


@pytest.mark.parametrize("file", ["prometheus.yml", "prometheus-tls.yml"])
def test_prometheus_takes_the_configuration(file: str, tmp_path: Path) -> None:
    """With the files that it names: they are where the machine or the container has them."""
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w.])/(?:etc|run)/[\w/.-]+[\w]", text)) - {"/etc/prometheus/prometheus.yml"}
    assert "/etc/prometheus/alerts.yml" in named
    for each in named:
        place = tmp_path / each[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "deploy" / "alerts.yml", place)
        text = text.replace(each, str(place))
    (tmp_path / file).write_text(text, encoding="utf-8")
    promtool("check", "config", file, directory=tmp_path)
    [job] = yaml.safe_load(text)["scrape_configs"]
    assert job["job_name"] == "quorum" and job["basic_auth"]["username"] == "prometheus"
    has_tls = file == "prometheus-tls.yml"
    assert (job.get("scheme"), "tls_config" in job) == (("https", True) if has_tls else (None, False))


def test_a_collector_of_opentelemetry_scrapes_what_prometheus_scrapes() -> None:
    """The configuration in docs/tracing.md."""
    page = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    block = textwrap.dedent(page[page.index("    receivers:\n") : page.index("\n## What is missing")])
    collector = yaml.safe_load(block)
    [pipeline] = collector["service"]["pipelines"].values()
    assert pipeline == {"receivers": list(collector["receivers"]), "exporters": list(collector["exporters"])}
    [job] = collector["receivers"]["prometheus"]["config"]["scrape_configs"]
    text = (ROOT / "deploy" / "prometheus-tls.yml").read_text(encoding="utf-8")
    own = yaml.safe_load(text.replace("/etc/prometheus/", "/etc/otelcol/"))
    assert job == {**own["global"], **own["scrape_configs"][0]}


def test_the_dashboard_shows_metrics_that_are_exported() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "quorum.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for each in asked for name in re.findall(r"quorum_\w+", each)}
    assert names and all(f"| `{name}`" in page for name in names)
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
