"""Numbering, epochs, and what a producer may send twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fifo.budgets import Entry
from fifo.commands import (
    NODE,
    Address,
    CloseSession,
    Credit,
    Enqueue,
    Get,
    Meta,
    NodeDown,
    Operation,
    Origin,
    Purge,
    RegisterProducer,
    Settle,
)
from fifo.effects import Confirmed, Deliver, Done, Notify, Ok, Refused, Registered
from fifo.limits import PRODUCTION, Limits
from fifo.persistence import snapshot
from fifo.versions import CURRENT
from support.counted_lines import count_lines
from support.fifo.world import World, producer, sequences


def world_with_queue(limits: Limits = PRODUCTION) -> World:
    world = World(limits)
    world.queue()
    return world


def reason(reply: object) -> str:
    assert isinstance(reply, Refused), reply
    return reply.reason


def test_the_next_number_is_taken_a_lower_one_was_done_and_a_higher_one_is_refused() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 5)
    get = Get(1, 1, True)
    assert world.apply([(Origin(name, 1, 1), get)]).replies == (Done(),)
    assert reason(world.apply([(Origin(name, 1, 3), get)]).replies[0]) == "gap"
    assert world.apply([(Origin(name, 1, 2), get)]).replies == (Ok(1),)


def test_a_purge_of_a_session_is_carried_out_once() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 3)
    purge = world.op(name, Purge(1))
    assert world.apply([purge]).replies == (Ok(3),)
    world.publish(name, 2)
    assert world.apply([purge]).replies == (Done(),)
    info = world.info()
    assert info.ready == 2


def test_a_refused_command_uses_its_number() -> None:
    world = world_with_queue()
    name = world.session()
    assert reason(world.do(name, Get(99, 1, True))) == "not_found"
    assert world.do(name, Get(1, 1, True)) == Ok(0)


def test_an_unknown_producer_is_told_so() -> None:
    world = world_with_queue()
    get = Get(1, 1, True)
    assert reason(world.apply([(Origin(producer(9), 1, 1), get)]).replies[0]) == "not_registered"
    assert reason(world.apply([(Origin(producer(9), 1, 2), get)]).replies[0]) == "expired"
    assert reason(world.apply([(None, get)]).replies[0]) == "not_registered"


def test_a_message_sent_twice_is_taken_once() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 10, first=0, lowest_unconfirmed=0)
    assert world.publish(name, 10, first=5, lowest_unconfirmed=0).replies == (Confirmed(5, 14),)
    assert world.publish(name, 10, first=0, lowest_unconfirmed=0).replies == (Confirmed(0, 9),)
    info = world.info()
    assert info.ready == 15
    _, applied = world.attach(name, "a", 100)
    (effect,) = applied.effects
    assert isinstance(effect, Deliver)
    assert [(run.count, run.index, run.ordinal) for run in effect.runs] == [(10, 3, 0), (5, 4, 5)]


def test_a_new_epoch_learns_what_was_accepted() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 10, first=10, lowest_unconfirmed=10)
    world.publish(name, 5, first=30, lowest_unconfirmed=12)
    register = RegisterProducer(Address(2, 1, 5))
    reply = world.apply([(Origin(name, 2, 0), register)]).replies[0]
    assert reply == Registered(((12, 19), (30, 34)), known=True)
    assert world.apply([(Origin(name, 2, 0), register)]).replies[0] == reply
    assert reason(world.apply([(Origin(name, 1, 3), Get(1, 1, True))]).replies[0]) == "fenced"
    assert world.apply([(Origin(name, 2, 1), Get(1, 1, True))]).replies == (Ok(1),)


def test_a_higher_epoch_takes_back_what_the_lower_one_held_at_once() -> None:
    world = world_with_queue()
    name = world.session()
    other = world.session(2)
    world.publish(name, 5)
    world.attach(name, "a", 3)
    world.attach(other, "b", 10)
    applied = world.apply([(Origin(name, 2, 0), RegisterProducer(Address(2, 1, 5)))])
    assert Notify(Address(1, 1, 101), 0, "", 0, "fenced") in applied.effects
    assert sequences(applied, "b") == [1, 2, 3]
    assert applied.effects[-1].redelivered == 0b111  # type: ignore[union-attr]


@pytest.mark.parametrize("lowest_unconfirmed", [0, 1])
def test_an_ended_session_is_fenced_until_a_higher_epoch_is_registered(lowest_unconfirmed: int) -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 3, lowest_unconfirmed=lowest_unconfirmed)
    world.do(name, CloseSession())
    assert reason(world.do(name, Get(1, 1, True))) == "fenced"
    assert reason(world.apply([(Origin(name, 2, 1), Get(1, 1, True))]).replies[0]) == "not_registered"
    register = RegisterProducer(Address(1, 1, 101))
    assert reason(world.apply([(Origin(name, 1, 0), register)]).replies[0]) == "fenced"
    assert world.apply([(Origin(name, 2, 0), register)]).replies == (Registered(((1, 3),), known=True),)


def test_the_loss_of_a_process_ends_its_sessions_and_no_others() -> None:
    world = world_with_queue()
    lost = world.session(1, node=1, boot=3)
    later = world.session(2, node=1, boot=4)
    other = world.session(3, node=2, boot=1)
    world.publish(other, 4)
    world.attach(lost, "a", 4)
    world.attach(later, "b", 1)
    applied = world.apply([(None, NodeDown(1, 3))])
    assert sequences(applied, "b") == [1]
    assert reason(world.do(lost, Get(1, 1, True))) == "fenced"
    assert world.do(other, Get(1, 1, True)) == Ok(1)
    assert world.apply([(None, NodeDown(1, 3))]).effects == ()
    late = world.apply([(Origin(producer(7), 1, 0), RegisterProducer(Address(1, 2, 1)))])
    assert reason(late.replies[0]) == "fenced"


def test_many_sessions_of_a_lost_process_end_some_an_entry_and_none_of_them_speaks_meanwhile() -> None:
    world = world_with_queue()
    world.checks = False
    for number in range(600):
        world.session(number)
    first = world.apply([(None, NodeDown(1, 1))])
    assert len(first.effects) == sessions_per_entry()
    assert world.machine.next_wake() == world.now_ms
    assert reason(world.do(producer(599), Purge(1))) == "fenced"
    world.wake_until_done()
    assert len(world.machine.sessions.fences.by_name) == 600
    assert world.machine.next_wake() is None


def sessions_per_entry() -> int:
    return PRODUCTION.ended_per_entry


def test_an_idle_producer_is_forgotten_after_a_day_but_not_while_its_session_lives() -> None:
    world = world_with_queue()
    gone, alive = world.session(1), world.session(2)
    world.publish(gone, 3)
    world.do(gone, CloseSession())
    world.do(alive, Get(1, 1, True), passed_ms=PRODUCTION.remembered_ms - 1)
    assert gone in world.machine.sessions.producers
    world.do(alive, Get(1, 1, True))
    assert gone not in world.machine.sessions.producers
    assert alive in world.machine.sessions.producers
    assert reason(world.do(gone, Get(1, 1, True))) == "fenced"
    again = publish_again(world, gone, Enqueue(1, 1, 1, 3, 300), 1)
    assert again == Confirmed(1, 3), "taken once more: clients give up before that"
    info = world.info()
    assert info.ready == 4


def broken(world: World, number: int, owner: int) -> object:
    """A new producer publishes one message, and its session breaks; the answer to its registration."""
    name = producer(number)
    register = RegisterProducer(Address(1, 1, number), owner)
    one = Enqueue(1, 1, 1, 1, 100)
    operations = ((0, register), (1, one), (2, CloseSession()))
    return world.apply([(Origin(name, 1, n), command) for n, command in operations]).replies[0]


def publish_again(world: World, name: bytes, command: Enqueue, session: int) -> object:
    """The producer's next session sends the batch once more; the answer."""
    register = RegisterProducer(Address(1, 1, session))
    return world.apply([(Origin(name, 2, 0), register), (Origin(name, 2, 1), command)]).replies[1]


