"""A queue with message groups: one consumer at a time for a group, and its messages in their order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fifo.commands import (
    Cancel,
    CloseSession,
    Commit,
    Credit,
    Discard,
    Enqueue,
    Finish,
    Get,
    Modify,
    OpenSubscription,
    Prepare,
    Purge,
    QueueConfig,
    Return,
    Settle,
    Stage,
    UpdateConfig,
    Wake,
)
from fifo.effects import Applied, Refused
from fifo.limits import PRODUCTION, SMALL, Limits
from fifo.messages import bitsets
from fifo.messages.blocks import Block
from fifo.messages.message_groups import Heads, MessageGroups, keys_of_each
from fifo.messages.pages import MemoryPages
from fifo.messages.ready_order import of_each
from fifo.persistence import snapshot
from fifo.queue_machine import QueueMachine
from support.counted_lines import count_lines
from support.fifo.world import World, in_transaction, of_keys, part_name, sequences

RED = {"application-properties.colour": "red"}
GREEN = {"application-properties.colour": "green"}

Given = dict[str, list[int]]
"""The sequences that an entry has delivered to each of the consumers a, b and c."""


def prepared(limits: Limits = PRODUCTION, **arguments: Any) -> tuple[World, bytes]:
    world = World(limits, has_model=True)
    world.twin = world.empty()
    world.queue(**{"message_groups": True, **arguments})
    return world, world.session()


def keys(text: str) -> bytes:
    """A letter is a group; a point is none."""
    return of_keys([0 if letter == "." else ord(letter) for letter in text])


def given(applied: Applied) -> Given:
    found = {tag: sequences(applied, tag) for tag in "abc"}
    return {tag: each for tag, each in found.items() if each}


def publish(world: World, name: bytes, text: str, **more: Any) -> Given:
    """A message for each character."""
    return given(world.publish(name, len(text), more.pop("rows", ()), group_keys=keys(text), **more))


def attach(world: World, name: bytes, tag: str, credit: int, text: str = "", priority: int = 0) -> list[int]:
    return sequences(world.attach(name, tag, credit, text, priority=priority)[1])


def answer(
    world: World, name: bytes, tag: str, *tags: int, to: int = 0, kind: type[Settle] = Settle
) -> Given:
    """Settles delivery tags. to: the consumer's credit from now on."""
    consumer = next(each for each in world.machine.consumers(1) if each.tag == tag)
    command = kind(1, tag, consumer.attach, tuple([(each, each) for each in tags]), to)
    return given(world.apply([world.op(name, command)]))


def groups_of(world: World) -> MessageGroups:
    found = world.machine.queues[1].messages.grouped
    assert found is not None
    return found


def held_groups(world: World) -> int:
    found = world.info()
    return found.held_groups


# ---- one consumer, in order


def test_a_lone_consumer_gets_all_messages_in_their_order() -> None:
    world, name = prepared()
    publish(world, name, "ab.ba.c")
    assert attach(world, name, "a", 100) == [1, 2, 3, 4, 5, 6, 7]
    assert held_groups(world) == 3


def test_a_group_is_given_to_one_consumer_while_others_have_credit() -> None:
    world, name = prepared()
    attach(world, name, "a", 100)
    attach(world, name, "b", 100)
    assert publish(world, name, "xxxx") == {"a": [1, 2, 3, 4]}
    assert publish(world, name, "xyx") == {"a": [5, 7], "b": [6]}


def test_a_group_stays_while_one_message_of_it_is_not_settled() -> None:
    world, name = prepared()
    attach(world, name, "a", 2)
    attach(world, name, "b", 100)
    assert publish(world, name, "xxx") == {"a": [1, 2]}
    assert answer(world, name, "a", 1) == {}
    assert answer(world, name, "a", 2) == {"b": [3]}


def test_a_holder_with_new_credit_goes_on_with_its_group() -> None:
    world, name = prepared()
    attach(world, name, "a", 1)
    attach(world, name, "b", 100)
    assert publish(world, name, "xxx") == {"a": [1]}
    assert given(world.apply([world.op(name, Credit(1, "a", 2))])) == {"a": [2]}


