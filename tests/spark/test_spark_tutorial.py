"""The tutorial of docs/spark.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import quorum.spark
from quorum import sync
from quorum.bulk import BulkClient
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark.options import KNOWN
from quorum.spark.schema import ORDER
from support.repository import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "spark.md"


def test_the_tutorial_runs(
    spark: SparkSession,
    cluster: LocalCluster,
    client: sync.Client,
    bulk: BulkClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("orders", "small-orders"):
        client.declare(name, {"x-filter-enabled": True})
    monkeypatch.setattr(quorum.spark, "session", lambda: spark)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"URL": cluster.url, "CHECKPOINT": str(tmp_path)})
    out = capsys.readouterr().out
    assert "|   0|   34|" in out
    assert "orders: 900 messages wait, " in out
    found = sorted(each.body for each in client.browse("small-orders"))
    wanted = sorted(b"ORDER %d" % n for n in range(1000) if n % 3 == 0 and n % 10 < 3)
    assert found == wanted
    assert bulk.queue_info("orders").ready == 1000 - len(wanted)


def test_the_page_names_every_option_and_column() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in KNOWN if f"| `{name}` |" not in text] == []
    assert [name for name in ORDER if f"`{name}`" not in text] == []
