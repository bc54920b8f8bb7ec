"""Dead messages: which messages die, how they get numbers, and when they are gone."""

from __future__ import annotations

from typing import Any

import pytest

from fifo import commands as c
from fifo.consumers.filter_fields import Fields
from fifo.effects import Ok, Refused
from fifo.limits import SMALL
from fifo.messages.blocks import Stored
from fifo.persistence import snapshot
from fifo.queries import group as queries
from fifo.results import DeadWork
from support.fifo.world import World, nth_number, sequences


@pytest.fixture
def world() -> World:
    made = World(SMALL, has_model=True)
    made.twin = made.empty()
    return made


def begin(world: World, **arguments: Any) -> bytes:
    world.queue(1, **{"dead_letter_strategy": "at_least_once", **arguments})
    return world.session()


def work(world: World) -> DeadWork:
    found = queries.dead_work(world.machine, 1, SMALL.max_claimed)
    assert found is not None
    return found


PRODUCER = b"p" * 16


def refused(world: World, command: c.Command) -> str:
    [reply] = world.apply([(None, command)]).replies
    assert isinstance(reply, Refused)
    return reply.reason


def claim(world: World, producer: bytes = PRODUCER) -> int:
    """A new worker begins. Returns how many messages have numbers then."""
    [reply] = world.apply([(None, c.ClaimDead(1, work(world).epoch + 1, producer))]).replies
    assert isinstance(reply, Ok)
    return reply.count


def settle_dead(world: World, to: int, forwarded: int = 0, problem: str = "", *, again_to: int = 0) -> int:
    command = c.SettleDead(1, work(world).epoch, to, forwarded, again_to, problem)
    [reply] = world.apply([(None, command)]).replies
    assert isinstance(reply, Ok)
    return reply.count


def claimed(world: World) -> list[tuple[int, int, int, str]]:
    """Number, sequence, count and cause of each run."""
    return [
        (each.number, each.run.first_sequence, each.run.count, each.cause) for each in work(world).claimed
    ]


def test_a_message_dies_of_each_cause(world: World) -> None:
    name = begin(world, max_length=3, delivery_limit=0)
    world.apply([world.batch(name, 5)])  # two are above the length
    world.apply([world.op(name, c.Attach(1, "a", b"", 2))])
    world.do(name, c.Modify(1, "a", nth_number(1), ((1, 1),), delivery_failed=True))
    world.do(name, c.Discard(1, "a", nth_number(1), ((2, 2),)))
    world.apply([world.batch(name, 1, ttl_ms=5)])
    world.wake(10)
    assert (world.info().ready, world.info().dead, world.info().total) == (1, 5, 6)
    assert claim(world) == 5
    assert claimed(world) == [
        (1, 1, 2, "maxlen"),
        (3, 3, 1, "delivery_limit"),
        (4, 4, 1, "rejected"),
        (5, 6, 1, "expired"),
    ]


def test_a_dead_message_counts_for_its_cause_when_it_is_gone(world: World) -> None:
    name = begin(world, max_length=2)
    world.apply([world.batch(name, 5)])
    assert world.info().totals.maxlen == 0
    claim(world)
    assert settle_dead(world, 2, forwarded=2) == 2
    assert (world.info().dead, world.info().totals.maxlen, world.info().totals.dead_lettered) == (1, 2, 2)
    assert settle_dead(world, 3, forwarded=0) == 1
    assert (world.info().dead, world.info().totals.maxlen, world.info().totals.dead_lettered) == (0, 3, 2)


def test_numbers_ascend_and_none_is_given_twice(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 5)])
    assert claim(world) == 4
    assert claim(world) == 4
    world.apply([world.batch(name, 6)])
    assert claim(world) == SMALL.max_claimed
    assert [number for number, *_ in claimed(world)] == [1, 5]
    assert settle_dead(world, 5) == 5
    assert [(number, count) for number, _, count, _ in claimed(world)] == [(6, 2), (8, 3)]
    assert settle_dead(world, 5) == 0
    assert claim(world) == 5
    assert [(number, count) for number, _, count, _ in claimed(world)] == [(6, 2), (8, 3)]


