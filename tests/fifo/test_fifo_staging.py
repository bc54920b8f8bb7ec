"""Staged messages (fifo/staging.py): parts wait out of sight, and all of them are published by one command or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fifo.codec import Writer
from fifo.commands import (
    UNKNOWN,
    Attach,
    Credit,
    DeleteQueue,
    DiscardStaged,
    Get,
    PublishStaged,
    Purge,
    Stage,
)
from fifo.effects import Ok, Published, Refused
from fifo.limits import PRODUCTION, SMALL
from fifo.persistence import snapshot
from fifo.persistence.references import references
from fifo.persistence.staging import decode_staging, encode_staging
from fifo.queries import group as queries
from fifo.staging import LastBatch, StagedInfo
from fifo.versions import CURRENT
from quorum_selectors import columns
from support.fifo.staging import RED, prepared, refused, reply_to_publish, waiting
from support.fifo.world import World, part_name, sequences


def staged_bytes(world: World) -> bytes:
    return bytes(encode_staging(world.machine.queues[1].staging, CURRENT))


# ---- publishing


def test_staged_messages_are_seen_by_nobody() -> None:
    world, name = prepared()
    world.attach(name, "c", 10)
    before = world.info()
    assert world.stage(name, 1, 1, 0, 5) == Ok(5)
    assert world.stage(name, 1, 1, 1, 2) == Ok(7)
    assert world.info() == before
    assert waiting(world) == []
    assert world.do(name, Get(1, 5, settled=True)) == Ok(0)
    assert queries.staged(world.machine, 1) == (
        StagedInfo("writer", 1, part_name(1), 7, 700, world.now_ms - 1),
    )


def test_parts_become_visible_in_the_order_they_are_named_chunk_after_chunk() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 3)
    first = world.index
    world.apply([world.chunk(name, 1, 2, 0, 2), world.chunk(name, 1, 1, 1, 1, place=1)])
    world.publish(name, 2)
    published = world.publish_staged(name, 1, (2, 2), (1, 4))
    assert published.replies == (Published(3, 6),)
    assert waiting(world) == [
        (1, first + 2, 0, 0),
        (2, first + 2, 0, 1),
        (3, first + 1, 0, 0),
        (4, first + 1, 0, 1),
        (5, first, 0, 0),
        (6, first, 0, 1),
        (7, first, 0, 2),
        (8, first + 1, 1, 0),
    ]
    assert queries.staged(world.machine, 1) == ()


def test_who_waits_is_given_published_messages_in_the_same_entry() -> None:
    world, name = prepared()
    world.attach(name, "c", 10)
    world.stage(name, 1, 1, 0, 3)
    assert sequences(world.publish_staged(name, 1, (1, 3))) == [1, 2, 3]


def test_a_batch_without_messages_can_be_published() -> None:
    """So that a writer with nothing to write still leaves its mark, and a task that wrote nothing may be named."""
    world, name = prepared()
    world.stage(name, 3, 1, 0, 1)
    world.publish_staged(name, 3, (1, 1))
    assert reply_to_publish(world, name, 4) == Published(2, 0)
    assert reply_to_publish(world, name, 4) == Published(0, 0, is_duplicate=True)
    assert reply_to_publish(world, name, 5, (1, 0)) == Published(2, 0)
    refused(world.stage(name, 5, 1, 0, 1), "published")


def test_an_empty_batch_of_a_producer_that_has_nothing_staged_is_not_remembered() -> None:
    world, name = prepared()
    for _ in range(2):
        assert reply_to_publish(world, name, 4) == Published(1, 0)
    assert remembered(world) == []
    world.stage(name, 4, 1, 0, 1)
    assert reply_to_publish(world, name, 4) == Published(1, 0)
    assert remembered(world) == ["writer"], "it gives up what is staged"
    refused(world.stage(name, 4, 1, 0, 1), "published")


def test_an_empty_batch_leaves_no_trace_in_the_scans_of_selectors() -> None:
    """A restored member and one that was not agree on who shares the scan of arrivals."""
    world, name = prepared(filter_enabled=True)
    world.attach(name, "a", 10, "colour = 'red'")
    world.attach(name, "b", 1, "colour = 'green'")
    world.publish(name, 2, [RED, {"application-properties.colour": "green"}])
    world.stage(name, 1, 1, 0, 1)
    assert reply_to_publish(world, name, 1) == Published(3, 0)
    world.twin = world.restored(snapshot.encode(world.machine))
    world.do(name, Credit(1, "b", 5))


def test_entries_of_version_1_remember_every_empty_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.fifo.world.CURRENT", 1)
    world, name = prepared()
    assert reply_to_publish(world, name, 4) == Published(1, 0)
    assert reply_to_publish(world, name, 4) == Published(0, 0, is_duplicate=True)


def test_a_batch_is_published_once() -> None:
    world, name = prepared()
    for batch in (3, 3, 2):
        world.stage(name, batch, 1, 0, 2)
        expected = (
            Published(1, 2) if batch == 3 and not waiting(world) else Published(0, 0, is_duplicate=True)
        )
        assert reply_to_publish(world, name, batch, (1, 2)) == expected
        assert len(waiting(world)) == 2
    assert queries.staged(world.machine, 1) == ()


def test_producers_and_queues_do_not_know_each_other_s_batches() -> None:
    world, name = prepared()
    world.queue(2)
    for queue, producer in ((1, "a"), (1, "b"), (2, "a")):
        world.stage(name, 7, 1, 0, 2, queue=queue, producer=producer)
    assert reply_to_publish(world, name, 7, (1, 2), producer="a") == Published(1, 2)
    assert reply_to_publish(world, name, 7, (1, 2), producer="b") == Published(3, 2)
    assert reply_to_publish(world, name, 7, (1, 2), producer="a", queue=2) == Published(1, 2)


def test_parts_that_were_not_named_go_with_their_batch_and_those_before_it() -> None:
    """A task that failed, or ran twice; a batch that was given up. What is staged for a later batch stays."""
    world, name = prepared()
    for batch, part in ((1, 1), (2, 1), (2, 2), (2, 3), (3, 1)):
        world.stage(name, batch, part, 0, 2)
    world.stage(name, 2, 1, 0, 2, producer="other")
    assert reply_to_publish(world, name, 2, (3, 2), (1, 2)) == Published(1, 4)
    assert [(each.producer, each.batch) for each in queries.staged(world.machine, 1)] == [
        ("writer", 3),
        ("other", 2),
    ]


def test_a_late_chunk_of_a_published_batch_is_refused() -> None:
    world, name = prepared()
    world.stage(name, 2, 1, 0, 2)
    world.publish_staged(name, 2, (1, 2))
    for batch in (1, 2):
        detail = refused(world.stage(name, batch, 1, 1, 2), "published")
        assert f"batch {batch}" in detail
        assert "published up to 2" in detail
    assert world.stage(name, 3, 1, 0, 2) == Ok(2)


@pytest.mark.parametrize(
    "parts", [((1, 5), (9, 1)), ((1, 4),), ((1, 6), (2, 2)), ((2, 2), (1, 0)), ((9, 3),)]
)
def test_a_part_that_is_missing_or_has_other_messages_than_said_is_refused_and_nothing_changes(
    parts: tuple[tuple[int, int], ...],
) -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 5)
    world.stage(name, 1, 2, 0, 2)
    before = queries.staged(world.machine, 1), staged_bytes(world)
    refused(reply_to_publish(world, name, 1, *parts), "missing_part")
    assert (queries.staged(world.machine, 1), staged_bytes(world)) == before
    assert waiting(world) == []
    assert reply_to_publish(world, name, 1, (1, 5), (2, 2)) == Published(1, 7)


def test_a_refusal_says_what_is_there_and_what_was_said() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 5)
    detail = refused(reply_to_publish(world, name, 1, (1, 6)), "missing_part")
    assert part_name(1).hex() in detail
    assert "has 5 messages, said are 6" in detail


# ---- chunks


def test_a_repeated_chunk_was_done_before_and_one_too_high_is_a_gap() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 3)
    world.stage(name, 1, 1, 1, 3)
    before = staged_bytes(world)
    assert world.stage(name, 1, 1, 0, 3) == Ok(6)
    assert world.stage(name, 1, 1, 1, 3) == Ok(6)
    assert "allowed: up to 2" in refused(world.stage(name, 1, 1, 3, 3), "gap")
    refused(world.stage(name, 1, 2, 1, 3), "gap")
    assert staged_bytes(world) == before
    assert world.stage(name, 1, 1, 2, 1) == Ok(7)


def chunk(**wrong: Any) -> Stage:
    usual: dict[str, Any] = {
        "queue": 1, "producer": "writer", "batch": 1, "part": part_name(1), "chunk": 0, "count": 2, "size_bytes": 2
    }  # fmt: skip
    return Stage(**(usual | wrong))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"queue": 9}, "not_found"),
        ({"producer": ""}, "bad_argument"),
        ({"producer": "ä" * 128}, "bad_argument"),
        ({"batch": -1}, "bad_argument"),
        ({"batch": 1 << 63}, "bad_argument"),
        ({"part": b"short"}, "bad_argument"),
        ({"part": bytes(17)}, "bad_argument"),
        ({"chunk": -1}, "bad_argument"),
        ({"count": 0}, "bad_argument"),
        ({"count": 65_537}, "bad_argument"),
        ({"size_bytes": -1}, "bad_argument"),
        ({"ttls_ms": (1,)}, "bad_argument"),
        ({"ttls_ms": (1, 1 << 63)}, "bad_argument"),
        ({"ttl_ms": 1 << 63}, "bad_argument"),
        ({"columns": b"rubbish"}, "bad_argument"),
        ({"columns": columns.encode([RED] * 3)}, "bad_argument"),
    ],
)
def test_a_chunk_that_is_not_well_is_refused(wrong: Mapping[str, Any], reason: str) -> None:
    world, name = prepared(filter_enabled=True)
    refused(world.do(name, chunk(**wrong)), reason)
    assert queries.staged(world.machine, 1) == ()
    assert world.do(name, chunk()) == Ok(2)


@pytest.mark.parametrize("text", ["a", "ä" * 127 + "b"])
@pytest.mark.parametrize("batch", [0, (1 << 63) - 1])
def test_names_and_batches_up_to_their_bounds_are_taken(text: str, batch: int) -> None:
    world, name = prepared()
    assert world.do(name, chunk(producer=text, batch=batch)) == Ok(2)
    assert reply_to_publish(world, name, batch, (1, 2), producer=text) == Published(1, 2)


def test_a_part_named_twice_is_refused() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 2)
    refused(reply_to_publish(world, name, 1, (1, 2), (1, 2)), "bad_argument")


def test_who_has_no_session_stages_nothing() -> None:
    world, _ = prepared()
    assert isinstance(world.apply([(None, chunk())]).replies[0], Refused)
    assert queries.staged(world.machine, 1) == ()


# ---- limits


LIMITS = [
    ("parts", [(1, part, 0, 1) for part in range(5)], (1, 5, 0, 1)),
    ("chunks", [(1, 1, number, 1) for number in range(12)], (1, 1, 12, 1)),
    ("bytes", [(1, 1, number, 30) for number in range(2)], (1, 1, 2, 1)),  # 100 bytes each
]


@pytest.mark.parametrize(("what", "staged", "more"), LIMITS, ids=[what for what, _, _ in LIMITS])
def test_what_a_queue_may_have_staged_is_limited(
    what: str, staged: list[tuple[int, int, int, int]], more: tuple[int, int, int, int]
) -> None:
    world, name = prepared(limits=SMALL)
    world.queue(2)
    for each in staged:
        assert isinstance(world.stage(name, *each), Ok)
    before = queries.staged(world.machine, 1)
    assert what in refused(world.stage(name, *more), "limit")
    assert queries.staged(world.machine, 1) == before
    assert world.stage(name, 1, 1, 0, 1, queue=2) == Ok(1)
    assert world.do(name, DiscardStaged(1, "writer", 1)) == Ok(sum(each[3] for each in staged))
    assert isinstance(world.stage(name, 1, 9, 0, 1), Ok)


def test_the_staged_messages_of_a_queue_are_limited() -> None:
    world, name = prepared(limits=SMALL)
    assert world.stage(name, 1, 1, 0, 40, size=10) == Ok(40)
    assert "71 messages" in refused(world.stage(name, 1, 2, 0, 31, size=10), "limit")
    assert world.stage(name, 1, 2, 0, 30, size=10) == Ok(30)


def test_stretches_of_different_ttls_are_limited() -> None:
    world, name = prepared(limits=SMALL)
    assert world.stage(name, 1, 1, 0, 30, ttls_ms=tuple(range(30))) == Ok(30)
    assert "TTL" in refused(world.stage(name, 1, 1, 1, 11, ttls_ms=tuple(range(11))), "limit")
    assert world.stage(name, 1, 1, 1, 11, ttls_ms=(7,) * 11) == Ok(41)


def test_too_many_parts_of_one_publication_are_refused() -> None:
    world, name = prepared(limits=SMALL)
    refused(reply_to_publish(world, name, 1, *[(part, 1) for part in range(6)]), "limit")


def remembered(world: World) -> list[str]:
    return list(world.machine.queues[1].staging.last_batches)


def publish_one(world: World, name: bytes, producer: str, owner: int, batch: int = 5) -> Any:
    """The answer to a batch of one message of this producer."""
    world.stage(name, batch, 1, 0, 1, producer=producer)
    return world.do(name, PublishStaged(1, producer, batch, ((part_name(1), 1),), owner))


def test_a_producer_is_not_forgotten_to_make_room_so_nothing_is_published_twice() -> None:
    # four are remembered
    world, name = prepared(limits=SMALL)
    for owner, producer in enumerate("abcd", 11):
        publish_one(world, name, producer, owner if producer != "b" else 11)
    assert remembered(world) == ["a", "b", "c", "d"]
    assert "allowed: 4" in refused(world.stage(name, 5, 1, 0, 1, producer="e"), "limit")
    for producer in "abcd":
        assert reply_to_publish(world, name, 5, producer=producer) == Published(0, 0, is_duplicate=True)


def test_one_owner_has_as_many_producers_as_are_left_free_and_the_others_still_come_in() -> None:
    world, name = prepared(limits=replace(PRODUCTION, known_producers=16))
    taken = dict.fromkeys((77, 78, 79, 80), 0)
    for owner in taken:
        for number in range(9):
            taken[owner] += isinstance(publish_one(world, name, f"{owner} {number}", owner), Published)
    assert taken == {77: 8, 78: 4, 79: 2, 80: 1}
    world.machine = world.restored(snapshot.encode(world.machine))
    detail = refused(publish_one(world, name, "more", 78), "limit")
    assert "has 4 producers of staged batches of this client address" in detail
    assert "as many as are left free of 16, 1 now" in detail
    assert isinstance(publish_one(world, name, "77 0", 77, batch=6), Published), "it is known"


def test_producers_whose_time_is_over_make_room_for_the_share_of_an_owner() -> None:
    # four are remembered
    world, name = prepared(limits=SMALL)
    for producer in "ab":
        publish_one(world, name, producer, 77)
    refused(publish_one(world, name, "c", 77), "limit")
    world.wake(SMALL.remembered_ms // 2)
    assert reply_to_publish(world, name, 5, producer="a") == Published(0, 0, is_duplicate=True)  # a use
    world.wake(SMALL.remembered_ms // 2)
    assert isinstance(publish_one(world, name, "c", 77), Published)
    assert remembered(world) == ["a", "c"]
    refused(publish_one(world, name, "d", 77), "limit")
    assert isinstance(publish_one(world, name, "e", 78), Published), "another owner has a share of its own"


def test_more_producers_than_there_are_places_publish_if_each_is_forgotten() -> None:
    # four are remembered
    world, name = prepared(limits=SMALL)
    for number in range(10):
        producer = f"once {number}"
        assert publish_one(world, name, producer, 77) == Published(1 + number, 1)
        assert world.do(name, DiscardStaged(1, producer, 5, forget=True)) == Ok(0)
    assert remembered(world) == []
    assert len(waiting(world)) == 10


def test_forgetting_drops_what_is_staged_and_leaves_other_producers() -> None:
    world, name = prepared(limits=SMALL)
    for producer in "ab":
        publish_one(world, name, producer, 77)
    world.stage(name, 6, 1, 0, 3, producer="a")
    world.stage(name, 6, 1, 0, 2, producer="b")
    for dropped in (3, 0):  # the second time it is a repeat
        assert world.do(name, DiscardStaged(1, "a", 6, forget=True)) == Ok(dropped)
    assert remembered(world) == ["b"]
    assert reply_to_publish(world, name, 5, producer="b") == Published(0, 0, is_duplicate=True)
    assert [each.producer for each in queries.staged(world.machine, 1)] == ["b"]


def test_late_copies_of_a_forgotten_producers_commands_publish_nothing_again() -> None:
    world, name = prepared()
    for chunk in range(2):
        world.stage(name, 5, 1, chunk, 3, producer="once")
    publish = PublishStaged(1, "once", 5, ((part_name(1), 6),), staged_to=world.index)
    assert world.do(name, publish) == Published(1, 6)
    assert world.do(name, publish) == Published(0, 0, is_duplicate=True)
    assert world.do(name, DiscardStaged(1, "once", 5, forget=True)) == Ok(0)
    refused(world.do(name, publish), "missing_part")
    for chunk in range(2):
        assert world.stage(name, 5, 1, chunk, 3, producer="once") == Ok(3 * (1 + chunk))
    assert "has 0 messages" in refused(world.do(name, publish), "missing_part")
    assert len(waiting(world)) == 6
    world.wake(PRODUCTION.part_ms)
    assert queries.staged(world.machine, 1) == ()


def test_a_part_that_got_a_chunk_too_late_does_not_count() -> None:
    world, name = prepared()
    world.stage(name, 5, 1, 0, 3)
    staged_to = world.index
    world.stage(name, 5, 1, 1, 3)
    publish = PublishStaged(1, "writer", 5, ((part_name(1), 6),), staged_to=staged_to)
    refused(world.do(name, publish), "missing_part")
    assert world.do(name, replace(publish, staged_to=staged_to + 1)) == Published(1, 6)


def test_without_need_no_producer_is_forgotten() -> None:
    world, name = prepared(limits=SMALL)
    publish_one(world, name, "a", 77)
    world.wake(100 * SMALL.remembered_ms)
    assert reply_to_publish(world, name, 5, producer="a") == Published(0, 0, is_duplicate=True)


def test_entries_of_version_1_forget_the_producer_not_used_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("support.fifo.world.CURRENT", 1)
    world, name = prepared(limits=replace(PRODUCTION, known_producers=2))
    for producer in "ab":
        world.publish_staged(name, 5, producer=producer)
    assert reply_to_publish(world, name, 5, producer="a") == Published(0, 0, is_duplicate=True)  # a use
    world.publish_staged(name, 5, producer="c")
    assert remembered(world) == ["a", "c"]
    assert world.stage(name, 6, 1, 0, 1, producer="a") == Ok(1)  # a use, too
    assert reply_to_publish(world, name, 5, producer="b") == Published(1, 0)  # it was forgotten
    assert remembered(world) == ["a", "b"]
    monkeypatch.setattr("support.fifo.world.CURRENT", 2)
    assert reply_to_publish(world, name, 5, producer="c") == Published(1, 0), "no time is known of the others"


def test_snapshots_without_times_or_owners_of_the_last_batches_are_read() -> None:
    world, name = prepared()
    for producer in "ab":
        publish_one(world, name, producer, 77)
    staging = world.machine.queues[1].staging
    times, owners = Writer(), Writer()
    for last in staging.last_batches.values():
        times.number(last.used_ms)
        owners.number(last.owner)
    encoded = staged_bytes(world)
    assert encoded.endswith(bytes(times.data + owners.data))
    without_owners = encoded.removesuffix(bytes(owners.data))
    found = decode_staging(without_owners.removesuffix(bytes(times.data)), SMALL, CURRENT)
    assert found.last_batches == {producer: LastBatch(5, 0) for producer in "ab"}
    found = decode_staging(without_owners, SMALL, CURRENT)
    assert {last.owner for last in found.last_batches.values()} == {UNKNOWN}
    assert decode_staging(encoded, SMALL, CURRENT).last_batches == staging.last_batches


# ---- a queue's other rules


def test_a_full_queue_refuses_the_whole_publication_and_takes_it_later() -> None:
    world, name = prepared(max_length=10, overflow="reject_publish")
    world.publish(name, 4)
    world.stage(name, 1, 1, 0, 5)
    world.stage(name, 1, 2, 0, 2)
    before = queries.staged(world.machine, 1)
    assert "11 would be" in refused(reply_to_publish(world, name, 1, (1, 5), (2, 2)), "queue_full")
    assert (queries.staged(world.machine, 1), len(waiting(world))) == (before, 4)
    world.do(name, Get(1, 1, settled=True))
    assert reply_to_publish(world, name, 1, (1, 5), (2, 2)) == Published(5, 7)


def test_a_queue_that_drops_its_head_drops_older_messages_first() -> None:
    world, name = prepared(max_length=3)
    world.publish(name, 2)
    world.stage(name, 1, 1, 0, 4)
    assert reply_to_publish(world, name, 1, (1, 4)) == Published(3, 4)
    assert [each[0] for each in waiting(world)] == [4, 5, 6]
    assert world.machine.queues[1].messages.dropped["maxlen"] == 3


def test_times_to_live_count_from_the_publication() -> None:
    world, name = prepared(message_ttl_ms=500)
    world.stage(name, 1, 1, 0, 4, ttls_ms=(100, 100, -1, 900))
    world.stage(name, 1, 1, 1, 1, ttl_ms=50, passed_ms=10_000)
    world.wake(10_000)
    world.publish_staged(name, 1, (1, 5))
    start = world.now_ms
    gone = []
    while (due := world.machine.next_wake()) is not None:
        world.wake(due - world.now_ms)
        gone.append((world.now_ms - start, len(waiting(world))))
    assert gone == [(50, 4), (100, 2), (500, 0)]


def test_a_published_message_with_a_ttl_of_0_is_delivered_at_once_or_never() -> None:
    """Although its body lies in an older entry, it came with this one."""
    world, name = prepared()
    world.stage(name, 1, 1, 0, 2, ttl_ms=0)
    world.stage(name, 2, 1, 0, 2, ttl_ms=0)
    world.publish_staged(name, 1, (1, 2))
    assert world.machine.queues[1].messages.dropped["expired"] == 2
    world.attach(name, "c", 1)
    assert sequences(world.publish_staged(name, 2, (1, 2))) == [3]
    assert world.machine.queues[1].messages.dropped["expired"] == 3


def test_what_expired_before_goes_though_it_lies_in_the_block_that_is_published_into() -> None:
    world, name = prepared()
    world.publish(name, 2, ttl_ms=5)
    world.stage(name, 1, 1, 0, 2, ttl_ms=0)
    publish = world.op(name, PublishStaged(1, "writer", 1, ((part_name(1), 2),)))
    applied = world.apply([publish, world.op(name, Attach(1, "c", b"", 10))], passed_ms=100)
    assert applied.replies[0] == Published(3, 2)
    assert sequences(applied) == [3, 4]
    assert world.machine.queues[1].messages.dropped["expired"] == 2


def test_a_purge_leaves_staged_messages_alone() -> None:
    world, name = prepared()
    world.publish(name, 3)
    world.stage(name, 1, 1, 0, 2)
    assert world.do(name, Purge(1)) == Ok(3)
    assert reply_to_publish(world, name, 1, (1, 2)) == Published(4, 2)


def test_a_deleted_queue_takes_its_parts_along() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 2)
    staged_at = world.index
    assert staged_at in references(snapshot.encode(world.machine))
    world.do(name, DeleteQueue(1))
    assert queries.staged(world.machine, 1) == ()
    assert world.machine.next_wake() is None
    assert list(references(snapshot.encode(world.machine))) == []
    refused(world.stage(name, 1, 1, 1, 2), "not_found")
    refused(reply_to_publish(world, name, 1, (1, 2)), "not_found")
    refused(world.do(name, DiscardStaged(1, "writer", 1)), "not_found")


# ---- the end of parts


def test_discarding_drops_the_parts_that_are_named_or_all_of_a_batch() -> None:
    world, name = prepared()
    for batch, part in ((1, 1), (1, 2), (1, 3), (2, 1)):
        world.stage(name, batch, part, 0, part)
    assert world.do(name, DiscardStaged(1, "writer", 1, (part_name(2), part_name(9)))) == Ok(2)
    assert [(each.batch, each.rows) for each in queries.staged(world.machine, 1)] == [(1, 1), (1, 3), (2, 1)]
    assert world.do(name, DiscardStaged(1, "writer", 1)) == Ok(4)
    assert world.do(name, DiscardStaged(1, "writer", 1)) == Ok(0)
    assert world.do(name, DiscardStaged(1, "stranger", 2)) == Ok(0)
    assert [(each.batch, each.rows) for each in queries.staged(world.machine, 1)] == [(2, 1)]
    assert world.stage(name, 1, 1, 0, 5) == Ok(5)  # it begins again


def test_a_part_expires_without_new_chunks_and_the_leader_is_told_when() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 2)
    world.stage(name, 1, 2, 0, 2)
    world.stage(name, 1, 1, 1, 2, passed_ms=1_000)
    second_ms, first_ms = world.now_ms - 1_000, world.now_ms
    assert [each.part for each in queries.staged(world.machine, 1)] == [part_name(2), part_name(1)]
    assert world.machine.next_wake() == second_ms + PRODUCTION.part_ms
    world.wake(second_ms + PRODUCTION.part_ms - 1 - world.now_ms)
    assert len(queries.staged(world.machine, 1)) == 2
    world.wake(1)
    assert [each.last_ms for each in queries.staged(world.machine, 1)] == [first_ms]
    assert world.machine.next_wake() == first_ms + PRODUCTION.part_ms
    world.wake(1_000)
    assert queries.staged(world.machine, 1) == ()
    assert world.machine.next_wake() is None
    refused(reply_to_publish(world, name, 1, (1, 4)), "missing_part")
