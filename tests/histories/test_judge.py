"""The judge in plain Python: planted violations, reasons, and its fast rules against slow ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum.histories import HistoryError, Recorder, Run, judge
from quorum.histories.files import read
from quorum.histories.order import Placed, misplaced
from quorum.histories.records import Record, problem
from quorum.histories.report import KINDS, Report
from support.history_cases import CASES, broken, done, got, in_order, in_queue, left, sent
from support.random_histories import some_history


def judged(name: str) -> Report:
    records = in_queue(name, CASES[name][0]) + in_queue("elsewhere", [sent(1), left(1, 1)])
    random.Random(1).shuffle(records)
    return judge(records)


@pytest.mark.parametrize("name", CASES)
def test_planted_violations_are_found_and_nothing_else(name: str) -> None:
    report, (_, culprits) = judged(name), CASES[name]
    assert broken(report, name) == {kind: len(numbers) for kind, numbers in culprits.items()}
    named = {kind: sorted(each.number for each in shown) for kind, shown in report.culprits.items()}
    assert named == {kind: sorted(numbers) for kind, numbers in culprits.items()}
    assert report.is_clean is not bool(culprits)


def test_every_kind_of_violation_is_planted() -> None:
    assert {kind for _, culprits in CASES.values() for kind in culprits} == set(KINDS)


@pytest.mark.parametrize(
    ("records", "kind", "why"),
    [
        ([sent(1)], "lost", "confirmed, never delivered, not left in the queue"),
        (
            [sent(1), got(1, 1)],
            "lost",
            "confirmed, found at sequence 1 of 'q', never settled, not left in the queue",
        ),
        ([sent(1), left(1, 1), left(4, 1)], "duplicated", "2 times in 'q', among them at 1 and 4"),
        ([sent(1), left(1, 1), left(2, 2)], "phantom", "found at sequence 2 of 'q', and never published"),
        (
            in_order([2, 3, 4, 1]),
            "reordered",
            "confirmed before 2 was sent, yet behind it: at sequence 4, 2 at 1, and before 2 more",
        ),
        (
            [sent(1), got(1, 1), done(1), got(1, 1, 120, "d", redelivered=True)],
            "settled_then_delivered",
            "sequence 1, delivered to 'q.d' 0.000005 s after it was settled for certain",
        ),
        (
            [sent(1), got(1, 1, held_until_us=150), got(1, 1, 120, "d", held_until_us=130), left(1, 1)],
            "held_twice",
            "sequence 1, delivered to 'q.d' at 0.000120 s, while 'q.c' held until 0.000150 s",
        ),
    ],
)
def test_a_culprit_is_named_with_the_reason(records: list[Record], kind: str, why: str) -> None:
    report = judge(in_queue("q", records))
    assert [each.why for each in report.culprits[kind]] == [why]


def test_messages_are_counted_by_queue_and_producer(tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.jsonl") as recorder:
        recorder.publish("q", "a", 1, count=10, invoked_us=1, returned_us=2, outcome="confirmed")
        recorder.publish("q", "a", 11, count=3, invoked_us=3, returned_us=4, outcome="rejected")
        recorder.publish("q", "b", 1, count=2, invoked_us=3, outcome="unknown")
        messages = [Run(1, "a", 1, count=10), Run(11, "b", 1)]
        recorder.deliver("q", "c", messages, at_us=5)
        recorder.settle("q", "c", messages[:1], invoked_us=6, returned_us=7, outcome="ok")
        recorder.left("q", messages[1:])
    records = read([tmp_path / "history.jsonl"], 1_000)
    assert records is not None
    report = judge(records)
    assert report.is_clean
    assert report.culprits == {}
    assert [(line.producer, list(line.counts.values())) for line in report.lines] == [
        ("a", [10, 3, 0, 10, 10, 0]),
        ("b", [0, 0, 2, 1, 0, 1]),
    ]
    assert report.operations == 10 + 3 + 2 + 11 + 10 + 1
    assert read([tmp_path], report.operations) == records
    assert read([tmp_path], report.operations - 1) is None


def test_a_history_that_cannot_be_judged_is_refused() -> None:
    published = {**sent(1), "queue": "q"}
    nothing_left = {"op": "left", "queue": "q", "count": 0}
    for records, told in (
        ([published], "no record shows what was left in queue 'q'"),
        ([nothing_left], "no message was confirmed"),
        ([published, {**done(7), "queue": "q"}, nothing_left], "sequence 7 of queue 'q' is settled"),
        (
            [published, nothing_left, {**published, "queue": "r"}, {**nothing_left, "queue": "r"}],
            "producer 'p' has published number 1 to two queues",
        ),
    ):
        with pytest.raises(HistoryError, match=told):
            judge(records)


@given(seed=st.integers(0, 1 << 32))
def test_the_order_of_records_does_not_matter(seed: int) -> None:
    chance = random.Random(seed)
    records = [each for queue in "abc" for each in some_history(chance, queue)]
    records.append({"op": "publish", "queue": "a", "producer": "x", "number": 1, "invoked_us": 1})
    records[-1] |= {"returned_us": 2, "outcome": "confirmed"}
    assert [each for each in map(problem, records) if each] == []
    first = judge(records)
    chance.shuffle(records)
    second = judge(records)
    assert (first.lines, first.culprits) == (second.lines, second.culprits)
    assert first.total("lost")


# ---- order, pair by pair


def slowly_misplaced(placed: list[Placed]) -> list[int]:
    """As order.py describes it, over all pairs."""
    row = {each.number: each for each in placed}
    pairs = [
        (first.number, second.number)
        for first in placed
        for second in placed
        if first.confirmed_us is not None
        and first.confirmed_us < second.invoked_us
        and first.sequence > second.sequence
    ]
    late: dict[int, set[int]] = {}
    early: dict[int, set[int]] = {}
    for _, second in pairs:
        firsts = [first for first, other in pairs if other == second]
        late.setdefault(min(firsts, key=lambda n: (row[n].confirmed_us, n)), set()).add(second)
    for first, _ in pairs:
        seconds = [second for other, second in pairs if other == first]
        early.setdefault(max(seconds, key=lambda n: (row[n].invoked_us, n)), set()).add(first)
    found = [n for n, named in late.items() if any(len(early.get(v, ())) <= len(named) for v in named)]
    found += [n for n, named in early.items() if any(len(late.get(v, ())) < len(named) for v in named)]
    return sorted(found)


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.booleans()), max_size=9),
    st.randoms(use_true_random=False),
)
def test_misplaced_messages_are_those_of_all_pairs(
    times: list[tuple[int, int, bool]], chance: random.Random
) -> None:
    sequences = list(range(len(times)))
    chance.shuffle(sequences)
    placed = [
        Placed(number, sequence, invoked, invoked + took if confirmed else None)
        for number, (sequence, (invoked, took, confirmed)) in enumerate(zip(sequences, times, strict=True))
    ]
    assert sorted(number for number, _ in misplaced(placed)) == slowly_misplaced(placed)


def test_one_misplaced_message_is_named_among_many() -> None:
    numbers = [*range(2, 400), 1, *range(400, 800)]
    placed = [Placed(n, at, 10 * n, 10 * n + 5) for at, n in enumerate(numbers)]
    assert [number for number, _ in misplaced(placed)] == [1]
