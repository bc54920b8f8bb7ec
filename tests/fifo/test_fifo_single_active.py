"""A queue with a single active consumer: one consumer at a time, and never none while one could be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fifo.commands import (
    Attach,
    Cancel,
    CloseSession,
    Command,
    Discard,
    Get,
    Modify,
    NodeDown,
    OpenSubscription,
    Purge,
    Return,
    Settle,
)
from fifo.effects import Applied, Notify, Ok, Refused
from fifo.persistence import snapshot
from support.fifo.world import World, producer, sequences


def single_world() -> World:
    """A queue with a single active consumer and 9 messages. The messages' producer is session 9."""
    world = World(has_model=True)
    world.queue(single_active_consumer=True)
    world.publish(world.session(9), 9)
    return world


def consumer(world: World, number: int, credit: int = 2, priority: int = 0) -> tuple[bytes, int, Applied]:
    """A consumer `c` of a session of its own on node `number`."""
    name = producer(number)
    if name not in world.epochs:
        world.session(number, node=number)
    attach, applied = world.attach(name, "c", credit, priority=priority)
    return name, attach, applied


def told(applied: Applied) -> list[tuple[int, str]]:
    """(node, event) of the notifications of an entry."""
    return [(effect.address.node, effect.event) for effect in applied.effects if isinstance(effect, Notify)]


def test_the_first_consumer_is_active_and_the_others_wait() -> None:
    world = single_world()
    first, attach, applied = consumer(world, 1)
    assert told(applied) == [(1, "active")]
    assert sequences(applied) == [1, 2]
    second, _, applied = consumer(world, 2, 9)
    assert not applied.effects
    applied = world.apply([world.op(first, Settle(1, "c", attach, ((1, 2),), 5))])
    assert sequences(applied) == [3, 4, 5]
    applied = world.apply([world.op(first, Cancel(1, "c", requeue=True))])
    assert told(applied) == [(2, "active")]
    assert sequences(applied) == [3, 4, 5, 6, 7, 8, 9]
    assert second in world.epochs


def test_the_next_one_is_the_first_of_the_highest_priority() -> None:
    world = single_world()
    first, _, _ = consumer(world, 1)
    for number, priority in ((2, 0), (3, -1), (4, 0)):
        consumer(world, number, priority=priority)
    order = []
    name = first
    for _ in range(3):
        applied = world.apply([world.op(name, Cancel(1, "c", requeue=True))])
        [(node, event)] = told(applied)
        assert event == "active"
        order.append(node)
        name = producer(node)
    assert order == [2, 4, 3]


def test_a_higher_priority_takes_over_when_the_active_consumer_holds_nothing() -> None:
    world = single_world()
    first, attach, _ = consumer(world, 1, 4)
    _, _, applied = consumer(world, 2, 9, priority=1)
    assert told(applied) == [(1, "inactive")]
    applied = world.apply([world.op(first, Settle(1, "c", attach, ((1, 2),), 9))])
    assert not applied.effects, "it is given nothing more, and still holds two messages"
    applied = world.apply([world.op(first, Return(1, "c", attach, ((3, 4),)))])
    assert told(applied) == [(2, "active")]
    assert sequences(applied) == [3, 4, 5, 6, 7, 8, 9]


def test_an_equal_priority_does_not_take_over() -> None:
    world = single_world()
    consumer(world, 1, priority=2)
    _, _, applied = consumer(world, 2, priority=2)
    assert not applied.effects


def test_the_active_consumer_stays_if_the_higher_priority_goes_before_it_is_its_turn() -> None:
    world = single_world()
    first, attach, _ = consumer(world, 1, 2)
    second, _, _ = consumer(world, 2, 9, priority=1)
    applied = world.apply([world.op(second, Cancel(1, "c", requeue=True))])
    assert told(applied) == [(1, "active")]
    applied = world.apply([world.op(first, Settle(1, "c", attach, ((1, 1),), 3))])
    assert sequences(applied) == [3]


def test_a_cancelled_consumer_that_may_still_settle_is_waited_for() -> None:
    world = single_world()
    first, attach, _ = consumer(world, 1)
    consumer(world, 2, 9)
    applied = world.apply([world.op(first, Cancel(1, "c", requeue=False))])
    assert not applied.effects
    applied = world.apply([world.op(first, Settle(1, "c", attach, ((1, 2),)))])
    assert told(applied) == [(2, "active")]
    assert sequences(applied) == [3, 4, 5, 6, 7, 8, 9]


