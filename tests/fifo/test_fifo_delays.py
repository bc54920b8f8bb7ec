"""Delayed messages: published with a delay, or requeued in a queue that delays retries."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fifo.commands import Commit, Discard, Get, Modify, Pin, Purge, Return, Rollback, Settle, UpdateConfig
from fifo.commands import QueueConfig as Config
from fifo.effects import Deliver, Ok, Pinned, Refused
from fifo.limits import SMALL
from fifo.messages import bitsets
from fifo.messages.due_times import DueTimes
from fifo.persistence import snapshot
from fifo.queries import group as queries
from fifo.results import BrowsePage
from support.counted_lines import count_lines
from support.fifo.world import World, in_transaction, sequences


def made(**arguments: object) -> tuple[World, bytes]:
    world = World(SMALL)
    world.queue(**arguments)
    return world, world.session()


def counts(world: World) -> tuple[int, int, int]:
    """ready, checked out, delayed"""
    found = world.info()
    assert found.total == found.ready + found.checked_out + found.delayed
    return found.ready, found.checked_out, found.delayed


def delayed(world: World) -> list[tuple[int, int]]:
    """(sequence, due time) of the delayed messages, as a browse shows them."""
    page = queries.browse(world.machine, 1, 0, 1_000, delayed=True)
    assert isinstance(page, BrowsePage)
    found = [run.first_sequence + place for run in page.runs for place in range(run.count)]
    return list(zip(found, page.due_times_ms, strict=True))


def tags_of(world: World, name: bytes, count: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The attachment and the tags of messages that a Get takes."""
    applied = world.apply([world.op(name, Get(1, count, False))])
    [deliver] = [effect for effect in applied.effects if isinstance(effect, Deliver)]
    assert sum(run.count for run in deliver.runs) == count
    return deliver.attach, ((deliver.first_tag, deliver.first_tag + count - 1),)


# ---- delayed at publish


def test_a_delayed_message_is_handed_out_when_its_time_has_come() -> None:
    world, name = made()
    world.attach(name, "a", 10)
    assert sequences(world.publish(name, 3, due_times_ms=(-100, 0, -50))) == [2]
    assert counts(world) == (0, 1, 2)
    assert world.machine.next_wake() == world.now_ms + 50
    assert sequences(world.wake(49)) == []
    assert sequences(world.wake(1)) == [3]
    assert sequences(world.wake(50)) == [1]
    assert counts(world) == (0, 3, 0) and world.machine.next_wake() is None


def test_a_delay_counts_from_the_entry_and_a_time_is_group_time() -> None:
    world, name = made()
    at_ms = world.now_ms + 1_000
    world.publish(name, 4, due_times_ms=(-200, at_ms, at_ms - 5_000, 1), passed_ms=10)
    assert delayed(world) == [(1, world.now_ms + 200), (2, at_ms)]
    assert counts(world) == (2, 0, 2)


def test_it_is_ready_at_its_place_by_priority_and_sequence() -> None:
    world, name = made(max_priority=3)
    world.publish(name, 4, due_times_ms=(-100, 0, -100, 0), priorities=b"\x01\x01\x03\x00")
    world.wake(100)
    world.attach(name, "a", 0)
    assert sequences(world.attach(name, "a", 10)[1]) == [3, 1, 2, 4]


def test_a_consumer_with_a_selector_gets_it_without_a_new_evaluation() -> None:
    world, name = made(filter_enabled=True)
    world.attach(name, "a", 10, "colour = 'red'")
    rows = [{"application-properties.colour": each} for each in ("red", "blue", "red")]
    world.publish(name, 3, rows, due_times_ms=(-100,))
    world.publish(name, 1, rows[:1])
    evaluated = world.machine.queues[1].groups.fields.evaluated
    assert sequences(world.wake(100)) == [1, 3]
    assert world.machine.queues[1].groups.fields.evaluated == evaluated


def test_its_time_to_live_begins_when_it_is_due() -> None:
    world, name = made(message_ttl_ms=30)
    world.publish(name, 1, due_times_ms=(-100,))
    world.wake(100)
    assert counts(world) == (1, 0, 0)
    world.wake(29)
    assert counts(world) == (1, 0, 0)
    world.wake(1)
    assert counts(world) == (0, 0, 0) and world.info().totals.expired == 1


def test_it_counts_for_the_limits_of_its_queue() -> None:
    world, name = made(max_length=3, overflow="reject_publish")
    world.publish(name, 3, due_times_ms=(-100,))
    refused = world.publish(name, 1).replies[0]
    assert isinstance(refused, Refused) and refused.reason == "queue_full"
    assert refused.detail == "3 messages are ready or delayed, 4 would be; allowed: 3"