def test_groups_are_spread_over_the_consumers() -> None:
    world, name = prepared()
    for tag in "abc":
        attach(world, name, tag, 100)
    delivered = publish(world, name, "uvwxyzuvwxyz")
    assert {tag: len(each) for tag, each in delivered.items()} == {"a": 4, "b": 4, "c": 4}
    assert held_groups(world) == 6


def test_one_group_after_the_other_goes_to_another_consumer() -> None:
    world, name = prepared()
    attach(world, name, "a", 100)
    attach(world, name, "b", 100)
    found = [publish(world, name, letter) for letter in "uvwx"]
    assert found == [{"a": [1]}, {"b": [2]}, {"a": [3]}, {"b": [4]}]


def test_messages_without_a_group_are_for_every_consumer() -> None:
    world, name = prepared()
    attach(world, name, "a", 100)
    attach(world, name, "b", 100)
    assert publish(world, name, "....") == {"a": [1, 2], "b": [3, 4]}
    assert held_groups(world) == 0


def test_a_queue_without_the_argument_does_not_know_groups() -> None:
    world, name = prepared(message_groups=False)
    attach(world, name, "a", 100)
    attach(world, name, "b", 100)
    assert publish(world, name, "xxxx") == {"a": [1, 2], "b": [3, 4]}


# ---- what is requeued


@pytest.mark.parametrize("kind", [Return, Modify])
def test_what_is_requeued_is_delivered_before_what_is_later_in_its_group(kind: type[Settle]) -> None:
    world, name = prepared()
    attach(world, name, "a", 2)
    publish(world, name, "xxxx")
    answer(world, name, "a", 1, kind=kind)
    attach(world, name, "b", 100)
    assert answer(world, name, "a", 2, kind=kind) == {"b": [1, 2, 3, 4]}


def test_a_part_that_is_requeued_goes_to_the_holder_again() -> None:
    world, name = prepared()
    attach(world, name, "a", 3)
    attach(world, name, "b", 100)
    publish(world, name, "xxxx")
    assert answer(world, name, "a", 2, to=4, kind=Return) == {"a": [2]}
    assert answer(world, name, "a", 1, 3) == {}
    assert answer(world, name, "a", 4) == {"b": [4]}


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_group_of_a_consumer_that_is_gone_begins_again_at_the_next(how: str) -> None:
    world, name = prepared()
    attach(world, name, "a", 3)
    publish(world, name, "xyxx")
    attach(world, world.session(2), "b", 100)
    command = Cancel(1, "a", True) if how == "cancel" else CloseSession()
    assert given(world.apply([world.op(name, command)])) == {"b": [1, 2, 3, 4]}


def test_a_group_waits_for_a_cancelled_consumer_that_still_settles() -> None:
    world, name = prepared()
    attach(world, name, "a", 1)
    publish(world, name, "xx")
    attach(world, name, "b", 100)
    assert given(world.apply([world.op(name, Cancel(1, "a", False))])) == {}
    assert answer(world, name, "a", 1) == {"b": [2]}


def test_a_consumer_that_times_out_loses_its_groups() -> None:
    world, name = prepared(consumer_timeout_ms=100)
    attach(world, name, "a", 1)
    attach(world, name, "b", 100)
    publish(world, name, "xxx")
    assert given(world.wake(150)) == {"b": [1, 2, 3]}


# ---- what leaves


def test_what_leaves_the_queue_makes_room_for_the_next_of_its_group() -> None:
    world, name = prepared(delivery_limit=0)
    attach(world, name, "a", 1)
    publish(world, name, "xxx")
    assert answer(world, name, "a", 1, to=2, kind=Discard) == {"a": [2]}
    consumer = world.machine.consumers(1)[0]
    failed = Modify(1, "a", consumer.attach, ((2, 2),), 3, delivery_failed=True)
    assert given(world.apply([world.op(name, failed)])) == {"a": [3]}


def test_expired_and_dropped_messages_hold_nothing_up() -> None:
    world, name = prepared(max_length=3)
    publish(world, name, "x", ttl_ms=5)
    publish(world, name, "xyxx")
    world.wake(20)
    assert attach(world, name, "a", 100) == [3, 4, 5]


