"""The counts of a queue: what came, and for what each message has left."""

from __future__ import annotations

from dataclasses import asdict, replace

from fifo.commands import (
    CloseSession,
    Discard,
    Get,
    Meta,
    Modify,
    OpenSubscription,
    Operation,
    Purge,
    ReleaseSubscription,
    Reserve,
    Return,
    Settle,
    UpdateConfig,
    Wake,
)
from fifo.limits import SMALL
from fifo.persistence import invariants, snapshot
from support.fifo.world import World, nth_number


def totals(world: World) -> dict[str, int]:
    """Those that are not 0."""
    found = world.info()
    return {name: count for name, count in asdict(found.totals).items() if count}


def test_every_cause_is_counted() -> None:
    world = World(SMALL, has_model=True)
    world.queue(delivery_limit=0)
    name = world.session()
    world.publish(name, 10)
    attach, _ = world.attach(name, "a", 7)
    world.do(name, Settle(1, "a", attach, ((1, 2),)))
    world.do(name, Discard(1, "a", attach, ((3, 3),)))
    world.do(name, Modify(1, "a", attach, ((4, 4),), delivery_failed=True))
    assert totals(world) == {"published": 10, "settled": 2, "rejected": 1, "delivery_limit": 1}
    world.do(name, Return(1, "a", attach, ((5, 6),)))
    world.publish(name, 2, ttl_ms=5)
    world.wake(passed_ms=10)
    counts = {"published": 12, "settled": 2, "rejected": 1, "delivery_limit": 1, "expired": 2, "returned": 2}
    assert totals(world) == counts
    config = world.machine.queues[1].messages.config
    world.apply([(None, UpdateConfig(1, replace(config, max_length=4)))])
    world.apply([(None, Purge(1))])
    assert totals(world) == counts | {"maxlen": 1, "purged": 4}


def test_each_return_and_each_redelivery_is_counted() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    name = world.session()
    world.publish(name, 3)
    attach, _ = world.attach(name, "a", 100)
    for _ in range(4):
        tags = world.model.queues[1].consumers[0].checked_out  # type: ignore[union-attr]
        world.do(name, Return(1, "a", attach, ((min(tags), max(tags)),)))
    assert totals(world) == {"published": 3, "returned": 12, "redelivered": 12}


def test_the_end_of_a_session_and_of_a_reservation_return_messages() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    name, other = world.session(1), world.session(2)
    world.publish(other, 6)
    world.attach(name, "a", 2)
    world.do(name, CloseSession())
    assert totals(world) == {"published": 6, "returned": 2}
    world.do(other, OpenSubscription(1, "s", b"", "earliest", 60_000, "keep"))
    world.do(other, Reserve(1, "s", nth_number(1), 0, 3, 10_000))
    world.do(other, ReleaseSubscription(1, "s", nth_number(1)))
    assert totals(world) == {"published": 6, "returned": 5, "redelivered": 2}
    world.do(other, Get(1, 4, settled=True))
    assert totals(world) == {"published": 6, "settled": 4, "returned": 5, "redelivered": 5}


def test_a_purge_counts_the_messages_of_cold_blocks() -> None:
    world = World(SMALL)
    world.queue()
    world.publish(world.session(), 30)
    for block in world.machine.queues[1].messages.blocks.warm():
        world.machine.page_out(1, block.number)
    world.apply([(None, Purge(1, 20))])
    assert totals(world) == {"published": 30, "purged": 19}


def test_entries_of_version_1_count_purges_as_settlements_and_no_moves() -> None:
    world = World(SMALL)
    world.queue()
    name = world.session()
    world.publish(name, 6)
    attach, _ = world.attach(name, "a", 4)
    for command in (Return(1, "a", attach, ((1, 2),)), Purge(1, 6)):
        world.index += 1
        origin, command_ = world.op(name, command)
        world.machine.apply(Meta(world.index, 1, world.now_ms, 1), [Operation(0, origin, command_)])
    assert totals(world) == {"published": 6, "settled": 3}
    invariants.check(world.machine)


def test_counts_survive_a_snapshot_and_a_checkpoint() -> None:
    world = World(SMALL)
    world.queue()
    name = world.session()
    world.publish(name, 20, ttl_ms=50)
    attach, _ = world.attach(name, "a", 5)
    world.do(name, Return(1, "a", attach, ((1, 2),)))
    world.do(name, Get(1, 2, settled=True))
    world.apply([(None, Purge(1, 12))])
    world.apply([(None, Wake())], 100)
    before = totals(world)
    assert {"published", "purged", "returned", "redelivered"} <= before.keys()
    taken = world.checkpointer(world.machine).take()
    pages = world.machine.memory.pages
    for machine in (world.restored(snapshot.encode(world.machine)), world.resumed(taken.state, pages)):
        world.machine = machine
        assert totals(world) == before
