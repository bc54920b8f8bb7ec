"""Consuming: credit, deliveries, and iterations over them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

import quorum
from quorum.client import DeliveredMessage, Delivery
from quorum.client.errors import NotFound, RefusedError, UsageError, VoidDelivery
from quorum.client.messages.delivery import GetHolder, Link
from quorum.v1 import queue_pb2
from support.fake_server.consuming import filled, numbered, settled, take
from support.fake_server.harness import World, eventually, on_cluster


@on_cluster()
async def test_messages_come_in_order_with_all_they_carry(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await client.publish(
            "q", b"a", quorum.Properties(subject="s", ttl_ms=5), {"f": 1.5, "n": 1, "b": True}
        )
        await client.publish("q", b"")
        async with client.consume("q") as consumer:
            messages = [*(await take(consumer, 2))]
            first, second = messages
            assert (first.body, first.sequence, first.tag, first.redelivered) == (b"a", 1, 1, False)
            assert first.properties.to_dict() == {"ttl": 5, "subject": "s"}
            assert first.application_properties == {"b": True, "f": 1.5, "n": 1}
            assert [type(value) for value in first.application_properties.values()] == [bool, float, int]
            assert (second.body, second.application_properties) == (b"", {})
            assert second.properties == quorum.Properties()


@on_cluster()
async def test_no_more_than_the_prefetch_is_ever_held(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 100)
        async with client.consume("q", prefetch=10) as consumer:
            waiting: list[DeliveredMessage] = []
            seen = 0
            while seen < 100:
                delivery = await consumer.next_delivery()
                assert delivery is not None
                waiting.extend(delivery)
                seen += delivery.count
                [server_side] = world.cluster.queues["q"].consumers
                assert len(server_side.held) <= 10
                await consumer.settle(waiting.pop())  # the newest, so the oldest stay held
                while len(waiting) > 7:
                    await consumer.settle(waiting.pop(0))
            await consumer.settle(waiting, wait=True)
    assert sorted(settled(world)) == list(range(1, 101))


@on_cluster()
async def test_credit_is_raised_in_halves_of_the_prefetch(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 60)
        async with client.consume("q", prefetch=20) as consumer:
            count = 0
            async for message in consumer:
                await message.settle(wait=True)
                count += 1
                if count == 60:
                    break
    raised = [request.credit_to for request in world.cluster.dispositions if request.credit_to]
    assert raised == [30, 40, 50, 60, 70, 80]


@on_cluster()
async def test_a_selector_that_is_no_text_is_refused_by_name(world: World) -> None:
    async with quorum.connect(world.url) as client:
        with pytest.raises(UsageError, match=r"^a selector is text, not int"):
            await client.consume("q", selector=3)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"^a selector is text, not int"):
            await anext(client.browse("q", 3))  # type: ignore[arg-type]


@on_cluster()
async def test_arguments_of_a_wrong_type_are_refused_with_what_is_allowed(world: World) -> None:
    async with quorum.connect(world.url) as client:
        any_client: Any = client
        whole = "allowed: a whole number from"
        for call, said in (
            (lambda: any_client.consume("q", prefetch=None), f"prefetch None; {whole} 1 to 4294967295"),
            (lambda: any_client.consume("q", prefetch="5"), f"prefetch '5'; {whole} 1 to"),
            (lambda: any_client.consume("q", prefetch=True), f"prefetch True; {whole} 1 to"),
            (lambda: any_client.consume("q", prefetch=1.5), f"prefetch 1.5; {whole} 1 to"),
            (lambda: any_client.consume("q", priority="1"), f"priority '1'; {whole} -10 to 10"),
            (lambda: any_client.consume(5), "is text, not int"),
            (lambda: any_client.consume("q", None, ["x"]), "a property filter are a mapping .*, not list"),
            (lambda: any_client.consume("q", None, {"properties": 1}), "the properties of a property filter"),
            (lambda: anext(any_client.browse("q", None, -1)), f"start_sequence -1; {whole} 0 to"),
            (lambda: anext(any_client.browse("q", None, 0, "5")), f"limit '5'; {whole} 0 to"),
            (lambda: any_client.get("q", "5"), f"count '5'; {whole} 1 to"),
            (lambda: any_client.declare(["q"]), "is text, not list"),
            (lambda: any_client.describe(None), "is text, not NoneType"),
            (lambda: any_client.publish("q", b"x", "text/plain"), "properties are a mapping .*, not str"),
            (lambda: any_client.publish("q", b"x", {5: "x"}), "properties: the name 5 is not text"),
            (lambda: any_client.publish("q", b"x", None, [1]), "application properties are a mapping"),
            (lambda: any_client.publish_batch("q", None), "a batch is messages, .*, not NoneType"),
            (lambda: any_client.set_policy("p", "*", {}, "1"), f"priority '1'; {whole}"),
        ):
            with pytest.raises(UsageError, match=said):
                await call()


@on_cluster()
async def test_a_bad_selector_is_refused_with_its_reason(world: World) -> None:
    async with quorum.connect(world.url) as client:
        with pytest.raises(RefusedError, match="cannot parse") as refused:
            await client.consume("q", selector="colour = = 'red'")
        assert refused.value.reason == "BAD_SELECTOR"
        assert "why" in refused.value.metadata
        with pytest.raises(NotFound):
            async for _ in client.consume("nowhere"):
                pass
        with pytest.raises(UsageError, match="not both"):
            client.consume("q", "a = 1", {"properties": {"subject": "x"}})
        assert client.reconnect_count == 0


@on_cluster()
async def test_a_selector_picks_messages_and_is_attached_again(world: World) -> None:
    world.cluster.selectors["even"] = lambda message: int(message.body) % 2 == 0
    async with quorum.connect(world.url) as client:
        await filled(client, 10)
        async with client.consume("q", selector="even") as consumer:
            assert [int(message.body) for message in await take(consumer, 5)] == [0, 2, 4, 6, 8]
            world.nodes[0].cut()
            assert [int(message.body) for message in await take(consumer, 5)] == [0, 2, 4, 6, 8]


@on_cluster()
async def test_a_consumer_knows_whether_it_is_the_active_one(world: World) -> None:
    async with quorum.connect(world.url) as client, client.consume("q", consumer_tag="c") as consumer:
        assert not consumer.is_active
        [server_side] = world.cluster.queues["q"].consumers
        for active in (True, False, True):
            changed = queue_pb2.ActiveChanged(consumer_tag="c", attach=server_side.attach, active=active)
            server_side.stream.answer(active_changed=changed)
            await eventually(lambda: consumer.is_active is active, "the consumer is told")  # noqa: B023
        world.nodes[0].cut()
        await eventually(lambda: not consumer.is_active, "it is not active on a new stream")


@on_cluster()
async def test_a_priority_is_sent_and_has_limits(world: World) -> None:
    async with quorum.connect(world.url) as client:
        assert client.consume("q", priority=-10).attach_request(1).priority == -10
        assert client.consume("q").attach_request(1).priority == 0
        with pytest.raises(UsageError, match=r"priority 11; allowed: a whole number from -10 to 10"):
            client.consume("q", priority=11)


@on_cluster()
async def test_draining_ends_the_iteration_after_what_is_there(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 7)
        async with client.consume("q") as consumer:
            await consumer.drain()
            seen = []
            async for message in consumer:
                seen.append(message.sequence)
                await message.settle()
        assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert settled(world) == seen


@on_cluster()
async def test_a_second_drain_gives_as_many_messages_more_as_are_asked_for(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 9)
        async with client.consume("q", prefetch=2) as consumer:
            await consumer.drain()
            assert len([message async for message in consumer]) == 2
            await consumer.drain_more(3)
            assert len([message async for message in consumer]) == 3
            assert consumer.options.prefetch == 3
    assert world.cluster.queues["q"].settled == []


@on_cluster(nodes=1)
async def test_a_drained_consumer_has_ended_when_its_stream_is_lost(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 2)
        consumer = client.consume("q", consumer_tag="c")
        await consumer.drain()
        await eventually(lambda: consumer.is_drained, "drained")
        world.nodes[0].cut()
        await eventually(lambda: client.reconnect_count == 1, "another stream")
        assert [message async for message in consumer] == []
        assert len(world.cluster.attaches) == 1, "what arrived later is not for it"
        async with client.consume("q", consumer_tag="c") as other:
            assert len(await take(other, 2)) == 2


@on_cluster(nodes=1)
async def test_what_was_got_is_void_when_its_stream_is_lost(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 1)
        [message] = await client.get("q")
        world.nodes[0].cut()
        await eventually(lambda: client.reconnect_count == 1, "another stream")
        with pytest.raises(VoidDelivery):
            await client.settle(message)
        [again] = await client.get("q")
        await client.settle(again, wait=True)
    assert settled(world) == [1]


@on_cluster()
async def test_a_consumer_tag_is_used_once_in_a_client(world: World) -> None:
    async with quorum.connect(world.url) as client, client.consume("q", consumer_tag="c"):
        with pytest.raises(UsageError, match="in use"):
            await client.consume("q", consumer_tag="c")


@on_cluster()
async def test_a_cancelled_wait_loses_no_message(world: World) -> None:
    async with quorum.connect(world.url) as client, client.consume("q") as consumer:
        waiting = asyncio.create_task(consumer.next_delivery())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await filled(client, 1)
        assert [message.body for message in await take(consumer, 1)] == [b"0"]


@on_cluster()
async def test_an_iteration_that_is_broken_off_is_continued_by_the_next_one(world: World) -> None:
    async with quorum.connect(world.url) as client:
        await filled(client, 6)
        async with client.consume("q") as consumer:
            seen: list[tuple[int, int, bytes]] = []
            for _ in range(2):
                async for message in consumer:
                    seen.append((message.tag, message.sequence, message.body))
                    if len(seen) % 2 == 0:
                        break
            seen += [(each.tag, each.sequence, each.body) for each in await take(consumer, 2)]
            assert seen == [(number, number, b"%d" % (number - 1)) for number in range(1, 7)]
            assert await consumer.settle_up_to(6) == 6


@on_cluster()
async def test_an_iteration_goes_on_after_a_wait_that_was_cancelled(world: World) -> None:
    async with quorum.connect(world.url) as client, client.consume("q", auto_settle=True) as consumer:
        messages, deliveries = aiter(consumer), aiter(consumer.deliveries())
        for received in (messages, deliveries):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(received), 0.01)
        await filled(client, 2)
        assert (await anext(messages)).body == b"0"
        [rest] = await anext(deliveries)
        assert rest.body == b"1"


def test_the_rest_of_a_delivery_has_its_own_sequences() -> None:
    batch = quorum.encode_batch(numbered(0, 6)).data
    wire = queue_pb2.Delivery(attach=1, first_tag=11, count=6, batch=batch)
    for first, last in ((1, 2), (5, 5), (7, 9)):
        wire.sequences.add(first=first, last=last)
    delivery = Delivery(GetHolder(cast(Link, None), "q", 1), wire, 0)
    for place in range(6):
        rest = delivery.rest(place)
        assert [(each.tag, each.sequence, each.body) for each in rest] == [
            (each.tag, each.sequence, each.body) for each in list(delivery)[place:]
        ]


@on_cluster()
async def test_arguments_of_wrong_types_are_refused_by_their_call_and_end_nothing(world: World) -> None:
    """A request is made when it is sent, so a wrong value would end the session there."""
    wrong: Any = "yes"
    async with quorum.connect(world.url) as client, client.consume("q") as consumer:
        await filled(client, 1)
        [message] = await take(consumer, 1)
        transaction = client.transaction()
        for call in (
            lambda: message.modify(delivery_failed=wrong),
            lambda: message.modify(undeliverable_here=wrong),
            lambda: transaction.modify(message, delivery_failed=wrong),
            lambda: consumer.settle_ranges([(1.0, 2.5)]),  # type: ignore[list-item]  # the case
            lambda: consumer.settle_ranges([3]),  # type: ignore[list-item]
            lambda: consumer.settle_up_to(1.5),  # type: ignore[arg-type]
            lambda: consumer.cancel(requeue=wrong),
            lambda: client.get("q", settled=wrong),
            lambda: client.get("q", 1.5),  # type: ignore[arg-type]
            lambda: client.publish(("q",), b"x"),  # type: ignore[arg-type]
            lambda: client.publish_to("", ("q",), b"x"),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError):
                await call()
        assert not client._live()._stream.requests
        await message.settle(wait=True)
        await client.publish("q", b"more")
        assert (settled(world), client.reconnect_count) == ([1], 0)
