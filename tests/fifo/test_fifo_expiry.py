"""Messages expire anywhere in a queue, in time, and never in a consumer's hands."""

from __future__ import annotations

import pytest

from fifo.commands import Get, Purge, QueueConfig, Return, Settle, UpdateConfig
from fifo.effects import Ok
from fifo.limits import PRODUCTION, SMALL, Limits
from support.fifo.world import START_MS, World, sequences


def test_a_message_in_the_middle_expires_when_its_time_comes() -> None:
    world = World()
    world.queue()
    name = world.session()
    applied_at = world.now_ms + 1
    world.publish(name, 5, ttls_ms=(-1, 500, 200, -1, 200))
    assert world.machine.next_wake() == applied_at + 200
    world.wake(passed_ms=199)
    assert world.info().ready == 5
    world.wake(passed_ms=1)
    assert (world.info().ready, world.info().totals.expired) == (3, 2)
    assert world.machine.next_wake() == applied_at + 500
    world.wake(passed_ms=300)
    assert world.machine.next_wake() is None
    _, applied = world.attach(name, "a", 10)
    assert sequences(applied) == [1, 4]


@pytest.mark.parametrize("limits", [PRODUCTION, SMALL])
def test_a_time_to_live_of_zero_is_one(limits: Limits) -> None:
    world = World(limits)
    world.queue()
    world.publish(world.session(), 4, ttls_ms=(0, 500, 0, -1))
    world.wake()
    assert world.info().ready == 2


def test_the_shorter_of_the_queues_and_the_messages_time_holds() -> None:
    world = World()
    world.queue(message_ttl_ms=100)
    name = world.session()
    world.publish(name, 3, ttls_ms=(-1, 50, 300))
    world.wake(passed_ms=50)
    assert world.info().ready == 2
    world.wake(passed_ms=50)
    assert world.info().ready == 0


def test_a_late_wake_up_delivers_nothing_that_has_expired() -> None:
    world = World()
    world.queue()
    name = world.session()
    world.publish(name, 10, ttl_ms=100)
    world.publish(name, 5)
    world.now_ms += 10_000
    _, applied = world.attach(name, "a", 100)
    assert sequences(applied) == list(range(11, 16))
    assert world.info().totals.expired == 10


def test_get_takes_nothing_that_has_expired() -> None:
    world = World()
    world.queue()
    name = world.session()
    world.publish(name, 10, ttl_ms=100)
    assert world.do(name, Get(1, 5, False), passed_ms=100) == Ok(0)


def test_a_time_of_zero_means_now_or_never() -> None:
    world = World()
    world.queue()
    name = world.session()
    world.publish(name, 3, ttl_ms=0)
    assert (world.info().total, world.info().totals.expired) == (0, 3)
    world.attach(name, "a", 2)
    assert sequences(world.publish(name, 3, ttl_ms=0)) == [4, 5]
    assert (world.info().total, world.info().totals.expired) == (2, 4)


def test_a_held_message_does_not_expire_until_it_comes_back() -> None:
    world = World()
    world.queue()
    name = world.session()
    world.publish(name, 4, ttl_ms=100)
    attach, _ = world.attach(name, "a", 2)
    world.wake(passed_ms=200)
    assert (world.info().checked_out, world.info().ready) == (2, 0)
    assert world.do(name, Settle(1, "a", attach, ((1, 1),))) == Ok(1)
    assert world.do(name, Return(1, "a", attach, ((2, 2),))) == Ok(1)
    assert (world.info().total, world.info().totals.expired) == (0, 3)


def test_a_returned_message_is_expected_to_expire_again() -> None:
    """While it was held, its block's next expiry was found without it."""
    world = World()
    world.queue()
    name = world.session()
    world.publish(name, 3, ttls_ms=(200, 50, 900))
    published_at = world.now_ms
    attach, _ = world.attach(name, "a", 1)
    world.wake(passed_ms=60)
    assert world.machine.next_wake() == published_at + 900
    world.do(name, Return(1, "a", attach, ((1, 1),)))
    assert world.machine.next_wake() == published_at + 200
    world.wake(passed_ms=150)
    assert (world.info().ready, world.info().totals.expired) == (1, 2)


def test_mass_expiry_goes_on_by_wake_ups() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    name = world.session()
    for _ in range(10):
        world.publish(name, 10, ttl_ms=100)
    world.publish(name, 1)
    applied = world.wake(passed_ms=1000)
    assert applied.effects == ()
    assert world.info().ready == 101 - 7 - 3 * 8
    due = world.machine.next_wake()
    assert due is not None
    assert due <= world.now_ms
    assert len(world.wake_until_done()) > 1
    assert world.info().ready == 1


def test_expired_messages_in_the_way_are_passed_some_an_entry() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    name = world.session()
    for _ in range(10):
        world.publish(name, 10, ttl_ms=100)
    world.publish(name, 1)
    world.now_ms += 1000
    _, applied = world.attach(name, "a", 5)
    assert sequences(applied) == []
    delivered = [sequence for entry in world.wake_until_done() for sequence in sequences(entry)]
    assert delivered == [101]


def test_wake_ups_that_come_late_often_or_without_need_do_no_harm() -> None:
    world = World()
    world.queue()
    name = world.session()
    world.publish(name, 3, ttl_ms=100)
    before = world.info()
    for _ in range(3):
        world.wake()
    assert world.info() == before
    world.wake(passed_ms=100_000)
    world.wake()
    assert world.info().total == 0
    assert world.machine.next_wake() is None


def test_a_purge_and_a_new_time_leave_no_wrong_wake_up() -> None:
    world = World()
    world.queue()
    name = world.session()
    world.publish(name, 3, ttl_ms=100)
    world.apply([(None, Purge(1))])
    assert world.machine.next_wake() is None
    world.apply([(None, UpdateConfig(1, QueueConfig("queue-1", message_ttl_ms=10)))])
    world.publish(name, 1)
    assert world.machine.next_wake() == world.now_ms + 10
    assert world.now_ms > START_MS


def test_the_next_wake_up_is_the_earliest_of_all_queues() -> None:
    world = World()
    world.queue(1)
    world.queue(2)
    name = world.session()
    world.publish(name, 1, ttl_ms=500)
    world.publish(name, 1, ttl_ms=100, queue=2)
    assert world.machine.next_wake() == world.now_ms + 100
    world.wake(passed_ms=100)
    assert world.machine.next_wake() == world.now_ms - 101 + 500
