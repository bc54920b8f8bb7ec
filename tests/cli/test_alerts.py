"""deploy/alerts.yml: its metrics exist, and its runbook lines lead somewhere."""

from __future__ import annotations

import re
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