def test_a_claim_reads_no_more_blocks_than_an_entry_may(world: World) -> None:
    name = begin(world)
    world.apply([world.batch(name, 20)])
    world.apply([world.batch(name, 20), world.op(name, c.Attach(1, "a", b"", 40))])
    world.wake_until_done()
    in_each_block = [(tag, tag) for tag in range(1, 40, SMALL.block_size)]
    world.do(name, c.Discard(1, "a", nth_number(1), tuple(in_each_block)))
    assert world.info().dead == 5 == SMALL.block_budget + 1
    assert claim(world) == 4
    assert claim(world) == 5


def test_messages_that_die_late_get_higher_numbers_though_their_sequences_are_lower(world: World) -> None:
    name = begin(world)
    world.apply([world.batch(name, 4), world.op(name, c.Attach(1, "a", b"", 4))])
    world.do(name, c.Discard(1, "a", nth_number(1), ((3, 3),)))
    claim(world)
    world.do(name, c.Discard(1, "a", nth_number(1), ((1, 1),)))
    claim(world)
    assert claimed(world) == [(1, 3, 1, "rejected"), (2, 1, 1, "rejected")]


def test_a_part_of_a_claim_can_be_settled(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 5)])
    claim(world)
    settle_dead(world, 1)
    assert claimed(world) == [(2, 2, 3, "maxlen")]
    assert world.info().dead == 3


def test_the_first_worker_names_the_producer_for_ever(world: World) -> None:
    begin(world)
    assert (work(world).epoch, work(world).producer) == (0, b"")
    claim(world, b"a" * 16)
    claim(world, b"b" * 16)
    assert (work(world).epoch, work(world).producer) == (2, b"a" * 16)
    assert refused(world, c.ClaimDead(1, 3, b"short")) == "bad_argument"
    again = world.restored(snapshot.encode(world.machine))
    found = queries.dead_work(again, 1, 0)
    assert found is not None and found.producer == b"a" * 16


def test_only_one_worker_has_an_epoch_and_those_before_it_settle_nothing(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 3)])
    claim(world)
    assert refused(world, c.ClaimDead(1, 1, PRODUCER)) == "wrong_generation"
    claim(world)
    assert refused(world, c.SettleDead(1, 1, 2, 2)) == "wrong_generation"
    assert refused(world, c.SettleDead(1, 3, 2, 2)) == "wrong_generation"
    assert (world.info().dead, world.info().totals.dead_lettered) == (2, 0)


def test_what_is_confirmed_is_settled_before_the_others_get_new_numbers(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 4)])
    claim(world)
    assert settle_dead(world, 1, again_to=3) == 1
    assert claimed(world) == [(4, 2, 2, "maxlen")]


def test_only_letters_up_to_the_one_that_is_named_get_new_numbers(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 4)])
    claim(world)
    assert claimed(world) == [(1, 1, 3, "maxlen")]
    for _ in range(2):  # a repeat changes nothing
        assert settle_dead(world, 0, again_to=1) == 0
        assert claimed(world) == [(2, 2, 2, "maxlen"), (4, 1, 1, "maxlen")]


def test_a_worker_that_only_says_why_letters_wait_gives_no_numbers(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 4)])
    settle_dead(world, 0, problem="NO_QUEUE")
    assert (claimed(world), world.info().dead_letter_problem) == ([], "NO_QUEUE")
    claim(world)
    assert (work(world).inherited_to, world.info().dead_letter_problem) == (0, "NO_QUEUE")


def test_a_worker_learns_which_numbers_an_earlier_one_may_have_sent(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 4)])
    claim(world)
    assert work(world).inherited_to == 0
    claim(world)
    assert work(world).inherited_to == 3
    world.apply([world.batch(name, 2)])
    settle_dead(world, 2)
    assert (claimed(world)[-1][0], work(world).inherited_to) == (5, 3)
    settle_dead(world, 3)
    assert work(world).inherited_to == 0


