"""Histories with violations planted in them, and what `verify` says; each case has a queue of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorum.spark.histories import HistoryError, Recorder, Run
from quorum.spark.verify import KINDS, Report, verify
from support.history_oracle import judge, some_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Record = dict[str, Any]


def sent(number: int, start: int = 0, outcome: str = "confirmed", *, count: int = 1, p: str = "p") -> Record:
    """Published at `start`, told 5 later."""
    end = {} if outcome == "unknown" else {"returned_us": start + 5}
    return {
        "op": "publish",
        "producer": p,
        "number": number,
        "count": count,
        "invoked_us": start,
        "outcome": outcome,
        **end,
    }


def got(sequence: int, number: int, at: int = 100, c: str = "c", *, p: str = "p", **more: Any) -> Record:
    return {
        "op": "deliver",
        "sequence": sequence,
        "producer": p,
        "number": number,
        "consumer": c,
        "returned_us": at,
        **more,
    }


def done(
    sequence: int, start: int = 110, c: str = "c", outcome: str = "ok", *, op: str = "settle", count: int = 1
) -> Record:
    end = {} if outcome == "unknown" else {"returned_us": start + 5}
    return {
        "op": op,
        "sequence": sequence,
        "count": count,
        "consumer": c,
        "invoked_us": start,
        "outcome": outcome,
        **end,
    }


def left(sequence: int, number: int, *, p: str = "p", **more: Any) -> Record:
    return {"op": "left", "sequence": sequence, "producer": p, "number": number, **more}


def ended(at: int, c: str = "c") -> Record:
    return {"op": "end", "consumer": c, "invoked_us": at}


def in_order(order: Iterable[int]) -> list[Record]:
    """Each number was confirmed before the next was sent; they stand in this order."""
    numbers = list(order)
    return [
        *[sent(number, 10 * number) for number in sorted(numbers)],
        *[left(place, number) for place, number in enumerate(numbers, 1)],
    ]


DEAD = {"queue": "dead"}

CASES: dict[str, tuple[list[Record], dict[str, list[int]]]] = {
    "settled": ([sent(1), got(1, 1), done(1)], {}),
    "in batches": ([sent(1, count=20), got(7, 1, count=20), done(7, count=20)], {}),
    "left": ([sent(1), left(1, 1)], {}),
    "delivered and left": ([sent(1), got(1, 1), left(1, 1)], {}),
    "settled without an answer": ([sent(1), got(1, 1), done(1, outcome="unknown")], {}),
    "discarded": ([sent(1), got(1, 1), done(1, op="discard")], {}),
    "published without an answer and gone": ([sent(1, outcome="unknown")], {}),
    "published without an answer and there": ([sent(1, outcome="unknown"), got(1, 1), done(1)], {}),
    "refused and gone": ([sent(1, outcome="rejected")], {}),
    "sent again with the same number": (
        [sent(1, 0, "unknown"), sent(1, 50), got(1, 1), done(1)],
        {},
    ),
    # lost
    "never seen": ([sent(1)], {"lost": [1]}),
    "one of a batch": (
        [sent(1, count=20), got(7, 1, count=20), done(7, count=19)],
        {"lost": [20]},
    ),
    "delivered and gone": ([sent(1), got(1, 1)], {"lost": [1]}),
    "returned and gone": ([sent(1), got(1, 1), done(1, op="return")], {"lost": [1]}),
    "confirmed when sent again": ([sent(1, 0, "unknown"), sent(1, 50)], {"lost": [1]}),
    # duplicated
    "two sequences": ([sent(1), got(1, 1), done(1), got(2, 1), done(2)], {"duplicated": [1]}),
    "one of two sequences without an answer": (
        [sent(1), got(1, 1), done(1, outcome="unknown"), left(2, 1)],
        {"duplicated": [1]},
    ),
    "two sequences of an unconfirmed message": (
        [sent(1, outcome="unknown"), left(1, 1), left(2, 1)],
        {"duplicated": [1]},
    ),
    "two queues": ([sent(1), left(1, 1), left(1, 1, **DEAD)], {"duplicated": [1]}),
    "dead-lettered": ([sent(1), got(1, 1), done(1, op="discard"), left(1, 1, **DEAD)], {}),
    "dead-lettered twice": (
        [sent(1), got(1, 1), done(1, op="discard"), left(2, 1, **DEAD), left(3, 1, **DEAD)],
        {"duplicated": [1]},
    ),
    # reordered: the culprit is the misplaced one, not those between
    "in order": (in_order([1, 2, 3, 4, 5]), {}),
    "sent together": ([sent(1, 0), sent(2, 2), left(1, 2), left(2, 1)], {}),
    "told when the next was sent": ([sent(1, 0), sent(2, 5), left(1, 2), left(2, 1)], {}),
    "too late": (in_order([2, 3, 4, 5, 1]), {"reordered": [1]}),
    "too early": (in_order([5, 1, 2, 3, 4]), {"reordered": [5]}),
    "neighbours": (in_order([1, 3, 2, 4]), {"reordered": [2]}),
    "one too late and one too early": (in_order([2, 3, 4, 1, 9, 5, 6, 7, 8]), {"reordered": [1, 9]}),
    "order of another's": ([sent(1, 0, p="a"), sent(2, 50, p="b"), left(1, 2, p="b"), left(2, 1, p="a")], {}),
    "the first without an answer": ([sent(1, 0, "unknown"), sent(2, 50), left(1, 2), left(2, 1)], {}),
    "the second without an answer": (
        [sent(1, 0), sent(2, 50, "unknown"), left(1, 2), left(2, 1)],
        {"reordered": [1]},
    ),
    # held twice
    "one after the other": (
        [
            sent(1),
            got(1, 1),
            done(1, 110, op="return"),
            got(1, 1, 120, "d", redelivered=True),
            done(1, 130, "d"),
        ],
        {},
    ),
    "two hands": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d"), done(1, 110, "d"), done(1, 109, op="return")],
        {"held_twice": [1]},
    ),
    "handed on at the moment of the return": (
        [sent(1), got(1, 1, 100), done(1, 110, op="return"), got(1, 1, 110, "d"), done(1, 115, "d")],
        {},
    ),
    "the other one never disposed of it": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d", redelivered=True), done(1, 110)],
        {"held_twice": [1]},
    ),
    "the other one may have had it before": (
        [sent(1), got(1, 1, 100, redelivered=True), got(1, 1, 105, "d"), done(1, 110)],
        {},
    ),
    "the first one's node is gone": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d", redelivered=True), done(1, 110, "d")],
        {},
    ),
    "settled by the first without an answer": (
        [sent(1), got(1, 1, 100), done(1, 110, outcome="unknown"), got(1, 1, 105, "d"), done(1, 120, "d")],
        {},
    ),
    "held until it says": (
        [
            sent(1),
            got(1, 1, 100, held_until_us=106),
            got(1, 1, 105, "d", redelivered=True),
            done(1, 110, "d"),
        ],
        {"held_twice": [1]},
    ),
    "held until before": (
        [
            sent(1),
            got(1, 1, 100, held_until_us=105),
            got(1, 1, 105, "d", redelivered=True),
            done(1, 110, "d"),
        ],
        {},
    ),
    "held until its consumer's end": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d", redelivered=True), done(1, 110, "d"), ended(107)],
        {"held_twice": [1]},
    ),
    "handed on after its consumer's end": (
        [sent(1), got(1, 1, 100), got(1, 1, 105, "d", redelivered=True), done(1, 110, "d"), ended(104)],
        {},
    ),
    "twice to the same consumer": (
        [sent(1), got(1, 1), done(1, 105, op="return"), got(1, 1, 110, redelivered=True), done(1, 120)],
        {},
    ),
    # settled, then delivered
    "back": (
        [sent(1), got(1, 1), done(1), got(1, 1, 120, "d", redelivered=True)],
        {"settled_then_delivered": [1]},
    ),
    "back, and settled again": (
        [sent(1), got(1, 1), done(1), got(1, 1, 120, "d"), done(1, 130, "d")],
        {"settled_then_delivered": [1]},
    ),
    "discarded and back": (
        [sent(1), got(1, 1), done(1, op="discard"), got(1, 1, 120)],
        {"settled_then_delivered": [1]},
    ),
    "handed out before the answer": (
        [sent(1), got(1, 1), done(1, 110), got(1, 1, 115, "d", redelivered=True)],
        {},
    ),
    "settled by two, neither of them late": (
        [sent(1), got(1, 1), done(1, 110), got(1, 1, 112, "d", redelivered=True), done(1, 130, "d")],
        {"settled_then_delivered": [1]},
    ),
    "settled and left": ([sent(1), got(1, 1), done(1), left(1, 1)], {"settled_then_delivered": [1]}),
    "settled without an answer and back": (
        [sent(1), got(1, 1), done(1, outcome="unknown"), got(1, 1, 200, "d", redelivered=True), left(1, 1)],
        {},
    ),
    # phantom
    "never published": ([sent(1), left(1, 1), got(2, 2), done(2)], {"phantom": [2]}),
    "left and never published": ([sent(1), left(1, 1), left(2, 2)], {"phantom": [2]}),
    "refused and there": ([sent(1, outcome="rejected"), got(1, 1), done(1)], {"phantom": [1]}),
    "at another's place": (
        [sent(1), sent(2, outcome="unknown"), left(1, 1), got(1, 2)],
        {"phantom": [2]},
    ),
}


def in_queue(queue: str, records: list[Record]) -> list[Record]:
    """Consumers and producers are of the queue; what is left is said of all queues named."""
    placed = []
    for each in records:
        named = {key: f"{queue}.{each[key]}" for key in ("queue", "producer", "consumer") if key in each}
        placed.append({"queue": queue, **each, **named})
    return placed + [
        {"op": "left", "queue": name, "count": 0} for name in sorted({each["queue"] for each in placed})
    ]


def write(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return path


def broken(report: Report, queue: str) -> dict[str, int]:
    found = dict.fromkeys(KINDS, 0)
    for line in report.lines:
        if line.queue == queue:
            for kind in KINDS:
                found[kind] += line.broken[kind]
    return {kind: count for kind, count in found.items() if count}


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


@pytest.mark.parametrize("name", CASES)
def test_the_checker_in_plain_python_agrees_with_the_cases(
    histories: dict[str, list[Record]], name: str
) -> None:
    found = judge([each for each in histories[name] if each.get("count") != 0]).of_queue(name)
    assert {kind: [n for _, n in keys] for kind, keys in found.items()} == CASES[name][1]


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


@settings(max_examples=2)
@given(seed=st.integers(0, 1 << 32))
def test_random_histories_are_judged_as_plain_python_judges_them(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    histories = {f"q{n}": some_history(chance, f"q{n}") for n in range(300)}
    records = [each for history in histories.values() for each in history]
    report = verify(spark, [write(tmp_path_factory.mktemp("random") / "history.jsonl", records)])
    kinds_seen = set()
    for queue, history in histories.items():
        found = judge([each for each in history if each.get("count") != 0])
        for where in (queue, queue + "-dead"):
            wanted = {kind: len(keys) for kind, keys in found.of_queue(where).items()}
            kinds_seen |= wanted.keys()
            assert broken(report, where) == wanted, (seed, where, history)
    assert kinds_seen == set(KINDS)


def refusal(spark: SparkSession, tmp_path: Path, records: list[Record]) -> str:
    with pytest.raises(HistoryError) as raised:
        verify(spark, [write(tmp_path / "history.jsonl", records)])
    return str(raised.value).removeprefix(f"{tmp_path}/history.jsonl")


def test_a_history_that_cannot_be_judged_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    nothing_left = {"op": "left", "queue": "q", "count": 0}
    there = {"queue": "q", "producer": "p", "consumer": "c"}
    published = {**sent(1), "queue": "q"}
    assert "nothing says what was left in queue 'q'" in refusal(spark, tmp_path, [published])
    assert "no message was confirmed" in refusal(spark, tmp_path, [nothing_left])
    orphan = {**done(7), "queue": "q"}
    assert "sequence 7 of queue 'q' is settled, returned or discarded, and never delivered" in refusal(
        spark, tmp_path, [published, orphan, nothing_left]
    )
    elsewhere = [{**published, "queue": "r"}, {**nothing_left, "queue": "r"}]
    assert "published number 1 to two queues" in refusal(
        spark, tmp_path, [published, nothing_left, *elsewhere]
    )
    assert there


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
    from quorum.spark.histories import COLUMNS

    return {name: record.get(name) for name in COLUMNS}