def test_a_purge_also_of_cold_blocks_leaves_no_trace() -> None:
    world, name = prepared(SMALL, filter_enabled=True)
    attach(world, name, "a", 1)
    attach(world, name, "b", 1, "colour = 'red'")
    for _ in range(4):
        publish(world, name, "xy.z")
    world.wake_until_done()
    assert sorted(groups_of(world).filed) == [0, 1] and groups_of(world).free.at((0, 1))
    for block in (0, 1):
        world.machine.page_out(1, block)
    world.apply([(None, Purge(1))])
    grouped = groups_of(world)
    assert (list(grouped.groups), grouped.filed, grouped.free.count) == ([ord("x")], {}, 0)
    answer(world, name, "a", 1)
    assert not grouped.groups
    assert not grouped.own


# ---- with selectors, priorities and others


def test_a_message_that_does_not_match_holds_up_the_rest_of_its_group() -> None:
    world, name = prepared(filter_enabled=True)
    attach(world, name, "a", 100, "colour = 'red'")
    assert publish(world, name, "xxyx", rows=[RED, GREEN, RED, RED]) == {"a": [1, 3]}
    attach(world, name, "b", 100, "colour = 'green'")
    assert answer(world, name, "a", 1) == {"b": [2]}
    assert answer(world, name, "b", 1) == {"a": [4]}


def test_a_selector_finds_a_group_that_is_given_on() -> None:
    world, name = prepared(filter_enabled=True)
    attach(world, name, "a", 1)
    publish(world, name, "xx", rows=[RED, RED])
    attach(world, name, "b", 100, "colour = 'red'")
    assert publish(world, name, "y", rows=[GREEN]) == {}
    assert answer(world, name, "a", 1) == {"b": [2]}


def test_a_group_is_as_urgent_as_its_first_message() -> None:
    world, name = prepared(max_priority=9)
    publish(world, name, "xyx.", priorities=bytes([1, 5, 9, 3]))
    assert attach(world, name, "a", 100) == [2, 4, 1, 3]


def test_a_group_goes_to_the_consumer_with_the_highest_priority_and_stays_there() -> None:
    world, name = prepared()
    attach(world, name, "a", 100)
    attach(world, name, "b", 1, priority=1)
    assert publish(world, name, "xxy") == {"a": [3], "b": [1]}


def test_a_get_holds_groups_until_its_messages_are_settled() -> None:
    world, name = prepared()
    publish(world, name, "xxy")
    assert sequences(world.apply([world.op(name, Get(1, 1, False))])) == [1]
    assert attach(world, name, "a", 100) == [3]
    consumer = next(each for each in world.machine.consumers(1) if not each.tag)
    settle = Settle(1, "", consumer.attach, ((1, 1),))
    assert sequences(world.apply([world.op(name, settle)])) == [2]


def test_a_get_that_settles_holds_nothing() -> None:
    world, name = prepared()
    publish(world, name, "xxy")
    assert sequences(world.apply([world.op(name, Get(1, 2, True))])) == [1, 2]
    assert held_groups(world) == 0


def test_a_transaction_holds_a_group_until_it_commits_and_publishes_with_groups() -> None:
    world, name = prepared()
    attach(world, name, "a", 1)
    attach(world, name, "b", 100)
    publish(world, name, "xx")
    attached = world.machine.consumers(1)[0].attach
    settle = world.op(name, Settle(1, "a", attached, ((1, 1),)))
    batch = world.batch(name, 3, place=1, group_keys=keys("xyx"), first=0)
    assert given(world.apply([in_transaction(1, settle), in_transaction(1, batch)])) == {}
    assert given(world.apply([world.op(name, Commit(1))])) == {"b": [2, 3, 4, 5]}


def test_staged_messages_have_their_groups() -> None:
    world, name = prepared()
    world.stage(name, 1, 1, 0, 3, group_keys=keys("xyx"))
    world.stage(name, 1, 1, 1, 2, group_keys=keys("y"))
    attach(world, name, "a", 100)
    attach(world, name, "b", 100)
    assert given(world.publish_staged(name, 1, (1, 5))) == {"a": [1, 3], "b": [2, 4, 5]}