def test_only_the_blocks_of_the_messages_that_are_asked_for_are_read(world: World) -> None:
    name = begin(world)
    world.apply([world.batch(name, 16), world.op(name, c.Attach(1, "a", b"", 16))])
    world.do(name, c.Discard(1, "a", nth_number(1), ((1, 1), (15, 15))))
    claim(world)
    blocks = world.machine.queues[1].messages.blocks
    for number in blocks.numbers()[:-1]:
        blocks.page_out(number)
    before = world.machine.memory.loads
    found = queries.dead_work(world.machine, 1, 1)
    assert found is not None
    assert [each.run.first_sequence for each in found.claimed] == [1]
    assert world.machine.memory.loads == before + 1


def test_no_cold_block_is_read_whose_dead_messages_have_numbers(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 6)])
    claim(world)
    messages = world.machine.queues[1].messages
    messages.blocks.page_out(0)
    before = world.machine.memory.loads
    assert messages.dead.claim(world.now_ms) == 5
    assert world.machine.memory.loads == before


def test_a_problem_is_kept_until_the_next_settlement(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 2)])
    settle_dead(world, 0, problem="no queue 'grave'" + "!" * 300)
    assert world.info().dead_letter_problem.startswith("no queue 'grave'!")
    assert len(world.info().dead_letter_problem) == 200
    settle_dead(world, 0)
    assert (world.info().dead, world.info().dead_letter_problem) == (1, "")


def test_no_problem_is_left_when_no_dead_message_is(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 2)])
    settle_dead(world, 0, problem="full")
    world.apply([(None, c.Purge(1))])
    assert work(world).problem == ""
    settle_dead(world, 0, problem="full")
    assert work(world).problem == ""


def test_dead_messages_hold_back_publishes_and_do_not_make_room(world: World) -> None:
    name = begin(world, max_length=3, overflow="reject_publish")
    world.apply([world.batch(name, 3, ttl_ms=5)])
    world.wake(10)
    assert world.info().dead == 3
    [reply] = world.apply([world.batch(name, 1)]).replies
    assert isinstance(reply, Refused) and "3 messages are ready or dead" in reply.detail
    claim(world)
    settle_dead(world, 3)
    [reply] = world.apply([world.batch(name, 1)]).replies
    assert not isinstance(reply, Refused)


def test_their_bytes_count_under_a_limit_that_comes_later(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 5, size=30)])
    limited = c.QueueConfig(
        "queue-1", overflow="reject_publish", max_length_bytes=180, dead_letter_strategy="at_least_once"
    )
    world.apply([(None, c.UpdateConfig(1, limited))])
    [reply] = world.apply([world.batch(name, 2, size=30)]).replies
    assert isinstance(reply, Refused) and "150 bytes" in reply.detail
    world.apply([world.batch(name, 1, size=30)])


def test_consumers_do_not_see_dead_messages(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 5)])
    applied = world.apply([world.op(name, c.Attach(1, "a", b"", 9))])
    assert sequences(applied) == [5]


def test_no_fields_of_dead_messages_are_read(world: World) -> None:
    name = begin(world, filter_enabled=True)
    world.apply([world.batch(name, 2, [{"n": place}] * 2, place=place) for place in range(3)])
    attach, _ = world.attach(name, "a", 4)
    world.do(name, c.Discard(1, "a", attach, ((3, 4),)))
    assert world.info().dead == 2
    machine = world.machine.queues[1]
    block = machine.messages.blocks.get(0)
    block.columns = None
    read: list[int] = []
    fetch = world.log.columns

    def columns(index: int, operation: int, queue: int) -> Any:
        read.append(operation)
        return fetch(index, operation, queue)

    world.log.columns = columns  # type: ignore[method-assign]
    Fields(world.log, machine.messages.blocks).columns(block, block.present)
    assert read == [0, 2]
    assert block.has_fields


