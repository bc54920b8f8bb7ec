"""Numbering, epochs, and what a producer may send twice."""

from __future__ import annotations

from fifo import sessions
from fifo.commands import (
    Address,
    CloseSession,
    Credit,
    Enqueue,
    Get,
    NodeDown,
    Origin,
    Purge,
    RegisterProducer,
    Settle,
)
from fifo.effects import Confirmed, Deliver, Done, Notify, Ok, Refused, Registered
from support.fifo_world import World, producer, sequences


def world_with_queue() -> World:
    world = World()
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
    info = world.machine.info(1)
    assert info is not None
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


def test_an_ended_session_is_fenced_until_a_higher_epoch_is_registered() -> None:
    world = world_with_queue()
    name = world.session()
    world.do(name, CloseSession())
    assert reason(world.do(name, Get(1, 1, True))) == "fenced"
    register = RegisterProducer(Address(1, 1, 101))
    assert reason(world.apply([(Origin(name, 1, 0), register)]).replies[0]) == "fenced"
    assert world.apply([(Origin(name, 2, 0), register)]).replies == (Registered((), known=True),)


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
    assert len(world.machine.sessions.ended) == 600
    assert world.machine.next_wake() is None


def sessions_per_entry() -> int:
    from fifo.group import ENDED_PER_ENTRY

    return ENDED_PER_ENTRY


def test_an_idle_producer_is_forgotten_after_a_day_but_not_while_its_session_lives() -> None:
    world = world_with_queue()
    gone, alive = world.session(1), world.session(2)
    world.publish(gone, 3)
    world.do(gone, CloseSession())
    world.do(alive, Get(1, 1, True), passed_ms=sessions.REMEMBERED_MS - 1)
    assert gone in world.machine.sessions.producers
    world.do(alive, Get(1, 1, True))
    assert gone not in world.machine.sessions.producers
    assert alive in world.machine.sessions.producers
    assert reason(world.do(gone, Get(1, 1, True))) == "expired"
    assert world.apply([(Origin(gone, 2, 0), RegisterProducer(Address(1, 1, 1)))]).replies == (
        Registered((), known=False),
    )


def test_at_most_ten_thousand_producers_are_remembered_the_longest_idle_goes_first() -> None:
    world = world_with_queue()
    world.checks = False
    for number in range(sessions.MAX_PRODUCERS):
        world.session(number)
    refused = world.apply([(Origin(producer(20_000), 1, 0), RegisterProducer(Address(1, 1, 1)))])
    assert reason(refused.replies[0]) == "limit"
    world.do(producer(17), CloseSession())
    world.do(producer(5), CloseSession())
    world.session(20_001)
    assert producer(17) not in world.machine.sessions.producers
    assert producer(5) in world.machine.sessions.producers
    assert len(world.machine.sessions.producers) == sessions.MAX_PRODUCERS


def test_a_message_beyond_the_window_is_refused() -> None:
    world = world_with_queue()
    name = world.session()
    far = world.publish(name, 1, first=sessions.WINDOW, lowest_unconfirmed=0)
    assert reason(far.replies[0]) == "limit"
    near = world.publish(name, 1, first=sessions.WINDOW - 1, lowest_unconfirmed=0)
    assert near.replies == (Confirmed(sessions.WINDOW - 1, sessions.WINDOW - 1),)


def test_what_was_confirmed_and_is_below_the_window_is_not_taken_again() -> None:
    world = world_with_queue()
    name = world.session()
    world.publish(name, 10, first=0, lowest_unconfirmed=0)
    world.publish(name, 1, first=10, lowest_unconfirmed=10)
    world.publish(name, 12, first=0, lowest_unconfirmed=0)
    info = world.machine.info(1)
    assert info is not None
    assert info.ready == 12


def test_refused_commands_leave_the_state_as_it_was() -> None:
    world = World()
    world.queue(1, max_length=5, overflow="reject_publish")
    name = world.session()
    world.publish(name, 5)
    attach, _ = world.attach(name, "a", 2)
    before = world.machine.snapshot()
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
        world.machine = world.machine.restore(before, world.log)
        world.machine.sessions.producers[name].last_n = world.numbers[name]
        reply = world.do(name, command)
        assert isinstance(reply, Refused), command
        world.machine.sessions.producers[name].last_n = 2
        for attribute in ("index", "now_ms", "running_hash"):
            setattr(world.machine, attribute, getattr(world.machine.restore(before, world.log), attribute))
        assert world.machine.snapshot() == before, command