def test_no_number_of_other_producers_makes_a_group_take_an_unconfirmed_message_twice() -> None:
    world = world_with_queue()
    world.checks = False
    victim = world.session(1)
    world.publish(victim, 10, first=1, lowest_unconfirmed=1)
    world.do(victim, CloseSession())
    for number in range(10_001):
        broken(world, 100 + number, owner=2 + number)
    before = world.info()
    assert publish_again(world, victim, Enqueue(1, 1, 1, 10, 100), 20_000) == Confirmed(1, 10)
    assert world.info() == before


def test_past_ten_thousand_producers_a_new_one_is_refused_and_a_known_one_is_not() -> None:
    world = world_with_queue(replace(PRODUCTION, max_producers=6))
    for number in range(6):
        assert broken(world, number, owner=2 + number) == Registered((), known=False)
    assert reason(broken(world, 6, owner=9)) == "limit"
    assert publish_again(world, producer(3), Enqueue(1, 1, 1, 1, 100), 30) == Confirmed(1, 1)
    world.wake(passed_ms=PRODUCTION.remembered_ms)
    assert broken(world, 6, owner=9) == Registered((), known=False)


def test_one_owner_has_as_many_producers_as_are_left_free_and_the_others_still_come_in() -> None:
    world = world_with_queue(replace(PRODUCTION, max_producers=16))
    registered = dict.fromkeys((77, 78, 79, 80), 0)
    for number, owner in enumerate(owner for owner in registered for _ in range(16)):
        if broken(world, number, owner=owner) == Registered((), known=False):
            registered[owner] += 1
    assert registered == {77: 8, 78: 4, 79: 2, 80: 1}
    assert broken(world, 99, owner=81) == Registered((), known=False)
    assert reason(broken(world, 100, owner=82)) == "limit"


