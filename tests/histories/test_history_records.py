"""The form of records, the recorder, and the files of a history."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorum.histories.files import check
from quorum.histories.recorder import Recorder, Run, runs
from quorum.histories.records import FORMS, HistoryError, Record, problem
from support.histories.records import BAD, BAD_IN_JSON, DELIVER, GOOD, PUBLISH, SETTLE


@pytest.mark.parametrize("record", GOOD)
def test_good_records_are_taken(record: Record) -> None:
    assert problem(record) is None


@pytest.mark.parametrize(("record", "told"), [*BAD, *BAD_IN_JSON])
def test_bad_records_are_refused_with_what_is_allowed(record: Record, told: str) -> None:
    assert told in (problem(record) or "")


def test_every_kind_of_record_is_shown() -> None:
    assert {each["op"] for each in GOOD} == set(FORMS)


def test_neighbours_are_one_record() -> None:
    messages = [Run(n, "p", n + 10) for n in range(1, 6)]
    other = [Run(6, "o", 16), Run(7, "o", 17), Run(8, "o", 18, redelivered=True), Run(10, "o", 19)]
    assert list(runs([*messages, *other])) == [
        Run(1, "p", 11, count=5),
        Run(6, "o", 16, count=2),
        Run(8, "o", 18, redelivered=True),
        Run(10, "o", 19),
    ]
    assert list(runs([])) == []


def test_the_recorder_writes_what_the_page_says(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    messages = [Run(1, "p", 0), Run(2, "p", 1), Run(3, "o", 9), Run(7, "o", 10, redelivered=True)]
    with Recorder(path) as recorder:
        recorder.publish("q", "p", 0, count=2, invoked_us=1, returned_us=2, outcome="confirmed")
        recorder.publish("q", "o", 9, invoked_us=1, outcome="unknown")
        recorder.deliver("q", "c/1", messages, at_us=3)
        recorder.settle("q", "c/1", messages[:3], invoked_us=4, returned_us=5, outcome="ok")
        recorder.discard("q", "c/1", messages[3:], invoked_us=4, outcome="unknown")
        recorder.end("q", "c/1", at_us=6)
        recorder.left("q")
        recorder.left("r", [Run(1, "p", 5)])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [problem(line) for line in lines] == [None] * len(lines)
    assert lines[2:6] == [
        {**DELIVER, "consumer": "c/1", "number": 0, "count": 2, "returned_us": 3},
        {**DELIVER, "consumer": "c/1", "sequence": 3, "producer": "o", "number": 9, "returned_us": 3},
        {
            **DELIVER,
            "consumer": "c/1",
            "sequence": 7,
            "producer": "o",
            "number": 10,
            "returned_us": 3,
            "redelivered": True,
        },
        {**SETTLE, "consumer": "c/1", "count": 3, "invoked_us": 4, "returned_us": 5},
    ]
    assert lines[-2:] == [
        {"op": "left", "queue": "q", "count": 0},
        {"op": "left", "queue": "r", "sequence": 1, "producer": "p", "number": 5},
    ]


def test_the_recorder_refuses_what_could_not_be_read_and_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with Recorder(path) as recorder, pytest.raises(HistoryError, match="'outcome' is \"maybe\""):
        recorder.publish("q", "p", 0, invoked_us=1, outcome="maybe")
    with pytest.raises(FileExistsError):
        Recorder(path)


def told(path: Path) -> str:
    with pytest.raises(HistoryError) as raised:
        check([path])
    return str(raised.value)


def test_what_is_no_history_is_refused_before_spark_starts(tmp_path: Path) -> None:
    assert told(tmp_path / "none") == f"{tmp_path}/none: this file or directory does not exist"
    assert told(tmp_path).startswith(f"{tmp_path}: no file in it is a history; their names end in .jsonl")
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(PUBLISH) + "\n\n" + json.dumps(DELIVER)[:-9] + "\n", encoding="utf-8")
    assert told(path).startswith(f"{path}, line 3: not JSON: ")
    path.write_bytes(b'{"op":"left","queue":"\xff","count":0}\n')
    assert told(path) == f"{path}, line 1: not UTF-8"
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(b"no gzip")
    assert told(packed).startswith(f"{packed}, line 1: the gzip stream is damaged: ")
    (tmp_path / "_c.jsonl").write_text("")
    assert "Spark reads no file whose name begins with" in told(tmp_path / "_c.jsonl")


def test_parquet_with_other_columns_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"op": ["left"], "colour": ["red"]}), path)
    assert told(path).startswith(f"{path}: there is no column 'colour' in a history; allowed: op, queue,")
    pq.write_table(pa.table({"op": ["left"], "number": [1.5]}), path)
    assert told(path) == f"{path}: column 'number' is double; allowed: a whole number"
    path.write_bytes(b"PAR1 and nothing else")
    assert told(path).startswith(f"{path}: cannot be read as Parquet: ")