def test_only_the_queues_of_a_batch_that_have_groups_look_at_them() -> None:
    world, name = prepared()
    world.queue(2)
    attach(world, name, "a", 100)
    attach(world, name, "b", 100)
    routes = [(1, 2), (1,), (1, 2), (2,)]
    applied = world.apply([world.routed(name, routes, group_keys=keys("xyxx"))])
    assert given(applied) == {"a": [1, 3], "b": [2]}


def test_a_subscription_is_refused() -> None:
    world, name = prepared()
    reply = world.do(name, OpenSubscription(1, "spark", b"", "earliest", 10_000, "release"))
    assert isinstance(reply, Refused)
    assert "x-message-groups, which excludes a subscription" in reply.detail


@pytest.mark.parametrize(
    "command",
    [
        Enqueue(1, 1, 1, 3, 300, group_keys=bytes(16)),
        Enqueue(1, 1, 1, 1, 300, group_keys=b"short"),
        Stage(1, "writer", 1, part_name(1), 0, 3, 300, group_keys=bytes(16)),
    ],
)
def test_keys_are_one_for_all_messages_or_one_each(command: Enqueue | Stage) -> None:
    world = World()
    world.queue(message_groups=True)
    reply = world.do(world.session(), command)
    assert isinstance(reply, Refused)
    assert (reply.reason, "bytes of keys of groups" in reply.detail) == ("bad_argument", True)


@pytest.mark.parametrize("limits", [PRODUCTION, SMALL])
def test_one_key_for_all_messages_of_a_batch_is_also_that_of_some_of_them(limits: Limits) -> None:
    """The first message was accepted before, and each has a time to live of its own."""
    world, name = prepared(limits)
    attach(world, name, "a", 10)
    attach(world, name, "b", 10)
    assert publish(world, name, "x") == {"a": [1]}
    rest = world.publish(name, 4, first=1, group_keys=keys("x"), ttls_ms=(100, 200, 300, 400))
    assert given(rest) == {"a": [2, 3, 4]}


# ---- budgets, limits, and states that are restored


def test_an_entry_hands_out_no_more_runs_than_its_budget() -> None:
    world, name = prepared(replace(SMALL, filed_places=100, file_slots=100, step_budget=1_000))
    for _ in range(12):
        publish(world, name, "x")
    assert attach(world, name, "a", 40) == list(range(1, 11))
    assert [sequences(applied) for applied in world.wake_until_done()] == [[11, 12]]


def test_filing_goes_on_with_later_entries() -> None:
    world, name = prepared(SMALL)
    for _ in range(9):
        publish(world, name, "xxxxxxxx")
    order = attach(world, name, "a", 1000)
    for applied in world.wake_until_done():
        order += sequences(applied)
    assert order == list(range(1, 41))  # as many as a consumer may have checked out


def test_a_long_group_of_a_consumer_without_credit_is_filed_once() -> None:
    world, name = prepared(SMALL)
    attach(world, name, "a", 1)
    for _ in range(4):
        publish(world, name, "xxxxxxxx")
    attach(world, name, "b", 100)
    publish(world, name, "y")
    world.wake_until_done()
    grouped = groups_of(world)
    assert grouped.filed_to == world.machine.queues[1].messages.next_sequence
    for _ in range(3):
        filed = grouped.filed_to
        publish(world, name, "y")
        assert grouped.filed_to == filed + 1


def test_more_places_than_the_limit_wait_until_some_have_left() -> None:
    world, name = prepared(SMALL)
    for _ in range(4):
        publish(world, name, "stuvwxyz")
    order = attach(world, name, "a", 1000)
    for applied in world.wake_until_done():
        order += sequences(applied)
    assert order == list(range(1, 33))


@pytest.mark.parametrize("way", ["snapshot", "checkpoint"])
def test_a_restored_state_goes_on_alike(way: str) -> None:
    world, name = prepared(SMALL, filter_enabled=True, max_priority=2)
    attach(world, name, "a", 3)
    attach(world, name, "b", 2, "colour = 'red'")
    for number in range(5):
        own = bytes([0, 1, number % 3, 0, 2])
        publish(world, name, "xy.zx", rows=[RED, GREEN, RED, RED, RED], priorities=own)
    world.wake_until_done()
    restore(world, way)
    for tag in (1, 2):
        answer(world, name, "a", tag, to=tag + 3)
        answer(world, name, "b", tag, to=tag + 2, kind=Return)
    publish(world, name, "xyz", rows=[RED, RED, GREEN])
    world.apply([world.op(name, Cancel(1, "a", True))])
    world.wake_until_done()