def test_a_producer_counts_for_the_owner_of_its_present_session() -> None:
    world = world_with_queue(replace(PRODUCTION, max_producers=3))
    broken(world, 0, owner=77)
    broken(world, 3, owner=79)
    moved = RegisterProducer(Address(1, 1, 50), owner=78)
    world.apply([(Origin(producer(0), 2, 0), moved)])
    assert reason(broken(world, 1, owner=78)) == "limit"
    assert broken(world, 2, owner=77) == Registered((), known=False)


def test_sessions_of_the_nodes_are_never_locked_out() -> None:
    world = world_with_queue(replace(PRODUCTION, max_producers=2))
    for number in range(2):
        broken(world, number, owner=2 + number)
    for number in range(2, 7):
        assert broken(world, number, NODE) == Registered((), known=False)
    assert len(world.machine.sessions.producers) == 2, "nor is there anything to remember of them"


def test_sessions_of_the_nodes_take_no_places_of_clients() -> None:
    world = world_with_queue(replace(PRODUCTION, max_producers=2))
    for number in range(5):
        world.session(number, owner=NODE)
    for owner in (2, 3):
        assert broken(world, 10 + owner, owner) == Registered((), known=False)
    assert reason(broken(world, 14, owner=4)) == "limit"


def test_a_session_closed_with_nothing_unconfirmed_is_forgotten_at_once() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 3)
    world.do(name, CloseSession(is_clean=True))
    assert name not in world.machine.sessions.producers


def test_a_broken_session_without_a_taken_message_leaves_nothing_to_remember() -> None:
    world = world_with_queue()
    name = world.session()
    world.attach(name, "a", 10)
    world.apply([(None, NodeDown(1, 1))])
    assert name not in world.machine.sessions.producers


def test_late_operations_of_a_forgotten_producer_are_refused() -> None:
    """An earlier session's node was cut off from the group; its operations arrive when everything is settled."""
    world = world_with_queue()
    name = world.session(epoch=2, node=2)
    world.publish(name, 3, first=1, lowest_unconfirmed=1)
    world.do(name, CloseSession(is_clean=True))
    late = Address(1, 1, 101)
    for epoch, address in ((1, late), (2, world_address(name, 2))):
        replies = world.apply(
            [
                (Origin(name, epoch, 0), RegisterProducer(address)),
                (Origin(name, epoch, 1), Enqueue(1, 1, 1, 3, 300)),
            ]
        ).replies
        assert [reason(reply) for reply in replies] == ["fenced", "fenced"]
    assert world.apply([(Origin(name, 3, 0), RegisterProducer(late))]).replies == (
        Registered((), known=False),
    )


