"""Delayed messages as clients see them: through the services of a member."""

from __future__ import annotations

import asyncio

import quorum
from quorum.client.messages.batch import Message
from quorum.v1 import queue_pb2 as pb
from support.members.served import served
from support.members.services import Api, Context, collected, with_queue


async def publish(api: Api, **messages: pb.Properties) -> None:
    made = [pb.Message(body=body.encode(), properties=each) for body, each in messages.items()]
    await api.publish(*made)


async def browse(api: Api, *, delayed: bool = False) -> list[pb.StoredMessage]:
    request = pb.BrowseRequest(queue="orders", delayed=delayed)
    found = await api.call(collected(api.queues.Browse(request, Context())))  # type: ignore[arg-type]
    return [each for response in found for each in response.messages]


def test_a_delayed_message_is_counted_and_browsed_and_then_delivered() -> None:
    async def run(api: Api) -> None:
        await publish(
            api,
            later=pb.Properties(delivery_delay_ms=90_000),
            now=pb.Properties(delivery_time=1),
            soon=pb.Properties(delivery_delay_ms=30_000),
        )
        counts = await api.info()
        assert (counts.ready, counts.delayed, counts.total) == (1, 2, 3)
        assert [each.message.body for each in await browse(api)] == [b"now"]
        shown = await browse(api, delayed=True)
        assert [each.message.body for each in shown] == [b"later", b"soon"]
        assert shown[0].due_time - shown[1].due_time == 60_000
        assert await api.get(10) == [b"now"]
        api.cluster.run(34_000)
        assert await api.get(10) == [b"soon"]
        api.cluster.run(66_000)
        assert await api.get(10) == [b"later"]
        assert (await api.info()).total == 0

    with_queue(run)


def test_a_message_is_delayed_until_a_time() -> None:
    async def run(api: Api) -> None:
        await publish(api, first=pb.Properties(delivery_delay_ms=60_000))
        [first] = await browse(api, delayed=True)
        await publish(api, second=pb.Properties(delivery_time=first.due_time - 1_000))
        _, second = await browse(api, delayed=True)
        assert second.due_time == first.due_time - 1_000

    with_queue(run)


def test_a_session_publishes_with_a_delay_also_in_a_transaction() -> None:
    async def run() -> None:
        async with served() as url, quorum.connect(url) as client:
            await client.declare("orders")
            await client.publish("orders", b"later", delay=1_000)
            async with client.transaction() as transaction:
                await transaction.publish("orders", b"in a transaction", delay=2_000)
                await transaction.publish("orders", b"at once")
            await client.publish_batch("orders", [b"a", Message(b"b", {"delivery-delay": 3_000_000})])
            assert [each.body async for each in client.browse("orders")] == [b"at once", b"a"]
            shown = [each async for each in client.browse("orders", delayed=True)]
            assert [each.body for each in shown] == [b"later", b"in a transaction", b"b"]
            first, second, third = [each.due_time or 0 for each in shown]
            assert 990_000 < second - first < 1_010_000 and 990_000 < third - second < 1_010_000
            assert (await client.describe("orders")).queue.delayed == 3

    asyncio.run(run())