def test_the_groups_stay_when_other_arguments_change() -> None:
    world, name = prepared()
    publish(world, name, "xx")
    world.apply([(None, UpdateConfig(1, QueueConfig("queue-1", max_length=5, message_groups=True)))])
    assert attach(world, name, "a", 1) == [1]
    assert attach(world, name, "b", 9) == []


# ---- beside delays, and transactions over several Raft groups


def test_a_delayed_message_does_not_hold_up_its_group() -> None:
    world, name = prepared()
    attach(world, name, "a", 100)
    assert publish(world, name, "xxx", due_times_ms=(-50, 0, -80)) == {"a": [2]}
    assert held_groups(world) == 1
    assert given(world.wake(50)) == {"a": [1]}
    attach(world, name, "b", 100)
    assert answer(world, name, "a", 1, 2) == {}
    assert held_groups(world) == 0
    assert list(given(world.wake(30)).values()) == [[3]], "behind others of its group, it is like any message"


def test_delayed_messages_that_are_due_together_are_in_order() -> None:
    world, name = prepared()
    publish(world, name, "xxxx", due_times_ms=(-50, -40, 0, -60))
    world.wake(100)
    assert attach(world, name, "a", 1) == [1]
    assert attach(world, name, "b", 9) == []
    assert answer(world, name, "a", 1) == {"b": [2, 3, 4]}


@pytest.mark.parametrize("way", ["", "snapshot", "checkpoint"])
def test_the_groups_of_delayed_messages_are_restored(way: str) -> None:
    world, name = prepared(SMALL)
    publish(world, name, "xyxy", due_times_ms=(-50, 0, 0, -50))
    restore(world, way)
    assert (attach(world, name, "a", 1), attach(world, name, "b", 9)) == ([2], [3])
    assert given(world.wake(60)) == {"b": [1]}, "the other group is with the other consumer"
    assert answer(world, name, "a", 1) == {"b": [4]}


@pytest.mark.parametrize("way", ["", "snapshot", "checkpoint"])
@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("ending", ["", "cancel", "session"])
def test_what_is_prepared_holds_its_group(ending: str, is_committed: bool, way: str) -> None:
    world, name = prepared(SMALL)
    other = world.session(2, node=2)
    publish(world, name, "xx")
    assert attach(world, name, "a", 1) == [1]
    settle = Settle(1, "a", world.machine.consumers(1)[0].attach, ((1, 1),))
    world.apply([in_transaction(1, world.op(name, settle))])
    world.do(name, Prepare(1, 0, 9, 7))
    assert attach(world, other, "b", 9) == []
    if ending == "cancel":
        assert given(world.apply([world.op(name, Cancel(1, "a", True))])) == {}
    elif ending == "session":
        assert given(world.apply([world.op(name, CloseSession())])) == {}
    restore(world, way)
    assert publish(world, other, "xy") == {"b": [4]}, "nobody else is given the second message"
    assert held_groups(world) == 2
    found = given(world.apply([(None, Finish(name, 1, is_committed))]))
    if is_committed:
        assert found == {"b": [2, 3]}
    else:
        assert found == ({"b": [1, 2, 3]} if ending else {})


@pytest.mark.parametrize("way", ["snapshot", "checkpoint"])
def test_what_an_open_transaction_settles_holds_its_group(way: str) -> None:
    world, name = prepared(SMALL)
    publish(world, name, "xx")
    attach(world, name, "a", 1)
    settle = Settle(1, "a", world.machine.consumers(1)[0].attach, ((1, 1),))
    world.apply([in_transaction(1, world.op(name, settle))])
    restore(world, way)
    assert attach(world, name, "b", 9) == []
    assert given(world.apply([world.op(name, Commit(1))])) == {"b": [2]}