def test_a_purge_takes_dead_messages_and_their_claims_along(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 5)])
    claim(world)
    assert world.apply([(None, c.Purge(1, 3))]).replies == (Ok(2),)
    assert claimed(world) == [(3, 3, 2, "maxlen")]
    assert world.apply([(None, c.Purge(1))]).replies == (Ok(3),)
    assert (world.info().total, world.info().totals.purged) == (0, 5)
    assert settle_dead(world, 4) == 0


def test_a_purge_of_the_dead_ones_leaves_the_others(world: World) -> None:
    name = begin(world, max_length=3)
    world.apply([world.batch(name, 5), world.batch(name, 2, place=1, due_times_ms=(-100,))])
    found = world.info()
    assert world.apply([(None, c.Purge(1, dead_only=True))]).replies == (Ok(found.dead),)
    assert (world.info().ready, world.info().delayed, world.info().dead) == (found.ready, found.delayed, 0)


@pytest.mark.parametrize(("dead_only", "left"), [(False, 0), (True, 4)])
def test_a_purge_reads_no_cold_block_that_it_empties(world: World, dead_only: bool, left: int) -> None:
    name = begin(world, max_length=4, max_length_bytes=10_000)
    world.apply([world.batch(name, 20)])
    claim(world)
    blocks = world.machine.queues[1].messages.blocks
    *numbers, _ = blocks.numbers()
    for number in numbers:
        blocks.page_out(number)
    before = world.machine.memory.loads
    world.apply([(None, c.Purge(1, dead_only=dead_only))])
    assert (world.info().ready, world.info().dead, world.info().totals.purged) == (left, 0, 20 - left)
    assert world.machine.memory.loads == before


def test_what_waits_when_the_target_is_taken_away_waits_on(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 3)])
    world.apply([(None, c.UpdateConfig(1, c.QueueConfig("queue-1", max_length=1)))])
    world.apply([world.batch(name, 2)])
    assert (world.info().dead, world.info().totals.maxlen) == (2, 2)


def test_a_queue_with_dead_messages_does_not_expire(world: World) -> None:
    name = begin(world, max_length=1, expires_ms=50)
    world.apply([world.batch(name, 3)])
    world.wake(100)
    assert world.machine.has_queue(1)
    claim(world)
    settle_dead(world, 2)
    world.wake(100)
    assert not world.machine.has_queue(1)


def test_the_member_is_told_which_queues_have_new_dead_messages(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 1)])
    assert not world.machine.died
    world.apply([world.batch(name, 1)])
    assert list(world.machine.died) == [1] == list(world.machine.with_dead)
    world.machine.died.clear()
    world.apply([world.batch(name, 1)])
    assert not world.machine.died  # the member knows of it


@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 200}])
def test_a_snapshot_keeps_dead_messages_and_claims(world: World, limit: dict[str, int]) -> None:
    name = begin(world, **limit)
    world.apply([world.batch(name, 20)])
    claim(world)
    settle_dead(world, 2, forwarded=1, problem="full")
    again = world.restored(snapshot.encode(world.machine))
    assert queries.dead_work(again, 1, SMALL.max_claimed) == work(world)
    assert queries.info(again, 1) == world.info()
    world.machine = again
    settle_dead(world, 5)
    assert claimed(world)[0][0] == 6, "others get numbers as before"


def test_a_queue_with_dead_messages_can_be_deleted(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 3)])
    assert list(world.machine.with_dead) == [1]
    world.apply([(None, c.DeleteQueue(1))])
    assert not world.machine.with_dead


# ---- delayed messages, transactions and message groups


