"""Transactions over several groups, as one of the groups sees them: prepared parts, and decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Ok, Refused, Reply
from fifo.limits import PRODUCTION, Limits
from fifo.persistence import checkpoint, snapshot
from fifo.persistence.references import references
from fifo.queries import transactions as transaction_queries
from fifo.results import DecidedTransaction, PreparedPart, TransactionInfo
from support.fifo.world import World, in_transaction, sequences

RECORD = 7
"""the group that decides about what is prepared here"""


def world_of(limits: Limits = PRODUCTION, **arguments: Any) -> tuple[World, bytes]:
    """Two queues and a session."""
    world = World(limits)
    world.queue(1, **arguments)
    world.queue(2)
    return world, world.session(1)


def publish(world: World, name: bytes, tx: int, count: int = 2, queue: int = 1) -> Reply | None:
    return world.apply([in_transaction(tx, world.batch(name, count, queue=queue, first=0))]).replies[0]


def holding(world: World, name: bytes, count: int = 3, tag: str = "a") -> int:
    """Lets a consumer hold some messages. Returns its attach number."""
    world.publish(name, count)
    return world.attach(name, tag, count)[0]


def settle(world: World, name: bytes, tx: int, attach: int, first: int, last: int, tag: str = "a") -> None:
    command = c.Settle(1, tag, attach, ((first, last),))
    assert world.apply([in_transaction(tx, world.op(name, command))]).replies == (Ok(last - first + 1),)


def prepare(world: World, name: bytes, tx: int, operations: int = 0) -> Reply | None:
    return world.do(name, c.Prepare(tx, operations, 10, RECORD))


def finish(world: World, name: bytes, tx: int, *, is_committed: bool) -> None:
    assert world.apply([(None, c.Finish(name, tx, is_committed))]).replies == (Ok(),)


def counts(world: World, queue: int = 1) -> tuple[int, int]:
    """(ready, checked out)"""
    info = world.info(queue)
    return info.ready, info.checked_out


def reason(reply: Reply | None) -> str:
    return reply.reason if isinstance(reply, Refused) else type(reply).__name__


# ---- prepared parts


def test_what_is_prepared_counts_when_it_is_finished() -> None:
    world, name = world_of()
    attach = holding(world, name)
    publish(world, name, 1, 2)
    publish(world, name, 1, 3, queue=2)
    settle(world, name, 1, attach, 1, 2)
    assert prepare(world, name, 1, operations=3) == Ok()
    assert (counts(world), counts(world, 2)) == ((0, 3), (0, 0))
    assert prepare(world, name, 1, operations=3) == Ok(), "it is asked again"
    finish(world, name, 1, is_committed=True)
    assert (counts(world), counts(world, 2)) == ((2, 1), (3, 0))
    finish(world, name, 1, is_committed=True)
    finish(world, name, 1, is_committed=False)
    assert (counts(world), counts(world, 2)) == ((2, 1), (3, 0)), "it was finished before"


def test_a_part_that_is_dropped_gives_its_messages_back() -> None:
    world, name = world_of()
    attach = holding(world, name)
    publish(world, name, 1)
    settle(world, name, 1, attach, 2, 2)
    prepare(world, name, 1)
    assert world.do(name, c.Settle(1, "a", attach, ((1, 3),))) == Ok(2), "the transaction has the other one"
    finish(world, name, 1, is_committed=False)
    assert counts(world) == (0, 1)
    assert world.do(name, c.Settle(1, "a", attach, ((1, 3),))) == Ok(1)
    assert not world.machine.queues[1].staging.has_bodies


def test_a_consumer_whose_messages_timed_out_gets_none_back_before_it_answers() -> None:
    world, name = world_of(consumer_timeout_ms=100)
    attach = holding(world, name, 4)
    settle(world, name, 1, attach, 1, 2)
    prepare(world, name, 1)
    world.wake(200)
    finish(world, name, 1, is_committed=False)
    assert counts(world) == (4, 0)


def ends() -> dict[str, Callable[[World, bytes], object]]:
    """What ends a transaction that is not prepared."""
    low = c.QueueConfig("queue-1", max_length=1, overflow="reject_publish", message_ttl_ms=1)
    return {
        "session closed": lambda world, name: world.do(name, c.CloseSession()),
        "node down": lambda world, name: world.apply([(None, c.NodeDown(1, 1))]),
        "rolled back": lambda world, name: world.do(name, c.Rollback(1)),
        "consumer cancelled": lambda world, name: world.do(name, c.Cancel(1, "a", True)),
        "consumer attached again": lambda world, name: world.attach(name, "a", 9, "TRUE"),
        "age": lambda world, name: world.wake(PRODUCTION.transaction_ms),
        "purge": lambda world, name: world.apply([(None, c.Purge(1))]),
        "policy": lambda world, name: world.apply([(None, c.UpdateConfig(1, low))]),
        "consumer timeout": lambda world, name: world.wake(200),
        "a commit of its own": lambda world, name: world.do(name, c.Commit(1)),
    }


@pytest.mark.parametrize("end", ends().values(), ids=ends())
@pytest.mark.parametrize("is_committed", [True, False])
def test_nothing_but_the_decision_ends_what_is_prepared(
    end: Callable[[World, bytes], object], is_committed: bool
) -> None:
    world, name = world_of(consumer_timeout_ms=100)
    attach = holding(world, name, 4)
    publish(world, name, 1)
    settle(world, name, 1, attach, 1, 3)
    prepare(world, name, 1)
    end(world, name)
    world.machine = world.restored(snapshot.encode(world.machine))
    finish(world, name, 1, is_committed=is_committed)
    world.wake_until_done()
    total = sum(counts(world))
    assert total == (1 + 2 if is_committed else 4)
    info = world.info()
    assert info.totals.settled == (3 if is_committed else 0)


def test_room_is_kept_for_what_is_prepared() -> None:
    world, name = world_of(max_length=3, overflow="reject_publish")
    publish(world, name, 1, 2)
    assert prepare(world, name, 1) == Ok()
    publish(world, name, 2, 2)
    assert reason(prepare(world, name, 2)) == "queue_full"
    assert reason(world.publish(name, 2).replies[0]) == "queue_full"
    world.publish(name, 1)
    finish(world, name, 1, is_committed=True)
    assert counts(world) == (3, 0)
    publish(world, name, 3, 1)
    assert reason(prepare(world, name, 3)) == "queue_full"


def test_a_part_that_cannot_commit_is_not_prepared_and_ends() -> None:
    world, name = world_of()
    publish(world, name, 1)
    assert reason(prepare(world, name, 1, operations=2)) == "rolled_back"
    assert reason(prepare(world, name, 1)) == "rolled_back"
    assert reason(prepare(world, name, 2)) == "rolled_back"
    assert reason(publish(world, name, 2)) == "rolled_back", "it must not begin late"
    assert not world.machine.decisions.prepared


def test_a_deleted_queue_takes_its_part_along() -> None:
    world, name = world_of()
    attach = holding(world, name)
    publish(world, name, 1, 2)
    publish(world, name, 1, 3, queue=2)
    settle(world, name, 1, attach, 1, 1)
    prepare(world, name, 1)
    world.apply([(None, c.DeleteQueue(1))])
    finish(world, name, 1, is_committed=True)
    assert counts(world, 2) == (3, 0)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_single_active_consumer_waits_for_what_an_earlier_one_has_prepared(is_committed: bool) -> None:
    world, name = world_of(single_active_consumer=True)
    attach = holding(world, name)
    settle(world, name, 1, attach, 1, 2)
    prepare(world, name, 1)
    world.do(name, c.Cancel(1, "a", True))
    _, applied = world.attach(world.session(2), "b", 9)
    assert not applied.effects
    applied = world.apply([(None, c.Finish(name, 1, is_committed))])
    assert sequences(applied) == ([3] if is_committed else [1, 2, 3])


def test_a_consumer_times_out_with_what_it_has_back_after_a_rollback() -> None:
    world, name = world_of(consumer_timeout_ms=1_600)
    attach = holding(world, name)
    settle(world, name, 1, attach, 1, 3)
    prepare(world, name, 1)
    world.wake(2_000)
    finish(world, name, 1, is_committed=False)
    assert counts(world) == (0, 3)
    world.wake(1_500)
    assert counts(world) == (0, 3), "its time begins again"
    world.wake(200)
    assert counts(world) == (3, 0)


def test_a_later_session_waits_until_the_parts_of_the_last_one_are_finished() -> None:
    world, name = world_of()
    publish(world, name, 1)
    prepare(world, name, 1)
    register = c.RegisterProducer(c.Address(1, 1, 102), heard_ms=world.now_ms)
    assert reason(world.apply([(c.Origin(name, 2, 0), register)]).replies[0]) == "in_doubt"
    assert reason(world.do(name, c.CloseSession())) == "Ok"
    assert reason(world.apply([(c.Origin(name, 2, 0), register)]).replies[0]) == "in_doubt"
    finish(world, name, 1, is_committed=True)
    world.session(1, epoch=2)
    world.publish(name, 1)
    assert counts(world) == (3, 0)


def test_a_leader_asks_for_the_decision_in_time() -> None:
    world, name = world_of(replace(PRODUCTION, prepared_ms=100))
    publish(world, name, 1)
    prepare(world, name, 1)
    due, part = world.machine.decisions.due, PreparedPart(name, 1, RECORD, 1)
    assert world.machine.decisions.are_waiting
    assert due(world.now_ms + 99) == ((), ())
    assert due(world.now_ms + 100) == ((part,), ())
    world.do(name, c.CloseSession())
    assert due(world.now_ms) == ((part,), ()), "nobody else asks any more"
    finish(world, name, 1, is_committed=False)
    assert due(world.now_ms + 1000) == ((), ())


def test_parts_that_wait_for_a_silent_group_hold_up_no_others() -> None:
    world, name = world_of(replace(PRODUCTION, prepared_ms=100, decisions_at_a_time=2))
    for number in range(1, 7):
        publish(world, name, number)
        record = 9 if number == 5 else RECORD
        world.do(name, c.Prepare(number, 1, 1, record))
    asked, _ = world.machine.decisions.due(world.now_ms + 100)
    assert [(each.tx, each.record) for each in asked] == [(1, RECORD), (2, RECORD), (5, 9)]


# ---- decisions


def test_decisions_for_a_silent_group_hold_up_no_others() -> None:
    world, name = world_of(replace(PRODUCTION, decisions_at_a_time=2))
    for number, groups in enumerate([(2,), (2,), (2,), (2, 3), (3, 4), (3,)], 1):
        publish(world, name, number)
        world.do(name, c.Decide(number, 1, 5, groups))
    _, told = world.machine.decisions.due(world.now_ms + PRODUCTION.finishing_ms)
    assert [(each.tx, each.groups) for each in told] == [(1, (2,)), (2, (2,)), (4, (2, 3)), (5, (3, 4))]
    _, told = world.machine.decisions.due(world.now_ms)
    assert told == ()


def test_a_decision_commits_the_part_of_its_group_and_is_kept_until_all_have_finished() -> None:
    world, name = world_of()
    publish(world, name, 1)
    assert world.do(name, c.Decide(1, 1, 5, (2, 3))) == Ok()
    assert counts(world) == (2, 0)
    decided = DecidedTransaction(name, 1, 5, (2, 3))
    assert world.machine.decisions.due(world.now_ms + PRODUCTION.finishing_ms) == ((), (decided,))
    assert world.machine.decisions.are_waiting
    assert reason(world.do(name, c.Commit(1))) == "in_doubt", "not all groups have finished"
    assert world.apply([(None, c.Resolve(name, 1))]).replies == (Ok(),)
    world.machine = world.restored(snapshot.encode(world.machine))
    assert world.machine.decisions.due(world.now_ms + PRODUCTION.finishing_ms) == ((), (decided,))
    world.apply([(None, c.Finished(name, 1))])
    world.apply([(None, c.Finished(name, 1))])
    assert not world.machine.decisions.are_waiting
    assert world.do(name, c.Commit(1)) == Ok()
    assert world.apply([(None, c.Resolve(name, 1))]).replies == (Ok(),)


def test_who_asks_before_the_decision_ends_the_transaction() -> None:
    world, name = world_of()
    publish(world, name, 1)
    assert [reason(each) for each in world.apply([(None, c.Resolve(name, 1))]).replies] == ["rolled_back"]
    assert reason(world.do(name, c.Decide(1, 1, 5, (2,)))) == "rolled_back"
    assert not world.machine.decisions.are_waiting
    assert counts(world) == (0, 0)


def test_who_asks_before_a_transaction_has_begun_here_ends_it() -> None:
    world, name = world_of()
    world.apply([(None, c.Resolve(name, 1))])
    assert reason(publish(world, name, 1)) == "rolled_back"
    assert [reason(each) for each in world.apply([(None, c.Resolve(b"n" * 16, 1))]).replies] == [
        "rolled_back"
    ]


def test_a_refused_decision_is_none() -> None:
    world, name = world_of(max_length=1, overflow="reject_publish")
    publish(world, name, 1)
    assert reason(world.do(name, c.Decide(1, 1, 5, (2,)))) == "queue_full"
    assert [reason(each) for each in world.apply([(None, c.Resolve(name, 1))]).replies] == ["rolled_back"]
    assert not world.machine.decisions.are_waiting


def test_decisions_keep_their_place_among_the_transactions_of_an_owner() -> None:
    world, name = world_of(replace(PRODUCTION, open_transactions=2))
    publish(world, name, 1)
    world.do(name, c.Decide(1, 1, 5, (2,)))
    assert reason(publish(world, name, 2)) == "limit"
    world.apply([(None, c.Finished(name, 1))])
    assert publish(world, name, 3) == Ok(2)


# ---- states


def test_states_have_what_is_prepared_and_decided() -> None:
    world, name = world_of(max_length=100, overflow="reject_publish")
    attach = holding(world, name)
    publish(world, name, 1)
    settle(world, name, 1, attach, 1, 2)
    prepare(world, name, 1)
    publish(world, name, 2, 4, queue=2)
    world.do(name, c.Decide(2, 1, 5, (2,)))
    data = snapshot.encode(world.machine)
    taken = checkpoint.Checkpointer(world.machine).take()
    assert list(references(data)) == list(taken.entries) == list(checkpoint.contents(taken.state)[0])
    for restored in (world.restored(data), world.resumed(taken.state, world.machine.memory.pages)):
        assert snapshot.encode(restored) == data
        assert restored.queues[1].messages.reserved_count == 2
    world.machine = world.restored(data)
    finish(world, name, 1, is_committed=True)
    assert counts(world) == (2, 1)


# ---- what an operator sees


def test_transactions_are_shown_in_every_state_and_in_parts() -> None:
    world, name = world_of()
    attach = holding(world, name)
    publish(world, name, 1, 2)
    publish(world, name, 1, 3, queue=2)
    settle(world, name, 1, attach, 1, 2)
    for number in (2, 3):
        publish(world, name, number)
    prepare(world, name, 2)
    assert world.do(name, c.Decide(3, 1, 10, (4, 5))) == Ok()
    size = world.machine.transactions.by_key[name, 1].size_bytes
    began_ms = world.machine.transactions.by_key[name, 1].began_ms
    part = world.machine.decisions.prepared[name, 2]
    shown = (
        TransactionInfo(name, 1, "open", began_ms, queues=(1, 2), messages=7, size_bytes=size),
        TransactionInfo(name, 2, "prepared", part.prepared_ms, RECORD, (), (1,), 2, part.size_bytes),
        TransactionInfo(name, 3, "committed", world.machine.decisions.decided[name, 3].decided_ms, 0, (4, 5)),
    )
    assert transaction_queries.infos(world.machine, (b"", 0), 9) == shown
    assert transaction_queries.infos(world.machine, (b"", 0), 2) == shown[:2]
    assert transaction_queries.infos(world.machine, (name, 1), 1) == shown[1:2]
    assert transaction_queries.infos(world.machine, (name, 3), 9) == ()
    assert transaction_queries.prepared(world.machine, (name, 2)) == PreparedPart(
        name, 2, RECORD, part.ranges
    )
    assert [transaction_queries.prepared(world.machine, (name, number)) for number in (1, 3)] == [None, None]
