"""Queues that are deleted when they have not been used for some time."""

from __future__ import annotations

from typing import Any

import pytest

from fifo.commands import (
    Attach,
    Cancel,
    CloseSession,
    CreateQueue,
    DeleteQueue,
    DeleteSubscription,
    Get,
    KeepSubscription,
    OpenSubscription,
    Pin,
    QueueConfig,
    Settle,
    Unpin,
    UpdateConfig,
    UseQueue,
)
from fifo.effects import Ok, Pinned, QueueExpired, Refused
from fifo.limits import SMALL
from fifo.persistence import snapshot
from support.fifo.world import World, nth_number

EXPIRES_MS = 1_000


@pytest.fixture
def world() -> World:
    found = World(SMALL, has_model=True)
    found.queue(expires_ms=EXPIRES_MS)
    return found


def expires_in(world: World) -> int | None:
    """Milliseconds until the queue is deleted if nothing happens."""
    found = world.machine.next_wake()
    return None if found is None else found - world.now_ms


def is_there(world: World) -> bool:
    return world.machine.has_queue(1)


def test_a_queue_that_nobody_uses_is_deleted_with_its_messages(world: World) -> None:
    name = world.session()
    world.publish(name, 5)
    due_ms = expires_in(world)
    assert due_ms is not None
    world.wake(due_ms - 1)
    assert is_there(world)
    assert world.wake(1).effects == (QueueExpired(1),)
    assert not is_there(world)
    assert (world.machine.was_deleted(1), list(world.machine.expired)) == (True, [1])
    refused = world.publish(name, 1).replies[0]
    assert isinstance(refused, Refused) and refused.reason == "not_found"
    config = QueueConfig("queue-1", expires_ms=EXPIRES_MS)
    created = world.apply([(None, CreateQueue(1, config))]).replies[0]
    assert isinstance(created, Refused), "its id is never used again"


def test_publishing_is_no_use(world: World) -> None:
    name = world.session()
    before = expires_in(world)
    assert before is not None
    world.publish(name, 5, passed_ms=100)
    assert expires_in(world) == before - 100


def test_an_attached_consumer_uses_the_queue_until_it_is_gone(world: World) -> None:
    name = world.session()
    attach, _ = world.attach(name, "a", 5)
    world.wake(10 * EXPIRES_MS)
    assert (is_there(world), expires_in(world)) == (True, None)
    world.publish(name, 1)
    world.do(name, Cancel(1, "a", requeue=False))
    assert expires_in(world) is None, "it has a message checked out"
    world.wake(10 * EXPIRES_MS)
    world.do(name, Settle(1, "a", attach, ((1, 1),)))
    assert expires_in(world) == EXPIRES_MS


def test_the_end_of_a_session_begins_the_time_without_use(world: World) -> None:
    name = world.session()
    world.attach(name, "a", 5)
    world.do(name, CloseSession(), 10 * EXPIRES_MS)
    assert expires_in(world) == EXPIRES_MS


@pytest.mark.parametrize("settled", [True, False])
def test_a_get_uses_the_queue_also_if_it_finds_nothing(world: World, settled: bool) -> None:
    name = world.session()
    assert world.do(name, Get(1, 1, settled), EXPIRES_MS - 10) == Ok(0)
    assert expires_in(world) == EXPIRES_MS


def test_declaring_a_queue_again_uses_it_also_after_its_time_if_no_wake_came(world: World) -> None:
    assert world.apply([(None, UseQueue(1))], EXPIRES_MS - 10).replies == (Ok(),)
    assert expires_in(world) == EXPIRES_MS
    assert world.apply([(None, UseQueue(1))], EXPIRES_MS + 10).replies == (Ok(),)
    assert expires_in(world) == EXPIRES_MS
    world.wake(EXPIRES_MS)
    refused = world.apply([(None, UseQueue(1))]).replies[0]
    assert isinstance(refused, Refused) and refused.reason == "not_found"


def test_a_consumer_that_attaches_just_in_time_keeps_the_queue(world: World) -> None:
    name = world.session()
    world.do(name, Attach(1, "a", b"", 1), EXPIRES_MS + 10)
    world.wake_until_done()
    assert is_there(world)


def test_a_subscription_uses_the_queue_until_its_timeout_has_passed(world: World) -> None:
    name = world.session()
    world.do(name, OpenSubscription(1, "s", b"", "earliest", 5_000, "keep"))
    assert expires_in(world) == 5_000 + EXPIRES_MS
    world.do(name, KeepSubscription(1, "s", nth_number(1)), 4_000)
    assert expires_in(world) == 5_000 + EXPIRES_MS
    world.do(name, DeleteSubscription(1, "s"), 2_000)
    assert expires_in(world) == EXPIRES_MS


def test_a_view_uses_the_queue_while_it_is_open(world: World) -> None:
    name = world.session()
    pinned = world.do(name, Pin(1, 50_000))
    assert isinstance(pinned, Pinned)
    assert expires_in(world) == 50_000
    world.do(name, Unpin(1, pinned.pin), 10_000)
    assert expires_in(world) == EXPIRES_MS
    world.do(name, Pin(1, 2_000))
    world.wake(2_000)
    assert expires_in(world) == EXPIRES_MS, "it has ended by itself"


def test_the_time_without_use_begins_with_the_argument_and_ends_with_it(world: World) -> None:
    def configure(**arguments: Any) -> None:
        world.apply([(None, UpdateConfig(1, QueueConfig("queue-1", **arguments)))], 900)

    configure()
    assert expires_in(world) is None
    configure(expires_ms=500)
    assert expires_in(world) == 500
    configure(expires_ms=5_000)
    assert expires_in(world) == 4_100, "the time that has passed counts"
    configure(expires_ms=1_000)
    assert not is_there(world), "1,800 ms have passed"


def test_the_last_use_survives_a_snapshot(world: World) -> None:
    before = expires_in(world)
    world.machine = world.restored(snapshot.encode(world.machine))
    assert expires_in(world) == before
    world.wake(EXPIRES_MS)
    world.machine = world.restored(snapshot.encode(world.machine))
    assert list(world.machine.expired) == [1]


def test_a_group_forgets_an_expired_queue_when_the_catalog_has_removed_it(world: World) -> None:
    world.wake(EXPIRES_MS)
    for _ in range(2):
        assert world.apply([(None, DeleteQueue(1))]).replies == (Ok(),)
        assert (list(world.machine.expired), world.machine.was_deleted(1)) == ([], True)
