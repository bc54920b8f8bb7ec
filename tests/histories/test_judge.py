"""The judge in plain Python: planted violations, reasons, and its fast rules against slow ones."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum.histories import HistoryError, Recorder, Run, judge
from quorum.histories.files import read
from quorum.histories.judge import _judged
from quorum.histories.order import Placed, misplaced
from quorum.histories.pieces import alike, one_by_one
from quorum.histories.records import Record, problem
from quorum.histories.report import KINDS, Report
from support.histories.cases import CASES, broken, done, got, in_order, in_queue, left, sent
from support.histories.generated import some_history


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


# ---- messages that were treated alike are judged as one


def several(chance: random.Random) -> list[Record]:
    """Runs of messages that are published, delivered and settled in other runs, and sometimes wrongly."""
    records: list[Record] = []
    for p in ("a", "b"):
        number = 0
        for _ in range(chance.randint(1, 3)):
            count = chance.randint(1, 6)
            records.append(
                sent(number, 10 * number, chance.choice(("confirmed", "unknown")), count=count, p=p)
            )
            number += count
        offset, at = (0 if p == "a" else 30), 0
        while at < number:
            count = chance.randint(1, number - at)
            shift = chance.choice((0,) * 12 + (1, 40))
            records.append(got(offset + at + shift, at, 500, count=count, p=p))
            if chance.random() < 0.9:
                records.append(done(offset + at + shift, 510, count=count))
            at += count
        part = chance.randint(0, number - 1)
        if chance.random() < 0.2:
            records.append(
                done(records[-1]["sequence"], 600)
                if chance.random() < 0.5
                else left(part + offset, part, p=p)
            )
    return in_queue("q", records)


@given(seed=st.integers(0, 1 << 32))
def test_pieces_of_messages_are_judged_as_each_message_is(seed: int) -> None:
    chance = random.Random(seed)
    records = several(chance)
    try:
        slowly = _judged(one_by_one(records), True)
    except HistoryError:
        return
    found = _judged(alike(records), True)
    assert found.is_clean == slowly.is_clean
    assert {kind for kind in KINDS if found.total(kind)} == {kind for kind in KINDS if slowly.total(kind)}
    if slowly.is_clean:
        assert found.lines == slowly.lines


@given(seed=st.integers(0, 1 << 32))
def test_pieces_are_about_the_same_messages_or_about_others(seed: int) -> None:
    records = several(random.Random(seed))
    pieces = list(alike(records))

    def in_text(cut: Iterable[Record]) -> list[str]:
        return sorted(str(sorted({"count": 1, **each}.items())) for each in cut)

    assert in_text(one_by_one(pieces)) == in_text(one_by_one(records))
    for key, owner in (("sequence", "queue"), ("number", "producer")):
        spans = {(each[owner], each[key], each.get("count", 1)) for each in pieces if key in each}
        taken = [(who, at) for who, first, count in spans for at in range(first, first + count)]
        assert len(taken) == len(set(taken))


def test_a_clean_history_of_batches_is_judged_in_few_pieces() -> None:
    records = [
        each
        for first in range(0, 5_000, 1_000)
        for each in (
            sent(first, first, count=1_000),
            got(first, first, 9_000, count=1_000),
            done(first, 9_010, count=1_000),
        )
    ]
    clean = in_queue("q", records)
    assert len(list(alike(clean))) == len(clean)
    disturbed = in_queue("q", [*records, got(2_500, 2_500, 9_005, "d", count=2)])
    assert len(list(alike(disturbed))) == len(disturbed) + 3 * 2
    assert len(list(one_by_one(clean))) == 15_001


def test_nothing_is_lost_while_clients_still_run() -> None:
    records = in_queue("q", [sent(1, count=3), got(1, 1), done(1)])
    running = [each for each in records if each["op"] != "left"]
    assert judge(running, is_over=False).is_clean
    with pytest.raises(HistoryError, match="no record shows what was left"):
        judge(running)
    again = [*running, *in_queue("q", [got(1, 1, 200, "d")])]
    assert {kind for kind in KINDS if judge(again, is_over=False).total(kind)} == {"settled_then_delivered"}


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
