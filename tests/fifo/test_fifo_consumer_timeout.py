"""Messages that a consumer holds for too long are requeued, and the consumer has a way out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest

from fifo.commands import (
    Attach,
    Cancel,
    CloseSession,
    Commit,
    Credit,
    Discard,
    Get,
    Modify,
    QueueConfig,
    Return,
    Settle,
    UpdateConfig,
)
from fifo.consumers.timeouts import STEPS
from fifo.effects import Applied, AttachedReply, Deliver, Notify, Ok, Refused
from fifo.limits import SMALL
from fifo.persistence import snapshot
from support.fifo.world import START_MS, World, in_transaction, producer, sequences

TIMEOUT_MS = 1_600
STEP_MS = TIMEOUT_MS // STEPS


def slow_world(**arguments: Any) -> World:
    """A queue with a consumer timeout, and a session 9 that publishes to it."""
    world = World(has_model=True)
    world.queue(consumer_timeout_ms=TIMEOUT_MS, **arguments)
    world.session(9)
    return world


def consumer(world: World, number: int, credit: int = 100) -> tuple[bytes, int]:
    """A consumer `c` of a session of its own."""
    name = world.session(number, node=number)
    attach, _ = world.attach(name, "c", credit)
    return name, attach


def told(applied: Applied) -> list[tuple[int, str, int]]:
    """(node, event, value) of the notifications of an entry."""
    return [
        (effect.address.node, effect.event, effect.value)
        for effect in applied.effects
        if isinstance(effect, Notify)
    ]


def time_out(world: World) -> Applied:
    """The next entry after the time at which the queue wants to be woken."""
    due = world.machine.next_wake()
    assert due is not None
    return world.wake(max(due - world.now_ms, 0))


def test_messages_are_requeued_after_the_timeout_and_never_before() -> None:
    world = slow_world()
    consumer(world, 1)
    world.publish(producer(9), 3)
    delivered_ms = world.now_ms
    due = world.machine.next_wake()
    assert due is not None
    assert delivered_ms + TIMEOUT_MS <= due < delivered_ms + TIMEOUT_MS + STEP_MS
    early = world.wake(due - world.now_ms - 1)
    assert not early.effects
    applied = world.wake(1)
    assert told(applied) == [(1, "timed_out", 3)]
    assert world.machine.queues[1].messages.ready_count == 3


def test_the_messages_go_to_another_consumer_and_that_is_no_failure() -> None:
    world = slow_world(delivery_limit=0)
    consumer(world, 1)
    world.publish(producer(9), 3)
    consumer(world, 2)
    applied = time_out(world)
    [delivery] = [effect for effect in applied.effects if isinstance(effect, Deliver)]
    assert delivery.address.node == 2
    assert sequences(applied) == [1, 2, 3]
    assert (delivery.redelivered, delivery.delivery_counts) == (0b111, ())


def test_only_messages_that_were_held_too_long_are_requeued() -> None:
    world = slow_world()
    name, attach = consumer(world, 1)
    world.publish(producer(9), 3)
    world.do(name, Settle(1, "c", attach, ((2, 2),)))
    world.publish(producer(9), 2, passed_ms=5 * STEP_MS)
    applied = time_out(world)
    assert told(applied) == [(1, "timed_out", 3)]
    [held] = world.machine.queues[1].consumers.by_key.values()
    assert held.checked_out.between(0, 99) == [(4, 2)]
    assert held.timed_out is not None and held.timed_out.between(0, 99) == [(1, 1), (3, 1)]
    assert told(time_out(world)) == [(1, "timed_out", 5)]
    assert held.timed_out.total == 4


def test_settled_messages_do_not_time_out() -> None:
    world = slow_world()
    name, attach = consumer(world, 1)
    world.publish(producer(9), 3)
    world.do(name, Settle(1, "c", attach, ((1, 3),)))
    assert not time_out(world).effects
    assert world.machine.next_wake() is None


def test_the_consumer_is_given_nothing_until_it_has_answered_every_message() -> None:
    world = slow_world()
    name, attach = consumer(world, 1)
    world.publish(producer(9), 3)
    time_out(world)
    assert not world.publish(producer(9), 1).effects
    assert not world.apply([world.op(name, Credit(1, "c", 500))]).effects
    applied = world.apply([world.op(name, Settle(1, "c", attach, ((1, 2),)))])
    assert applied.replies == (Ok(0),)
    assert not applied.effects
    applied = world.apply([world.op(name, Settle(1, "c", attach, ((1, 3),)))])
    assert applied.replies == (Ok(0),), "the messages are ready, and stay in the queue"
    assert sequences(applied) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "answer",
    [
        lambda attach: Return(1, "c", attach, ((1, 3),)),
        lambda attach: Discard(1, "c", attach, ((1, 3),)),
        lambda attach: Modify(1, "c", attach, ((1, 3),), delivery_failed=True),
    ],
)
def test_every_late_answer_counts_and_does_nothing_else(answer: Any) -> None:
    world = slow_world()
    name, attach = consumer(world, 1)
    world.publish(producer(9), 3)
    time_out(world)
    applied = world.apply([world.op(name, answer(attach))])
    assert applied.replies == (Ok(0),)
    [delivery] = [effect for effect in applied.effects if isinstance(effect, Deliver)]
    assert delivery.first_tag == 4
    assert delivery.delivery_counts == ()
    assert not any(world.machine.queues[1].messages.dropped.values())


def test_a_late_answer_settles_nothing_that_another_consumer_has() -> None:
    world = slow_world()
    first, attach = consumer(world, 1)
    world.publish(producer(9), 3)
    consumer(world, 2)
    time_out(world)
    assert world.do(first, Settle(1, "c", attach, ((1, 3),))) == Ok(0)
    assert world.machine.queues[1].messages.checked_out_count == 3


def test_a_consumer_that_attaches_again_starts_over() -> None:
    world = slow_world()
    name, attach = consumer(world, 1)
    world.publish(producer(9), 3)
    time_out(world)
    applied = world.apply([world.op(name, Attach(1, "c", b"", 10))])
    [reply] = applied.replies
    assert isinstance(reply, AttachedReply) and reply.attach != attach
    assert sequences(applied) == [1, 2, 3]
    late = world.do(name, Settle(1, "c", attach, ((1, 3),)))
    assert isinstance(late, Refused) and late.reason == "wrong_attach"


def test_a_drain_ends_also_for_a_consumer_that_has_timed_out() -> None:
    world = slow_world()
    name, _ = consumer(world, 1)
    world.publish(producer(9), 3)
    time_out(world)
    applied = world.apply([world.op(name, Credit(1, "c", 100, drain=True))])
    assert told(applied) == [(1, "drained", 4)]


def test_a_cancelled_consumer_that_never_settles_is_forgotten() -> None:
    world = slow_world()
    name, _ = consumer(world, 1)
    world.publish(producer(9), 3)
    world.do(name, Cancel(1, "c", requeue=False))
    consumer(world, 2)
    applied = time_out(world)
    assert sequences(applied) == [1, 2, 3]
    assert not told(applied)
    assert (name, "c") not in world.machine.queues[1].consumers.by_key
    assert not world.machine.sessions.producers[name].consumers


def test_messages_of_a_get_are_requeued_and_the_session_may_get_again() -> None:
    world = slow_world()
    name = world.session(1)
    world.publish(producer(9), 3)
    assert world.do(name, Get(1, 2, False)) == Ok(2)
    assert world.do(name, Get(1, 1, True)) == Ok(1)
    assert not time_out(world).effects
    assert world.machine.queues[1].messages.ready_count == 2
    assert world.do(name, Get(1, 5, False)) == Ok(2)


def test_a_consumer_that_is_gone_leaves_no_mark() -> None:
    world = slow_world()
    name, _ = consumer(world, 1)
    world.publish(producer(9), 3)
    world.do(name, CloseSession())
    assert world.machine.queues[1].consumers.timeouts.marks == {}
    assert world.machine.next_wake() is None


def test_many_deliveries_make_few_marks() -> None:
    world = slow_world()
    name, attach = consumer(world, 1, 10_000)
    world.checks = False
    world.publish(producer(9), 1)
    for number in range(2, 300):
        world.publish(producer(9), 1, passed_ms=5)
        world.do(name, Settle(1, "c", attach, ((number, number),)), passed_ms=0)
        assert len(world.machine.queues[1].consumers.timeouts.marks) <= STEPS + 1


def test_the_single_active_consumer_changes_after_a_timeout_and_none_is_stuck() -> None:
    world = slow_world(single_active_consumer=True)
    names = [consumer(world, number) for number in (1, 2)]
    world.publish(producer(9), 3)
    applied = time_out(world)
    assert told(applied) == [(1, "timed_out", 3), (2, "active", 0)]
    assert sequences(applied) == [1, 2, 3]
    applied = time_out(world)
    assert told(applied) == [(2, "timed_out", 3)]
    assert world.machine.queues[1].messages.ready_count == 3, "all consumers have timed out"
    (first, attach), (second, other) = names
    applied = world.apply([world.op(second, Settle(1, "c", other, ((1, 3),)))])
    assert told(applied) == [(2, "active", 0)]
    assert sequences(applied) == [1, 2, 3]
    applied = world.apply([world.op(first, Settle(1, "c", attach, ((1, 3),)))])
    assert not applied.effects, "it waits again"
    assert told(world.apply([world.op(second, Cancel(1, "c", requeue=True))])) == [(1, "active", 0)]


def test_a_single_active_consumer_that_times_out_loses_all_its_messages() -> None:
    world = slow_world(single_active_consumer=True)
    first, attach = consumer(world, 1)
    consumer(world, 2)
    world.publish(producer(9), 3)
    world.publish(producer(9), 2, passed_ms=5 * STEP_MS)
    applied = time_out(world)
    assert told(applied) == [(1, "timed_out", 5), (2, "active", 0)]
    assert sequences(applied) == [1, 2, 3, 4, 5]
    world.machine = world.restored(snapshot.encode(world.machine))
    world.do(first, Settle(1, "c", attach, ((1, 3),)))
    active = world.machine.queues[1].consumers.single_active
    assert active is not None and len(active.candidates) == 1
    world.do(first, Settle(1, "c", attach, ((4, 5),)))
    assert len(active.candidates) == 2


def test_a_single_active_consumer_that_settles_in_time_keeps_its_later_messages() -> None:
    world = slow_world(single_active_consumer=True)
    name, attach = consumer(world, 1)
    world.publish(producer(9), 1)
    world.do(name, Settle(1, "c", attach, ((1, 1),)))
    world.apply([], TIMEOUT_MS - STEP_MS)
    world.publish(producer(9), 1)
    assert not told(world.wake(2 * STEP_MS))
    assert world.do(name, Settle(1, "c", attach, ((2, 2),))) == Ok(1)


def test_a_transaction_ends_only_if_its_consumer_has_messages_that_time_out() -> None:
    world = slow_world()
    name, attach = consumer(world, 1)
    world.publish(producer(9), 1)
    world.do(name, Settle(1, "c", attach, ((1, 1),)))
    world.apply([], TIMEOUT_MS - STEP_MS)
    world.publish(producer(9), 2)
    for tx in (1, 2):
        settle = world.op(name, Settle(1, "c", attach, ((tx + 1, tx + 1),)))
        assert world.apply([in_transaction(tx, settle)]).replies == (Ok(1),)
    world.wake(2 * STEP_MS)
    assert world.do(name, Commit(1, 1, 1)) == Ok()
    time_out(world)
    reply = world.do(name, Commit(2, 1, 1))
    assert isinstance(reply, Refused) and reply.reason == "rolled_back"


def test_consumers_that_have_all_timed_out_do_not_keep_a_new_one_waiting() -> None:
    world = slow_world(single_active_consumer=True)
    consumer(world, 1)
    world.publish(producer(9), 3)
    time_out(world)
    name = world.session(3, node=3)
    _, applied = world.attach(name, "c", 5)
    assert told(applied) == [(3, "active", 0)]
    assert sequences(applied) == [1, 2, 3]


def test_a_cancelled_single_active_consumer_that_never_settles_is_not_waited_for_for_ever() -> None:
    world = slow_world(single_active_consumer=True)
    name, _ = consumer(world, 1)
    world.publish(producer(9), 3)
    world.do(name, Cancel(1, "c", requeue=False))
    consumer(world, 2)
    applied = time_out(world)
    assert told(applied) == [(2, "active", 0)]
    assert sequences(applied) == [1, 2, 3]


def test_a_timeout_that_comes_later_counts_from_then_on() -> None:
    world = World(has_model=True)
    world.queue()
    world.session(9)
    consumer(world, 1)
    world.publish(producer(9), 3)
    config = QueueConfig("queue-1", consumer_timeout_ms=TIMEOUT_MS)
    world.apply([(None, UpdateConfig(1, config))], passed_ms=10_000)
    due = world.machine.next_wake()
    assert due is not None and due >= world.now_ms + TIMEOUT_MS
    assert told(time_out(world)) == [(1, "timed_out", 3)]


def test_a_shorter_timeout_counts_for_what_is_held_and_none_ends_it() -> None:
    world = slow_world()
    consumer(world, 1)
    world.publish(producer(9), 3)
    world.apply([(None, UpdateConfig(1, QueueConfig("queue-1", consumer_timeout_ms=160)))], passed_ms=500)
    assert world.machine.queues[1].messages.ready_count == 3
    world.apply([(None, UpdateConfig(1, QueueConfig("queue-1")))])
    assert world.machine.queues[1].consumers.timeouts.marks == {}
    assert world.machine.next_wake() is None


def test_a_much_shorter_timeout_counts_for_what_is_held_and_for_later_deliveries() -> None:
    world = World(has_model=True)
    world.queue(consumer_timeout_ms=10_000 * TIMEOUT_MS)
    world.session(9)
    consumer(world, 1)
    world.publish(producer(9), 3)
    world.apply([(None, UpdateConfig(1, QueueConfig("queue-1", consumer_timeout_ms=TIMEOUT_MS)))])
    world.publish(producer(9), 2)
    due = world.machine.next_wake()
    assert due is not None and world.now_ms + TIMEOUT_MS <= due < world.now_ms + TIMEOUT_MS + STEP_MS
    assert told(time_out(world)) == [(1, "timed_out", 5)]


def test_a_budget_spreads_many_messages_over_several_entries() -> None:
    world = World(replace(SMALL, max_consumers=100), has_model=True)
    world.queue(consumer_timeout_ms=TIMEOUT_MS)
    world.session(9)
    for number in range(1, 4):
        consumer(world, number, 15)
    for _ in range(5):
        world.publish(producer(9), 9)
    world.wake_until_done()
    held = world.machine.queues[1].messages.checked_out_count
    assert held == 45
    entries = [world.wake(3 * TIMEOUT_MS), *world.wake_until_done()]
    assert len(entries) > 2
    assert [node for entry in entries for node, event, _ in told(entry) if event == "timed_out"]
    assert world.machine.queues[1].messages.checked_out_count == 0


def test_a_restored_queue_times_out_at_the_same_moment() -> None:
    world = slow_world()
    name, attach = consumer(world, 1)
    world.publish(producer(9), 3)
    world.machine = world.restored(snapshot.encode(world.machine))
    assert told(time_out(world)) == [(1, "timed_out", 3)]
    world.machine = world.restored(snapshot.encode(world.machine))
    assert not world.publish(producer(9), 1).effects
    applied = world.apply([world.op(name, Settle(1, "c", attach, ((1, 3),)))])
    assert sequences(applied) == [1, 2, 3, 4]
    assert world.now_ms > START_MS


def test_the_first_consumer_of_a_mark_is_found_without_passing_those_that_were_taken() -> None:
    """A dict passes all keys that were deleted before its first one: 16,384 consumers would make that quadratic."""
    world = slow_world()
    for number in range(1, 4):
        consumer(world, number, credit=1)
    world.publish(producer(9), 3)
    for machine in (world.machine, world.restored(snapshot.encode(world.machine))):
        (mark,) = machine.queues[1].consumers.timeouts.marks.values()
        assert isinstance(mark, OrderedDict)
        assert [each.address.node for each in mark] == [1, 2, 3]


def test_without_a_timeout_nothing_is_noted() -> None:
    world = World(has_model=True)
    world.queue()
    world.session(9)
    consumer(world, 1)
    world.publish(producer(9), 3)
    assert world.machine.queues[1].consumers.timeouts.marks == {}
    assert not world.wake(10_000_000).effects