def test_a_limit_on_bytes_counts_it_also_when_it_comes_later() -> None:
    world, name = made()
    world.publish(name, 4, due_times_ms=(-100, 0, -100, -50), size=10)
    world.apply([(None, UpdateConfig(1, Config("queue-1", max_length_bytes=40, overflow="reject_publish")))])
    refused = world.publish(name, 1, size=1).replies[0]
    assert isinstance(refused, Refused) and "40 bytes of messages are ready or delayed" in refused.detail


def test_drop_head_drops_ready_messages_first_and_then_those_that_are_due_next() -> None:
    world, name = made(max_length=4)
    world.publish(name, 4, due_times_ms=(-300, -100, -200, 0))
    world.publish(name, 1, due_times_ms=(-400,))
    assert [sequence for sequence, _ in delayed(world)] == [1, 2, 3, 5]
    world.publish(name, 2, due_times_ms=(-500,))
    assert [sequence for sequence, _ in delayed(world)] == [1, 5, 6, 7]
    assert world.info().totals.maxlen == 3


@pytest.mark.parametrize("limit", [{"max_length": 5}, {"max_length_bytes": 500}])
def test_an_entry_drops_delayed_messages_of_as_many_blocks_as_its_budget_allows(
    limit: dict[str, int],
) -> None:
    """Whatever their due times are: here each has its own, and neighbours in time are in different blocks."""
    world, name = made()
    due = {sequence: sequence * 37 % 101 for sequence in range(1, 32)}
    world.publish(name, len(due), due_times_ms=tuple([-1_000 - each for each in due.values()]))
    world.apply([(None, UpdateConfig(1, Config("queue-1", **limit)))])
    assert [sequence for sequence, _ in delayed(world)] == sorted(sorted(due, key=due.__getitem__)[-5:])


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_purge_removes_delayed_messages_and_reads_no_block_for_it(is_cold: bool) -> None:
    world, name = made(max_length_bytes=10_000)
    world.publish(name, 30, due_times_ms=(-100,))
    world.publish(name, 2)
    for number in (0, 1, 2) if is_cold else ():
        world.machine.page_out(1, number)
    loads = world.machine.memory.loads
    world.checks = False  # it would read the blocks
    assert world.apply([(None, Purge(1, 24))]).replies == (Ok(23),)
    assert world.machine.memory.loads == loads
    world.checks = True
    assert world.apply([(None, Purge(1, 27))]).replies == (Ok(3),)
    assert world.apply([(None, Purge(1))]).replies == (Ok(6),)
    assert counts(world) == (0, 0, 0) and world.machine.next_wake() is None


def test_a_view_shows_no_message_that_was_delayed_when_it_was_made() -> None:
    world, name = made()
    world.publish(name, 3, due_times_ms=(-100, 0, -100))
    pinned = world.do(name, Pin(1, 10_000))
    assert isinstance(pinned, Pinned) and pinned.count == 1
    world.wake(200)
    page = queries.pinned(world.machine, 1, pinned.pin, 0, 100, 100)
    assert isinstance(page, BrowsePage)
    assert [(run.first_sequence, run.count) for run in page.runs] == [(2, 1)]


def test_an_entry_ends_the_delays_of_some_blocks_and_the_next_one_goes_on() -> None:
    world, name = made()
    total = 40 * SMALL.block_size
    while world.sequences.get(name, 1) <= total:
        world.publish(name, SMALL.block_size, due_times_ms=(-10_000,))
    world.now_ms += 20_000
    ready = []
    while world.machine.next_wake() is not None:
        world.wake()
        ready.append(world.info().ready)
    assert len(ready) > 2 and ready[-1] == total
    assert ready[0] <= SMALL.block_budget * SMALL.block_size


def test_times_before_the_snapshot_hold_after_it() -> None:
    world, name = made()
    world.publish(name, 20, due_times_ms=tuple([-each * 10 for each in range(20)]))
    world.machine = world.restored(snapshot.encode(world.machine))
    assert counts(world) == (1, 0, 19)
    world.wake(95)
    assert counts(world) == (10, 0, 10)


# ---- delayed retry


@pytest.mark.parametrize(
    ("failures", "most_ms", "delay_ms"), [(0, -1, 20), (1, -1, 20), (2, -1, 40), (3, -1, 60), (3, 50, 50)]
)
def test_a_requeued_message_is_delayed_for_each_of_its_failures(
    failures: int, most_ms: int, delay_ms: int
) -> None:
    world, name = made(delayed_retry_min_ms=20, delayed_retry_max_ms=most_ms)
    world.publish(name, 1)
    for _ in range(failures):
        world.wake(1_000)
        attach, tags = tags_of(world, name, 1)
        world.do(name, Modify(1, "", attach, tags, delivery_failed=True))
    if not failures:
        attach, tags = tags_of(world, name, 1)
        world.do(name, Modify(1, "", attach, tags))
    assert delayed(world) == [(1, world.now_ms + delay_ms)]
    assert sequences(world.apply([world.op(name, Get(1, 1, True))])) == []