def restore(world: World, way: str) -> None:
    """Goes on with a twin that was restored in this way; "" for none."""
    data = snapshot.encode(world.machine)
    if way == "snapshot":
        world.twin = world.restored(data)
    elif way == "checkpoint":
        pages = MemoryPages()
        source = snapshot.decode(data, world.log, pages, SMALL)
        world.twin = world.resumed(world.checkpointer(source).take().state, pages)


def serve_many() -> None:
    """Many consumers and groups, compared with the model after each entry."""
    world, name = prepared(SMALL)
    for number in range(6):
        attach(world, name, "abcdef"[number], 2 + number)
    for number, text in enumerate(("xyzw", "xx.y", "wwwz", "..xy") * 3):
        publish(world, name, text)
        for consumer in world.machine.consumers(1)[number % 2 :: 2]:
            if consumer.checked_out.total:
                tag, kind = consumer.checked_out.tags[0], Return if number % 3 == 0 else Settle
                answer(world, name, consumer.tag, tag, to=consumer.credit_to + 1, kind=kind)
        if number % 4 == 3:
            world.twin = world.restored(snapshot.encode(world.machine))


def test_many_consumers_and_groups_agree_with_the_model() -> None:
    serve_many()


def without_holders(self: MessageGroups, holder: int) -> Heads:
    """Everybody may get the next message of a group."""
    return self.free


def for_ever(self: MessageGroups, block: Block, members: int) -> None:
    """A group stays with its consumer."""


def forgotten(self: MessageGroups, block: Block, members: int) -> None:
    """A requeued message is not filed."""
    self.base.requeued(block, members)


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_purge_takes_few_steps_for_each_group_that_is_filed(is_cold: bool) -> None:
    world = World()
    world.checks = False
    world.queue(message_groups=True)
    name, count = world.session(), 4 * 4_096
    for first in range(0, count, 4_096):
        world.publish(name, 4_096, group_keys=of_keys(range(first + 1, first + 4_097)))
    world.attach(name, "a", 1)
    grouped = world.machine.queues[1].messages.grouped
    assert grouped is not None
    for _ in range(8):  # an entry files some 4,000 places
        world.attach(name, "b", 1)
        world.do(name, Cancel(1, "b", requeue=True))
    filed = grouped.filed_count
    assert filed > count // 2
    if is_cold:
        world.machine.page_out(1, 0)
    assert count_lines(lambda: world.apply([(None, Purge(1))])) < 20 * filed
    assert grouped.filed_count == 0