ENDS: dict[str, Callable[[World], tuple[bytes | None, Command]]] = {
    "cancel": lambda world: (producer(1), Cancel(1, "c", requeue=True)),
    "close": lambda world: (producer(1), CloseSession()),
    "node lost": lambda world: (None, NodeDown(1, 1)),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_next_consumer_goes_on_when_the_active_one_ends(end: str) -> None:
    world = single_world()
    consumer(world, 1)
    consumer(world, 2, 9)
    name, command = ENDS[end](world)
    applied = world.apply([(None, command) if name is None else world.op(name, command)])
    assert (2, "active") in told(applied)
    assert sequences(applied) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_next_consumer_goes_on_when_the_session_is_fenced() -> None:
    world = single_world()
    consumer(world, 1)
    consumer(world, 2, 9)
    world.session(1, epoch=2)
    active = world.machine.queues[1].consumers.single_active
    assert active is not None and active.active is not None
    assert active.active.address.node == 2
    assert active.active.checked_out.total == 9


ANSWERS: dict[str, Callable[[int], Any]] = {
    "settle": lambda attach: Settle(1, "c", attach, ((1, 2),)),
    "return": lambda attach: Return(1, "c", attach, ((1, 2),)),
    "discard": lambda attach: Discard(1, "c", attach, ((1, 2),)),
    "fail": lambda attach: Modify(1, "c", attach, ((1, 2),), delivery_failed=True),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_answer_lets_the_higher_priority_take_over(answer: str) -> None:
    world = single_world()
    first, attach, _ = consumer(world, 1)
    consumer(world, 2, 9, priority=1)
    applied = world.apply([world.op(first, ANSWERS[answer](attach))])
    assert told(applied) == [(2, "active")]
    assert sequences(applied)


def test_a_purge_changes_nothing_about_who_is_active() -> None:
    world = single_world()
    first, attach, _ = consumer(world, 1)
    consumer(world, 2, 9, priority=1)
    assert world.apply([(None, Purge(1))]).replies == (Ok(7),)
    applied = world.apply([world.op(first, Settle(1, "c", attach, ((1, 2),)))])
    assert told(applied) == [(2, "active")]
    assert sequences(world.publish(producer(9), 3)) == [10, 11, 12]


def test_a_consumer_that_attaches_again_joins_behind_the_others() -> None:
    world = single_world()
    first, _, _ = consumer(world, 1)
    consumer(world, 2, 1)
    applied = world.apply([world.op(first, Attach(1, "c", b"", 5, 0))])
    assert sequences(applied) == [3, 4, 5], "the same attachment"
    applied = world.apply([world.op(first, Attach(1, "c", b"", 5, -1))])
    assert told(applied) == [(2, "active")]


def test_without_consumers_nothing_waits() -> None:
    world = single_world()
    first, _, _ = consumer(world, 1)
    world.do(first, Cancel(1, "c", requeue=True))
    _, _, applied = consumer(world, 2, 9)
    assert told(applied) == [(2, "active")]
    assert sequences(applied) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "command", [Get(1, 1, False), Get(1, 1, True), OpenSubscription(1, "s", b"", "earliest", 60_000, "keep")]
)
def test_messages_are_given_to_attached_consumers_only(command: Command) -> None:
    world = single_world()
    reply = world.do(world.session(1), command)
    assert isinstance(reply, Refused)
    assert reply.reason == "bad_argument"
    assert "x-single-active-consumer" in reply.detail
    assert "allowed: attached consumers" in reply.detail


def test_a_restored_queue_goes_on_with_the_same_consumer() -> None:
    world = single_world()
    first, attach, _ = consumer(world, 1)
    consumer(world, 2, 9, priority=1)
    world.machine = world.restored(snapshot.encode(world.machine))
    applied = world.apply([world.op(first, Settle(1, "c", attach, ((1, 2),)))])
    assert told(applied) == [(2, "active")]
    world.machine = world.restored(snapshot.encode(world.machine))
    applied = world.apply([world.op(producer(2), Settle(1, "c", attach + 1, ((1, 7),), 10))])
    assert not told(applied)
