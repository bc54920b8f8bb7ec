"""Policies on real members: what an operator sets counts for whoever comes afterwards, at every member."""

from __future__ import annotations

import asyncio

import pytest

import quorum
from quorum.client import Message
from quorum.client.errors import RefusedError
from quorum.local_cluster.cluster import LocalCluster
from support.processes.load import CONNECT_LIMIT_MS

QUEUES = 60
RED = Message(b"x", application_properties={"colour": "red", "size": 3})


def connect(cluster: LocalCluster, name: str) -> quorum.Client:
    return quorum.connect(f"quorum://{cluster.member(name).client}", connect_timeout_ms=CONNECT_LIMIT_MS)


async def got(client: quorum.Client, queue: str, selector: str) -> int:
    """How many of the messages that wait are delivered to a consumer with this selector; they go back."""
    async with client.consume(queue, selector=selector) as consumer:
        await consumer.drain()
        found = await consumer.next_delivery()
        return 0 if found is None else found.count


def test_kept_fields_change_for_sessions_and_consumers_to_come(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        one, another, last, *_ = cluster.names
        async with (
            connect(cluster, one) as first,
            connect(cluster, another) as second,
            connect(cluster, last) as third,
        ):
            await first.declare("fields.q", {"x-filter-enabled": True})
            await first.set_policy("fields", "fields.*", {"x-filter-field-names": ["colour"]})
            await first.publish("fields.q", RED.body, application_properties=RED.application_properties)
            attached = second.consume("fields.q", selector="colour = 'blue'", consumer_tag="blue")
            await attached.start()

            assert await second.set_policy("fields", "fields.*", {"x-filter-field-names": ["size"]})
            found = (await third.describe("fields.q")).queue
            assert (found.policy, found.arguments) == ("fields", {"x-filter-enabled": True})
            assert found.effective_arguments == {
                "x-delivery-limit": 20,
                "x-filter-enabled": True,
                "x-filter-field-names": "size",
            }
            await first.publish("fields.q", RED.body, application_properties=RED.application_properties)
            assert await got(third, "fields.q", "size = 3") == 0, "sessions go on as they began"
            await third.publish("fields.q", RED.body, application_properties=RED.application_properties)
            assert await got(first, "fields.q", "size = 3") == 1
            with pytest.raises(RefusedError, match=r"application-properties\.colour") as refused:
                await got(third, "fields.q", "colour = 'red'")
            assert refused.value.reason == "FIELD_NOT_KEPT"
            consumers = (await third.describe("fields.q")).consumers
            assert [each.consumer_tag for each in consumers] == ["blue"], "it stays attached"
            await attached.cancel()
            await third.delete_policy("fields")
            assert await got(second, "fields.q", "colour IS NULL") == 1

    asyncio.run(scenario())


def test_a_policy_is_carried_out_though_leaders_are_killed(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        url = cluster.url
        async with quorum.connect(url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            for number in range(QUEUES):
                await client.declare(f"many.{number}", {"x-max-length": 100 + number})
            victim = (await client.describe("many.0")).queue.leader
            setting = asyncio.create_task(
                client.set_policy("short", "many.*", {"x-max-length": 130, "x-overflow": "reject-publish"})
            )
            await asyncio.sleep(0)
            cluster.kill(victim)
            await setting
            cluster.start([victim])
            await asyncio.to_thread(cluster.wait_ready, [victim])
            for queue in await client.queues("many."):
                own = queue.arguments["x-max-length"]
                assert isinstance(own, int)
                assert queue.effective_arguments == {
                    "x-delivery-limit": 20,
                    "x-max-length": min(own, 130),
                    "x-overflow": "reject-publish",
                }
                assert queue.policy == "short"
            with pytest.raises(quorum.client.errors.PublishRejected):
                await client.publish_batch("many.0", [b"x"] * 101)
            assert [policy.name for policy in await client.policies()] == ["short"]

    asyncio.run(scenario())


def test_refusals_have_the_words_of_the_catalog(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with connect(cluster, cluster.names[0]) as client:
            for arguments, reason, text in [
                ({"x-max-lenght": 1}, "BAD_ARGUMENT", "did you mean 'x-max-length'"),
                ({"x-filter-enabled": True}, "BAD_ARGUMENT", "a policy may set x-consumer-timeout, "),
                ({"x-max-length": 1.0}, "BAD_ARGUMENT", "allowed: an integer"),
                ({}, "BAD_ARGUMENT", "without arguments"),
            ]:
                with pytest.raises(RefusedError, match=text) as refused:
                    await client.set_policy("p", "*", arguments)
                assert refused.value.reason == reason
            with pytest.raises(RefusedError, match="policy pattern"):
                await client.set_policy("p", "", {"x-max-length": 1})
            with pytest.raises(quorum.client.errors.NotFound, match="no policy 'p'"):
                await client.delete_policy("p")

    asyncio.run(scenario())
