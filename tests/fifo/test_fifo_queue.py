"""One queue: who gets what, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fifo.commands import (
    Attach,
    Cancel,
    CloseSession,
    CreateQueue,
    Credit,
    DeleteQueue,
    Discard,
    Get,
    Modify,
    Purge,
    QueueConfig,
    Return,
    Settle,
    UpdateConfig,
)
from fifo.consumers.consumer import CheckedOut
from fifo.effects import AttachedReply, Deliver, Notify, Ok, Refused, Run
from fifo.limits import PRODUCTION, SMALL
from fifo.persistence import snapshot
from fifo.queries import group as queries
from fifo.results import BrowsePage
from support.fifo.world import World, nth_number, selector, sequences


@pytest.fixture
def world() -> World:
    found = World()
    found.queue()
    return found


def delivery(applied: object, place: int = -1) -> Deliver:
    effect = applied.effects[place]  # type: ignore[attr-defined]
    assert isinstance(effect, Deliver)
    return effect


def dropped(world: World) -> dict[str, int]:
    """The messages that left, by cause."""
    return {cause: count for cause, count in world.machine.queues[1].messages.dropped.items() if count}


def test_messages_are_delivered_in_the_entry_that_brings_them(world: World) -> None:
    name = world.session()
    attach, _ = world.attach(name, "a", 10)
    applied = world.publish(name, 3)
    found = delivery(applied)
    assert (found.attach, found.first_tag, found.runs) == (attach, 1, (Run(1, 3, world.index, 0, 0),))
    assert (world.info().ready, world.info().checked_out) == (0, 3)


def test_a_batch_across_the_edge_of_a_block_is_cut_there(world: World) -> None:
    name = world.session()
    world.publish(name, 16_380)
    _, applied = world.attach(name, "a", 20_000)
    applied = world.publish(name, 10)
    assert [(run.first_sequence, run.count, run.ordinal) for run in delivery(applied).runs] == [
        (16_381, 3, 0),
        (16_384, 7, 3),
    ]


def test_consumers_share_what_is_there_evenly_and_in_turn(world: World) -> None:
    name = world.session()
    for tag in "abc":
        world.attach(name, tag, 1000)
    applied = world.publish(name, 10)
    assert [sequences(applied, tag) for tag in "abc"] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    applied = world.publish(name, 1)
    assert sequences(applied, "a") == [11]
    applied = world.publish(name, 1)
    assert sequences(applied, "b") == [12]


def test_a_turn_takes_at_most_1024_where_others_wait(world: World) -> None:
    name = world.session()
    for tag in "ab":
        world.attach(name, tag, 60_000)
    applied = world.publish(name, 5000)
    assert len(sequences(applied, "a")) == 1024 + 1024 + 904
    assert len(sequences(applied, "b")) == 2048
    assert [effect.first_tag for effect in applied.effects if isinstance(effect, Deliver)] == [1, 1]


def test_credit_is_absolute(world: World) -> None:
    name = world.session()
    world.publish(name, 10)
    _, applied = world.attach(name, "a", 3)
    assert sequences(applied) == [1, 2, 3]
    applied = world.apply([world.op(name, Credit(1, "a", 3))])
    assert sequences(applied) == []
    applied = world.apply([world.op(name, Credit(1, "a", 5))])
    assert sequences(applied) == [4, 5]
    assert delivery(applied).first_tag == 4


def test_a_settle_may_bring_new_credit(world: World) -> None:
    name = world.session()
    world.publish(name, 10)
    attach, _ = world.attach(name, "a", 3)
    applied = world.apply([world.op(name, Settle(1, "a", attach, ((1, 2),), 5))])
    assert applied.replies == (Ok(2),)
    assert sequences(applied) == [4, 5]
    assert world.info().total == 8


def test_unknown_tags_are_ignored_and_ranges_may_have_holes(world: World) -> None:
    name = world.session()
    world.publish(name, 10)
    attach, _ = world.attach(name, "a", 10)
    assert world.do(name, Settle(1, "a", attach, ((2, 3), (7, 7)))) == Ok(3)
    assert world.do(name, Settle(1, "a", attach, ((1, 8), (50, 60)))) == Ok(5)
    assert world.do(name, Settle(1, "a", attach, ((1, 8),))) == Ok(0)
    checked_out = world.machine.queues[1].consumers.by_key[name, "a"].checked_out
    assert (list(checked_out.tags), list(checked_out.sequences), checked_out.total) == ([9], [9], 2)


def test_a_returned_message_goes_back_to_its_own_place_and_is_served_again(world: World) -> None:
    name = world.session()
    world.publish(name, 6)
    attach, _ = world.attach(name, "a", 4)
    world.do(name, Return(1, "a", attach, ((2, 3),)))
    applied = world.apply([world.op(name, Credit(1, "a", 8))])
    assert sequences(applied) == [2, 3, 5, 6]
    assert delivery(applied).redelivered == 0b0011
    assert delivery(applied).delivery_counts == ()


def test_a_failed_delivery_is_counted_and_the_limit_drops_the_message() -> None:
    world = World()
    world.queue(delivery_limit=1)
    name = world.session()
    world.publish(name, 2)
    attach, _ = world.attach(name, "a", 1000)
    applied = world.apply([world.op(name, Modify(1, "a", attach, ((2, 2),), delivery_failed=True))])
    assert sequences(applied) == [2]
    assert delivery(applied).delivery_counts == ((0, 1),)
    applied = world.apply([world.op(name, Modify(1, "a", attach, ((3, 3),), delivery_failed=True))])
    assert sequences(applied) == []
    assert dropped(world) == {"delivery_limit": 1}
    applied = world.apply([world.op(name, Modify(1, "a", attach, ((1, 1),)))])
    assert sequences(applied) == [1]
    assert delivery(applied).delivery_counts == ()


def test_what_browsing_shows_can_be_asked_for_its_failed_deliveries() -> None:
    world = World(SMALL)
    world.queue()
    name = world.session()
    world.publish(name, 20)
    attach, _ = world.attach(name, "a", 20)
    for last in (12, 5):
        world.do(name, Cancel(1, "a", requeue=False))
        world.do(name, Modify(1, "a", attach, ((3, last),), delivery_failed=True))
        world.do(name, Return(1, "a", attach, ((1, 20),)))
        attach, _ = world.attach(name, "a", 20 if last == 12 else 0)
    page = queries.browse(world.machine, 1, 4, 100)
    assert isinstance(page, BrowsePage)
    assert sum(run.count for run in page.runs) == 17
    found = queries.failed_deliveries(world.machine, 1, page.runs)
    assert found == ((0, 2), (1, 2), *((number, 1) for number in range(2, 9)))
    assert queries.failed_deliveries(world.machine, 1, (Run(500, 3, 1, 0, 0),)) == ()
    assert queries.failed_deliveries(world.machine, 9, page.runs) == ()


def test_the_end_of_a_session_is_no_failed_delivery() -> None:
    world = World()
    world.queue(delivery_limit=0)
    name, other = world.session(1), world.session(2)
    world.publish(name, 2)
    world.attach(name, "a", 10)
    world.do(name, CloseSession())
    _, applied = world.attach(other, "b", 10)
    assert sequences(applied) == [1, 2]
    assert delivery(applied).redelivered == 0b11


def test_a_discarded_message_is_dropped_where_no_target_is(world: World) -> None:
    name = world.session()
    world.publish(name, 3)
    attach, _ = world.attach(name, "a", 10)
    assert world.do(name, Discard(1, "a", attach, ((1, 2),))) == Ok(2)
    assert world.do(name, Modify(1, "a", attach, ((3, 3),), undeliverable_here=True)) == Ok(1)
    assert (world.info().total, dropped(world)) == (0, {"rejected": 3})


def test_a_settle_from_another_attachment_is_refused(world: World) -> None:
    name = world.session()
    world.publish(name, 3)
    attach, _ = world.attach(name, "a", 10)
    reply = world.do(name, Settle(1, "a", attach + 1, ((1, 1),)))
    assert isinstance(reply, Refused)
    assert reply.reason == "wrong_attach"
    assert world.info().checked_out == 3


def test_attaching_again_keeps_the_attachment_and_sets_the_credit(world: World) -> None:
    name = world.session()
    world.publish(name, 5)
    attach, _ = world.attach(name, "a", 2)
    again, applied = world.attach(name, "a", 4)
    assert again == attach
    assert sequences(applied) == [3, 4]


def test_cancel_keeps_what_is_held_until_it_is_settled(world: World) -> None:
    name = world.session()
    world.publish(name, 5)
    attach, _ = world.attach(name, "a", 3)
    world.do(name, Cancel(1, "a", requeue=False))
    assert sequences(world.publish(name, 5)) == []
    assert world.info().consumers == 0
    assert world.do(name, Settle(1, "a", attach, ((1, 2),))) == Ok(2)
    assert world.do(name, Return(1, "a", attach, ((3, 3),))) == Ok(1)
    reply = world.do(name, Settle(1, "a", attach, ((3, 3),)))
    assert isinstance(reply, Refused)
    assert reply.reason == "not_attached"
    assert world.info().ready == 8


def test_cancel_can_return_what_is_held(world: World) -> None:
    name = world.session()
    world.publish(name, 5)
    world.attach(name, "a", 3)
    world.do(name, Cancel(1, "a", requeue=True))
    assert (world.info().ready, world.info().checked_out) == (5, 0)


@pytest.mark.parametrize("tag", ["a", ""])
def test_only_a_consumer_that_is_attached_can_be_cancelled(world: World, tag: str) -> None:
    """The consumer of Get has no tag, and is cancelled by none."""
    name = world.session()
    world.publish(name, 3)
    world.do(name, Get(1, 2, settled=False))
    reply = world.do(name, Cancel(1, tag, requeue=True))
    assert isinstance(reply, Refused)
    assert reply.reason == "not_attached"
    assert world.info().checked_out == 2


def test_attaching_after_a_cancel_starts_over(world: World) -> None:
    name = world.session()
    world.publish(name, 3)
    attach, _ = world.attach(name, "a", 3)
    world.do(name, Cancel(1, "a", requeue=False))
    again, applied = world.attach(name, "a", 3)
    assert again != attach
    assert sequences(applied) == [1, 2, 3]
    assert delivery(applied).first_tag == 1


def test_drain_uses_the_credit_and_gives_the_rest_back(world: World) -> None:
    name = world.session()
    world.publish(name, 2)
    attach, _ = world.attach(name, "a", 0)
    applied = world.apply([world.op(name, Credit(1, "a", 10, drain=True))])
    assert sequences(applied) == [1, 2]
    assert applied.effects[-1] == Notify(delivery(applied, 0).address, 1, "a", attach, "drained", 3)
    assert sequences(world.publish(name, 1)) == []


def test_get_takes_the_lowest_messages_and_its_tags_go_on(world: World) -> None:
    name = world.session()
    world.publish(name, 10)
    first = world.apply([world.op(name, Get(1, 3, False))])
    assert first.replies == (Ok(3),)
    assert (delivery(first).consumer_tag, delivery(first).first_tag) == ("", 1)
    second = world.apply([world.op(name, Get(1, 2, True))])
    assert (sequences(second), delivery(second).first_tag, delivery(second).settled) == ([4, 5], 4, True)
    assert world.info().total == 8
    assert world.do(name, Settle(1, "", delivery(first).attach, ((1, 3),))) == Ok(3)
    assert world.info().total == 5


def test_a_session_that_holds_too_many_got_messages_hears_so_and_not_that_none_is_ready() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    name = world.session()
    for _ in range(6):
        world.publish(name, 9)
    assert [world.do(name, Get(1, count, False)) for count in (20, 20)] == [Ok(20), Ok(20)]
    refused = world.do(name, Get(1, 1, False))
    assert isinstance(refused, Refused) and refused.reason == "limit"
    assert world.do(name, Get(1, 1, True)) == Ok(1)
    attach = world.machine.queues[1].consumers.by_key[name, ""].attach
    world.do(name, Settle(1, "", attach, ((1, 1),)))
    assert world.do(name, Get(1, 5, False)) == Ok(1)


def test_get_from_an_empty_queue_takes_nothing(world: World) -> None:
    applied = world.apply([world.op(world.session(), Get(1, 3, False))])
    assert (applied.replies, applied.effects) == ((Ok(0),), ())


def test_a_deleted_queue_tells_its_consumers_and_its_id_never_comes_back(world: World) -> None:
    name = world.session()
    world.publish(name, 5)
    attach, applied = world.attach(name, "a", 3)
    address = delivery(applied).address
    applied = world.apply([(None, DeleteQueue(1))])
    assert applied.replies == (Ok(5),)
    assert applied.effects == (Notify(address, 1, "a", attach, "queue_deleted"),)
    assert world.apply([(None, DeleteQueue(1))]).replies == (Ok(0),)
    refused = world.apply([(None, CreateQueue(1, QueueConfig("again")))]).replies[0]
    assert isinstance(refused, Refused)
    world.do(name, CloseSession())


def test_purge_removes_what_is_ready_and_leaves_what_is_held(world: World) -> None:
    name = world.session()
    world.publish(name, 40_000)
    attach, _ = world.attach(name, "a", 3)
    assert world.apply([(None, Purge(1))]).replies == (Ok(39_997),)
    assert (world.info().ready, world.info().checked_out) == (0, 3)
    world.do(name, Return(1, "a", attach, ((1, 3),)))
    assert world.info().ready == 3


def test_a_consumer_holds_at_most_65536_messages(world: World) -> None:
    world.checks = False
    name = world.session()
    for _ in range(15):
        world.publish(name, 10_000)
    attach, _ = world.attach(name, "a", 1_000_000)
    world.wake_until_done()
    assert world.info().checked_out == 65_536
    world.do(name, Settle(1, "a", attach, ((1, 100),)))
    assert world.info().checked_out == 65_536


def test_many_messages_are_handed_out_some_an_entry() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    name = world.session()
    world.publish(name, 100)
    world.attach(name, "a", 30)
    _, applied = world.attach(name, "b", 30)
    assert len(sequences(applied)) == SMALL.message_budget
    assert world.machine.next_wake() == world.now_ms
    assert sum(len(sequences(entry)) for entry in world.wake_until_done()) == 20


def test_a_large_queue_over_its_new_limit_is_cut_some_blocks_an_entry() -> None:
    world = World(SMALL, has_model=True)
    world.queue()
    world.publish(world.session(), 100)
    world.apply([(None, UpdateConfig(1, QueueConfig("queue-1", max_length=5)))])
    assert world.info().ready == 100 - 7 - 3 * 8
    world.wake_until_done()
    assert (world.info().ready, world.info().first_sequence) == (5, 96)


def test_drop_head_offers_first_and_drops_the_oldest_then() -> None:
    world = World()
    world.queue(max_length=3)
    name = world.session()
    world.attach(name, "a", 4)
    world.publish(name, 10)
    assert (world.info().checked_out, world.info().ready, dropped(world)) == (4, 3, {"maxlen": 3})
    found = queries.browse(world.machine, 1, 0, 100)
    assert found.runs == (Run(8, 3, world.index, 0, 7),)  # type: ignore[union-attr]


def test_reject_publish_refuses_a_batch_that_does_not_fit_as_a_whole() -> None:
    world = World()
    world.queue(max_length=5, overflow="reject_publish")
    name = world.session()
    world.publish(name, 3)
    refused = world.publish(name, 3).replies[0]
    assert isinstance(refused, Refused)
    assert refused.reason == "queue_full"
    assert world.info().ready == 3
    assert not isinstance(world.publish(name, 2).replies[0], Refused)


def test_only_messages_that_are_ready_count_for_the_limit() -> None:
    world = World()
    world.queue(max_length=5, overflow="reject_publish")
    name = world.session()
    world.attach(name, "a", 5)
    for _ in range(2):
        assert not isinstance(world.publish(name, 5).replies[0], Refused)
    assert (world.info().checked_out, world.info().ready) == (5, 5)


def test_browsing_shows_what_is_ready_page_by_page(world: World) -> None:
    name = world.session()
    world.publish(name, 30)
    world.attach(name, "a", 5)
    page = queries.browse(world.machine, 1, 0, 10)
    assert [(run.first_sequence, run.count) for run in page.runs] == [(6, 10)]  # type: ignore[union-attr]
    assert page.next_sequence == 16  # type: ignore[union-attr]
    page = queries.browse(world.machine, 1, 16, 100)
    assert [(run.first_sequence, run.count) for run in page.runs] == [(16, 15)]  # type: ignore[union-attr]
    assert page.next_sequence is None  # type: ignore[union-attr]


@pytest.mark.parametrize("command", [Attach(1, "", b"", 1), Attach(1, "a", b"", -1), Attach(1, "a", b"x", 1)])
def test_a_bad_attach_is_refused(world: World, command: Attach) -> None:
    reply = world.do(world.session(), command)
    assert isinstance(reply, Refused)
    assert reply.reason == "bad_argument"


def test_the_oldest_message_is_named() -> None:
    world = World()
    world.queue()
    name = world.session()
    assert world.info().first_sequence == world.info().next_sequence == 1
    world.publish(name, 20_000)
    world.do(name, Get(1, 3, True))
    assert world.info().first_sequence == 4
    assert world.info().ready_bytes == pytest.approx(1_999_700, abs=200)


def test_a_reply_to_an_identical_attach_is_an_attachment(world: World) -> None:
    reply = world.do(world.session(), Attach(1, "a", b"", 0))
    assert reply == AttachedReply(nth_number(1))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans()), max_size=60),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9)), min_size=64, max_size=90),
)
def test_many_ranges_of_tags_are_taken_out_like_each_of_them(
    runs: list[tuple[int, int, bool]], picked: list[tuple[int, int]]
) -> None:
    one, other = CheckedOut(), CheckedOut()
    tag, sequence = 1, 1
    for gap, count, is_apart in runs:
        tag += gap
        sequence += gap + is_apart
        for checked_out in (one, other):
            checked_out.add(tag, sequence, count)
        tag += count
        sequence += count
    ranges = [(first, first + width) for first, width in picked]
    singly = [pair for first, last in ranges for pair in one.remove(first, last)]
    at_once = other.remove_many(ranges)
    assert sorted(s + i for s, n in at_once for i in range(n)) == sorted(
        s + i for s, n in singly for i in range(n)
    )
    assert (other.tags, other.sequences, other.counts, other.total) == (
        one.tags,
        one.sequences,
        one.counts,
        one.total,
    )


def test_a_scattered_return_of_many_messages_across_blocks_is_as_any_other(world: World) -> None:
    name = world.session()
    for _ in range(4):
        world.publish(name, 10_000)
    attach, _ = world.attach(name, "a", 40_000)
    scattered = tuple([(tag, tag + tag % 3) for tag in range(1, 40_000, 100)])
    touched = sum(last - first + 1 for first, last in scattered)
    assert world.do(name, Cancel(1, "a", requeue=False)) == Ok()
    assert world.do(name, Return(1, "a", attach, scattered)) == Ok(touched)
    page = queries.browse(world.machine, 1, 0, 100_000)
    shown = [run.first_sequence + i for run in page.runs for i in range(run.count)]  # type: ignore[union-attr]
    assert shown == [tag for first, last in scattered for tag in range(first, last + 1)]


def test_queues_with_unfinished_work_take_turns_at_the_wake_ups() -> None:
    world = World(SMALL)
    world.checks = False
    name = world.session()
    for queue in range(1, 21):
        world.queue(queue)
        world.publish(name, 100, queue=queue)
        config = QueueConfig(f"queue-{queue}", max_length=1)
        world.apply([(None, UpdateConfig(queue, config))])
    before = [world.info(queue).ready for queue in range(1, 21)]
    for _ in range(20):
        world.wake()
    after = [world.info(queue).ready for queue in range(1, 21)]
    assert all(ready < was for ready, was in zip(after, before, strict=True))


def attached(world: World, name: bytes, tag: str) -> bool:
    """Whether a queue took a consumer; if not it was for the limit."""
    reply = world.do(name, Attach(1, tag, b"", 1))
    assert isinstance(reply, AttachedReply) or (isinstance(reply, Refused) and reply.reason == "limit")
    return isinstance(reply, AttachedReply)


def test_past_the_limit_a_queue_takes_no_further_consumer() -> None:
    world = World(replace(PRODUCTION, max_consumers=2))
    world.queue()
    one, other, third = [world.session(number, owner=10 + number) for number in range(3)]
    assert attached(world, one, "a")
    assert attached(world, other, "b")
    refused = world.do(third, Attach(1, "c", b"", 1))
    assert isinstance(refused, Refused)
    assert (refused.reason, "has 2 consumers; allowed: 2" in refused.detail) == ("limit", True)
    assert attached(world, other, "b"), "one that is attached may come again"
    world.do(one, Cancel(1, "a", requeue=True))
    assert attached(world, third, "c")


def test_one_owner_has_as_many_consumers_as_are_left_free_and_the_others_still_come_in() -> None:
    world = World(replace(PRODUCTION, max_consumers=16))
    world.queue()
    taken = dict.fromkeys((77, 78, 79, 80), 0)
    for number, owner in enumerate(taken):
        for session in range(2):  # the sessions of an owner have one share
            name = world.session(10 * number + session, owner=owner)
            taken[owner] += sum(attached(world, name, str(tag)) for tag in range(8))
    assert taken == {77: 8, 78: 4, 79: 2, 80: 1}
    refused = world.do(world.session(50, owner=78), Attach(1, "x", b"", 1))
    assert isinstance(refused, Refused)
    assert refused.detail == (
        "queue 'queue-1' has 4 consumers of this client address; "
        "allowed: as many as are left free of 16, 1 now"
    )
    world.session(0, epoch=2, owner=77)
    assert attached(world, world.session(51, owner=78), "x"), "what an earlier session had is free again"


def test_the_shares_of_consumers_outlive_a_snapshot() -> None:
    world = World(replace(PRODUCTION, max_consumers=4))
    world.queue()
    name = world.session(owner=77)
    assert [attached(world, name, tag) for tag in "abc"] == [True, True, False]
    world.machine = world.restored(snapshot.encode(world.machine))
    assert not attached(world, name, "c")
    assert attached(world, world.session(2, owner=78), "c")


# ---- the bytes of selectors


def selecting(world: World, name: bytes, tag: str, size: int, queue: int = 1) -> bool:
    """Whether a queue took a consumer with a selector of about this many bytes; if not it was for the limit."""
    reply = world.do(name, Attach(queue, tag, selector(f"colour = '{'x' * size}'"), 1))
    assert isinstance(reply, AttachedReply) or (isinstance(reply, Refused) and reply.reason == "limit")
    return isinstance(reply, AttachedReply)


def limited_selectors() -> World:
    """Two queues that filter, of a group with room for 4,000 bytes of selectors."""
    world = World(replace(SMALL, max_selector_bytes=4_000), has_model=True)
    for queue in (1, 2):
        world.queue(queue, filter_enabled=True, filter_field_names=("*",))
    return world


def test_the_selectors_of_an_address_have_as_many_bytes_as_are_left_free() -> None:
    world = limited_selectors()
    one, other = world.session(1, owner=77), world.session(2, owner=77)
    assert selecting(world, one, "a", 900)
    assert selecting(world, other, "a", 900, queue=2)
    refused = world.do(one, Attach(1, "b", selector(f"colour = '{'y' * 900}'"), 1))
    assert isinstance(refused, Refused)
    assert refused.reason == "limit" and "allowed: as many as are left free of 4000" in refused.detail
    assert attached(world, one, "b"), "a consumer without a selector takes none"
    further = world.session(3, owner=78)
    assert [selecting(world, further, tag, 900) for tag in "ab"] == [True, False]


@pytest.mark.parametrize("way", ["cancel", "shorter", "session", "delete"])
def test_the_bytes_of_a_selector_are_free_when_its_consumer_has_it_no_more(way: str) -> None:
    world = limited_selectors()
    name, other = world.session(1, owner=77), world.session(2, owner=77)
    assert selecting(world, name, "a", 1_800)
    assert not selecting(world, other, "b", 900, queue=2)
    if way == "cancel":
        world.do(name, Cancel(1, "a", requeue=True))
    elif way == "shorter":
        assert selecting(world, name, "a", 10)
    elif way == "session":
        world.session(1, epoch=2, owner=77)
    else:
        world.apply([(None, DeleteQueue(1))])
    assert selecting(world, other, "b", 900, queue=2)


def test_a_consumer_whose_new_selector_finds_no_room_keeps_the_one_that_it_has() -> None:
    world = limited_selectors()
    name = world.session(owner=77)
    assert selecting(world, name, "a", 900)
    assert not selecting(world, name, "a", 3_500)
    assert selecting(world, name, "a", 950)


def test_a_consumer_may_always_have_a_shorter_selector() -> None:
    world = limited_selectors()
    name, other = world.session(1, owner=77), world.session(2, owner=78)
    assert selecting(world, name, "a", 1_800)
    assert selecting(world, other, "b", 900)
    assert selecting(world, name, "a", 1_700)


def test_the_bytes_of_selectors_outlive_a_snapshot() -> None:
    world = limited_selectors()
    name = world.session(owner=77)
    assert selecting(world, name, "a", 1_800)
    world.machine = world.restored(snapshot.encode(world.machine))
    assert not selecting(world, name, "b", 900)


def test_entries_of_version_1_attach_any_number_of_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.fifo.world.CURRENT", 1)
    world = World(replace(PRODUCTION, max_consumers=1))
    world.queue()
    name = world.session()
    for tag in ("a", "b", "c"):
        world.attach(name, tag, 1)
    assert len(world.machine.consumers(1)) == 3
