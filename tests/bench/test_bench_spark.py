"""The bench of Spark on a machine without Spark."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from quorum.bench import spark_flows
from quorum.bench.plan import Plan
from quorum.spark.errors import SetupError


def test_what_spark_needs_is_looked_for_before_anything_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without_spark(name: str, *more: Any) -> Any:
        return None if name == "pyspark" else found(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without_spark)
    notes: list[str] = []
    with pytest.raises(SetupError, match="PySpark is not installed"):
        spark_flows.run(Plan(mode="spark", backlog=1), notes.append)
    assert notes == []
