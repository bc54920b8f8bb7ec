"""What the sessions of users may do, and what ends when a user changes."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

import quorum
from quorum.client import encode_batch
from quorum.client.client import Client
from quorum.client.errors import PermissionRefused, PublishRejected, QuorumError, RefusedError, RolledBack
from quorum.v1 import admin_pb2, queue_pb2, queue_pb2_grpc
from support.members.served import serving
from support.members.sessions import Stream
from support.members.users import EVERYBODY, LIMIT_S, PASSWORD, as_user, header, with_users


def test_a_session_may_publish_and_consume_what_its_user_may() -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "writer")) as client:
            await client.publish("mine", b"one")
            with pytest.raises(PublishRejected, match="no permission: write for 'other'") as refused:
                await client.publish("other", b"two")
            assert refused.value.reason == "NOT_PERMITTED"
            with pytest.raises(PermissionRefused, match="no permission: read for 'mine'"):
                await client.get("mine")
            with pytest.raises(RolledBack):
                await in_transaction(client, "mine", "other")
            await client.publish("mine", b"five")  # the session goes on
        async with quorum.connect(as_user(url, "reader")) as client:
            async with client.consume("mine") as consumer:
                bodies = []
                async for message in consumer:
                    bodies.append(message.body)
                    await message.settle()
                    if len(bodies) == 2:
                        break
            assert bodies == [b"one", b"five"]
            with pytest.raises(PermissionRefused, match="read for 'other'"):
                async with client.consume("other"):
                    pass

    with_users(body)


def test_a_producer_belongs_to_its_user() -> None:
    """A user who has learned the id of another user's producer cannot end its session, nor take its numbers: messages
    under numbers that are taken are confirmed, and dropped as repeats."""

    async def opened(channel: Any, user: str, epoch: int) -> Any:
        call = queue_pb2_grpc.QueueStub(channel).Session(metadata=tuple(header(user, PASSWORD).items()))
        await call.write(queue_pb2.SessionRequest(open=queue_pb2.Open(producer_id=bytes(16), epoch=epoch)))
        assert (await call.read()).HasField("opened")
        return call

    async def publish(call: Any, number: int, queue: str = "mine") -> None:
        batch = encode_batch([b"x"]).data
        sent = queue_pb2.PublishBatch(
            routing_key=queue, first_sequence=number, lowest_unconfirmed=1, batch=batch
        )
        await call.write(queue_pb2.SessionRequest(publish=sent))
        assert (await call.read()).confirms.confirmed, "the session has ended, or the message was refused"

    async def body(url: str) -> None:
        async with grpc.aio.insecure_channel(url.removeprefix("quorum://")) as channel:
            own = await opened(channel, "writer", 1)
            await publish(own, 1)
            others = await opened(channel, "admin", 9)
            for number in (1, 2, 3):
                await publish(others, number)
            await publish(own, 2)
            again = await opened(channel, "writer", 2)
            await publish(again, 2)  # a repeat
            for call in (own, others, again):
                call.cancel()
        async with quorum.connect(as_user(url, "admin")) as client:
            assert (await client.describe("mine")).queue.ready == 2 + 3

    with_users(body)


def test_a_message_without_permission_takes_no_independent_neighbour_along() -> None:
    async def body(url: str) -> None:
        stream = await Stream(url, "writer").open(1)
        keys = ["mine", "other", "mine", "other"]
        denied = {2: "NOT_PERMITTED", 4: "NOT_PERMITTED"}
        answers = await stream.publish(1, b"1", b"2", b"3", b"4", routing_keys=keys, independent=True)
        assert answers == {1: "", 3: ""} | denied
        answers = await stream.publish(5, b"5", b"6", routing_keys=keys[:2])
        assert answers == dict.fromkeys((5, 6), "NOT_PERMITTED"), "a batch is refused as a whole"
        await stream.close()
        async with quorum.connect(as_user(url, "admin")) as client:
            assert [message.body async for message in client.browse("mine")] == [b"1", b"3"]
            assert (await client.describe("other")).queue.ready == 0

    with_users(body)


@pytest.mark.parametrize(
    "how",
    [
        {"routing_key": "mine"},
        {"routing_keys": ["mine", "mine.b", "mine.b"]},
        {"routing_keys": ["mine", "mine.b", "free"], "independent": True},
        {"exchange": "mine.x"},
    ],
    ids=["a queue", "queues", "queues, and one is allowed", "an exchange"],
)
def test_what_was_taken_before_is_confirmed_although_the_user_may_write_there_no_more(
    how: dict[str, Any],
) -> None:
    """A rejection is final: the producer would publish the message again, under another number."""

    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            for queue in ("mine.b", "free"):
                await client.declare(queue, {})
            await client.declare_exchange("mine.x", "fanout")
            await client.bind("mine.x", "mine")
            await client.bind("mine.x", "mine.b")
            stream = await Stream(url, "writer").open(1)
            first = {name: value[:2] if name == "routing_keys" else value for name, value in how.items()}
            assert await stream.publish(1, b"1", b"2", **first) == {1: "", 2: ""}
            await client.set_permissions("writer", "", "free", "")
            assert "user was changed" in await stream.call.details(), "the session ends"
            await stream.close()
            again = await Stream(url, "writer").open(2)
            is_allowed = "free" in how.get("routing_keys", ())
            third = "" if is_allowed else "NOT_PERMITTED"
            assert await again.publish(1, b"1", b"2", b"3", **how) == {1: "", 2: "", 3: third}
            await again.close()
            queues = [(await client.describe(name)).queue.ready for name in ("mine", "mine.b", "free")]
            assert sum(queues) == (4 if "exchange" in how else 2) + is_allowed

    with_users(body)


async def in_transaction(client: Client, *queues: str) -> None:
    async with client.transaction() as tx:
        for queue in queues:
            await tx.publish(queue, b"of a transaction")


def test_a_binding_that_is_named_by_its_id_needs_an_administrator() -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            await client.set_permissions("reader", "", "mine*", "mine*")
            await client.declare_exchange("mine.x", "direct")
            await client.declare_exchange("theirs", "direct")
            await client.bind("mine.x", "mine", routing_key="k")
            await client.bind("theirs", "other", routing_key="k")
            theirs = next(each for each in await client.bindings() if each.source == "theirs")
        async with quorum.connect(as_user(url, "reader")) as client:
            request = admin_pb2.RemoveBindingRequest()
            request.binding.source, request.binding.queue, request.binding.id = "mine.x", "mine", theirs.id
            with pytest.raises(PermissionRefused, match="administer"):
                await client._admin("RemoveBinding", request, None)
            await client.unbind("mine.x", "mine", routing_key="k")

    with_users(body)


async def ends(client: Client) -> QuorumError:
    """The error with which a publish fails in the end."""
    while True:
        try:
            await client.publish("mine", b"x", timeout_ms=5_000)
        except QuorumError as error:
            return error
        await asyncio.sleep(0.01)


def test_what_a_removed_user_has_open_ends() -> None:
    async def body(url: str) -> None:
        async with (
            quorum.connect(as_user(url, "admin")) as admin,
            quorum.connect(as_user(url, "writer")) as client,
        ):
            await client.publish("mine", b"x")
            await admin.delete_user("writer")
            assert isinstance(await ends(client), PermissionRefused)

    with_users(body)


def test_a_changed_permission_counts_for_sessions_that_are_open() -> None:
    async def body(url: str) -> None:
        async with (
            quorum.connect(as_user(url, "admin")) as admin,
            quorum.connect(as_user(url, "writer")) as client,
        ):
            await client.publish("mine", b"x")
            await admin.set_permissions("writer", "", "", "")
            assert (await ends(client)).reason == "NOT_PERMITTED"
            await admin.set_permissions("writer", "", "mine", "")
            await client.publish("mine", b"x")

    with_users(body)


def test_sessions_without_a_user_end_with_the_first_user() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving() as (url, _), quorum.connect(url) as client:
            await client.declare("mine", {})
            await client.publish("mine", b"x")
            await client.set_user("admin", PASSWORD, administers=True)
            assert isinstance(await ends(client), PermissionRefused)

    asyncio.run(scenario())


@pytest.mark.parametrize("takes", ["nothing", "certificates", "tokens"])
def test_the_first_user_can_log_in(takes: str) -> None:
    """Else the cluster would be lost: every call needs a user, and none could log in."""

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving() as (url, [api]), quorum.connect(url) as client:
            api.hub.access.takes_certificates = takes == "certificates"
            if takes == "tokens":
                api.hub.access.reconfigure(lambda _: ("admin", 0.0), is_open_without_users=False)
            made = client.set_user("admin", administers=True)
            if takes == "nothing":
                with pytest.raises(RefusedError, match="no administrator could log in afterwards") as refused:
                    await made
                assert refused.value.reason == "LAST_ADMINISTRATOR"
                assert await client.users() == []
            else:
                assert await made

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128])
def test_a_user_name_of_a_wrong_length_is_refused(name: str) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving() as (url, _), quorum.connect(url) as client:
            for call in (
                client.set_user(name, PASSWORD, administers=True),
                client.set_permissions(name, "*", "*", "*"),
                client.delete_user(name),
            ):
                with pytest.raises(RefusedError) as refused:
                    await call
                said = f"a user name of {len(name.encode())} bytes; allowed: 1..255"
                assert str(refused.value).endswith(said)
                assert refused.value.reason == "BAD_ARGUMENT"

    asyncio.run(scenario())


def test_the_last_administrator_stays() -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            for change in (client.delete_user("admin"), client.set_user("admin", administers=False)):
                with pytest.raises(QuorumError, match="only administrator"):
                    await change
            assert [each.name for each in await client.users()] == sorted(EVERYBODY)

    with_users(body)


def test_one_administrator_has_to_be_able_to_log_in() -> None:
    """Before, the first administrator could be one without a password, whom no member let in."""

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving() as (url, [api]):
            async with quorum.connect(url) as client:
                with pytest.raises(QuorumError, match="no administrator could log in afterwards") as found:
                    await client.set_user("me", administers=True)
                assert found.value.reason == "LAST_ADMINISTRATOR"
                assert await client.users() == []
                await client.set_user("admin", PASSWORD, administers=True)
            async with quorum.connect(as_user(url, "admin")) as client:
                await client.set_user("me", administers=True)
                for change in (client.delete_user("admin"), client.set_user("admin", administers=False)):
                    with pytest.raises(QuorumError, match=r"give a password to an administrator \('me'\)"):
                        await change
                api.hub.access.takes_certificates = True
                await client.set_user("admin", administers=False)

    asyncio.run(scenario())