def world_address(name: bytes, epoch: int) -> Address:
    return Address(2, 1, int.from_bytes(name[8:], "big") * 100 + epoch)


def test_a_fence_does_not_go_by_time() -> None:
    world = world_with_queue()
    world.do(world.session(1, epoch=2), CloseSession(is_clean=True))
    world.wake(passed_ms=100 * PRODUCTION.remembered_ms)
    assert reason(registered(world, 1, world.now_ms)) == "fenced"


def test_a_producer_that_is_forgotten_by_time_leaves_a_fence() -> None:
    world = world_with_queue()
    name = world.session(1, epoch=2)
    world.publish(name, 3, first=1, lowest_unconfirmed=1)
    world.do(name, CloseSession())
    world.wake(passed_ms=PRODUCTION.remembered_ms)
    assert name not in world.machine.sessions.producers
    assert reason(registered(world, 1, world.now_ms)) == "fenced"


@pytest.mark.parametrize("ended_cleanly", [True, False])
def test_a_session_that_is_older_than_a_lost_fence_is_not_taken_for_a_new_producer(
    ended_cleanly: bool,
) -> None:
    """A node stands still with the first session's operations. The client ends a later one; many others end, too."""
    world = world_with_queue(replace(PRODUCTION, max_fences=3))
    opened_ms = world.now_ms
    name = world.session(1, epoch=2, node=2)
    world.publish(name, 10, first=1, lowest_unconfirmed=1)
    world.do(name, CloseSession(is_clean=ended_cleanly))
    if not ended_cleanly:
        world.wake(passed_ms=PRODUCTION.remembered_ms)
    for number in range(2, 6):
        world.wake(passed_ms=10)
        world.do(world.session(number), CloseSession())
    assert name not in world.machine.sessions.fences.by_name
    again = Operation(1, Origin(name, 1, 1), Enqueue(1, 1, 1, 10, 100))
    for heard_ms in (0, opened_ms):
        assert reason(registered(world, 1, heard_ms)) == "outdated"
        assert reason(world.apply([(again.origin, again.command)]).replies[0]) == "not_registered"
    info = world.info()
    assert info.ready == 10


def test_a_session_opened_after_the_lost_fences_registers() -> None:
    world = world_with_queue(replace(PRODUCTION, max_fences=3))
    for number in range(6):
        world.wake(passed_ms=10)
        world.do(world.session(number), CloseSession())
    lost_ms = world.machine.sessions.fences.lost_ms
    assert list(world.machine.sessions.fences.by_name) == [producer(number) for number in (3, 4, 5)]
    assert reason(registered(world, 7, lost_ms)) == "outdated"
    assert registered(world, 7, lost_ms + 1) == Registered((), known=False)
    assert registered(world, 8, 0, NODE) == Registered((), known=False), (
        "a node uses a producer for one session only"
    )


def test_lost_fences_outlive_a_snapshot() -> None:
    world = world_with_queue(replace(PRODUCTION, max_fences=1))
    for number in range(3):
        world.do(world.session(number), CloseSession())
    restored = world.restored(snapshot.encode(world.machine))
    assert restored.sessions.fences.lost_ms == world.machine.sessions.fences.lost_ms > 0


def registered(world: World, number: int, heard_ms: int, owner: int = 77) -> object:
    """The answer to a registration of the producer's first epoch."""
    register = RegisterProducer(Address(1, 1, number), owner, heard_ms)
    return world.apply([(Origin(producer(number), 1, 0), register)]).replies[0]


def test_entries_of_version_1_forget_to_make_room_as_they_did() -> None:
    world = world_with_queue(replace(PRODUCTION, max_producers=2))
    machine = world.machine
    for number in range(4):
        index = world.index + 1 + number
        name = producer(number)
        operations = [
            Operation(0, Origin(name, 1, 0), RegisterProducer(Address(1, 1, number))),
            Operation(1, Origin(name, 1, 1), CloseSession()),
        ]
        assert machine.apply(Meta(index, 1, world.now_ms, 1), operations).replies == (
            Registered((), known=False),
            Ok(),
        )
    assert list(machine.sessions.producers) == [producer(2), producer(3)]


