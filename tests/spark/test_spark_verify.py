"""Histories with violations planted in them, and what `verify` says; each case has a queue of its own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.histories import HistoryError, Recorder, Run, judge
from quorum.histories.records import COLUMNS, Record
from quorum.histories.report import KINDS, Report
from quorum.spark.pipelines.history_input import TYPES, condition
from quorum.spark.pipelines.verify import verify
from support.examples import examples
from support.histories.cases import CASES, broken, done, in_queue, sent
from support.histories.generated import some_history
from support.histories.records import BAD, GOOD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def histories() -> dict[str, list[Record]]:
    return {name: in_queue(name, records) for name, (records, _) in CASES.items()}


@pytest.fixture(scope="module")
def judged(
    spark: SparkSession, histories: dict[str, list[Record]], tmp_path_factory: pytest.TempPathFactory
) -> Report:
    """All cases in two files, the records in no order."""
    folder = tmp_path_factory.mktemp("cases")
    records = [each for case in histories.values() for each in case]
    random.Random(1).shuffle(records)
    write(folder / "a.jsonl", records[::2])
    write(folder / "b [1].jsonl", records[1::2])
    return verify(spark, [folder])


@pytest.mark.parametrize("name", CASES)
def test_planted_violations_are_found_and_nothing_else(judged: Report, name: str) -> None:
    wanted = {kind: len(numbers) for kind, numbers in CASES[name][1].items()}
    assert broken(judged, name) == wanted


def test_a_few_culprits_are_named_with_their_reasons(judged: Report) -> None:
    assert list(judged.culprits) == list(KINDS)
    assert all(1 <= len(shown) <= 5 for shown in judged.culprits.values())
    for kind, shown in judged.culprits.items():
        for each in shown:
            assert each.number in CASES[each.queue][1][kind]
            assert each.producer.startswith(f"{each.queue}.")
            assert each.why
    assert not judged.is_clean


def test_messages_are_counted_by_queue_and_producer(spark: SparkSession, tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.jsonl") as recorder:
        recorder.publish("q", "a", 1, count=10, invoked_us=1, returned_us=2, outcome="confirmed")
        recorder.publish("q", "a", 11, count=3, invoked_us=3, returned_us=4, outcome="rejected")
        recorder.publish("q", "b", 1, count=2, invoked_us=3, outcome="unknown")
        messages = [Run(1, "a", 1, count=10), Run(11, "b", 1)]
        recorder.deliver("q", "c", messages, at_us=5)
        recorder.settle("q", "c", messages[:1], invoked_us=6, returned_us=7, outcome="ok")
        recorder.left("q", messages[1:])
    report = verify(spark, [tmp_path / "history.jsonl"])
    assert report.is_clean
    assert report.culprits == {}
    assert [(line.producer, list(line.counts.values())) for line in report.lines] == [
        ("a", [10, 3, 0, 10, 10, 0]),
        ("b", [0, 0, 2, 1, 0, 1]),
    ]
    assert report.operations == 10 + 3 + 2 + 11 + 10 + 1


@settings(max_examples=examples(4))
@given(seed=st.integers(0, 1 << 32))
def test_random_histories_are_judged_as_plain_python_judges_them(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    histories = {f"q{n}": some_history(chance, f"q{n}") for n in range(300)}
    records = [each for history in histories.values() for each in history]
    report = verify(spark, [write(tmp_path_factory.mktemp("random") / "history.jsonl", records)])
    wanted = judge(records)
    for queue in [name for each in histories for name in (each, each + "-dead")]:
        assert broken(report, queue) == broken(wanted, queue), (seed, queue)
    assert [line.counts for line in report.lines] == [line.counts for line in wanted.lines]
    assert all(wanted.total(kind) for kind in KINDS)


def refusal(spark: SparkSession, tmp_path: Path, records: list[Record]) -> str:
    with pytest.raises(HistoryError) as raised:
        verify(spark, [write(tmp_path / "history.jsonl", records)])
    return str(raised.value).removeprefix(f"{tmp_path}/history.jsonl")


def test_a_history_that_cannot_be_judged_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    nothing_left = {"op": "left", "queue": "q", "count": 0}
    there = {"queue": "q", "producer": "p", "consumer": "c"}
    published = {**sent(1), "queue": "q"}
    assert "no record shows what was left in queue 'q'" in refusal(spark, tmp_path, [published])
    assert "no message was confirmed" in refusal(spark, tmp_path, [nothing_left])
    orphan = {**done(7), "queue": "q"}
    assert "sequence 7 of queue 'q' is settled, returned or discarded, but was never delivered" in refusal(
        spark, tmp_path, [published, orphan, nothing_left]
    )
    elsewhere = [{**published, "queue": "r"}, {**nothing_left, "queue": "r"}]
    assert "published number 1 to two queues" in refusal(
        spark, tmp_path, [published, nothing_left, *elsewhere]
    )
    assert there


def test_spark_judges_records_as_python_does(spark: SparkSession) -> None:
    rows = [*GOOD, *(record for record, _ in BAD)]
    schema = ", ".join(f"`{name}` {TYPES[kind]}" for name, kind in COLUMNS.items())
    frame = spark.createDataFrame(
        [(place, *(row.get(name) for name in COLUMNS)) for place, row in enumerate(rows)],
        f"place INT, {schema}",
    )
    found = frame.selectExpr("place", f"coalesce({condition()}, FALSE) AS is_good").collect()
    assert {row["place"] for row in found if row["is_good"]} == set(range(len(GOOD)))


def test_a_bad_line_far_down_is_named(spark: SparkSession, tmp_path: Path) -> None:
    good = [{**sent(number), "queue": "q"} for number in range(3_000)]
    bad = {**good[0], "outcome": "fine"}
    told = refusal(spark, tmp_path, [*good, bad, *good])
    assert told == ", line 3001: 'outcome' is \"fine\"; allowed: confirmed, rejected, unknown"


@pytest.mark.parametrize("torn", ['{"op":"publish","que', "[1]", '{"op":"left","queue":"q","count":"0"}'])
def test_a_torn_line_far_down_is_named(spark: SparkSession, tmp_path: Path, torn: str) -> None:
    path = write(tmp_path / "history.jsonl", [{"op": "left", "queue": "q", "count": 0}] * 2_000)
    with path.open("a", encoding="utf-8") as file:
        file.write(torn)
    with pytest.raises(HistoryError, match=r"history\.jsonl, line 2001: "):
        verify(spark, [path])


def test_parquet_says_the_same_as_json(
    spark: SparkSession, histories: dict[str, list[Record]], judged: Report, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [each for case in histories.values() for each in case]
    half = len(records) // 2
    first = pa.Table.from_pylist([_all_columns(each) for each in records[:half]])
    second = pa.Table.from_pylist([_all_columns(each) for each in records[half:]])
    narrow = second.set_column(
        second.schema.get_field_index("count"), "count", second["count"].cast(pa.int32())
    )
    pq.write_table(first, tmp_path / "a.parquet")
    pq.write_table(narrow, tmp_path / "b.parquet")
    report = verify(spark, [tmp_path])
    assert (report.lines, report.operations) == (judged.lines, judged.operations)


def test_a_bad_row_of_parquet_is_named(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_all_columns({**sent(1), "queue": "q"}), _all_columns({**sent(2), "queue": "q", "count": 0})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with pytest.raises(HistoryError, match=r"a\.parquet, row 2: 'count' is 0; allowed: 1 to 1000000"):
        verify(spark, [tmp_path / "a.parquet"])


def _all_columns(record: Record) -> Record:
    return {name: record.get(name) for name in COLUMNS}