def test_a_consumer_that_fails_with_a_message_does_not_get_it_in_a_loop() -> None:
    world, name = made(delayed_retry_min_ms=10, delayed_retry_max_ms=100)
    attach, _ = world.attach(name, "a", 1_000)
    applied, tag, end_ms = world.publish(name, 1), 0, world.now_ms + 1_000
    while world.now_ms < end_ms:
        if sequences(applied):
            tag += 1
            applied = world.apply(
                [world.op(name, Modify(1, "a", attach, ((tag, tag),), delivery_failed=True))]
            )
        else:
            due_ms = world.machine.next_wake()
            assert due_ms is not None
            applied = world.wake(due_ms - world.now_ms)
    assert 10 < tag < 20


def test_messages_of_a_lost_session_are_delayed_too() -> None:
    world, name = made(delayed_retry_min_ms=20)
    world.publish(name, 12)
    world.attach(name, "a", 10)
    world.session(1, epoch=2)
    assert counts(world) == (2, 0, 10)
    assert {time for _, time in delayed(world)} == {world.now_ms + 20}


def test_what_is_settled_or_discarded_is_not_delayed() -> None:
    world, name = made(delayed_retry_min_ms=20)
    world.publish(name, 2)
    attach, ((first, last),) = tags_of(world, name, 2)
    world.do(name, Settle(1, "", attach, ((first, first),)))
    world.do(name, Discard(1, "", attach, ((last, last),)))
    assert counts(world) == (0, 0, 0)


def test_a_message_that_expires_while_it_is_delayed_leaves_when_it_is_due() -> None:
    world, name = made(delayed_retry_min_ms=50, message_ttl_ms=30)
    world.publish(name, 1)
    attach, tags = tags_of(world, name, 1)
    world.do(name, Modify(1, "", attach, tags))
    world.wake(40)
    assert counts(world) == (0, 0, 1)
    world.wake(10)
    assert counts(world) == (0, 0, 0) and world.info().totals.expired == 1


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_purge_leaves_no_expiry_of_messages_that_were_requeued_with_a_delay(is_cold: bool) -> None:
    world, name = made(delayed_retry_min_ms=100, message_ttl_ms=50)
    world.publish(name, 7)
    world.publish(name, 1, due_times_ms=(-1_000,))
    attach, tags = tags_of(world, name, 7)
    world.do(name, Return(1, "", attach, tags))
    if is_cold:
        world.machine.page_out(1, 0)
    assert world.apply([(None, Purge(1))]).replies == (Ok(8),)
    assert world.machine.next_wake() is None
    world.publish(name, 1, passed_ms=60)
    assert counts(world) == (1, 0, 0)


def test_a_message_over_its_delivery_limit_leaves_at_once() -> None:
    world, name = made(delayed_retry_min_ms=50, delivery_limit=0)
    world.publish(name, 1)
    attach, tags = tags_of(world, name, 1)
    world.do(name, Modify(1, "", attach, tags, delivery_failed=True))
    assert world.info().totals.delivery_limit == 1


def test_a_changed_configuration_is_for_messages_that_are_requeued_later() -> None:
    world, name = made(delayed_retry_min_ms=50)
    world.publish(name, 2)
    attach, ((first, last),) = tags_of(world, name, 2)
    world.do(name, Modify(1, "", attach, ((first, first),)))
    before = delayed(world)
    world.apply([(None, UpdateConfig(1, Config("queue-1")))])
    world.do(name, Modify(1, "", attach, ((last, last),)))
    assert delayed(world) == before and counts(world) == (1, 0, 1)


# ---- in transactions


def test_a_delay_in_a_transaction_counts_from_the_publish() -> None:
    world, name = made()
    world.apply([in_transaction(1, world.batch(name, 2, due_times_ms=(-100, -10)))])
    due_ms = world.now_ms + 100
    assert counts(world) == (0, 0, 0)
    world.wake(20)
    assert world.do(name, Commit(1)) == Ok()
    assert delayed(world) == [(1, due_ms)] and counts(world) == (1, 0, 1)


