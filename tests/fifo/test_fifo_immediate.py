"""Immediate messages: taken where a consumer can have them at once, and refused elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fifo.commands import Attach, Commit, Credit, Discard, Enqueue, InTransaction, Settle, UpdateConfig
from fifo.effects import AttachedReply, Confirmed, Ok, Reply
from fifo.limits import PRODUCTION, SMALL, Limits
from fifo.persistence import snapshot
from support.fifo.world import World, plain_reply, selector, sequences

RED = {"application-properties.colour": "red"}
GREEN = {"application-properties.colour": "green"}
IS_RED = selector("colour = 'red'")


def prepared(limits: Limits = PRODUCTION, **arguments: Any) -> tuple[World, bytes]:
    world = World(limits, has_model=True)
    world.queue(1, filter_enabled=True, **arguments)
    world.queue(2)
    return world, world.session()


def attach(
    world: World, credit: int, text: bytes = b"", queue: int = 1, number: int = 2, **more: Any
) -> bytes:
    name = world.session(number)
    assert isinstance(world.do(name, Attach(queue, "tag", text, credit, **more)), AttachedReply)
    return name


def publish(world: World, name: bytes, count: int = 1, rows: Any = (), **more: Any) -> Reply | None:
    more.setdefault("independent", count > 1)
    return world.apply([world.batch(name, count, rows, immediate=True, **more)]).replies[0]


def refused(first: int, last: int, *numbers: int) -> Any:
    return first, last, [(number, "no_consumers") for number in numbers]


def ready(world: World, queue: int = 1) -> int:
    info = world.info(queue)
    return info.ready


def test_a_message_without_a_consumer_is_refused_and_not_kept() -> None:
    world, name = prepared()
    assert plain_reply(publish(world, name)) == refused(1, 1, 1)
    assert ready(world) == 0
    attach(world, 0)
    assert plain_reply(publish(world, name)) == refused(2, 2, 2)


def test_a_message_for_a_consumer_with_credit_is_handed_out_in_its_entry() -> None:
    world, name = prepared()
    attach(world, 1)
    applied = world.apply([world.batch(name, 1, immediate=True)])
    assert applied.replies == (Confirmed(1, 1),)
    assert sequences(applied) == [1]


def test_as_many_messages_are_taken_as_there_is_credit() -> None:
    world, name = prepared()
    attach(world, 2)
    attach(world, 1, number=3)
    assert plain_reply(publish(world, name, 5)) == refused(1, 5, 4, 5)
    assert ready(world) == 0
    assert plain_reply(publish(world, name)) == refused(6, 6, 6)


def test_a_batch_that_is_not_independent_is_taken_as_a_whole_or_not_at_all() -> None:
    world, name = prepared()
    attach(world, 2)
    assert plain_reply(publish(world, name, 3, independent=False)) == refused(1, 3, 1, 2, 3)
    assert plain_reply(publish(world, name, 2, independent=False)) == (4, 5, [])


def test_only_messages_that_a_selector_matches_are_taken() -> None:
    world, name = prepared()
    attach(world, 10, IS_RED)
    assert plain_reply(publish(world, name, 3, [RED, GREEN, RED])) == refused(1, 3, 2)
    assert ready(world) == 0


def test_many_selectors_and_messages_are_judged_together() -> None:
    world, name = prepared()
    for number in range(40):
        attach(world, 1, selector(f"size = {number}"), number=10 + number)
    rows = [{"application-properties.size": number} for number in range(50)]
    assert plain_reply(publish(world, name, 50, rows)) == refused(1, 50, *range(41, 51))
    assert ready(world) == 0


def test_the_consumer_of_the_highest_priority_is_the_first() -> None:
    world, name = prepared()
    attach(world, 1, IS_RED, priority=1)
    attach(world, 1, number=3)
    assert plain_reply(publish(world, name, 2, [RED, GREEN])) == (1, 2, [])
    assert ready(world) == 0


def test_what_arrived_before_in_the_same_entry_is_ahead() -> None:
    world, name = prepared()
    attach(world, 2)
    others = [world.batch(name, 1, place=0), world.batch(name, 2, place=1, immediate=True, independent=True)]
    assert plain_reply(world.apply(others).replies[1]) == refused(2, 3, 3)


def test_a_queue_whose_work_is_not_finished_takes_none() -> None:
    world, name = prepared(SMALL)
    attach(world, 100, IS_RED)
    world.apply([world.batch(name, 40, [GREEN] * 40)])
    assert world.machine.queues[1].unfinished
    assert plain_reply(publish(world, name, 1, [RED])) == refused(41, 41, 41)
    world.wake_until_done()
    assert plain_reply(publish(world, name, 1, [RED])) == (42, 42, [])


def test_a_message_that_is_delayed_is_not_taken_at_once() -> None:
    world, name = prepared()
    attach(world, 10)
    reply = publish(world, name, 3, due_times_ms=(0, -50, 0))
    assert plain_reply(reply) == refused(1, 3, 2)


def test_a_queue_with_message_groups_takes_none() -> None:
    world, name = prepared(message_groups=True)
    attach(world, 10)
    assert plain_reply(publish(world, name)) == refused(1, 1, 1)


def test_a_consumer_that_is_not_the_active_one_takes_none() -> None:
    world = World(has_model=True)
    world.queue(1, single_active_consumer=True)
    name = world.session()
    attach(world, 0)
    attach(world, 10, number=3)
    assert plain_reply(publish(world, name)) == refused(1, 1, 1)


def test_only_the_queues_whose_consumers_can_take_a_message_get_it() -> None:
    world, name = prepared()
    attach(world, 1, IS_RED)
    attach(world, 2, queue=2, number=3)
    routes = [(1, 2), (1,), (2,), (1, 2)]
    reply = world.apply(
        [world.routed(name, routes, [RED, GREEN, RED, RED], plain=(2,), independent=True, immediate=True)]
    ).replies[0]
    assert plain_reply(reply) == refused(1, 4, 2, 4)
    published = [world.info(queue).totals.published for queue in (1, 2)]
    assert published == [1, 2]


def test_a_full_queue_refuses_with_its_own_reason() -> None:
    world, name = prepared()
    config = replace(world.machine.queues[2].messages.config, max_length=1, overflow="reject_publish")
    world.apply([(None, UpdateConfig(2, config))])
    attach(world, 10, queue=2)
    assert plain_reply(publish(world, name, 3, queue=2)) == (1, 3, [(2, "queue_full"), (3, "queue_full")])


def test_a_part_without_messages_leaves_no_trace_in_the_scans_of_selectors() -> None:
    """A restored member and one that was not agree on who shares the scan of arrivals."""
    world, name = prepared()
    attach(world, 10, IS_RED)
    green = attach(world, 1, selector("colour = 'green'"), number=3)
    attach(world, 10, queue=2, number=4)
    world.publish(name, 2, [RED, GREEN])
    blue = {"application-properties.colour": "blue"}
    origin, command = world.routed(name, [(1, 2)], [blue], 0, [0], plain=(2,), immediate=True)
    assert isinstance(command, Enqueue)
    assert world.apply([(origin, InTransaction(1, command))]).replies == (Ok(1),)
    assert world.do(name, Commit(1)) == Ok()
    world.twin = world.restored(snapshot.encode(world.machine))
    world.do(green, Credit(1, "tag", 5))


def test_a_queue_that_does_not_exist_refuses_an_immediate_message_as_any_other() -> None:
    world, name = prepared()
    other, plain = publish(world, name, queue=77), world.apply([world.batch(name, 1, queue=77)]).replies[0]
    assert other == plain
    assert getattr(plain, "reason", "") == "not_found"


def test_a_message_that_was_taken_is_confirmed_when_it_comes_again() -> None:
    world, name = prepared()
    attach(world, 1)
    assert publish(world, name, first=1, lowest_unconfirmed=1) == Confirmed(1, 1)
    assert publish(world, name, first=1, lowest_unconfirmed=1) == Confirmed(1, 1)


def test_a_refused_message_may_be_published_again_under_its_number() -> None:
    world, name = prepared()
    assert plain_reply(publish(world, name, first=1)) == refused(1, 1, 1)
    attach(world, 1)
    assert publish(world, name, first=1) == Confirmed(1, 1)


def test_the_messages_of_a_transaction_are_judged_when_they_are_published() -> None:
    world, name = prepared()
    consumer = attach(world, 1)
    origin, command = world.batch(name, 1, first=0, immediate=True)
    assert world.apply([(origin, InTransaction(1, command))]).replies == (Ok(1),)
    world.apply([world.batch(name, 1)])  # takes the credit
    assert world.do(name, Commit(1)) == Ok()
    assert ready(world) == 1, "it waits: the consumer got another message after it was judged"
    attached = world.machine.queues[1].consumers.by_key[consumer, "tag"].attach
    assert world.do(consumer, Settle(1, "tag", attached, ((1, 1),), 2)) == Ok(1)
    assert ready(world) == 0


def test_a_message_that_nobody_can_take_ends_its_transaction() -> None:
    world, name = prepared()
    origin, plain = world.batch(name, 1, first=0)
    world.apply([(origin, InTransaction(1, plain))])
    origin, command = world.batch(name, 1, first=0, immediate=True)
    reply = world.apply([(origin, InTransaction(1, command))]).replies[0]
    assert plain_reply(reply) == ("refused", "no_consumers")
    assert plain_reply(world.do(name, Commit(1))) == ("refused", "rolled_back")
    assert ready(world) == 0


def test_a_queue_of_a_transaction_that_gets_no_message_counts_as_an_operation() -> None:
    world, name = prepared()
    attach(world, 5)
    origin, command = world.routed(name, [(1, 2), (1,)], immediate=True, plain=(1, 2))
    assert isinstance(command, Enqueue)
    command = replace(command, first_client_sequence=0, lowest_unconfirmed=0, numbers=())
    assert world.apply([(origin, InTransaction(1, command))]).replies == (Ok(2),)
    assert world.do(name, Commit(1, 2)) == Ok()
    assert [ready(world, 1), ready(world, 2)] == [0, 0]


def test_a_consumer_that_gives_its_messages_back_can_take_them_again() -> None:
    world, name = prepared()
    consumer = attach(world, 1)
    publish(world, name)
    attached = world.machine.queues[1].consumers.by_key[consumer, "tag"].attach
    world.do(consumer, Discard(1, "tag", attached, ((1, 1),), 2))
    assert publish(world, name) == Confirmed(2, 2)
