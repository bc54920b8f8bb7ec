"""Transactions of a client: what is sent, when it counts, and what becomes of it when a stream is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from google.rpc import code_pb2

import quorum
import quorum.sync
from quorum.client import DeliveredMessage
from quorum.client.errors import ConnectionLost, OutcomeUnknown, RolledBack, TimedOut, UsageError
from quorum.client.session.open_transactions import MAX_TRANSACTIONS
from support.fake_server.cluster import Refusal
from support.fake_server.consuming import bodies
from support.fake_server.harness import LIMIT_MS, World, eventually, on_cluster


async def bind_key_to_q(client: quorum.Client) -> None:
    """An exchange that routes this key to the queue q."""
    await client.declare_exchange("e")
    await client.bind("e", "q", "key")


@on_cluster()
async def test_a_transaction_counts_at_its_end(world: World) -> None:
    world.cluster.declare("other")
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"order")
        [order] = await client.get("q")
        async with client.transaction() as tx:
            await tx.publish("other", b"one", {"priority": 4})
            await tx.publish_batch("other", [b"two", b"three"])
            await tx.settle(order)
            await client.publish("q", b"beside")
            assert (bodies(world), bodies(world, "other")) == ([b"beside"], [])
        assert bodies(world, "other") == [b"one", b"two", b"three"]
        assert world.cluster.queues["q"].settled == [1]
        with pytest.raises(UsageError):
            await tx.commit()


@on_cluster()
async def test_a_block_that_raises_rolls_back_and_what_it_settled_is_held_again(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"order")
        [order] = await client.get("q")

        async def fails() -> None:
            async with client.transaction() as tx:
                await tx.publish("q", b"one")
                await tx.settle(order)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        assert bodies(world) == []
        await client.settle(order, wait=True)
        assert world.cluster.queues["q"].settled == [1]


@on_cluster()
async def test_the_requests_of_several_tasks_are_of_one_transaction(world: World) -> None:
    async with quorum.connect(world.url) as client:
        async with client.transaction() as tx:
            await asyncio.gather(*[tx.publish("q", b"%d" % number) for number in range(5)])
        assert sorted(bodies(world)) == [b"0", b"1", b"2", b"3", b"4"]
        assert world.nodes[0].requests.count("commit") == 1


@on_cluster()
async def test_a_transaction_without_a_request_asks_for_nothing(world: World) -> None:
    async with quorum.connect(world.url) as client:
        async with client.transaction():
            pass
        await client.transaction().rollback()
        assert "commit" not in world.nodes[0].requests


@on_cluster()
async def test_a_refused_commit_raises_and_gives_back_what_was_settled(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"order")
        [order] = await client.get("q")
        tx = client.transaction()
        await tx.settle(order)
        await tx.publish("nowhere", b"one")
        with pytest.raises(RolledBack) as caught:
            await tx.commit()
        assert caught.value.reason == "NOT_FOUND"
        await client.settle(order, wait=True)


@on_cluster()
async def test_a_transaction_is_lost_with_its_stream(world: World) -> None:
    async with quorum.connect(world.url) as client:
        tx, other = client.transaction(), client.transaction()
        await tx.publish("q", b"one")
        await other.publish("q", b"two")
        count = client.reconnect_count
        world.nodes[0].cut()
        await eventually(lambda: client.reconnect_count > count, "another stream")
        with pytest.raises(ConnectionLost):
            await tx.publish("q", b"more")
        with pytest.raises(ConnectionLost):
            await tx.commit()
        await other.rollback()
        async with client.transaction() as again:
            await again.publish("q", b"three")
        assert bodies(world) == [b"three"]


@on_cluster()
async def test_a_transaction_that_is_lost_with_its_stream_keeps_no_later_one_waiting(world: World) -> None:
    """Numbers are less than 256 above that of the oldest open transaction."""
    async with quorum.connect(world.url) as client:
        tx = client.transaction()
        await tx.publish("q", b"one")
        count = client.reconnect_count
        world.nodes[0].cut()
        await eventually(lambda: client.reconnect_count > count, "another stream")
        for _ in range(MAX_TRANSACTIONS):
            async with client.transaction() as again:
                await again.publish("q", b"two")
        assert bodies(world) == [b"two"] * MAX_TRANSACTIONS


@on_cluster(nodes=1)
async def test_a_transaction_waits_while_the_numbers_of_others_are_too_far_apart(world: World) -> None:
    async with quorum.connect(world.url) as client:
        oldest = client.transaction()
        await oldest.publish("q", b"oldest")
        for _ in range(MAX_TRANSACTIONS - 1):
            async with client.transaction() as tx:
                await tx.publish("q", b"other")
        waiting, hasty = client.transaction(), client.transaction(timeout_ms=LIMIT_MS)
        waits = asyncio.create_task(waiting.publish("q", b"waiting"))
        gives_up = asyncio.create_task(hasty.publish("q", b"hasty"))
        await eventually(lambda: not client._live().transactions._ended.is_set(), "both wait")
        world.pass_limit()
        with pytest.raises(TimedOut, match="no transaction could begin"):
            await gives_up
        assert not waits.done()
        await oldest.commit()
        await waits
        await waiting.commit()
        assert bodies(world)[-2:] == [b"oldest", b"waiting"]


@on_cluster()
async def test_a_commit_without_an_answer_is_unknown_if_the_service_has_forgotten_the_client(
    world: World,
) -> None:
    """Under another identity, the service would know nothing of the transaction, and refuse it."""
    async with quorum.connect(world.url) as client:
        tx = client.transaction()
        await tx.publish("q", b"one")
        world.nodes[0].muted = True
        committing = asyncio.create_task(tx.commit())
        await eventually(lambda: bodies(world) == [b"one"], "it counts")
        world.nodes[0].muted = False
        world.nodes[0].cut(Refusal(code_pb2.FAILED_PRECONDITION, "SESSION_EXPIRED", "forgotten"))
        with pytest.raises(OutcomeUnknown, match="has forgotten this client"):
            await committing


@on_cluster()
async def test_a_commit_whose_answer_was_lost_is_sent_again_and_counts_once(world: World) -> None:
    async with quorum.connect(world.url) as client:
        tx = client.transaction()
        await tx.publish("q", b"one")
        world.cluster.cut_after = 0
        await tx.commit()
        assert client.reconnect_count == 1
        assert bodies(world) == [b"one"]


@on_cluster()
async def test_a_commit_that_was_lost_on_its_way_is_refused(world: World) -> None:
    async with quorum.connect(world.url) as client:
        tx = client.transaction()
        await tx.publish("q", b"one")
        await eventually(lambda: bool(world.nodes[0].streams[0].transactions), "it has arrived")
        world.nodes[0].streams[0].transactions.clear()
        world.nodes[0].muted = True
        committing = asyncio.create_task(tx.commit())
        await eventually(lambda: "commit" in world.nodes[0].requests, "the commit has arrived")
        world.nodes[0].muted = False
        world.nodes[0].cut()
        with pytest.raises(RolledBack) as caught:
            await committing
        assert caught.value.reason == "ROLLED_BACK"
        assert bodies(world) == []


@on_cluster()
async def test_a_commit_without_an_answer_is_unknown_if_no_session_is_opened_again(world: World) -> None:
    async with quorum.connect(world.url) as client:
        tx = client.transaction()
        await tx.publish("q", b"one")
        world.cluster.cut_after = 0
        for node in world.nodes:
            node.refuses_sessions = Refusal(code_pb2.RESOURCE_EXHAUSTED, "SESSION_LIMIT", "too many")
        with pytest.raises(OutcomeUnknown):
            await tx.commit()
        assert bodies(world) == [b"one"]


@on_cluster()
async def test_a_commit_without_an_answer_is_unknown_if_the_client_is_closed(world: World) -> None:
    client = await quorum.connect(world.url)
    tx = client.transaction()
    await tx.publish("q", b"one")
    world.nodes[0].muted = True
    committing = asyncio.create_task(tx.commit())
    await eventually(lambda: bodies(world) == [b"one"], "it counts")
    await client.close()
    with pytest.raises(OutcomeUnknown):
        await committing


@on_cluster()
async def test_what_can_never_be_sent_is_refused_and_the_stream_goes_on(world: World) -> None:
    async with quorum.connect(world.url) as client:
        async with client.transaction() as tx:
            for queue, bodies_ in (
                ("q", [bytes(20 << 20)]),
                ("q", [b""] * 1_001),
                (["q"] * 2, [b""]),
            ):
                with pytest.raises(UsageError):
                    await tx.publish_batch(queue, bodies_)
                with pytest.raises(UsageError):
                    await tx.publish_batch_to("e", queue, bodies_)
            await tx.publish("q", b"one")
        assert bodies(world) == [b"one"]
        assert client.reconnect_count == 0


@on_cluster()
async def test_a_transaction_publishes_no_faster_than_the_stream_takes_it(world: World) -> None:
    async with quorum.connect(world.url) as client:
        outbox = client._live()._stream.outbox
        waiting = []
        async with client.transaction() as tx:
            for _ in range(100):
                await tx.publish("q", bytes(1 << 16))
                waiting.append(len(outbox._requests))
        assert max(waiting) <= 1, "most publishes wait in the client"
        assert len(bodies(world)) == 100


@on_cluster(nodes=1)
async def test_a_publish_that_the_stream_does_not_take_in_time_is_not_sent(world: World) -> None:
    async with quorum.connect(world.url) as client:
        tx = client.transaction(timeout_ms=LIMIT_MS)
        await tx.publish("q", b"one")
        session = client._live()
        session._next_request = lambda: None  # type: ignore[method-assign]
        outbox = session._stream.outbox
        assert outbox.has_requests, "the first one waits for the stream"
        second = asyncio.create_task(tx.publish("q", b"two"))
        await asyncio.sleep(0)  # it has begun to wait: its time limit is on the clock before the clock moves
        world.pass_limit()
        with pytest.raises(TimedOut):
            await second
        assert len(outbox._requests) == 1, "nothing of the second one is to be sent"
        del session._next_request  # type: ignore[method-assign]
        outbox.wake()
        await tx.rollback()
        assert bodies(world) == []


@on_cluster(nodes=1)
async def test_a_commit_without_an_answer_in_time_is_unknown(world: World) -> None:
    async with quorum.connect(world.url) as client:
        tx = client.transaction(timeout_ms=LIMIT_MS)
        await tx.publish("q", b"one")
        world.nodes[0].muted = True
        committing = asyncio.create_task(tx.commit())
        await eventually(lambda: "commit" in world.nodes[0].requests, "the commit has arrived")
        world.pass_limit()
        with pytest.raises(OutcomeUnknown):
            await committing
        world.nodes[0].muted = False


async def is_returned_after(world: World, gives_up: Callable[[asyncio.Task[None]], Awaitable[None]]) -> None:
    """A commit is refused after its caller has given up waiting: what it settled is delivered again."""
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"order")
        [order] = await client.get("q")
        tx = client.transaction(timeout_ms=LIMIT_MS)
        await tx.settle(order)
        await eventually(lambda: bool(world.nodes[0].streams[0].transactions), "it has arrived")
        world.nodes[0].holds_commits = True
        committing = asyncio.create_task(tx.commit())
        await eventually(lambda: "commit" in world.nodes[0].requests, "the commit has arrived")
        await gives_up(committing)
        assert bodies(world) == []
        world.nodes[0].streams[0].transactions.clear()
        world.nodes[0].holds_commits = False
        await eventually(lambda: bodies(world) == [b"order"], "the message is in its queue again")
        [again] = await client.get("q")
        await client.settle(again, wait=True)
        assert world.cluster.queues["q"].settled == [1]


@on_cluster()
async def test_what_a_commit_settled_is_returned_if_it_is_refused_after_its_time(world: World) -> None:
    async def gives_up(committing: asyncio.Task[None]) -> None:
        world.pass_limit()
        with pytest.raises(OutcomeUnknown):
            await committing

    await is_returned_after(world, gives_up)


@on_cluster()
async def test_what_a_commit_settled_is_returned_if_it_is_refused_after_its_caller_was_cancelled(
    world: World,
) -> None:
    async def gives_up(committing: asyncio.Task[None]) -> None:
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing

    await is_returned_after(world, gives_up)


@on_cluster(nodes=1)
async def test_a_rollback_without_an_answer_in_time_gives_back_what_was_settled(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"order")
        [order] = await client.get("q")
        tx = client.transaction(timeout_ms=LIMIT_MS)
        await tx.settle(order)
        world.nodes[0].muted = True
        ending = asyncio.create_task(tx.rollback())
        await eventually(lambda: "rollback" in world.nodes[0].requests, "the rollback has arrived")
        world.pass_limit()
        await ending
        world.nodes[0].muted = False
        await client.settle(order, wait=True)
        assert world.cluster.queues["q"].settled == [1]


@on_cluster(nodes=1)
async def test_a_rollback_whose_caller_is_cancelled_gives_back_what_was_settled(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"order")
        [order] = await client.get("q")
        tx = client.transaction()
        await tx.settle(order)
        world.nodes[0].muted = True
        rolling_back = asyncio.create_task(tx.rollback())
        await eventually(lambda: "rollback" in world.nodes[0].requests, "requested")
        rolling_back.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rolling_back
        world.nodes[0].muted = False
        await client.settle(order, wait=True)
        assert world.cluster.queues["q"].settled == [1]


@on_cluster(nodes=1)
async def test_a_block_that_is_cancelled_rolls_back_without_waiting_for_an_answer(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"order")
        [order] = await client.get("q")
        has_settled = asyncio.Event()

        async def works() -> None:
            async with client.transaction() as tx:
                await tx.settle(order)
                has_settled.set()
                await asyncio.Event().wait()

        working = asyncio.create_task(works())
        await has_settled.wait()
        world.nodes[0].muted = True
        working.cancel()
        await asyncio.sleep(0)
        assert working.cancelled()
        world.nodes[0].muted = False
        await client.settle(order, wait=True)
        assert world.nodes[0].requests.count("rollback") == 1
        assert world.cluster.queues["q"].settled == [1]


@on_cluster(nodes=1)
async def test_transactions_that_begin_together_begin_in_the_order_of_their_numbers(world: World) -> None:
    """A group refuses a new transaction whose number is not above those before."""
    async with quorum.connect(world.url) as client:
        await client.publish_batch("q", [b"%d" % number for number in range(10)])
        orders = await client.get("q", 10)
        begun = world.nodes[0].streams[0].transactions

        async def publishes(body: bytes) -> None:
            async with client.transaction() as tx:
                await tx.publish("q", body)

        async def settles(order: DeliveredMessage) -> None:
            async with client.transaction() as tx:
                await tx.settle(order)

        for order in orders:
            await asyncio.gather(publishes(b"one"), publishes(b"two"), settles(order))
        assert not begun
        assert sorted(bodies(world)) == [b"one"] * 10 + [b"two"] * 10


@on_cluster(nodes=1)
async def test_a_settlement_that_is_not_sent_takes_no_number(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish("q", b"order")
        [order] = await client.get("q")
        await client.settle(order, wait=True)
        async with client.transaction() as tx:
            with pytest.raises(UsageError):
                await tx.settle(order)
            async with client.transaction() as other:
                await other.publish("q", b"one")
            await tx.publish("q", b"two")
        assert bodies(world) == [b"one", b"two"]


@on_cluster(nodes=1)
async def test_what_a_transaction_settles_gives_credit_when_it_counts(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish_batch("q", [b"%d" % number for number in range(10)])
        async with client.consume("q", prefetch=1) as consumer:
            [server_side] = world.cluster.queues["q"].consumers
            delivery = await consumer.next_delivery()
            assert delivery is not None
            for _ in range(5):
                tx = client.transaction()
                await tx.settle(delivery)
                await tx.rollback()
            assert (len(server_side.held), server_side.credit_to) == (1, 1)
            async with client.transaction() as tx:
                await tx.settle(delivery)
                await eventually(lambda: len(world.cluster.dispositions) == 6, "it has arrived")
                assert server_side.credit_to == 1
            await eventually(lambda: server_side.credit_to == 2, "it counts")


@on_cluster(nodes=1)
async def test_a_transaction_may_settle_more_than_the_prefetch(world: World) -> None:
    """A program that waits for a message gets one, if open transactions settle those that it has."""
    async with quorum.connect(world.url) as client:
        await client.publish_batch("q", [b"%d" % number for number in range(10)])
        async with client.consume("q", prefetch=2) as consumer:
            [server_side] = world.cluster.queues["q"].consumers
            arriving = aiter(consumer)
            tx = client.transaction()
            for _ in range(6):
                await tx.settle(await anext(arriving))
            await tx.rollback()
            assert server_side.credit_to <= 7, "no more than the program waited for, and one in advance"
            await consumer.settle_up_to(4, wait=True)
            assert server_side.credit_to <= 7, "they were counted before"
            await consumer.settle_up_to(6, wait=True)
            assert server_side.credit_to == 8
        assert world.cluster.queues["q"].settled == [1, 2, 3, 4, 5, 6]


@on_cluster()
async def test_settlements_are_sent_before_the_commit_and_with_its_number(world: World) -> None:
    async with quorum.connect(world.url) as client:
        for number in range(4):
            await client.publish("q", b"%d" % number)
        async with client.consume("q", prefetch=4) as consumer:
            arriving = aiter(consumer)
            messages = [await anext(arriving) for _ in range(4)]
            async with client.transaction() as tx:
                await tx.settle(messages[:2])
                await tx.return_(messages[2])
                await tx.discard(messages[3])
            assert [each.outcome for each in world.cluster.dispositions[:3]] == [1, 2, 3]
            assert sorted(world.cluster.queues["q"].settled) == [1, 2]
            assert world.cluster.queues["q"].discarded == [4]


def test_the_blocking_client_has_transactions() -> None:
    @on_cluster()
    async def scenario(world: World) -> None:
        async with quorum.connect(world.url) as client:
            await bind_key_to_q(client)
        await asyncio.to_thread(blocking, world)

    def blocking(world: World) -> None:
        with quorum.sync.connect(world.url) as client:
            with client.transaction() as tx:
                tx.publish("q", b"one")
                tx.publish_batch("q", [b"two"])
            tx = client.transaction()
            tx.publish("q", b"three")
            tx.rollback()
            assert bodies(world) == [b"one", b"two"]
            with client.transaction() as tx:
                tx.publish_to("e", "key", b"three")
                tx.publish_batch_to("e", ["key", "key"], [b"four", b"five"])
            messages = client.get("q", 5)
            tx = client.transaction()
            tx.settle(messages[0])
            tx.return_(messages[1])
            tx.discard(messages[2])
            tx.modify(messages[3], delivery_failed=True)
            tx.modify(messages[4], undeliverable_here=True)
            tx.commit()
        queue = world.cluster.queues["q"]
        assert queue.settled == [1]
        assert queue.discarded == [3, 5]
        assert [(each.body, each.failed) for each in queue.ready.values()] == [(b"two", 0), (b"four", 1)]

    scenario()


@on_cluster(nodes=1)
async def test_each_message_of_a_transaction_goes_where_its_caller_says(world: World) -> None:
    world.cluster.declare("other")
    async with quorum.connect(world.url) as client:
        await bind_key_to_q(client)
        async with client.transaction() as tx:
            await tx.publish_batch(["other", "q"], [b"1", b"2"])
            await tx.publish_to("e", "key", b"3", mandatory=True)
            await tx.publish_to("e", "nobody", b"4")
            await tx.publish_batch_to("e", ["nobody", "key"], [b"5", b"6"])
            await tx.publish_batch_to("e", "key", [b"7", b"8"])
        with pytest.raises(UsageError, match="the transaction is over"):
            await tx.publish_to("e", "key", b"late")
        assert (bodies(world, "other"), bodies(world)) == ([b"1"], [b"2", b"3", b"6", b"7", b"8"])
        tx = client.transaction()
        await tx.publish_to("e", "nobody", b"9", mandatory=True)
        with pytest.raises(RolledBack) as caught:
            await tx.commit()
        assert caught.value.reason == "UNROUTABLE"


@on_cluster()
async def test_a_commit_is_requested_before_its_stream_can_break(world: World) -> None:
    """A request that is made after the stream was lost is dropped with the next one, and never answered."""
    async with quorum.connect(world.url) as client:
        tx = client.transaction()
        await tx.publish("q", b"one")
        stream = client._live()._stream
        await eventually(lambda: not stream.outbox.has_requests, "published")
        committing = asyncio.create_task(tx.commit())
        await asyncio.sleep(0)  # it has begun
        assert stream.outbox.has_requests
        await committing
