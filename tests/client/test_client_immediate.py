"""Immediate messages through the whole service: a member and the real client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import quorum
from quorum.client.client import Client
from quorum.client.errors import PublishRejected, RolledBack
from support.members.served import served


def on_member(scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served() as url, quorum.connect(url) as client:
            await scenario(client)

    asyncio.run(run())


async def refused(publishing: Awaitable[object]) -> str:
    with pytest.raises(PublishRejected) as found:
        await publishing
    return found.value.reason


async def ready(client: Client, queue: str) -> int:
    return (await client.describe(queue)).queue.ready


def test_a_message_is_refused_until_a_consumer_can_take_it() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("calls")
        assert await refused(client.publish("calls", b"early", immediate=True)) == "NO_CONSUMERS"
        assert await refused(client.publish_batch("calls", [b"early"], immediate=True)) == "NO_CONSUMERS"
        async with client.consume("calls", prefetch=2) as consumer:
            received = aiter(consumer)
            first = asyncio.create_task(anext(received))
            while (await client.describe("calls")).consumers == ():
                await asyncio.sleep(0.01)
            outcomes = await asyncio.gather(
                *(client.publish("calls", b"%d" % each, immediate=True) for each in range(4)),
                return_exceptions=True,
            )
            assert [type(each) for each in outcomes] == [type(None)] * 2 + [PublishRejected] * 2
            assert (await first).body == b"0"
        assert await ready(client, "calls") <= 2  # what was checked out came back

    on_member(scenario)


def test_immediate_and_other_messages_keep_their_order() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("calls")
        async with client.consume("calls", prefetch=100) as consumer:
            await asyncio.sleep(0)
            while (await client.describe("calls")).consumers == ():
                await asyncio.sleep(0.01)
            await asyncio.gather(
                *(client.publish("calls", b"%d" % each, immediate=bool(each % 2)) for each in range(20))
            )
            received = aiter(consumer)
            assert [(await anext(received)).body for _ in range(20)] == [b"%d" % each for each in range(20)]

    on_member(scenario)


def test_an_exchange_gives_an_immediate_message_only_to_queues_with_a_taker() -> None:
    async def scenario(client: Client) -> None:
        for queue in ("watched", "left alone"):
            await client.declare(queue)
            await client.bind("amq.fanout", queue)
        assert await refused(client.publish_to("amq.fanout", "", b"x", immediate=True)) == "NO_CONSUMERS"
        async with client.consume("watched") as consumer:
            while (await client.describe("watched")).consumers == ():
                await asyncio.sleep(0.01)
            await client.publish_to("amq.fanout", "", b"x", immediate=True)
            assert (await anext(aiter(consumer))).body == b"x"
        assert await ready(client, "left alone") == 0

    on_member(scenario)


def test_a_transaction_with_a_message_that_nobody_can_take_fails() -> None:
    async def scenario(client: Client) -> None:
        await client.declare("calls")
        transaction = client.transaction()
        await transaction.publish("calls", b"plain")
        await transaction.publish("calls", b"x", immediate=True)
        with pytest.raises(RolledBack) as failed:
            await transaction.commit()
        assert failed.value.reason == "NO_CONSUMERS"
        assert await ready(client, "calls") == 0

    on_member(scenario)