# ---- order


def test_a_message_refused_before_a_later_one_was_taken_stays_refused() -> None:
    world = World()
    world.queue(1, max_length=10, overflow="reject_publish")
    name, consumer = world.session(1), world.session(2)
    world.publish(name, 10, first=1, lowest_unconfirmed=1)
    assert reason(world.publish(name, 5, first=11, lowest_unconfirmed=1).replies[0]) == "queue_full"
    world.do(consumer, Get(1, 10, True))
    assert world.publish(name, 5, first=16, lowest_unconfirmed=1).replies == (Confirmed(16, 20),)
    world.session(1, epoch=2)
    again = world.publish(name, 5, first=11, lowest_unconfirmed=11).replies[0]
    assert reason(again) == "refused_earlier"
    assert world.publish(name, 5, first=16, lowest_unconfirmed=11).replies == (Confirmed(16, 20),)
    info = world.info()
    assert info.ready == 5


def test_a_message_that_never_came_is_refused_once_a_later_one_was_taken() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 5, first=6, lowest_unconfirmed=1)
    assert reason(world.publish(name, 5, first=1, lowest_unconfirmed=1).replies[0]) == "refused_earlier"


def test_order_is_by_group_whatever_the_queue() -> None:
    world = world_with_queue()
    world.queue(2)
    name = world.session()
    assert world.publish(name, 1, first=2, lowest_unconfirmed=1, queue=2).replies == (Confirmed(2, 2),)
    assert reason(world.publish(name, 1, first=1, lowest_unconfirmed=1).replies[0]) == "refused_earlier"


def test_new_messages_are_taken_after_everything_before_was_confirmed() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 5, first=1, lowest_unconfirmed=1)
    assert world.publish(name, 1, first=3, lowest_unconfirmed=6).replies == (Confirmed(3, 3),)
    assert not list(world.machine.sessions.producers[name].accepted)
    assert world.publish(name, 2, first=6, lowest_unconfirmed=6).replies == (Confirmed(6, 7),)


def test_of_a_batch_that_was_taken_in_part_each_part_has_its_own_answer() -> None:
    world = World()
    world.queue(1, max_length=4, overflow="reject_publish")
    name, consumer = world.session(1), world.session(2)
    world.publish(name, 2, first=3, lowest_unconfirmed=1)
    reply = world.publish(name, 8, first=1, lowest_unconfirmed=1).replies[0]
    assert isinstance(reply, Confirmed)
    assert (reply.first, reply.last) == (1, 8)
    assert [(first, last, why.reason) for first, last, why in reply.refused] == [
        (1, 2, "refused_earlier"),
        (5, 8, "queue_full"),
    ]
    world.do(consumer, Get(1, 2, True))
    reply = world.publish(name, 6, first=1, lowest_unconfirmed=1).replies[0]
    assert isinstance(reply, Confirmed)
    assert [(first, last) for first, last, _ in reply.refused] == [(1, 2)]
    reply = world.publish(name, 4, first=3, lowest_unconfirmed=1).replies[0]
    assert reply == Confirmed(3, 6)


def test_a_full_queue_takes_those_of_independent_messages_that_fit() -> None:
    world = World()
    world.queue(1, max_length=5, overflow="reject_publish")
    name = world.session()
    world.publish(name, 3, first=1)
    reply = world.publish(name, 4, first=4, lowest_unconfirmed=1, independent=True).replies[0]
    assert isinstance(reply, Confirmed)
    assert [(first, last, why.reason) for first, last, why in reply.refused] == [(6, 7, "queue_full")]
    assert list(world.machine.sessions.producers[name].accepted) == [(1, 5)]
    assert (
        reason(world.publish(name, 2, first=8, lowest_unconfirmed=1, independent=True).replies[0])
        == "queue_full"
    )


