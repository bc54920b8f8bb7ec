"""Transactions of one group: what counts when, and what ends them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Confirmed, Ok, Refused, Reply
from fifo.limits import PRODUCTION, Limits
from fifo.persistence import checkpoint, snapshot
from fifo.persistence.references import references
from fifo.transactions import MAX_TX
from support.fifo.world import World, in_transaction, nth_number, producer, sequences


def world_of(limits: Limits = PRODUCTION, **arguments: Any) -> tuple[World, bytes]:
    """Two queues and a session."""
    world = World(limits)
    world.queue(1, **arguments)
    world.queue(2)
    return world, world.session(1)


def publish(world: World, name: bytes, tx: int, count: int = 2, queue: int = 1, **more: Any) -> Reply | None:
    """A publish of a transaction, in an entry of its own."""
    return world.apply([in_transaction(tx, world.batch(name, count, queue=queue, first=0, **more))]).replies[
        0
    ]


def settle(world: World, name: bytes, tx: int, command: c.Settle) -> Reply | None:
    return world.apply([in_transaction(tx, world.op(name, command))]).replies[0]


def counts(world: World, queue: int = 1) -> tuple[int, int]:
    """(ready, checked out)"""
    info = world.info(queue)
    return info.ready, info.checked_out


def reason(reply: Reply | None) -> str:
    return reply.reason if isinstance(reply, Refused) else type(reply).__name__


def holding(world: World, name: bytes, count: int = 3, tag: str = "a") -> int:
    """Lets a consumer hold some messages. Returns its attach number."""
    world.publish(name, count)
    return world.attach(name, tag, count)[0]


def test_what_a_transaction_publishes_is_visible_after_its_commit() -> None:
    world, name = world_of()
    world.attach(name, "a", 10)
    assert publish(world, name, 1) == Ok(2)
    assert publish(world, name, 1, 3, queue=2) == Ok(3)
    world.publish(name, 1)
    assert (counts(world), counts(world, 2)) == ((0, 1), (0, 0))
    assert world.do(name, c.Commit(1)) == Ok()
    assert (counts(world), counts(world, 2)) == ((0, 3), (3, 0))


def test_a_consumer_keeps_its_credit_when_a_transaction_settles_its_messages() -> None:
    world, name = world_of()
    world.publish(name, 2)
    attach, _ = world.attach(name, "a", 4)
    settle(world, name, 1, c.Settle(1, "a", attach, ((1, 2),)))
    assert world.do(name, c.Commit(1)) == Ok()
    assert sequences(world.publish(name, 3)) == [3, 4]


def test_messages_get_their_sequences_and_their_time_to_live_at_the_commit() -> None:
    world, name = world_of()
    publish(world, name, 1, 1, ttl_ms=50)
    world.publish(name, 1)
    world.wake(200)
    world.do(name, c.Commit(1))
    world.wake(40)
    applied = world.attach(name, "a", 10)[1]
    assert sequences(applied) == [1, 2]
    publish(world, name, 2, 1, ttl_ms=50)
    world.do(name, c.Cancel(1, "a", True))
    world.do(name, c.Commit(2))
    world.wake(60)
    assert counts(world) == (1, 0), "the first one has expired, too"


def test_what_a_transaction_settles_stays_checked_out_until_its_commit() -> None:
    world, name = world_of()
    attach = holding(world, name)
    assert settle(world, name, 1, c.Settle(1, "a", attach, ((1, 2),))) == Ok(2)
    assert counts(world) == (0, 3)
    assert world.do(name, c.Settle(1, "a", attach, ((1, 3),))) == Ok(1), "others leave it to the transaction"
    assert world.do(name, c.Commit(1)) == Ok()
    assert counts(world) == (0, 0)


def test_a_settlement_of_what_is_not_checked_out_ends_the_transaction() -> None:
    world, name = world_of()
    attach = holding(world, name)
    for number, tags in enumerate((((1, 4),), ((2, 2), (2, 2)), ((3, 3), (1, 1))), 1):
        publish(world, name, number)
        wrong = settle(world, name, number, c.Settle(1, "a", attach, tags))
        assert reason(wrong) in ("not_checked_out", "bad_argument")
        assert reason(publish(world, name, number)) == "rolled_back"
        assert reason(world.do(name, c.Commit(number))) == "rolled_back"
    settle(world, name, 7, c.Settle(1, "a", attach, ((1, 1),)))
    assert reason(settle(world, name, 8, c.Return(1, "a", attach, ((1, 2),)))) == "not_checked_out"
    assert world.do(name, c.Commit(7)) == Ok()
    assert counts(world) == (0, 2)


@pytest.mark.parametrize(
    ("kind", "more", "left"),
    [
        (c.Settle, {}, (0, 1)),
        (c.Discard, {}, (0, 1)),
        (c.Return, {}, (2, 1)),
        (c.Modify, {"delivery_failed": True}, (2, 1)),
        (c.Modify, {"undeliverable_here": True}, (0, 1)),
    ],
)
def test_every_outcome(kind: type[c.Settle], more: dict[str, bool], left: tuple[int, int]) -> None:
    world, name = world_of()
    attach = holding(world, name)
    settle(world, name, 1, kind(1, "a", attach, ((2, 3),), **more))
    world.do(name, c.Commit(1))
    assert counts(world) == left


def test_a_rollback_drops_everything_and_gives_settled_messages_back() -> None:
    world, name = world_of()
    attach = holding(world, name)
    publish(world, name, 1)
    settle(world, name, 1, c.Settle(1, "a", attach, ((1, 3),)))
    assert world.do(name, c.Rollback(1)) == Ok()
    assert counts(world) == (0, 3)
    assert world.do(name, c.Settle(1, "a", attach, ((1, 3),))) == Ok(3)
    assert reason(world.do(name, c.Commit(1))) == "rolled_back"
    assert counts(world) == (0, 0)
    assert not world.machine.queues[1].staging.has_bodies


def ends_of_a_session() -> list[tuple[str, Any]]:
    return [
        ("closed", lambda world, name: world.do(name, c.CloseSession())),
        ("higher epoch", lambda world, name: world.session(1, epoch=2)),
        ("node down", lambda world, name: world.apply([(None, c.NodeDown(1, 1))])),
    ]


@pytest.mark.parametrize(
    "end", [end for _, end in ends_of_a_session()], ids=[n for n, _ in ends_of_a_session()]
)
def test_a_lost_session_drops_its_transactions_and_commits_none(end: Any) -> None:
    world, name = world_of()
    attach = holding(world, name)
    publish(world, name, 1)
    settle(world, name, 1, c.Settle(1, "a", attach, ((1, 3),)))
    end(world, name)
    assert counts(world) == (3, 0)
    assert reason(world.do(name, c.Commit(1))) in ("fenced", "rolled_back")
    world.session(1, epoch=3, boot=2)
    assert reason(world.do(name, c.Commit(1))) == "rolled_back"
    assert counts(world) == (3, 0)


def test_a_commit_is_answered_again_also_in_a_later_epoch() -> None:
    world, name = world_of()
    publish(world, name, 1)
    assert world.do(name, c.Commit(1)) == Ok()
    assert world.do(name, c.Commit(1)) == Ok()
    world.do(name, c.CloseSession())
    world.session(1, epoch=2)
    assert world.do(name, c.Commit(1)) == Ok()
    assert counts(world) == (2, 0)
    assert reason(publish(world, name, 1)) == "rolled_back"
    assert reason(world.do(name, c.Rollback(1))) == "bad_argument"


def test_a_producer_with_an_outcome_is_remembered_after_its_session() -> None:
    """It may have published nothing else."""
    world, name = world_of()
    publish(world, name, 1)
    world.do(name, c.Commit(1))
    world.do(name, c.CloseSession())
    world.machine = world.restored(snapshot.encode(world.machine))
    world.session(1, epoch=2)
    assert world.do(name, c.Commit(1)) == Ok()


def test_outcomes_are_forgotten_behind_the_window() -> None:
    world, name = world_of(replace(PRODUCTION, transaction_window=4))
    for number in (1, 2, 5):
        publish(world, name, number)
        assert world.do(name, c.Commit(number)) == Ok()
    assert reason(world.do(name, c.Commit(1))) == "rolled_back"
    assert world.do(name, c.Commit(2)) == Ok()
    publish(world, name, 6)
    assert reason(publish(world, name, 10)) == "limit"
    assert publish(world, name, 11) == Refused("limit", publish(world, name, 12).detail.replace("12", "11"))  # type: ignore[union-attr]
    assert world.do(name, c.Commit(6)) == Ok()
    assert reason(world.do(name, c.Commit(10))) == "rolled_back", "a refused command has ended it"


def test_a_transaction_with_parts_in_several_groups_may_come_later_than_its_successors() -> None:
    world, name = world_of()
    for tx in (9, 7, 8):
        assert publish(world, name, tx) == Ok(2)
    before = snapshot.encode(world.machine)
    assert snapshot.encode(world.restored(before)) == before
    for tx in (8, 9, 7):
        assert world.do(name, c.Commit(tx)) == Ok()
        assert reason(publish(world, name, tx)) == "rolled_back", "a number is used once"
        assert world.do(name, c.Commit(tx)) == Ok(), "its outcome is known"
    assert counts(world) == (6, 0)
    assert snapshot.encode(world.restored(snapshot.encode(world.machine))) == snapshot.encode(world.machine)


def test_what_is_told_or_asked_of_a_transaction_uses_its_number() -> None:
    world, name = world_of()
    publish(world, name, 9)
    world.do(name, c.Rollback(8))
    assert reason(world.do(name, c.Commit(7))) == "rolled_back"
    assert reason(world.apply([(None, c.Resolve(name, 6))]).replies[0]) == "rolled_back"
    assert [reason(publish(world, name, tx)) for tx in (8, 7, 6, 5)] == [*["rolled_back"] * 3, "Ok"]


def test_a_number_below_the_window_is_refused() -> None:
    limits = replace(PRODUCTION, transaction_window=8)
    world, name = world_of(limits)
    assert publish(world, name, 100) == Ok(2)
    assert world.do(name, c.Commit(100)) == Ok()
    assert [reason(publish(world, name, tx)) for tx in (92, 93)] == ["rolled_back", "Ok"]
    assert reason(publish(world, name, 101)) == "limit", "8 above the one that is open"


def test_a_number_above_the_last_one_is_refused_and_uses_no_other() -> None:
    """What a client says of such a transaction must not use up the numbers below it."""
    world, name = world_of()
    assert reason(publish(world, name, MAX_TX + 1)) == "bad_argument"
    assert reason(world.do(name, c.Commit(MAX_TX + 1))) == "rolled_back"
    assert world.do(name, c.Rollback(MAX_TX + 1)) == Ok()
    assert [reason(publish(world, name, tx)) for tx in (1, 2)] == ["Ok", "Ok"]
    assert world.do(name, c.Commit(1)) == world.do(name, c.Rollback(2)) == Ok()
    assert publish(world, name, MAX_TX) == Ok(2)
    assert world.do(name, c.Commit(MAX_TX)) == Ok()
    assert counts(world) == (4, 0)


@pytest.mark.parametrize("end", [c.Commit, c.Rollback])
def test_what_is_said_of_the_last_number_uses_it(end: type[c.Commit | c.Rollback]) -> None:
    world, name = world_of()
    world.do(name, end(MAX_TX))
    assert reason(publish(world, name, MAX_TX)) == "rolled_back"


def test_a_refused_command_uses_the_last_number() -> None:
    world, name = world_of()
    assert reason(settle(world, name, MAX_TX, c.Settle(1, "a", 1, ((1, 1),)))) == "not_attached"
    assert reason(publish(world, name, MAX_TX)) == "rolled_back"


def test_numbers_of_transactions_are_used_once() -> None:
    world, name = world_of()
    publish(world, name, 5)
    assert reason(publish(world, name, 0)) == "bad_argument"
    assert reason(world.do(name, c.Commit(7))) == "rolled_back"
    assert reason(publish(world, name, 7)) == "rolled_back", "the commit came first: it must not begin late"
    assert publish(world, name, 5) == Ok(2)
    assert world.do(name, c.Commit(5)) == Ok()


def test_messages_of_a_transaction_take_no_client_sequences() -> None:
    """A message that was published before and is sent again after a reconnect is still accepted, once."""
    world, name = world_of()
    world.publish(name, 2)  # 1, 2
    lost = c.Enqueue(1, 3, 1, 2, 200)  # on its way when the session breaks
    publish(world, name, 1)
    world.do(name, c.Commit(1))
    world.session(1, epoch=2)
    assert world.machine.taken(name, 2, 1, 9) == ([(1, 2)], 2)
    assert world.apply([world.op(name, lost)]).replies == (Confirmed(3, 4),)
    assert world.apply([world.op(name, lost)]).replies == (Confirmed(3, 4),)
    assert counts(world) == (6, 0)


def test_a_full_queue_refuses_the_whole_commit() -> None:
    world, name = world_of(max_length=4, overflow="reject_publish")
    attach = holding(world, name, 2)
    world.publish(name, 2)
    publish(world, name, 1, 2)
    publish(world, name, 1, 2, queue=2)
    settle(world, name, 1, c.Settle(1, "a", attach, ((1, 2),)))
    world.publish(name, 1)
    refused = world.do(name, c.Commit(1))
    assert reason(refused) == "queue_full"
    assert "queue-1" in refused.detail  # type: ignore[union-attr]
    assert (counts(world), counts(world, 2)) == ((3, 2), (0, 0))
    assert reason(world.do(name, c.Commit(1))) == "rolled_back"
    settle(world, name, 2, c.Settle(1, "a", attach, ((1, 2),)))
    world.apply(
        [(None, c.UpdateConfig(1, c.QueueConfig("queue-1", max_length=1, overflow="reject_publish")))]
    )
    assert world.do(name, c.Commit(2)) == Ok(), "it publishes nothing there"


def test_a_commit_of_less_than_was_sent_is_refused() -> None:
    world, name = world_of()
    publish(world, name, 1)
    publish(world, name, 2)
    assert reason(world.do(name, c.Commit(1, operations=2))) == "rolled_back"
    assert world.do(name, c.Commit(2, operations=1)) == Ok()
    assert counts(world) == (2, 0)


def test_a_transaction_that_is_too_old_is_ended_by_a_wake() -> None:
    world, name = world_of(replace(PRODUCTION, transaction_ms=100))
    attach = holding(world, name)
    publish(world, name, 1)
    settle(world, name, 1, c.Settle(1, "a", attach, ((1, 1),)))
    began_ms = world.now_ms - 1
    assert world.machine.next_wake() == began_ms + 100
    world.wake(98)
    assert world.machine.transactions.by_key
    world.wake(1)
    assert not world.machine.transactions.by_key
    assert world.machine.next_wake() is None
    assert counts(world) == (0, 3)
    assert reason(world.do(name, c.Commit(1))) == "rolled_back"


def test_a_deleted_queue_ends_the_transactions_with_a_part_in_it() -> None:
    world, name = world_of()
    publish(world, name, 1, queue=2)
    publish(world, name, 1)
    publish(world, name, 2)
    world.apply([(None, c.DeleteQueue(2))])
    assert reason(world.do(name, c.Commit(1))) == "rolled_back"
    assert world.do(name, c.Commit(2)) == Ok()
    assert counts(world) == (2, 0)


def test_a_consumer_that_is_cancelled_or_attached_again_ends_the_transactions_that_settle_its_messages() -> (
    None
):
    world, name = world_of(filter_enabled=True)
    attach = holding(world, name)
    settle(world, name, 1, c.Settle(1, "a", attach, ((1, 1),)))
    world.do(name, c.Cancel(1, "a", requeue=False))
    assert world.do(name, c.Commit(1)) == Ok(), "its messages may still be settled"
    settle(world, name, 2, c.Settle(1, "a", attach, ((2, 3),)))
    assert world.do(name, c.Commit(2)) == Ok()
    assert (name, "a") not in world.machine.queues[1].consumers.by_key, "it holds nothing any more"
    again = holding(world, name)
    settle(world, name, 3, c.Settle(1, "a", again, ((1, 1),)))
    world.do(name, c.Cancel(1, "a", requeue=True))
    assert reason(world.do(name, c.Commit(3))) == "rolled_back"
    assert counts(world) == (3, 0)


LIMITS = replace(
    PRODUCTION,
    transaction_queues=1,
    transaction_operations=3,
    transaction_messages=6,
    transaction_bytes=500,
    transaction_ranges=3,
    open_transactions=4,
    embargoed_ranges=12,
    embargoed_bytes=1_900,
)


@pytest.mark.parametrize(
    ("commands", "what"),
    [
        ([(1, 1, {}), (1, 2, {})], "2 queues"),
        ([(1, 1, {})] * 4, "4 operations"),
        ([(4, 1, {}), (1, 1, {}), (2, 1, {})], "7 messages"),
        ([(4, 1, {}), (2, 1, {})], "600 bytes"),
        ([(4, 1, {"ttls_ms": (1, 2, 3, 4)})], "4 ranges"),
    ],
)
def test_a_transaction_is_limited(commands: list[tuple[int, int, dict[str, Any]]], what: str) -> None:
    limits = replace(LIMITS, transaction_bytes=10_000) if "bytes" not in what else LIMITS
    world, name = world_of(limits)
    *first, (count, queue, more) = commands
    for some, where, given in first:
        assert publish(world, name, 1, some, where, **given) == Ok(some)
    refused = publish(world, name, 1, count, queue, **more)
    assert reason(refused) == "limit"
    assert refused.detail.startswith(what)  # type: ignore[union-attr]
    assert reason(world.do(name, c.Commit(1))) == "rolled_back"


def test_owners_share_the_open_transactions() -> None:
    world, _ = world_of(LIMITS)
    mine, other = world.session(2, owner=7), world.session(3, owner=8)
    assert [reason(publish(world, mine, number)) for number in (1, 2, 3)] == ["Ok", "Ok", "limit"]
    assert publish(world, other, 1) == Ok(2)
    assert world.do(mine, c.Commit(1)) == Ok()
    assert reason(world.do(mine, c.Commit(3))) == "rolled_back"
    assert publish(world, mine, 4) == Ok(2)


def test_bodies_under_embargo_are_kept_and_a_state_has_the_transactions() -> None:
    world, name = world_of()
    attach = holding(world, name)
    publish(world, name, 1)
    index = world.index
    settle(world, name, 1, c.Settle(1, "a", attach, ((1, 2),)))
    data = snapshot.encode(world.machine)
    assert index in list(references(data))
    taken = checkpoint.Checkpointer(world.machine).take()
    assert index in list(taken.entries)
    assert index in list(checkpoint.contents(taken.state)[0])
    world.machine = world.resumed(taken.state, world.machine.memory.pages)
    assert snapshot.encode(world.machine) == data
    assert world.do(name, c.Settle(1, "a", attach, ((1, 2),))) == Ok(0)
    assert world.do(name, c.Commit(1)) == Ok()
    assert counts(world) == (2, 1)


def test_a_group_without_transactions_writes_none() -> None:
    world, name = world_of()
    world.publish(name, 3)
    before = len(snapshot.encode(world.machine))
    world.do(name, c.Rollback(1))
    assert len(snapshot.encode(world.machine)) > before


@pytest.mark.parametrize(
    "command",
    [
        c.Enqueue(1, 0, 0, 0, 0),
        c.Enqueue(1, 0, 0, 2, -1),
        c.Enqueue(1, 0, 0, 2, 1, ttls_ms=(1,)),
        c.Enqueue(1, 0, 0, 2, 1, ttls_ms=(1, 1 << 70)),
        c.Enqueue(1, 0, 0, 2, 1, ttl_ms=1 << 70),
        c.Enqueue(1, 0, 0, 4, 1, priorities=bytes(3)),
        c.Enqueue(1, 0, 0, 2, 1, columns=b"nonsense"),
        c.Enqueue(1, 0, 0, 2, 1, independent=True),
        c.Enqueue(0, 0, 0, 2, 1, targets=(c.Target(1, ((0, 1),)),)),
        c.Enqueue(0, 0, 0, 2, 1, targets=(c.Target(1, ((0, 1),)), c.Target(1, ((1, 1),)))),
        c.Settle(1, "a", nth_number(1), ((3, 1),)),
        c.Settle(1, "a", nth_number(1), ()),
        c.Settle(1, "a", nth_number(1), ((1, 1),), -1),
    ],
    ids=repr,
)
def test_wrong_commands_are_refused_and_end_the_transaction(command: c.Enqueue | c.Settle) -> None:
    world, name = world_of()
    assert holding(world, name) == nth_number(1)
    publish(world, name, 1)
    assert reason(world.do(name, c.InTransaction(1, command))) == "bad_argument"
    assert not world.machine.transactions.by_key
    assert counts(world) == (0, 3)


def test_credit_of_a_settlement_counts_at_once() -> None:
    world, name = world_of()
    attach = holding(world, name)
    world.publish(name, 2)
    settle(world, name, 1, c.Settle(1, "a", attach, ((1, 1),), credit_to=4))
    assert counts(world) == (1, 4)


def test_credit_of_a_refused_settlement_counts_too() -> None:
    """The client sends each credit once. If it were lost, the consumer would wait for ever."""
    world, name = world_of()
    attach = holding(world, name)
    world.publish(name, 3)
    assert publish(world, name, 1, queue=9) == Refused("not_found", "no queue 9 in this group")
    late = c.Settle(1, "a", attach, ((1, 1),), credit_to=4)
    assert reason(settle(world, name, 1, late)) == "rolled_back"
    assert counts(world) == (2, 4)
    gone = c.Settle(1, "a", attach, ((90, 90),), credit_to=5)
    assert reason(settle(world, name, 2, gone)) == "not_checked_out"
    assert counts(world) == (1, 5)
    earlier = c.Settle(1, "a", attach + 1, ((1, 1),), credit_to=6)
    assert reason(settle(world, name, 3, earlier)) == "wrong_attach"
    assert counts(world) == (1, 5)


def test_a_commit_of_an_unknown_producer_is_refused() -> None:
    world, _ = world_of()
    origin = c.Origin(producer(9), 1, 1)
    assert reason(world.apply([(origin, c.Commit(1))]).replies[0]) == "not_registered"
