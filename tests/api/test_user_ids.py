"""The `user_id` of a message is the name of the user that publishes it, whatever way it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import pyarrow as pa
import pytest

import quorum
from quorum.bulk import BulkClient
from quorum.client import Message, encode_batch
from quorum.client.client import Client
from quorum.client.errors import PublishRejected, RefusedError, RolledBack
from quorum.v1 import queue_pb2, queue_pb2_grpc
from support.members.http_port import PASSWORD as HTTP_PASSWORD
from support.members.http_port import Http, member
from support.members.served import served
from support.members.sessions import Stream, batch_of
from support.members.users import LIMIT_S, PASSWORD, as_user, header, with_users

REASON = "WRONG_USER_ID"
DIED_IN = "x-last-death-queue"


def named(*names: str | None) -> list[Message]:
    """A message for each of these names; None: without a user_id."""
    return [
        Message(str(place).encode(), {"user_id": name} if name else {}) for place, name in enumerate(names)
    ]


async def names_in(client: Client, queue: str) -> list[str | None]:
    return [message.properties.user_id async for message in client.browse(queue)]


def test_a_message_may_have_the_name_of_the_user_that_publishes_it_or_none() -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "writer")) as client:
            await client.publish("mine", b"own", {"user_id": "writer"})
            await client.publish("mine", b"none")
            with pytest.raises(PublishRejected) as refused:
                await client.publish("mine", b"another's", {"user_id": "reader"})
            assert refused.value.reason == REASON
            for name in ("", "Writer", "writer "):
                with pytest.raises(PublishRejected, match="only an administrator may give another name"):
                    await client.publish_batch("mine", encode_batch([Message(b"x", {"user_id": name})]))
            await client.publish("mine", b"the session goes on", {"user_id": "writer"})
        async with quorum.connect(as_user(url, "admin")) as client:
            assert await names_in(client, "mine") == ["writer", None, "writer"]

    with_users(body)


def test_an_administrator_may_give_any_name() -> None:
    """Tools that copy messages need it."""

    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            await client.publish_batch("mine", named("admin", "reader", None, "nobody that there is"))
            await client.publish_batch("mine", named("reader", "reader"))
            async with client.transaction() as tx:
                await tx.publish("mine", b"x", {"user_id": "writer"})
            found = await names_in(client, "mine")
            assert found == ["admin", "reader", None, "nobody that there is", "reader", "reader", "writer"]

    with_users(body)


def test_without_users_a_message_may_have_any_name() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), served() as url, quorum.connect(url) as client:
            await client.declare("mine", {})
            await client.publish_batch("mine", named("ann", None, "bob"))
            assert await names_in(client, "mine") == ["ann", None, "bob"]
            await asyncio.to_thread(staged, url, "mine", ["carol"])
            assert await names_in(client, "mine") == ["ann", None, "bob", "carol"]

    asyncio.run(scenario())


WAYS: list[dict[str, Any]] = [
    {"routing_key": "mine"},
    {"routing_keys": ["mine"] * 3},
    {"routing_keys": ["mine", "mine.b", "mine"]},
    {"exchange": "mine.x"},
    {"exchange": "mine.one"},
    {"exchange": "mine.h"},
]
IDS = ["a queue", "keys of a queue", "keys", "an exchange", "an exchange with one queue", "headers"]


async def with_exchanges(client: Client) -> None:
    """`mine.x` has two queues, `mine.one` and `mine.h` have one, and `mine.h` looks at the properties."""
    await client.declare("mine.b", {})
    for name, kind in (("mine.x", "fanout"), ("mine.one", "fanout"), ("mine.h", "headers")):
        await client.declare_exchange(name, kind)
        await client.bind(name, "mine")
    await client.bind("mine.x", "mine.b")


@pytest.mark.parametrize("how", WAYS, ids=IDS)
@pytest.mark.parametrize("names", [("writer", "reader", None), ("reader",) * 3], ids=["each", "shared"])
def test_a_message_with_anothers_name_takes_no_independent_neighbour_along(
    how: dict[str, Any], names: tuple[str | None, ...]
) -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            await with_exchanges(client)
            stream = await Stream(url, "writer").open(1)
            answers = await stream.publish(1, *named(*names), independent=True, **how)
            wanted = {place: REASON if name == "reader" else "" for place, name in enumerate(names, 1)}
            assert answers == wanted
            answers = await stream.publish(4, *named(*names), **how)
            assert answers == dict.fromkeys((4, 5, 6), REASON), "a batch is refused as a whole"
            await stream.close()
            found = [each for queue in ("mine", "mine.b") for each in await names_in(client, queue)]
            copies = 2 if how.get("exchange") == "mine.x" else 1
            assert sorted(found, key=str) == sorted(
                [each for each in names if each != "reader"] * copies, key=str
            )

    with_users(body)


def test_a_batch_that_comes_in_a_turn_is_checked() -> None:
    async def body(url: str) -> None:
        stream = await Stream(url, "writer").open(1)
        publish = batch_of(1, *named("writer", "reader"), routing_key="mine", independent=True)
        turn = queue_pb2.RequestTurn(publish=publish)
        await stream.call.write(queue_pb2.SessionRequest(turn=turn))
        assert await stream.answers(2) == {1: "", 2: REASON}
        await stream.close()

    with_users(body)


async def in_transaction(client: Client, queues: str | list[str], name: str) -> None:
    async with client.transaction() as tx:
        await tx.publish("mine", b"own", {"user_id": "writer"})
        await tx.publish_batch(queues, named("writer", name))


@pytest.mark.parametrize("queues", ["mine", ["mine", "mine.b"]], ids=["a queue", "queues"])
def test_a_transaction_with_anothers_name_does_not_count(queues: str | list[str]) -> None:
    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            await client.declare("mine.b", {})
            async with quorum.connect(as_user(url, "writer")) as writer:
                with pytest.raises(RolledBack, match="user_id 'reader'"):
                    await in_transaction(writer, queues, "reader")
                await in_transaction(writer, queues, "writer")
            assert await names_in(client, "mine") + await names_in(client, "mine.b") == ["writer"] * 3

    with_users(body)


@pytest.mark.parametrize("how", WAYS, ids=IDS)
@pytest.mark.parametrize("names", [("other", "writer"), ("other", "other")], ids=["each", "shared"])
def test_what_was_taken_before_is_confirmed_although_its_user_administers_no_more(
    how: dict[str, Any], names: tuple[str, ...]
) -> None:
    """A rejection is final: the producer would publish the message again, under another number."""
    how = {name: value[:2] if name == "routing_keys" else value for name, value in how.items()}

    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            await with_exchanges(client)
            await client.set_user("writer", administers=True)
            stream = await Stream(url, "writer").open(1)
            assert await stream.publish(1, *named(*names), **how) == {1: "", 2: ""}
            await client.set_user("writer", administers=False)
            assert "user was changed" in await stream.call.details(), "the session ends"
            await stream.close()
            again = await Stream(url, "writer").open(2)
            assert await again.publish(1, *named(*names), **how) == {1: "", 2: ""}
            assert await again.publish(3, *named(*names), **how) == {3: REASON, 4: REASON}
            await again.close()
            ready = sum([len(await names_in(client, queue)) for queue in ("mine", "mine.b")])
            assert ready == (4 if how.get("exchange") == "mine.x" else 2)

    with_users(body)


def test_a_publish_outside_a_session_is_checked() -> None:
    async def body(url: str) -> None:
        request = queue_pb2.PublishRequest(queue="mine")
        request.messages.add(body=b"own").properties.user_id = "writer"
        request.messages.add(body=b"another's").properties.user_id = "reader"
        async with grpc.aio.insecure_channel(url.removeprefix("quorum://")) as channel:
            publish = queue_pb2_grpc.QueueStub(channel).Publish
            with pytest.raises(
                grpc.aio.AioRpcError, match="message 1 of the batch: user_id 'reader'"
            ) as refused:
                await publish(request, metadata=tuple(header("writer", PASSWORD).items()))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await publish(request, metadata=tuple(header("admin", PASSWORD).items()))
        async with quorum.connect(as_user(url, "admin")) as client:
            assert await names_in(client, "mine") == ["writer", "reader"]

    with_users(body)


async def with_ann(http: Http) -> None:
    """The users `admin`, who administers, and `ann`, who may read and write everything."""
    await http.ok("PUT", "/api/v1/users/admin", {"password": HTTP_PASSWORD, "administers": True})
    await http.ok("PUT", "/api/v1/users/ann", {"password": HTTP_PASSWORD}, user="admin")
    rights = {"read": "*", "write": "*"}
    await http.ok("PUT", "/api/v1/users/ann/permissions", rights, user="admin")


def test_a_publish_over_http_is_checked() -> None:
    async def run() -> None:
        async with member() as http:
            path = "/api/v1/queues/mine/messages"
            await http.ok("PUT", "/api/v1/queues/mine", {})
            messages = [{"body": "x", "properties": {"user_id": name}} for name in ("ann", "bob")]
            await http.ok("POST", path, {"messages": messages})  # there are no users yet
            await with_ann(http)
            await http.ok("POST", path, {"messages": messages[:1]}, user="ann")
            assert await http.refused("POST", path, {"messages": messages}, user="ann") == (
                400,
                REASON,
                "message 1 of the batch: user_id 'bob', and the user that publishes it is 'ann'; "
                "allowed: 'ann' or none; only an administrator may give another name",
            )
            await http.ok("POST", path, {"messages": messages}, user="admin")
            async with quorum.connect(http.url.replace("//", f"//admin:{HTTP_PASSWORD}@")) as client:
                assert await names_in(client, "mine") == ["ann", "bob", "ann", "ann", "bob"]

    asyncio.run(run())


def test_a_dead_letter_is_forwarded_and_moved_back_with_the_name_of_its_publisher() -> None:
    """The service sends it again. Its name was checked when it was published."""

    async def run() -> None:
        async with member() as http:
            dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parking"}
            await http.ok("PUT", "/api/v1/queues/parking", {})
            await http.ok("PUT", "/api/v1/queues/mine", {"arguments": dying})
            await with_ann(http)
            async with quorum.connect(http.url.replace("//", f"//admin:{HTTP_PASSWORD}@")) as client:
                await client.publish("mine", b"x", {"user_id": "bob"})
                async with client.consume("mine") as consumer:
                    async for message in consumer:
                        await message.discard()
                        break
                while await names_in(client, "parking") != ["bob"]:
                    await asyncio.sleep(0.01)
                found = await http.ok("POST", "/api/v1/queues/parking/redrive", {}, "ann")
                assert found["moved"] == [{"queue": "mine", "messages": 1}], found
                assert await names_in(client, "mine") == ["bob"]

    asyncio.run(run())


def test_a_client_that_moves_dead_letters_back_needs_an_administrator_for_those_of_others() -> None:
    """It publishes them itself, so the service cannot tell that they are stored messages."""

    async def body(url: str) -> None:
        async with quorum.connect(as_user(url, "admin")) as client:
            await client.set_permissions("writer", "", "mine*", "mine.parking")
            await client.declare("mine.parking", {})
            letters = [Message(b"x", {"user_id": name}, {DIED_IN: "mine"}) for name in ("writer", "reader")]
            await client.publish_batch("mine.parking", letters)
            async with quorum.connect(as_user(url, "writer")) as writer:
                found = await writer.redrive("mine.parking")
            assert found.moved == {"mine": 1}
            [(reason, count)] = found.left.items()
            assert "user_id 'reader'" in reason and count == 1
            assert (await client.redrive("mine.parking")).moved == {"mine": 1}
            assert await names_in(client, "mine") == ["writer", "reader"]

    with_users(body)


def staged(url: str, queue: str, names: list[str | None]) -> None:
    """Stages and publishes a message with each of these names."""
    columns = {"body": [b"x"] * len(names), "user_id": pa.array(names, pa.string())}
    with BulkClient(url, timeout_ms=60_000) as client:
        part = client.stage(queue, "p", 1, [pa.RecordBatch.from_pydict(columns)])
        client.publish(queue, "p", 1, [part])


def test_staged_messages_are_checked() -> None:
    async def body(url: str) -> None:
        def stage(user: str, *names: str | None) -> Coroutine[Any, Any, None]:
            return asyncio.to_thread(staged, as_user(url, user), "mine", list(names))

        with pytest.raises(RefusedError, match="message 2 of the batch: user_id 'reader'") as refused:
            await stage("writer", "writer", None, "reader")
        assert refused.value.reason == REASON
        await stage("writer", "writer", None)
        async with quorum.connect(as_user(url, "admin")) as client:
            assert await names_in(client, "mine") == ["writer", None]
            await asyncio.to_thread(staged, as_user(url, "admin"), "other", ["reader", None, "x"])
            assert await names_in(client, "other") == ["reader", None, "x"]

    with_users(body)