def test_independent_messages_that_are_sent_again_are_taken_once_and_in_order() -> None:
    world = World()
    world.queue(1, max_length=5, overflow="reject_publish")
    name, consumer = world.session(1), world.session(2)
    world.publish(name, 7, first=1, lowest_unconfirmed=1, independent=True)
    world.do(consumer, Get(1, 3, True))
    reply = world.publish(name, 7, first=1, lowest_unconfirmed=1, independent=True).replies[0]
    assert reply == Confirmed(1, 7)
    assert world.info().ready == 4
    world.publish(name, 3, first=10, lowest_unconfirmed=1, independent=True)
    reply = world.publish(name, 3, first=10, lowest_unconfirmed=1, independent=True).replies[0]
    assert isinstance(reply, Confirmed)
    assert [(first, last, why.reason) for first, last, why in reply.refused] == [(11, 12, "queue_full")]


def test_entries_of_version_1_take_messages_in_any_order_as_they_did() -> None:
    world = world_with_queue()
    name = world.session()
    for n, first in ((1, 6), (2, 1)):
        command = Enqueue(1, first, 1, 5, 500)
        entry = Meta(world.index + n, 1, world.now_ms, 1)
        reply = world.machine.apply(entry, [Operation(0, Origin(name, 1, n), command)]).replies[0]
        assert reply == Confirmed(first, first + 4)


def test_a_message_beyond_the_window_is_refused() -> None:
    world = world_with_queue()
    name = world.session()
    far = world.publish(name, 1, first=PRODUCTION.window, lowest_unconfirmed=0)
    assert reason(far.replies[0]) == "limit"
    near = world.publish(name, 1, first=PRODUCTION.window - 1, lowest_unconfirmed=0)
    assert near.replies == (Confirmed(PRODUCTION.window - 1, PRODUCTION.window - 1),)


def test_what_was_confirmed_and_is_below_the_window_is_not_taken_again() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 10, first=0, lowest_unconfirmed=0)
    world.publish(name, 1, first=10, lowest_unconfirmed=10)
    world.publish(name, 12, first=0, lowest_unconfirmed=0)
    info = world.info()
    assert info.ready == 12


def test_refused_commands_leave_the_state_as_it_was() -> None:
    world = World()
    world.queue(1, max_length=5, overflow="reject_publish")
    name = world.session()
    world.publish(name, 5)
    attach, _ = world.attach(name, "a", 2)
    before = snapshot.encode(world.machine)
    commands = [
        world.batch(name, 9, first=100, lowest_unconfirmed=0)[1],
        world.batch(name, 0, first=100, lowest_unconfirmed=0)[1],
        world.batch(name, 2, first=100, lowest_unconfirmed=0, ttls_ms=(1,))[1],
        world.batch(name, 2, first=100, lowest_unconfirmed=0, ttls_ms=(1, 1 << 70))[1],
        world.batch(name, 3, first=100, lowest_unconfirmed=90)[1],
        world.batch(name, 2, first=(1 << 63) - 2, lowest_unconfirmed=(1 << 63) - 2)[1],
        Enqueue(1, 100, 0, 2, -5),
        Credit(1, "nobody", 10),
        Credit(1, "a", -1),
        Settle(1, "a", attach + 1, ((1, 1),), 50),
        Settle(1, "nobody", attach, ((1, 1),)),
        Settle(1, "a", attach, ((1, 1),), -3),
        Settle(1, "a", attach, ((2, 1),)),
        Settle(1, "a", attach, ((-1, 1),)),
        Get(1, 0, False),
        Get(2, 1, False),
        Purge(2),
    ]
    world.numbers[name] -= 6
    for command in commands:
        world.machine = world.restored(before)
        world.machine.sessions.producers[name].last_n = world.numbers[name]
        reply = world.do(name, command)
        assert isinstance(reply, Refused), command
        world.machine.sessions.producers[name].last_n = 2
        for attribute in ("index", "now_ms", "running_hash"):
            setattr(world.machine, attribute, getattr(world.restored(before), attribute))
        assert snapshot.encode(world.machine) == before, command


