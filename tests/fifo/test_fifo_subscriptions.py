"""Durable subscriptions: reservations by offset, who may read them, and what ends them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fifo import subscriptions
from fifo.commands import (
    Attach,
    DeleteQueue,
    DeleteSubscription,
    Enqueue,
    Get,
    KeepSubscription,
    Meta,
    OpenSubscription,
    Operation,
    Purge,
    ReleaseSubscription,
    Reserve,
    SettleReserved,
    UpdateConfig,
    Wake,
)
from fifo.effects import Ok, Refused, Reply, Reserved, SubscriptionState
from fifo.limits import PRODUCTION, Limits
from fifo.persistence import snapshot
from fifo.queries import group as queries
from fifo.queries.storage import scan_positions as positions
from fifo.results import ReservationPage
from support.fifo.world import World, bodies_of, nth_number, selector, sequences

COLOURS = [{"application-properties.colour": colour} for colour in ("red", "green")]
FIRST, SECOND = nth_number(1), nth_number(2)
"""Generations of a subscription."""


@pytest.fixture
def world() -> World:
    return world_of(PRODUCTION)


def world_of(limits: Limits) -> World:
    found = World(limits)
    found.queue(filter_enabled=True)
    found.session()
    return found


def name_of(world: World) -> bytes:
    return next(iter(world.epochs))


def do(world: World, command: Any, passed_ms: int = 1) -> Reply:
    reply = world.do(name_of(world), command, passed_ms)
    assert reply is not None
    return reply


def open_reader(world: World, text: str = "", **more: Any) -> SubscriptionState:
    arguments = {
        "start": "earliest",
        "timeout_ms": 10_000,
        "on_expiry": "release",
        "subscription": "spark",
        **more,
    }
    reply = do(world, OpenSubscription(1, arguments.pop("subscription"), selector(text), **arguments))
    assert isinstance(reply, SubscriptionState)
    return reply


def reserve(world: World, after: int = 0, most: int = 1_000, **more: Any) -> Reply:
    arguments = {"subscription": "spark", "generation": FIRST, "max_bytes": 1 << 30, **more}
    return do(
        world,
        Reserve(1, arguments["subscription"], arguments["generation"], after, most, arguments["max_bytes"]),
    )


def refusal(reply: Reply) -> str:
    assert isinstance(reply, Refused)
    assert reply.detail
    return reply.reason


def shown(world: World, offset: int, subscription: str = "spark") -> list[int]:
    found: list[int] = []
    while True:
        portion = queries.reserved(world.machine, 1, subscription, offset, len(found), 100_000)
        assert isinstance(portion, ReservationPage)
        found += [body[0] for body in bodies_of(portion.runs)]
        if not portion.has_more:
            return found


def test_a_subscription_may_be_opened_with_another_selector(world: World) -> None:
    open_reader(world, "colour = 'red'")
    again = open_reader(world, "colour = 'green'")
    world.publish(name_of(world), 4, COLOURS * 2)
    assert count_of(reserve(world, generation=again.generation)) == 2
    assert shown(world, 1) == [2, 4]


def test_a_reservation_is_asked_for_again_and_is_the_same(world: World) -> None:
    open_reader(world)
    world.publish(name_of(world), 10)
    first = reserve(world, most=4)
    assert first == Reserved(1, world.index, 4, 400, True)
    assert reserve(world, most=9) == first
    second = reserve(world, after=1)
    assert second == Reserved(2, world.index, 6, 600, True)
    assert reserve(world, after=0) == first
    assert (shown(world, 1), shown(world, 2)) == ([1, 2, 3, 4], [5, 6, 7, 8, 9, 10])
    assert reserve(world, after=2) == Reserved(2, world.index, 0, 0, True)
    assert refusal(reserve(world, after=3)) == "not_given"


def test_a_reservation_is_read_in_slices_by_ordinals(world: World) -> None:
    open_reader(world)
    world.publish(name_of(world), 10)
    reserve(world)
    whole = queries.reserved(world.machine, 1, "spark", 1, 0, 10)
    assert isinstance(whole, ReservationPage)
    parts = [queries.reserved(world.machine, 1, "spark", 1, first, 3) for first in range(0, 10, 3)]
    assert [body for part in parts for body in bodies_of(part.runs)] == bodies_of(whole.runs)  # type: ignore[union-attr]
    assert queries.reserved(world.machine, 1, "spark", 1, 10, 5) == ReservationPage((), 0, (), 0)
    for first, count in ((11, 1), (-1, 1), (0, -1)):
        assert refusal(queries.reserved(world.machine, 1, "spark", 1, first, count)) == "bad_argument"  # type: ignore[arg-type]
    assert refusal(queries.reserved(world.machine, 1, "nobody", 1, 0, 1)) == "not_found"  # type: ignore[arg-type]
    assert refusal(queries.reserved(world.machine, 9, "spark", 1, 0, 1)) == "not_found"  # type: ignore[arg-type]


def test_a_second_opening_fences_the_first_and_finds_what_it_left(world: World) -> None:
    open_reader(world)
    world.publish(name_of(world), 5)
    reserve(world, most=3)
    assert open_reader(world) == SubscriptionState(SECOND, 0, 1, 3)
    for command in (
        Reserve(1, "spark", FIRST, 1, 5, 500),
        SettleReserved(1, "spark", FIRST, 1),
        KeepSubscription(1, "spark", FIRST),
        ReleaseSubscription(1, "spark", FIRST),
    ):
        before = queries.subscriptions(world.machine, 1)
        reply = do(world, command)
        assert refusal(reply) == "wrong_generation"
        assert f"{FIRST}, the present one is {SECOND}" in reply.detail  # type: ignore[union-attr]
        assert queries.subscriptions(world.machine, 1) == before
    portion = queries.reserved(world.machine, 1, "spark", 1, 0, 3)
    assert isinstance(portion, ReservationPage)
    assert (portion.redelivered, portion.opens) == (0b111, 1)
    assert reserve(world, after=1, generation=SECOND) == Reserved(2, world.index, 2, 200, True)
    assert queries.reserved(world.machine, 1, "spark", 2, 0, 3).redelivered == 0  # type: ignore[union-attr]


def test_settled_is_what_the_reader_says_it_is(world: World) -> None:
    open_reader(world)
    world.publish(name_of(world), 6)
    for after in range(3):
        reserve(world, after, most=2)
    assert do(world, SettleReserved(1, "spark", FIRST, 2)) == SubscriptionState(FIRST, 2, 3, 2)
    assert do(world, SettleReserved(1, "spark", FIRST, 1)) == SubscriptionState(FIRST, 2, 3, 2)
    assert refusal(do(world, SettleReserved(1, "spark", FIRST, 4))) == "not_given"
    assert (world.info().ready, world.info().checked_out) == (0, 2)
    assert refusal(reserve(world, after=0)) == "settled"
    assert refusal(queries.reserved(world.machine, 1, "spark", 2, 0, 1)) == "settled"  # type: ignore[arg-type]
    assert shown(world, 3) == [5, 6]


def test_many_messages_are_settled_in_several_entries(world: World) -> None:
    world.checks = False
    open_reader(world)
    for _ in range(3):
        world.publish(name_of(world), 40_000)
    replies = [reserve(world, after, 40_000) for after in range(3)]
    assert [reply.count for reply in replies] == [40_000] * 3  # type: ignore[union-attr]
    settled = []
    while not settled or settled[-1] < 3:
        reply = do(world, SettleReserved(1, "spark", FIRST, 3))
        assert isinstance(reply, SubscriptionState)
        settled.append(reply.settled)
    assert settled == [1, 2, 3]
    assert world.info().total == 0


def test_an_entry_reserves_no_more_than_its_budget(world: World) -> None:
    world.checks = False
    for subscription in ("spark", "other"):
        open_reader(world, subscription=subscription)
    for _ in range(3):
        world.publish(name_of(world), 40_000)
    both = [
        world.op(name_of(world), Reserve(1, subscription, FIRST, 0, 60_000, 1 << 40))
        for subscription in ("spark", "other")
    ]
    first, second = world.apply(both).replies
    assert first == Reserved(1, world.index, 60_000, 6_000_000, True)
    assert second == Reserved(1, world.index, 5_536, 553_600, False)
    assert reserve(world, subscription="other") == second  # asked for again it is as it was


def test_what_is_released_comes_back_to_its_places_and_is_told(world: World) -> None:
    name = name_of(world)
    open_reader(world)
    world.publish(name, 6)
    reserve(world, most=2)
    reserve(world, after=1, most=2)
    do(world, SettleReserved(1, "spark", FIRST, 1))
    assert do(world, ReleaseSubscription(1, "spark", FIRST)) == SubscriptionState(FIRST, 2, 2, 0)
    assert refusal(reserve(world, after=0)) == "settled"
    assert refusal(reserve(world, after=1)) == "released"
    assert reserve(world, after=2) == Reserved(3, world.index, 4, 400, True)
    assert shown(world, 3) == [3, 4, 5, 6]
    portion = queries.reserved(world.machine, 1, "spark", 3, 0, 4)
    assert portion.redelivered == 0b0011  # type: ignore[union-attr]


def test_much_that_is_released_comes_back_in_several_entries(world: World) -> None:
    world.checks = False
    open_reader(world)
    for after in range(3):
        world.publish(name_of(world), 40_000)
        reserve(world, after, 40_000)
    do(world, ReleaseSubscription(1, "spark", FIRST))
    assert world.info().ready == 40_000
    assert refusal(reserve(world, after=1)) == "released"  # though its messages are still on their way
    assert world.machine.next_wake() == world.now_ms
    world.machine = world.restored(snapshot.encode(world.machine))
    world.wake_until_done()
    assert (world.info().ready, world.info().checked_out) == (120_000, 0)


@pytest.mark.parametrize(
    ("on_expiry", "ready", "checked_out", "rejected"),
    [("release", 5, 0, 0), ("discard", 2, 0, 3), ("keep", 2, 3, 0)],
)
def test_a_silent_reader_gives_up_what_it_holds(
    world: World, on_expiry: str, ready: int, checked_out: int, rejected: int
) -> None:
    open_reader(world, timeout_ms=2_000, on_expiry=on_expiry)
    world.publish(name_of(world), 5)
    reserve(world, most=3)
    do(world, KeepSubscription(1, "spark", FIRST), passed_ms=1_500)
    assert world.machine.next_wake() == (None if on_expiry == "keep" else world.now_ms + 2_000)
    world.wake(1_999)
    assert world.info().checked_out == 3
    world.wake(1)
    assert (world.info().ready, world.info().checked_out) == (ready, checked_out)
    assert world.info().totals.rejected == rejected
    subscription = queries.subscriptions(world.machine, 1)[0]
    assert (subscription.generation, subscription.last) == (FIRST, 1)
    if on_expiry == "keep":
        assert shown(world, 1) == [1, 2, 3]
    else:
        assert refusal(reserve(world, after=0)) == "released"
        assert refusal(reserve(world, after=1)) == "released"
        do(world, SettleReserved(1, "spark", FIRST, 1))
        assert reserve(world, after=1).offset == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("way", ["opened", "released", "settled"])
def test_a_reader_that_reserves_ahead_gets_nothing_new_before_it_knows_what_a_silence_took(
    world: World, way: str
) -> None:
    open_reader(world, timeout_ms=2_000)
    world.publish(name_of(world), 9)
    for after in range(3):
        reserve(world, after, most=2)
    do(world, SettleReserved(1, "spark", FIRST, 1))
    world.wake(2_000)
    world.machine = world.restored(snapshot.encode(world.machine))
    do(world, KeepSubscription(1, "spark", FIRST))
    for _ in range(2):  # also to a program that has lost the answer
        assert refusal(reserve(world, after=3)) == "released"
        assert queries.subscriptions(world.machine, 1)[0].has_untold_loss
    do(world, SettleReserved(1, "spark", FIRST, 2))  # of the third it still does not know
    assert refusal(reserve(world, after=3)) == "released"
    generation = FIRST
    if way == "opened":
        generation = open_reader(world, timeout_ms=2_000).generation
    elif way == "released":
        do(world, ReleaseSubscription(1, "spark", FIRST))
    else:
        assert do(world, SettleReserved(1, "spark", FIRST, 3)) == SubscriptionState(FIRST, 3, 3, 0)
    assert reserve(world, after=3, generation=generation) == Reserved(4, world.index, 7, 700, True)


def test_in_entries_of_version_1_a_reader_goes_on_at_once(world: World) -> None:
    open_reader(world, timeout_ms=2_000)
    world.publish(name_of(world), 4)
    reserve(world, most=2)
    world.index += 1
    world.machine.apply(Meta(world.index, 1, world.now_ms + 2_000, 1), [Operation(0, None, Wake())])
    world.now_ms += 2_000
    assert reserve(world, after=1).offset == 2  # type: ignore[union-attr]


def test_who_holds_nothing_may_be_silent(world: World) -> None:
    open_reader(world, timeout_ms=1_000)
    assert world.machine.next_wake() is None
    world.wake(50_000)
    assert queries.subscriptions(world.machine, 1)[0].settled == 0


def sparse_and_cold(world: World, blocks: int) -> None:
    """One red message in each of so many full blocks, which a subscription reserved and released; all are cold."""
    size = world.limits.block_size
    for _ in range(blocks):
        world.publish(name_of(world), size, [COLOURS[0], *[COLOURS[1]] * (size - 1)])
    open_reader(world, "colour = 'red'", subscription="looks")
    found = 0
    while found < blocks:
        found += count_of(
            reserve(world, after=queries.subscriptions(world.machine, 1)[0].last, subscription="looks")
        )
    do(world, ReleaseSubscription(1, "looks", FIRST))
    go_cold(world)


SMALL_BLOCKS = replace(PRODUCTION, block_bits=9)
"""After every entry the checks evaluate every message of a block that a selector has looked at."""


def go_cold(world: World) -> None:
    for block in world.machine.queues[1].messages.blocks.warm():
        world.machine.page_out(1, block.number)


def count_of(reply: Reply) -> int:
    assert isinstance(reply, Reserved)
    return reply.count


def test_who_begins_with_the_latest_does_not_read_what_was_there_before() -> None:
    world = world_of(SMALL_BLOCKS)
    sparse_and_cold(world, 6)
    open_reader(world, "colour = 'red'", start="latest")
    assert count_of(reserve(world)) == 0
    go_cold(world)
    memory = world.machine.memory
    before = memory.loads
    assert not queries.may_reserve(world.machine, 1, "spark")
    assert count_of(reserve(world)) == 0
    assert memory.loads == before
    world.publish(name_of(world), 2, COLOURS)
    assert queries.may_reserve(world.machine, 1, "spark")
    assert queries.may_reserve(world.machine, 1, "unknown"), "the command says that there is none"
    assert count_of(reserve(world)) == 1
    assert memory.loads - before <= 1, "the last block, where the message came"


def test_who_holds_matches_in_many_blocks_reads_none_of_them_to_look_for_more() -> None:
    world = world_of(SMALL_BLOCKS)
    sparse_and_cold(world, 6)
    open_reader(world, "colour = 'red'")
    assert count_of(reserve(world)) == 6
    assert count_of(reserve(world, 1)) == 0
    go_cold(world)
    memory = world.machine.memory
    before = memory.loads
    assert not queries.may_reserve(world.machine, 1, "spark")
    assert count_of(reserve(world, 1)) == 0
    assert memory.loads == before
    do(world, ReleaseSubscription(1, "spark", FIRST))
    assert queries.may_reserve(world.machine, 1, "spark")
    assert count_of(reserve(world, 1)) == 6, "what came back is found again"


def test_one_look_at_a_reservation_has_a_limited_number_of_runs() -> None:
    world = World(replace(PRODUCTION, page_runs=3))
    world.queue()
    world.session()
    for count in (1, 1, 4, 2, 1, 1, 1):  # each batch is a run
        world.publish(name_of(world), count)
    open_reader(world)
    assert count_of(reserve(world)) == 11
    found: list[int] = []
    portions: list[list[int]] = []
    has_more = True
    while has_more:
        portion = queries.reserved(world.machine, 1, "spark", 1, len(found), 100_000)
        assert isinstance(portion, ReservationPage)
        portions.append([run.count for run in portion.runs])
        found += [body[0] for body in bodies_of(portion.runs)]
        has_more = portion.has_more
    assert (portions, found) == ([[1, 1, 4], [2, 1, 1], [1]], list(range(1, 12)))


def test_one_look_at_a_reservation_reads_a_bounded_number_of_blocks() -> None:
    world = world_of(replace(SMALL_BLOCKS, reserved_blocks=2))
    size = world.limits.block_size
    sparse_and_cold(world, 5)
    world.publish(name_of(world), size + 3, [COLOURS[0]] * (size + 3))
    open_reader(world, "colour = 'red'")
    reserve(world, most=100_000)
    unlimited = snapshot.decode(
        snapshot.encode(world.machine), world.log, limits=replace(SMALL_BLOCKS, reserved_blocks=64)
    )
    whole = queries.reserved(unlimited, 1, "spark", 1, 0, 100_000)
    assert isinstance(whole, ReservationPage)
    go_cold(world)
    found: list[Any] = []
    counts: list[int] = []
    has_more = True
    while has_more:
        before = world.machine.memory.loads
        portion = queries.reserved(world.machine, 1, "spark", 1, len(found), 100_000)
        assert isinstance(portion, ReservationPage)
        assert world.machine.memory.loads - before <= 2
        counts.append(sum(run.count for run in portion.runs))
        found += bodies_of(portion.runs)
        has_more = portion.has_more
    assert found == bodies_of(whole.runs)
    assert counts == [2, 2, size, 4], "the fifth one's block and the next, then the rest"


def test_a_reader_that_begins_with_the_latest_sees_nothing_older(world: World) -> None:
    name = name_of(world)
    world.publish(name, 3, [COLOURS[0]] * 3)
    open_reader(world, start="latest")
    open_reader(world, "colour = 'red'", subscription="red", start="latest")
    assert reserve(world).count == reserve(world, subscription="red").count == 0  # type: ignore[union-attr]
    assert not queries.may_reserve(world.machine, 1, "spark")
    world.publish(name, 2, COLOURS)
    assert queries.may_reserve(world.machine, 1, "red")
    reserve(world, subscription="red")
    reserve(world)
    assert (shown(world, 1), shown(world, 1, "red")) == ([5], [4])
    open_reader(world, start="earliest")  # only where a subscription is new
    assert reserve(world, after=1, generation=SECOND).count == 0  # type: ignore[union-attr]
    assert world.info().ready == 3


def test_a_selector_passes_several_fronts_of_blocks(world: World) -> None:
    world.checks = False
    rows = [COLOURS[i % 2] for i in range(8_000)]
    for _ in range(5):
        world.publish(name_of(world), 8_000, rows)
    open_reader(world, "colour = 'red'")
    open_reader(world, "colour = 'green'", subscription="green")
    assert positions(world.machine.queues[1])[selector("colour = 'red'")] == 0
    for subscription in ("spark", "green"):
        assert reserve(world, most=100_000, subscription=subscription).count == 20_000  # type: ignore[union-attr]
    assert shown(world, 1)[:3] == [1, 3, 5]
    assert shown(world, 1, "green")[-3:] == [39_996, 39_998, 40_000]
    assert not queries.may_reserve(world.machine, 1, "spark")
    assert reserve(world, after=1).count == 0  # type: ignore[union-attr]
    world.publish(name_of(world), 1, [COLOURS[1]])
    reply = reserve(world, after=1)
    assert (reply.offset, reply.is_complete) == (1, True)  # type: ignore[union-attr]


def test_bytes_are_judged_by_the_mean_size_in_each_block(world: World) -> None:
    name = name_of(world)
    open_reader(world)
    world.publish(name, 10)
    world.apply([world.op(name, _large(world, 10))])
    assert reserve(world, max_bytes=1_000).count == 1  # type: ignore[union-attr]  # each counts (10 * 100 + 10 * 5_000) / 20 here
    assert reserve(world, after=1, max_bytes=5_100) == Reserved(2, world.index, 2, 5_100, True)
    assert reserve(world, after=2, max_bytes=1) == Reserved(3, world.index, 1, 2_550, True)


def _large(world: World, count: int) -> Any:
    world.log.stored[world.index + 1, 0] = (b"", ())
    return Enqueue(1, 11, 11, count, 5_000 * count)


def test_consumers_beside_a_reader_skip_what_it_holds(world: World) -> None:
    name = name_of(world)
    world.publish(name, 6)
    open_reader(world)
    reserve(world, most=3)
    _, applied = world.attach(name, "a", 2)
    assert sequences(applied) == [4, 5]
    do(world, ReleaseSubscription(1, "spark", FIRST))
    world.do(name, Attach(1, "a", b"", 10))
    assert world.info().ready == 0


def test_what_arrives_in_its_own_entry_goes_to_the_reader_before_a_consumer_that_waits(world: World) -> None:
    name = name_of(world)
    world.publish(name, 2, COLOURS)
    _, applied = world.attach(name, "a", 5, "colour = 'red'")
    assert sequences(applied) == [1]
    open_reader(world, "colour = 'red'")
    publish = world.batch(name, 3, [*COLOURS, COLOURS[0]])
    reserving = world.op(name, Reserve(1, "spark", FIRST, 0, 10, 1_000))
    applied = world.apply([publish, reserving])
    assert shown(world, 1) == [3, 5]
    assert sequences(applied) == []


def test_what_is_held_is_not_purged_expired_or_too_much(world: World) -> None:
    name = name_of(world)
    world.publish(name, 6, ttl_ms=100)
    open_reader(world)
    reserve(world, most=3)
    assert world.apply([(None, Purge(1))]).replies == (Ok(3),)
    world.publish(name, 4)
    config = world.machine.config_of(1)
    assert config is not None
    world.apply([(None, UpdateConfig(1, _with_limit(config)))])
    world.wake(1_000)
    assert (world.info().ready, world.info().checked_out) == (2, 3)
    assert shown(world, 1) == [1, 2, 3]
    do(world, ReleaseSubscription(1, "spark", FIRST))
    assert world.info().totals.expired == 3  # their time was over when they came back


def _with_limit(config: Any) -> Any:
    return replace(config, max_length=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"subscription": ""},
        {"subscription": "x" * 256},
        {"subscription": "ä" * 128},
        {"timeout_ms": 999},
        {"timeout_ms": subscriptions.MAX_TIMEOUT_MS + 1},
        {"start": "now"},
        {"on_expiry": "forget"},
        {"selector": b"rubbish"},
    ],
)
def test_what_is_not_allowed_is_told_and_changes_nothing(world: World, wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "queue": 1, "subscription": "spark", "selector": b"", "start": "earliest", "timeout_ms": 1_000,
        "on_expiry": "keep",
    }  # fmt: skip
    assert refusal(do(world, OpenSubscription(**{**arguments, **wrong}))) == "bad_argument"
    assert queries.subscriptions(world.machine, 1) == ()


def test_limits() -> None:
    world = world_of(replace(PRODUCTION, max_subscriptions=2, max_reservations=3, max_outstanding=10))
    world.publish(name_of(world), 20)
    open_reader(world)
    open_reader(world, subscription="other", owner=78)
    third = OpenSubscription(1, "third", b"", "earliest", 1_000, "keep", 79)
    assert refusal(do(world, third)) == "limit"
    assert [reserve(world, after, 1).offset for after in range(3)] == [1, 2, 3]  # type: ignore[union-attr]
    assert refusal(reserve(world, 3, 1)) == "limit"
    assert reserve(world, subscription="other", most=100).count == 10  # type: ignore[union-attr]
    assert refusal(reserve(world, 1, 1, subscription="other")) == "limit"
    for wrong in ({"most": 0}, {"max_bytes": 0}, {"after": -1}):
        assert refusal(reserve(world, **wrong)) == "bad_argument"  # type: ignore[arg-type]


def test_one_owner_has_as_many_readers_as_are_left_free_and_the_others_still_come_in() -> None:
    world = world_of(replace(PRODUCTION, max_subscriptions=4))
    for subscription in ("a", "b"):
        open_reader(world, subscription=subscription, owner=77)
    world.machine = world.restored(snapshot.encode(world.machine))
    more = OpenSubscription(1, "c", b"", "earliest", 1_000, "keep", 77)
    assert refusal(do(world, more)) == "limit"
    open_reader(world, subscription="d", owner=78)
    open_reader(world, subscription="a", owner=79)  # it counts for the one that opened it last
    assert refusal(do(world, more)) == "limit"
    do(world, DeleteSubscription(1, "b"))
    open_reader(world, subscription="c", owner=77)


def test_a_deleted_reader_is_gone_and_its_generations_are_not_used_again(world: World) -> None:
    world.publish(name_of(world), 5)
    open_reader(world)
    open_reader(world)
    reserve(world, generation=SECOND, most=3)
    assert do(world, DeleteSubscription(1, "spark")) == Ok(3)
    assert do(world, DeleteSubscription(1, "spark")) == Ok(0)
    assert (world.info().ready, world.info().checked_out) == (5, 0)
    assert refusal(reserve(world, generation=SECOND)) == "not_found"
    assert open_reader(world) == SubscriptionState(nth_number(3), 0, 0, 0)
    assert refusal(reserve(world, generation=SECOND)) == "wrong_generation"


def test_a_deleted_queue_takes_its_readers_along(world: World) -> None:
    world.publish(name_of(world), 5)
    open_reader(world)
    reserve(world)
    assert world.apply([(None, DeleteQueue(1))]).replies == (Ok(5),)
    assert queries.subscriptions(world.machine, 1) == ()
    assert refusal(reserve(world)) == "not_found"
    assert world.machine.next_wake() is None


def test_reservations_outlive_sessions_snapshots_and_cold_blocks(world: World) -> None:
    world.checks = False
    name = name_of(world)
    world.publish(name, 2 * PRODUCTION.block_size, [COLOURS[i % 2] for i in range(2 * PRODUCTION.block_size)])
    world.do(name, Get(1, 10, settled=True))
    open_reader(world, "colour = 'red'")
    reserve(world, most=10_000)
    before = queries.reserved(world.machine, 1, "spark", 1, 5_000, 200)
    world.session(1, epoch=2)
    pages = world.machine.memory.pages
    state = world.checkpointer(world.machine).take().state
    for again in (
        world.restored(snapshot.encode(world.machine)),
        world.resumed(state, pages),
    ):
        assert snapshot.encode(again) == snapshot.encode(world.machine)
        assert queries.subscriptions(again, 1) == queries.subscriptions(world.machine, 1)
        assert queries.reserved(again, 1, "spark", 1, 5_000, 200) == before
        assert again.next_wake() == world.machine.next_wake()


def test_old_releases_are_remembered_up_to_a_bound() -> None:
    world = world_of(replace(PRODUCTION, max_released=2))
    open_reader(world)
    world.publish(name_of(world), 1)
    for after in range(0, 8, 2):  # released and settled in turn
        reserve(world, after)
        do(world, ReleaseSubscription(1, "spark", FIRST))
        reserve(world, after + 1)
        do(world, SettleReserved(1, "spark", FIRST, after + 2))
        world.publish(name_of(world), 1)
    answers = [refusal(reserve(world, after)) for after in range(8)]
    assert answers == ["released"] * 5 + ["settled", "released", "settled"]


def test_an_opening_that_arrives_late_fences_nobody_who_opened_since(world: World) -> None:
    first = OpenSubscription(1, "spark", b"", "earliest", 60_000, "keep", found=0)
    assert do(world, first) == SubscriptionState(FIRST, 0, 0, 0)
    assert refusal(do(world, first)) == "outdated"
    assert do(world, replace(first, found=FIRST)) == SubscriptionState(SECOND, 0, 0, 0)
    assert refusal(do(world, replace(first, found=FIRST))) == "outdated"


def test_a_release_that_arrives_late_gives_nothing_back_that_was_reserved_since(world: World) -> None:
    world.publish(name_of(world), 10)
    open_reader(world)
    reserve(world, most=3)
    late = ReleaseSubscription(1, "spark", FIRST, last=1)
    reserve(world, 1, most=3)
    assert refusal(do(world, late)) == "outdated"
    assert world.info().checked_out == 6
    assert do(world, replace(late, last=2)) == SubscriptionState(FIRST, 2, 2, 0)
