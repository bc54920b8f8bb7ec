"""The limits of a queue on bytes and on consumers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fifo.budgets import Entry
from fifo.commands import (
    Attach,
    Cancel,
    CloseSession,
    Get,
    OpenSubscription,
    Purge,
    QueueConfig,
    Return,
    Settle,
    UpdateConfig,
)
from fifo.effects import AttachedReply, Confirmed, Ok, Refused
from fifo.limits import PRODUCTION, SMALL
from fifo.persistence import snapshot
from fifo.versions import CURRENT
from support.fifo.world import World, sequences


def bytes_of(world: World, queue: int = 1) -> int:
    """The bytes of ready messages, as the limit counts them."""
    return world.machine.queues[queue].messages.ready_bytes


def limited(overflow: str = "drop_head", size_bytes: int = 700, **more: Any) -> tuple[World, bytes]:
    world = World(SMALL, has_model=True)
    world.queue(overflow=overflow, max_length_bytes=size_bytes, **more)
    return world, world.session()


def configure(world: World, **arguments: Any) -> None:
    world.apply([(None, UpdateConfig(1, QueueConfig("queue-1", **arguments)))])


# ---- bytes


def test_drop_head_drops_the_oldest_until_the_bytes_are_within_the_limit() -> None:
    world, name = limited()
    world.publish(name, 3)
    world.publish(name, 2, size=300)
    assert (world.info().ready, world.info().first_sequence, bytes_of(world)) == (3, 3, 700)
    assert world.info().totals.maxlen == 2
    world.publish(name, 1, size=1)
    assert (world.info().ready, bytes_of(world)) == (3, 601)


def test_the_messages_of_one_batch_count_alike() -> None:
    world, name = limited(size_bytes=99)
    origin, command = world.batch(name, 3)
    world.apply([(origin, replace(command, size_bytes=100))])
    assert (world.info().ready, bytes_of(world)) == (3, 99)


def test_a_message_that_alone_is_larger_than_the_limit_is_dropped() -> None:
    world, name = limited()
    world.publish(name, 2)
    world.publish(name, 1, size=701)
    assert (world.info().ready, bytes_of(world), world.info().totals.maxlen) == (0, 0, 3)


def test_a_limit_of_no_bytes_leaves_only_messages_without_a_body() -> None:
    world, name = limited(size_bytes=0)
    world.publish(name, 2)
    world.publish(name, 3, size=0)
    assert (world.info().ready, bytes_of(world), world.info().totals.maxlen) == (3, 0, 2)
    configure(world)
    world.publish(name, 4)
    configure(world, max_length_bytes=0)
    world.wake_until_done()
    assert (world.info().ready, bytes_of(world)) == (0, 0), (
        "of a block with bodies, none has a size of its own"
    )


def test_a_limit_of_no_bytes_refuses_every_body() -> None:
    world, name = limited("reject_publish", 0)
    assert isinstance(world.publish(name, 1, size=1).replies[0], Refused)
    assert isinstance(world.publish(name, 1, size=1, independent=True).replies[0], Refused)
    assert isinstance(world.publish(name, 2, size=0).replies[0], Confirmed)
    assert world.info().ready == 2


def test_a_queue_of_no_length_drops_every_message() -> None:
    world = World(SMALL, has_model=True)
    world.queue(overflow="drop_head", max_length=0)
    world.publish(world.session(), 3, size=0)
    assert (world.info().ready, world.info().totals.maxlen) == (0, 3)


def test_both_limits_hold() -> None:
    world, name = limited(max_length=4)
    world.publish(name, 6, size=10)
    assert world.info().ready == 4
    world.publish(name, 2, size=340)
    assert (world.info().ready, bytes_of(world)) == (4, 700)


def test_checked_out_messages_do_not_count_until_they_are_returned() -> None:
    world, name = limited()
    attach, _ = world.attach(name, "a", 3)
    world.publish(name, 3, size=300)
    assert (world.info().checked_out, bytes_of(world)) == (3, 0)
    world.publish(name, 1, size=500)
    world.do(name, Return(1, "a", attach, ((1, 1),)))
    assert (world.info().first_sequence, bytes_of(world)) == (2, 500), "the oldest one was dropped"
    world.do(name, Settle(1, "a", attach, ((2, 3),)))
    assert bytes_of(world) == 500


def test_reject_publish_refuses_a_batch_whose_bytes_do_not_fit_and_says_so() -> None:
    world, name = limited("reject_publish")
    world.publish(name, 3)
    refused = world.publish(name, 5).replies[0]
    assert refused == Refused("queue_full", "300 bytes of messages are ready, 800 would be; allowed: 700")
    assert isinstance(world.publish(name, 4).replies[0], Confirmed)
    assert bytes_of(world) == 700
    assert isinstance(world.publish(name, 1, size=1).replies[0], Refused)
    assert isinstance(world.publish(name, 1, size=0).replies[0], Confirmed), "it has no bytes"


def test_a_full_queue_takes_of_independent_messages_those_whose_bytes_fit() -> None:
    world, name = limited("reject_publish")
    reply = world.publish(name, 9, independent=True).replies[0]
    assert isinstance(reply, Confirmed)
    assert [(first, last, why.reason) for first, last, why in reply.refused] == [(8, 9, "queue_full")]
    assert (world.info().ready, bytes_of(world)) == (7, 700)


def test_a_batch_for_several_queues_needs_room_in_each() -> None:
    world, name = limited("reject_publish", 250)
    world.queue(2)
    operation = world.routed(name, [(1,), (1, 2), (1,), (2,)], independent=True)
    reply = world.apply([operation]).replies[0]
    assert isinstance(reply, Confirmed)
    assert [(first, last, why.reason) for first, last, why in reply.refused] == [(3, 3, "queue_full")]
    assert (world.info().ready, world.info(2).ready) == (2, 2)


def test_staged_messages_need_room_for_their_bytes_when_they_are_published() -> None:
    world, name = limited("reject_publish")
    world.stage(name, 1, 0, 0, 4, size=100)
    world.stage(name, 1, 0, 1, 2, size=200)
    refused = world.publish_staged(name, 1, (0, 6)).replies[0]
    assert isinstance(refused, Refused) and "800 would be; allowed: 700" in refused.detail
    configure(world, overflow="reject_publish", max_length_bytes=800)
    assert not isinstance(world.publish_staged(name, 1, (0, 6)).replies[0], Refused)
    assert bytes_of(world) == 800


def test_messages_from_before_the_limit_count_by_the_mean_of_their_block() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    name = world.session()
    world.publish(name, 3, size=10)
    world.publish(name, 7, size=100)  # seven slots in the first block: mean 61; three messages in the second
    assert bytes_of(world) == 0
    configure(world, max_length_bytes=1_000)
    assert bytes_of(world) == 7 * 61 + 3 * 100
    world.publish(name, 1, size=7)
    assert bytes_of(world) == 7 * 61 + 3 * 100 + 7
    configure(world, max_length_bytes=310)
    assert (world.info().ready, bytes_of(world)) == (4, 307)
    configure(world)
    assert bytes_of(world) == 0
    configure(world, max_length_bytes=310)
    assert bytes_of(world) == 307, "sizes that were noted stay"


def test_bytes_are_the_same_from_a_snapshot_a_checkpoint_and_cold_blocks() -> None:
    world, name = limited(size_bytes=100_000)
    for size in (3, 50, 700, 20, 0):
        world.publish(name, 7, size=size)
    world.do(name, Get(1, 9, settled=True))
    counted = bytes_of(world)
    assert counted == 5 * 50 + 7 * 720
    taken = world.checkpointer(world.machine).take()
    restored = world.restored(snapshot.encode(world.machine))
    for machine in (restored, world.resumed(taken.state, world.machine.memory.pages)):
        assert machine.queues[1].messages.ready_bytes == counted
        assert machine.queues[1].purge(entry(world), 20) == 10
        assert machine.queues[1].messages.ready_bytes == 2 * 700 + 7 * 20


def entry(world: World) -> Entry:
    return Entry(world.index + 1, world.now_ms, CURRENT, world.limits)


def test_one_purge_passes_some_blocks_the_oldest_first() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    world.publish(world.session(), 100)
    counted = [world.apply([(None, Purge(1, 90))]).replies[0] for _ in range(4)]
    assert counted == [Ok(7 + 3 * 8), Ok(4 * 8), Ok(26), Ok(0)]
    assert (world.info().ready, world.info().first_sequence, world.info().totals.purged) == (11, 90, 89)


@pytest.mark.parametrize("lowered", [{"max_length": 5}, {"max_length_bytes": 599}])
def test_a_lower_limit_drops_some_blocks_an_entry(lowered: dict[str, int]) -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    world.publish(world.session(), 100)
    configure(world, **lowered)
    assert world.info().ready == 100 - 7 - 3 * 8
    world.wake_until_done()
    assert (world.info().ready, world.info().first_sequence, world.info().totals.maxlen) == (5, 96, 95)


@pytest.mark.parametrize("lowered", [{"max_length": 10}, {"max_length_bytes": 1_099}])
def test_a_lower_limit_on_a_million_messages_drops_at_most_eight_blocks_an_entry(
    lowered: dict[str, int],
) -> None:
    world = World(replace(PRODUCTION, block_budget=8))
    world.checks = False
    world.queue()
    name = world.session()
    for _ in range(16):
        world.publish(name, 62_500)
    blocks = len(world.machine.queues[1].messages.blocks)
    configure(world, **lowered)
    left, entries = [world.info().ready], 1
    while world.info().ready > 10:
        assert world.machine.next_wake() == world.now_ms, "the leader goes on at once"
        world.wake()
        left.append(world.info().ready)
        entries += 1
    assert entries == -(-blocks // 8) == 8
    assert max(before - after for before, after in zip([1_000_000, *left], left, strict=False)) <= 8 * 16_384
    assert (world.info().ready, world.info().totals.maxlen) == (10, 999_990)
    assert world.machine.next_wake() is None


# ---- consumers


def attach(world: World, name: bytes, tag: str) -> Any:
    return world.do(name, Attach(1, tag, b"", 5))


def test_a_queue_refuses_consumers_above_its_limit_and_says_so() -> None:
    world = World(SMALL, has_model=True)
    world.queue(max_consumers=2)
    name, other = world.session(1), world.session(2)
    assert isinstance(attach(world, name, "a"), AttachedReply)
    assert isinstance(attach(world, other, "a"), AttachedReply)
    text = "queue 'queue-1' has 2 consumers; allowed: 2 (x-max-consumers)"
    assert attach(world, name, "b") == Refused("limit", text)
    assert isinstance(attach(world, name, "a"), AttachedReply), "it is attached already"
    world.do(other, CloseSession())
    assert isinstance(attach(world, name, "b"), AttachedReply)


def test_a_cancelled_consumer_leaves_its_place_though_it_has_messages_checked_out() -> None:
    world = World(SMALL, has_model=True)
    world.queue(max_consumers=1)
    name = world.session()
    world.publish(name, 3)
    attach(world, name, "a")
    assert world.do(name, Cancel(1, "a", requeue=False)) == Ok()
    assert isinstance(attach(world, name, "b"), AttachedReply)
    refused = attach(world, name, "a")
    assert isinstance(refused, Refused), "it has no place any more"
    assert world.info().checked_out == 3, "and keeps what it has"


def test_a_lower_limit_detaches_no_consumer() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    name = world.session()
    for tag in "abc":
        attach(world, name, tag)
    configure(world, max_consumers=1)
    assert len(sequences(world.publish(name, 6))) == 6
    assert world.info().consumers == 3
    world.do(name, Cancel(1, "a", requeue=True))
    assert isinstance(attach(world, name, "d"), Refused)


def test_gets_and_subscriptions_are_no_consumers() -> None:
    world = World(SMALL, has_model=True)
    world.queue(max_consumers=1)
    name = world.session()
    world.publish(name, 3)
    assert world.do(name, Get(1, 1, settled=False)) == Ok(1)
    world.do(name, OpenSubscription(1, "s", b"", "earliest", 60_000, "keep"))
    assert isinstance(attach(world, name, "a"), AttachedReply)