def test_a_group_tells_which_messages_of_a_producer_it_has_taken() -> None:
    world = World()
    world.queue(max_length=4, overflow="reject_publish")
    name = world.session()
    assert world.machine.taken(name, 1, 1, 10) == ([], 0)
    world.do(name, Enqueue(1, 1, 1, 3, 3))
    world.do(name, Enqueue(1, 4, 1, 2, 2))  # refused: the queue is full
    world.do(name, Enqueue(1, 6, 1, 1, 1))
    assert world.machine.taken(name, 1, 1, 10) == ([(1, 3), (6, 6)], 6)
    assert world.machine.taken(name, 1, 2, 5) == ([(2, 3)], 6)
    assert world.machine.taken(name, 1, 4, 5) == ([], 6)
    world.do(name, Enqueue(1, 6, 6, 1, 1))  # its client knows what has become of the messages below 6
    assert world.machine.taken(name, 1, 5, 7) == ([(5, 5), (6, 6)], 6)
    assert world.machine.taken(name, 2, 1, 10) is None, "a session of another epoch"
    assert world.machine.taken(b"another producer", 1, 1, 10) is None


def test_the_processes_with_sessions_are_known_without_a_look_at_each_session() -> None:
    """The leader asks ten times a second."""
    world = world_with_queue()
    for number in range(100):
        world.apply([(Origin(producer(number), 1, 0), RegisterProducer(Address(2 + number % 2, 5, number)))])
    assert world.machine.live_nodes() == [(2, 5), (3, 5)]
    assert count_lines(world.machine.live_nodes) < 10
    world.apply([(Origin(producer(0), 2, 0), RegisterProducer(Address(4, 1, 1)))])
    world.apply([(None, NodeDown(2, 5))])
    world.wake_until_done()
    assert world.machine.live_nodes() == [(3, 5), (4, 1)]
    world.apply([(Origin(producer(0), 2, 1), CloseSession())])
    assert world.machine.live_nodes() == [(3, 5)]
    assert world.restored(snapshot.encode(world.machine)).live_nodes() == [(3, 5)]


@pytest.mark.parametrize("arguments", [{}, {"message_groups": True}, {"max_priority": 3}])
def test_the_end_of_a_session_visits_each_block_once_for_all_its_consumers(arguments: dict[str, Any]) -> None:
    def end(blocks: int) -> int:
        world = World(Limits(block_bits=6, quantum=1))
        world.checks = False
        world.queue(**arguments)
        publisher, name = world.session(), world.session(2)
        for number in range(64):
            world.attach(name, f"c{number}", blocks)
        for _ in range(blocks):
            world.publish(publisher, 64)
        held = [consumer.held_count for consumer in world.machine.consumers(1)]
        assert sum(held) == 64 * blocks and max(held) == blocks
        lines = count_lines(lambda: world.apply([world.op(name, CloseSession())]))
        info = world.info()
        assert info.ready == 64 * blocks
        return lines

    assert end(40) < 3 * end(2)


@pytest.mark.parametrize("has_expired", [False, True])
def test_what_several_consumers_hold_is_requeued_together_like_that_of_one_after_the_other(
    has_expired: bool,
) -> None:
    """Also where some has expired: the runs of a block are compacted each time that messages leave."""

    def requeued(*, together: bool) -> bytes:
        world = World(Limits(block_bits=6))
        world.queue()
        publisher, name = world.session(), world.session(2)
        for tag in "abc":
            world.attach(name, tag, 60)
        for number in range(180):
            world.publish(publisher, 1, ttl_ms=1_000 if number % 8 else -1)
        world.now_ms += 1_000 * has_expired
        machine = world.machine.queues[1]
        entry = Entry(world.index + 1, world.now_ms, CURRENT, world.limits)
        held = [consumer.checked_out.remove_all() for consumer in machine.consumers.by_key.values()]
        assert [sum(count for _, count in ranges) for ranges in held] == [60, 60, 60]
        if together:
            machine.messages.requeue_of_each(entry, held)
        else:
            for ranges in held:
                machine.messages.requeue(entry, ranges, failed=False)
        assert (machine.messages.dropped["expired"] > 0) == has_expired
        return snapshot.encode(world.machine)

    assert requeued(together=True) == requeued(together=False)