def test_its_time_to_live_begins_when_it_is_due_also_in_a_transaction() -> None:
    world, name = made(message_ttl_ms=30)
    world.apply([in_transaction(1, world.batch(name, 1, due_times_ms=(-100,)))])
    assert world.do(name, Commit(1)) == Ok()
    world.wake(99)
    assert counts(world) == (1, 0, 0)
    world.wake(29)
    assert counts(world) == (1, 0, 0)
    world.wake(1)
    assert counts(world) == (0, 0, 0) and world.info().totals.expired == 1


def test_a_rollback_leaves_nothing_delayed() -> None:
    world, name = made()
    world.apply([in_transaction(1, world.batch(name, 2, due_times_ms=(-100,)))])
    world.do(name, Rollback(1))
    assert counts(world) == (0, 0, 0) and world.machine.next_wake() is None


# ---- the due times of a block


def stretches(dues: DueTimes) -> list[tuple[int, int, int]]:
    return list(zip(dues.times, dues.firsts, dues.counts, strict=True))


def test_neighbours_with_the_same_time_are_one_stretch_whatever_their_order() -> None:
    dues = DueTimes()
    for slot, time_ms in ((4, 50), (2, 50), (9, 20), (3, 50), (5, 60)):
        dues.add(1 << slot, time_ms)
    assert stretches(dues) == [(20, 9, 1), (50, 2, 3), (60, 5, 1)]
    assert dues.take(49) == 1 << 9
    dues.remove(1 << 3 | 1 << 5)
    assert stretches(dues) == [(50, 2, 1), (50, 4, 1)]
    assert (dues.earliest, dues.members) == (50, 1 << 2 | 1 << 4)
    assert dues.by_slot(6).tolist() == [0, 0, 50, 0, 50, 0]


def test_stretches_of_one_time_are_joined_on_both_sides() -> None:
    chance = random.Random(1)
    for _ in range(50):
        dues, members, places = DueTimes(), 0, list(range(40))
        chance.shuffle(places)
        while places:
            some = [places.pop() for _ in range(min(len(places), chance.choice((1, 1, 1, 2, 12))))]
            added = sum(1 << slot for slot in some)
            dues.add(added, 50)
            members |= added
            assert stretches(dues) == [(50, *each) for each in bitsets.ranges(members)]


def test_a_stretch_costs_the_same_however_many_there_are_of_its_time() -> None:
    """A batch whose messages have two delays by turns kept each member busy for seconds."""
    dues = DueTimes()

    def lines(slot: int) -> int:
        return count_lines(lambda: dues.add(1 << slot, 50))

    few = max(lines(slot) for slot in range(0, 20, 2))
    dues.add(sum(1 << slot for slot in range(20, 4_000, 2)), 50)
    assert max(lines(slot) for slot in (21, 2_001, 4_000, 4_002)) <= 2 * few


def test_a_purge_takes_no_step_for_each_time() -> None:
    """A purge of messages with many due times kept each member busy for seconds."""

    def lines(count: int) -> int:
        world = World()
        world.checks = False
        world.queue()
        world.publish(world.session(), count, due_times_ms=tuple(range(-count, 0)))
        found = count_lines(lambda: world.apply([(None, Purge(1, None))]))
        assert world.info().total == 0
        return found

    assert lines(1_000) <= 2 * lines(10)


def test_many_stretches_are_found_as_few_ones_are() -> None:
    dues, members = DueTimes(), 0
    for slot in range(0, 200, 3):
        dues.add(1 << slot, 1_000 - slot)
        members |= 1 << slot
    assert dues.members == members
    assert list(bitsets.members(dues.take(900))) == list(range(102, 200, 3))


def test_many_times_are_removed_in_few_steps() -> None:
    dues = DueTimes()
    for slot in range(4_000):
        dues.add(1 << slot, 1_000 + slot * 37 % 4_001)
    kept = 0b1101 << 1_500
    assert count_lines(lambda: dues.remove(dues.members ^ kept)) < 1_000
    slots = sorted((1_500, 1_502, 1_503), key=lambda slot: slot * 37 % 4_001)
    assert stretches(dues) == [(1_000 + slot * 37 % 4_001, slot, 1) for slot in slots]


@given(
    st.lists(st.tuples(st.integers(0, 3) | st.integers(0, 50), st.booleans()), min_size=1, max_size=60),
    st.integers(0, 3),
)
def test_what_is_left_of_removed_times_is_as_if_it_came_alone(
    each: list[tuple[int, bool]], spared: int
) -> None:
    all_of, left, gone = DueTimes(), DueTimes(), 0
    for slot, (time_ms, is_gone) in enumerate(each):
        all_of.add(1 << slot, time_ms)
        if is_gone and time_ms >= spared:
            gone |= 1 << slot
        else:
            left.add(1 << slot, time_ms)
    all_of.remove(gone)
    assert stretches(all_of) == stretches(left)
