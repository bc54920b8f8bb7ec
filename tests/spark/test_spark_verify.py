"""Histories are judged: sound ones pass, and each planted fault is found, by its name and its culprit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorum.spark import OptionError
from quorum.spark.verify import Report, verify
from support.histories import History, healthy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def check(spark: SparkSession, tmp_path: Path) -> Callable[..., Report]:
    def run(history: History, *, is_complete: bool = True) -> Report:
        return verify(spark, [str(history.write(tmp_path / "h.jsonl"))], is_complete=is_complete, examples=5)

    return run


@pytest.mark.parametrize("seed", [1, 2])
def test_a_sound_history_passes(check: Callable[..., Report], seed: int) -> None:
    history = healthy(seed)
    kinds = {each["kind"] for each in history.operations}
    assert kinds >= {"publish", "deliver", "settle", "release", "return", "remain"}
    report = check(history)
    assert (report.findings, report.examples) == ({}, [])
    assert report.operations == len(history.operations)
    assert report.messages == 600 or report.messages == sum(each["count"] for each in history.of("publish"))


def settled(history: History, queue: str) -> dict[str, object]:
    """A settle that succeeded."""
    return next(each for each in history.of("settle", queue=queue) if "returned" in each)


def delivery_of(history: History, queue: str, sequence: object) -> dict[str, object]:
    return next(each for each in history.of("deliver", queue=queue, sequence=sequence))


def lost(history: History, queue: str) -> str:
    gone = history.of("remain", queue=queue)[0] if history.of("remain", queue=queue) else None
    if gone is None:
        done = settled(history, queue)
        delivery = delivery_of(history, queue, done["sequence"])
        drop = history.of("settle", sequence=done["sequence"], queue=queue)
        drop += history.of("discard", sequence=done["sequence"], queue=queue)
        history.operations = [each for each in history.operations if each not in drop]
        return f"number {delivery['number']},"
    history.operations.remove(gone)
    return f"number {gone['number']}"


def never_delivered(history: History, queue: str) -> str:
    history.operations.append(
        {"kind": "publish", "queue": queue, "producer": "p9", "number": 4, "invoked": 1, "returned": 2}
    )
    return "producer p9 number 4 was confirmed at 2, was never delivered, and is not there"


def phantom(history: History, queue: str) -> str:
    history.operations.append(
        {"kind": "remain", "queue": queue, "producer": "p9", "number": 7, "sequence": 100_000}
    )
    return "producer p9 number 7 has sequence 100000, and nobody published it"


def refused_but_there(history: History, queue: str) -> str:
    history.operations += [
        {
            "kind": "publish",
            "queue": queue,
            "producer": "p9",
            "number": 7,
            "invoked": 5,
            "outcome": "refused",
        },
        {"kind": "remain", "queue": queue, "producer": "p9", "number": 7, "sequence": 100_000},
    ]
    return "producer p9 number 7 has sequence 100000, and its publish was refused"


def duplicated(history: History, queue: str) -> str:
    delivery = delivery_of(history, queue, settled(history, queue)["sequence"])
    history.operations.append(
        {
            "kind": "remain",
            "queue": queue,
            "producer": delivery["producer"],
            "number": delivery["number"],
            "sequence": 100_000,
        }
    )
    who = f"producer {delivery['producer']} number {delivery['number']}"
    return f"{who} has 2 sequences, the first {delivery['sequence']}"


def sequence_reused(history: History, queue: str) -> str:
    delivery = delivery_of(history, queue, settled(history, queue)["sequence"])
    history.operations += [
        {
            "kind": "publish",
            "queue": queue,
            "producer": "z",
            "number": 1,
            "invoked": 1,
            "outcome": "unknown",
        },
        {
            "kind": "deliver",
            "queue": queue,
            "client": delivery["client"],
            "producer": "z",
            "number": 1,
            "sequence": delivery["sequence"],
            "returned": delivery["returned"],
        },
    ]
    return f"sequence {delivery['sequence']} is of producer {delivery['producer']}"


def settled_then_delivered(history: History, queue: str) -> str:
    done = settled(history, queue)
    late = {**delivery_of(history, queue, done["sequence"]), "client": "c9", "returned": 10_000_000}
    history.operations.append(late)
    return f"sequence {done['sequence']}, producer"


def settled_twice(history: History, queue: str) -> str:
    done = settled(history, queue)
    history.operations.append({**done, "returned": 10_000_000})
    return f"sequence {done['sequence']}, producer"


def settled_but_there(history: History, queue: str) -> str:
    delivery = delivery_of(history, queue, settled(history, queue)["sequence"])
    history.operations.append(
        {
            "kind": "remain",
            "queue": queue,
            "producer": delivery["producer"],
            "number": delivery["number"],
            "sequence": delivery["sequence"],
        }
    )
    return f"sequence {delivery['sequence']}, producer {delivery['producer']} number {delivery['number']}, was settled"


def held_twice(history: History, queue: str) -> str:
    delivery = next(
        each
        for each in history.of("deliver", queue=queue)
        if len(history.of("deliver", queue=queue, sequence=each["sequence"])) == 1
    )
    other = {**delivery, "client": "c9", "returned": int(str(delivery["returned"]))}
    history.operations.append(other)
    return f"sequence {delivery['sequence']}, producer {delivery['producer']} number {delivery['number']}, came to"


def late_in_its_queue(history: History, queue: str) -> str:
    """Confirmed long before all others were sent, and behind them."""
    history.operations += [
        {"kind": "publish", "queue": queue, "producer": "p9", "number": 0, "invoked": -9, "returned": -8},
        {"kind": "remain", "queue": queue, "producer": "p9", "number": 0, "sequence": 100_000},
    ]
    return "producer p9 number 0 was confirmed at -8 and has sequence 100000, behind"


def numbers_crossed(history: History, queue: str) -> str:
    """Two of one producer, sent at the same time."""
    times = {"invoked": 10_000_000, "returned": 10_000_001}
    for number, sequence in ((1, 100_001), (2, 100_000)):
        history.operations += [
            {"kind": "publish", "queue": queue, "producer": "p9", "number": number, **times},
            {"kind": "remain", "queue": queue, "producer": "p9", "number": number, "sequence": sequence},
        ]
    return "producer p9 number 1 has sequence 100001, behind 1 with higher numbers; one is number 2, sequence 100000"


FAULTS: list[tuple[str, Callable[[History, str], str]]] = [
    ("lost", lost),
    ("lost", never_delivered),
    ("phantom", phantom),
    ("phantom", refused_but_there),
    ("duplicated", duplicated),
    ("sequence-reused", sequence_reused),
    ("settled-then-delivered", settled_then_delivered),
    ("settled-twice", settled_twice),
    ("settled-but-there", settled_but_there),
    ("held-twice", held_twice),
    ("reordered", late_in_its_queue),
    ("reordered", numbers_crossed),
]


def test_each_planted_fault_is_found_and_its_culprit_named(check: Callable[..., Report]) -> None:
    """Each in a queue of its own; the others stay sound."""
    queues = [f"{kind}-{plant.__name__}" for kind, plant in FAULTS]
    history = healthy(7, messages=60, queues=(*queues, "sound"))
    words = [plant(history, queue) for (_, plant), queue in zip(FAULTS, queues, strict=True)]
    report = check(history)
    assert set(report.findings) == {kind for kind, _ in FAULTS}
    for (kind, _), queue, said in zip(FAULTS, queues, words, strict=True):
        told = [line for line in report.examples if line.startswith(f"{kind}: queue {queue}: ")]
        assert len(told) == 1 and said in told[0], (queue, said, report.examples)
    assert [line for line in report.examples if "queue sound:" in line] == []


def test_one_misplaced_message_is_one_finding(check: Callable[..., Report]) -> None:
    history = healthy(5, messages=500, queues=("orders",))
    late_in_its_queue(history, "orders")
    report = check(history)
    assert report.findings == {"reordered": 1}
    assert len(report.examples) == 1


def test_an_incomplete_history_loses_nothing(check: Callable[..., Report]) -> None:
    history = healthy(7)
    never_delivered(history, "orders")
    assert check(history, is_complete=False).findings == {}


def test_parquet_and_json_lines_say_the_same(spark: SparkSession, tmp_path: Path) -> None:
    history = healthy(7)
    words = phantom(history, "orders")
    names = {name for each in history.operations for name in each}
    table = pa.Table.from_pydict({name: [each.get(name) for each in history.operations] for name in names})
    pq.write_table(table, tmp_path / "h.parquet")
    report = verify(spark, [str(tmp_path / "h.parquet")])
    assert report.findings == {"phantom": 1}
    assert words in report.examples[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"kind": "publish"', "no JSON object of this form"),
        ('{"kind": "steal"}', "kind is none of publish, deliver"),
        ('{"kind": "release", "client": "c"}', "a release needs invoked"),
        ('{"kind": "release", "client": "c", "invoked": 1, "outcome": "perhaps"}', "outcome is none of ok"),
        (
            '{"kind":"publish","queue":"q","producer":"p","number":1,"invoked":5}',
            "an ok publish or settle needs returned",
        ),
        (
            '{"kind":"publish","queue":"q","producer":"p","number":1,"invoked":5,"returned":4}',
            "it returned before it was invoked",
        ),
    ],
)
def test_what_is_no_history_is_told(spark: SparkSession, tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "h.jsonl"
    good = {"kind": "release", "client": "c", "invoked": 1}
    file.write_text(f"{json.dumps(good)}\n{line}\n", encoding="utf-8")
    with pytest.raises(OptionError) as raised:
        verify(spark, [str(file)])
    assert words in str(raised.value)
    assert "1 operations cannot be read" in str(raised.value)


def test_files_of_other_kinds_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no history"):
        verify(spark, [str(tmp_path / "nowhere")])
    (tmp_path / "h.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(OptionError, match="a history is JSON lines"):
        verify(spark, [str(tmp_path)])