def test_a_returned_message_that_has_expired_when_it_is_due_dies(world: World) -> None:
    name = begin(world, delayed_retry_min_ms=100)
    world.apply([world.batch(name, 2, ttl_ms=50)])
    attach, _ = world.attach(name, "a", 2)
    world.do(name, c.Return(1, "a", attach, ((1, 1),)))
    world.wake(60)
    assert (world.info().delayed, world.info().dead, world.info().checked_out) == (1, 0, 1)
    world.wake(100)
    assert (world.info().delayed, world.info().dead, world.info().total) == (0, 1, 2)
    assert claim(world) == 1
    assert claimed(world) == [(1, 1, 1, "expired")]


def test_delayed_messages_above_the_length_die(world: World) -> None:
    name = begin(world, max_length=2)
    world.apply([world.batch(name, 5, due_times_ms=(-100,))])
    assert (world.info().delayed, world.info().dead, world.info().total) == (2, 3, 5)
    assert claim(world) == 3
    assert claimed(world) == [(1, 1, 3, "maxlen")]


def test_dead_and_delayed_messages_share_a_limit_and_a_page(world: World) -> None:
    arguments = {"overflow": "reject_publish", "delivery_limit": 0, "max_length_bytes": 1_000}
    name = begin(world, max_length=4, **arguments)
    world.apply([world.batch(name, 2), world.batch(name, 2, place=1, due_times_ms=(-100,))])
    attach, _ = world.attach(name, "a", 1)
    world.do(name, c.Discard(1, "a", attach, ((1, 1),)))
    assert (world.info().ready, world.info().delayed, world.info().dead) == (1, 2, 1)
    [reply] = world.apply([world.batch(name, 1)]).replies
    assert isinstance(reply, Refused)
    assert reply.detail.startswith("4 messages are ready or delayed or dead, 5 would be")
    blocks = world.machine.queues[1].messages.blocks
    blocks.page_out(0)
    cold = blocks.at(0)
    assert isinstance(cold, Stored)
    assert (cold.ready_count, cold.delayed_count, cold.dead_count) == (1, 2, 1)
    assert (cold.delayed_bytes, cold.dead_bytes) == (200, 100)
    again = Stored(cold.record)
    assert (again.delayed, again.dead_count, again.dead_bytes) == (cold.delayed, 1, 100)
    assert world.apply([(None, c.Purge(1))]).replies == (Ok(4),)


def test_the_record_of_a_block_with_dead_messages_only_says_that_none_is_delayed(world: World) -> None:
    name = begin(world, max_length=1)
    world.apply([world.batch(name, 12)])
    blocks = world.machine.queues[1].messages.blocks
    blocks.page_out(0)
    cold = blocks.at(0)
    assert isinstance(cold, Stored)
    for found in (cold, Stored(cold.record)):
        assert (found.live, found.dead_count, found.delayed, found.earliest_due) == (0, 7, None, None)
        assert found.record == cold.record


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_a_prepared_transaction_rejects_dies_with_its_commit(world: World, is_committed: bool) -> None:
    name = begin(world)
    world.apply([world.batch(name, 3)])
    attach, _ = world.attach(name, "a", 3)
    world.do(name, c.InTransaction(1, c.Discard(1, "a", attach, ((1, 2),))))
    assert world.do(name, c.Prepare(1, 0, 9, 7)) == Ok()
    assert (world.info().dead, world.info().checked_out) == (0, 3)
    world.apply([(None, c.Finish(name, 1, is_committed))])
    assert (world.info().dead, world.info().checked_out) == ((2, 1) if is_committed else (0, 3))


def test_a_dead_message_of_a_group_holds_up_nobody(world: World) -> None:
    name = begin(world, message_groups=True, delivery_limit=0)
    world.apply([world.batch(name, 3, group_keys=(1).to_bytes(8, "little"))])
    attach, applied = world.attach(name, "a", 1)
    assert sequences(applied, "a") == [1]
    assert sequences(world.attach(name, "b", 2)[1], "b") == []
    applied = world.apply([world.op(name, c.Discard(1, "a", attach, ((1, 1),)))])
    assert (world.info().dead, sequences(applied, "b")) == (1, [2, 3])