def count_conversions(monkeypatch: pytest.MonkeyPatch, world: World, *operations: Any) -> int:
    """How often an entry takes the whole set of a block apart or puts one together."""
    count = 0

    def counted(convert: Any) -> Any:
        def run(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            return convert(*arguments)

        return run

    with monkeypatch.context() as patch:
        for name in ("as_flags", "from_flags"):
            patch.setattr(bitsets, name, counted(getattr(bitsets, name)))
        world.apply(list(operations))
    return count


@pytest.mark.parametrize("kind", ["cancel", "modify", "expiry"])
def test_many_groups_that_change_at_once_share_the_work_on_their_block(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.checks = False
    world.queue(message_groups=True)
    name, groups, each = world.session(), 320, 12
    numbers = [1 + place % groups for place in range(groups * each)]
    ttls = (5_000, 50) if kind == "expiry" else ()
    world.publish(name, len(numbers), group_keys=of_keys(numbers), ttls_ms=ttls * (len(numbers) // 2))
    attach_number, _ = world.attach(name, "a", len(numbers))
    consumer = world.machine.queues[1].consumers.by_key[name, "a"]
    assert consumer.held_count == len(numbers)
    if kind == "modify":
        tags = tuple([(tag, tag) for tag in range(1, len(numbers), 2)])
        operation = world.op(name, Modify(1, "a", attach_number, tags, delivery_failed=True))
    else:
        operation = world.op(name, Cancel(1, "a", requeue=True))
    if kind == "expiry":
        world.apply([operation])
        world.now_ms += 100
        operation = None, Wake()
    assert count_conversions(monkeypatch, world, operation) < groups // 8
    grouped = groups_of(world)
    assert grouped.filed_count == groups // (1 + (kind != "cancel"))
    assert grouped.held_count == (groups // 2 if kind == "modify" else 0)


def test_a_message_that_is_handed_out_leaves_the_rest_of_its_group_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.checks = False
    world.queue(message_groups=True, max_priority=1)
    name, count = world.session(), 2_000
    world.publish(name, count, group_keys=keys("abcdefghij" * (count // 10)))
    world.attach(name, "a", 0)
    assert count_conversions(monkeypatch, world, world.op(name, Credit(1, "a", 1_000))) < 200
    assert world.machine.queues[1].consumers.by_key[name, "a"].held_count == 1_000


def test_the_end_of_a_session_takes_no_block_apart_for_each_of_its_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.checks = False
    world.queue(message_groups=True)
    publisher, name, count, each = world.session(), world.session(2), 100, 5
    for number in range(count):
        world.attach(name, f"c{number}", each)
    world.publish(publisher, count * each, group_keys=of_keys(range(1, count * each + 1)))
    held = [consumer.held_count for consumer in world.machine.consumers(1)]
    assert sum(held) == count * each
    assert count_conversions(monkeypatch, world, world.op(name, CloseSession())) < len(held) // 4
    assert (groups_of(world).held_count, groups_of(world).filed_count) == (0, count * each)


@pytest.mark.parametrize("ending", ["cancel", "return", "session"])
def test_each_of_many_groups_takes_few_lines_when_their_messages_are_given_back(ending: str) -> None:
    world = World()
    world.checks = False
    world.queue(message_groups=True)
    publisher, name, count = world.session(), world.session(2), 2_000
    world.publish(publisher, count, group_keys=of_keys(range(1, count + 1)))
    attach_number, _ = world.attach(name, "a", count)
    assert groups_of(world).held_count == count
    commands: dict[str, Any] = {
        "cancel": Cancel(1, "a", requeue=True),
        "return": Return(1, "a", attach_number, ((1, count),)),
        "session": CloseSession(),
    }
    operation = world.op(name, commands[ending])
    assert count_lines(lambda: world.apply([operation])) < 20 * count
    grouped = groups_of(world)
    assert (grouped.held_count, grouped.filed_count) == (0, count)


def test_each_of_many_groups_takes_few_lines_when_their_messages_are_handed_out() -> None:
    world = World()
    world.checks = False
    world.queue(message_groups=True)
    name, count = world.session(), 2_000
    world.attach(name, "a", 0)
    world.publish(name, count, group_keys=of_keys(range(1, count + 1)))
    operation = world.op(name, Credit(1, "a", count))
    assert count_lines(lambda: world.apply([operation])) < 25 * count
    assert groups_of(world).held_count == count


BROKEN: dict[str, tuple[str, Any]] = {
    "no holders": ("_heads", without_holders),
    "never given on": ("released", for_ever),
    "requeued messages are forgotten": ("requeued", forgotten),
    "nothing is filed": ("file", lambda self, left, next_sequence: True),
}


@pytest.mark.parametrize(("name", "broken"), BROKEN.values(), ids=BROKEN)
def test_a_broken_machine_is_noticed(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageGroups, name, broken)
    with pytest.raises(AssertionError):
        serve_many()


def built_without_transactions(self: QueueMachine) -> None:
    """A restored machine gives on the groups of what transactions settle."""
    messages = self.messages
    if messages.grouped is not None and not messages.grouped.is_built:
        held = [(each.attach, each.checked_out.ranges()) for each in self.consumers.by_key.values()]
        messages.grouped.build([(attach, messages.blocks.of_ranges(ranges)) for attach, ranges in held])


@pytest.mark.parametrize("ending", ["", "cancel", "session"])
def test_a_machine_that_forgets_what_transactions_hold_is_noticed(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueMachine, "build_groups", built_without_transactions)
    with pytest.raises(AssertionError):
        test_what_is_prepared_holds_its_group(ending, True, "snapshot")


def test_keys_and_priorities_of_a_part_of_a_batch_are_not_copied() -> None:
    """A batch may have 65,536 messages that are added one by one, because each has a time to live of its own."""
    values = bytes(range(80))
    for part, rest in ((keys_of_each(values, 3), values[24:]), (of_each(values, 3), values[3:])):
        assert part == rest
        assert isinstance(part, memoryview)
        assert part.obj is values
