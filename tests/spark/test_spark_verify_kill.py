"""A short kill test on real processes records its history, and Spark judges it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorum.histories.report import KINDS, totals
from quorum.local_cluster.cluster import LocalCluster
from quorum.spark.pipelines.verify import verify
from support.processes.scenarios import kill_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE = "killed"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history of a cluster that is killed once under load. One member: tests/processes kills some of three, and
    the judge sees the same kinds of records."""
    folder = tmp_path_factory.mktemp("killed")
    with LocalCluster(folder / "cluster", 1) as cluster:
        print(asyncio.run(kill_all(cluster, QUEUE, 1, record=folder / "history.jsonl")))
    return folder / "history.jsonl"


@pytest.mark.timeout(900)
def test_what_a_kill_test_recorded_is_clean(spark: SparkSession, recorded: Path) -> None:
    report = verify(spark, [recorded], print)
    assert {kind: report.total(kind) for kind in KINDS} == dict.fromkeys(KINDS, 0), report.culprits
    seen = totals(report.lines)
    confirmed = {
        (each["producer"], number)
        for each in map(json.loads, recorded.read_text(encoding="utf-8").splitlines())
        if each["op"] == "publish" and each["outcome"] == "confirmed"
        for number in _run(each, "number")
    }
    assert seen["confirmed"] == len(confirmed) > 0
    assert seen["settled"] + seen["left"] > 0
    assert [line.queue for line in report.lines] == [QUEUE] * len(report.lines)


@pytest.mark.timeout(900)
def test_a_message_taken_out_of_what_a_kill_test_recorded_is_missed(
    spark: SparkSession, recorded: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in recorded.read_text(encoding="utf-8").splitlines()]
    victim = next(each for each in lines if each["op"] == "publish" and each["outcome"] == "confirmed")
    kept = [
        each
        for each in lines
        if each["op"] == "publish" or each.get("count") == 0 or not _is_of(each, victim, lines)
    ]
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in kept), encoding="utf-8")
    report = verify(spark, [path])
    assert report.total("lost") >= victim.get("count", 1)
    assert {kind for kind in KINDS if report.total(kind)} == {"lost"}
    assert victim["number"] in [each.number for each in report.culprits["lost"]]


def _is_of(record: dict[str, object], victim: dict[str, object], lines: list[dict[str, object]]) -> bool:
    """Whether a delivery or disposal touches a sequence that a message of the victim's record had."""
    there = {
        sequence
        for each in lines
        if each["op"] == "deliver" and each["producer"] == victim["producer"]
        for number, sequence in zip(_run(each, "number"), _run(each, "sequence"), strict=True)
        if number in _run(victim, "number")
    }
    return not there.isdisjoint(_run(record, "sequence"))


def _run(record: dict[str, object], key: str) -> range:
    first, count = record[key], record.get("count", 1)
    assert isinstance(first, int) and isinstance(count, int)
    return range(first, first + count)
