"""Dead letters over HTTP: what waits in a dead-letter queue, and moving it back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import quorum
from quorum.api.http import dead_letters
from quorum.api.http.dead_letters import Redriver
from quorum.api.hub.hub import Hub
from quorum.api.session.client_session import ClientSession
from quorum.api.status import Code, StatusError, unavailable
from quorum.client.client import Client
from quorum.v1 import queue_pb2
from support.members.http_port import PASSWORD, member
from support.members.served import serving

PARKING = "/api/v1/queues/parking"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine looks at few letters in the usual time."""
    monkeypatch.setattr(dead_letters, "LOOK_S", 60.0)


async def park(
    client: Client, *origins: str, is_single_active: bool = False, consumer_timeout_ms: int | None = None
) -> None:
    """A message dies in each of these queues, in this order."""
    timeout = {} if consumer_timeout_ms is None else {"x-consumer-timeout": consumer_timeout_ms}
    await client.declare("parking", {"x-single-active-consumer": is_single_active, **timeout})
    for number, origin in enumerate(origins):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parking"}
        await client.declare(origin, arguments)
        await client.publish(
            origin, str(number).encode(), {"correlation_id": "7"}, {"colour": "red", "n": number}
        )
        async with client.consume(origin) as consumer:
            async for message in consumer:
                await client.discard(message)
                break
        while (await client.describe("parking")).queue.ready <= number:
            await asyncio.sleep(0.01)


async def ready(client: Client, name: str) -> int:
    return (await client.describe(name)).queue.ready


def test_dead_letters_are_counted_and_moved_back_with_all_that_they_have() -> None:
    async def run() -> None:
        async with member() as web, quorum.connect(web.url) as client:
            await park(client, "orders", "orders", "bills")
            await client.publish("parking", b"no dead letter")
            found = await web.ok("GET", f"{PARKING}/dead-letters")
            assert found == {
                "looked_at": 4,
                "is_all": True,
                "groups": [
                    {"reason": "rejected", "queue": "orders", "messages": 2},
                    {"reason": "rejected", "queue": "bills", "messages": 1},
                ],
                "in_other_groups": 0,
                "without_history": 1,
            }
            only = await web.ok("POST", f"{PARKING}/redrive", {"only": "bills"})
            assert only["moved"] == [{"queue": "bills", "messages": 1}] and only["left"] == []
            assert await ready(client, "parking") == 3
            rest = await web.ok("POST", f"{PARKING}/redrive", {})
            assert rest["moved"] == [{"queue": "orders", "messages": 2}]
            assert [each["messages"] for each in rest["left"]] == [1] and rest["is_complete"]
            described = (await client.describe("parking")).queue
            assert (described.ready, described.checked_out, described.totals.settled) == (1, 0, 3)
            moved = [message async for message in client.browse("orders")]
            assert [message.body for message in moved] == [b"0", b"1"]
            own = moved[1].application_properties
            assert (own["colour"], own["n"], moved[1].properties.correlation_id) == ("red", 1, "7")
            assert [each["reason"] for each in json.loads(str(own["x-death"]))] == ["redriven", "rejected"]

    asyncio.run(run())


def test_messages_whose_queue_is_missing_full_or_forbidden_stay_and_the_answer_says_why() -> None:
    async def run() -> None:
        async with member() as web, quorum.connect(web.url) as client:
            await park(client, "gone", "full", "closed", "open")
            await client.delete("gone")
            await client.delete("full")
            await client.declare("full", {"x-max-length": 1, "x-overflow": "reject-publish"})
            await client.publish("full", b"first")
            await client.set_user("admin", PASSWORD, administers=True)
            async with quorum.connect(web.url.replace("//", f"//admin:{PASSWORD}@")) as admin:
                await admin.set_user("ann", PASSWORD, monitors=True)
                await admin.set_permissions("ann", configure="", read="", write="*")
                refused = await web.refused("POST", f"{PARKING}/redrive", {}, "ann")
                assert refused[:2] == (403, "NOT_PERMITTED")
                assert (await web.refused("GET", f"{PARKING}/dead-letters", None, "ann"))[0] == 403
                await admin.set_permissions("ann", configure="", read="parking", write="*n*")
                found = await web.ok("POST", f"{PARKING}/redrive", {}, "ann")
                assert found["moved"] == [{"queue": "open", "messages": 1}]
                reasons = " ".join(each["reason"] for each in found["left"])
                assert "no queue 'gone'" in reasons and "write for 'closed'" in reasons, reasons
                assert "write for 'full'" in reasons, reasons
                again = await web.ok("POST", f"{PARKING}/redrive", {}, "admin")
                assert again["moved"] == [{"queue": "closed", "messages": 1}]
                assert len(again["left"]) == 2 and again["in_doubt"] == []
                described = (await admin.describe("parking")).queue
                assert (described.ready, described.checked_out) == (2, 0)

    asyncio.run(run())


def test_a_redrive_moves_nothing_once_its_user_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with member() as web, quorum.connect(web.url) as client:
            await park(client, "orders", "orders")
            await client.set_user("admin", PASSWORD, administers=True)
            async with quorum.connect(web.url.replace("//", f"//admin:{PASSWORD}@")) as admin:
                await admin.set_user("ann", PASSWORD, administers=True)
                begin = Redriver.run

                async def begin_later(*given: Any) -> dict[str, Any]:
                    await admin.delete_user("ann")
                    return await begin(*given)

                monkeypatch.setattr(Redriver, "run", begin_later)
                found = await web.ok("POST", f"{PARKING}/redrive", {}, "ann")
                assert found["moved"] == [] and found["in_doubt"] == []
                assert [each["messages"] for each in found["left"]] == [2]
                assert "user was changed" in found["left"][0]["reason"]
                assert await ready(admin, "parking") == 2

    asyncio.run(run())


def test_a_publish_that_the_service_refuses_keeps_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may tell by the reason whether the message may have been published."""
    seen: list[StatusError] = []

    async def publish_only(self: Redriver, *given: Any) -> dict[str, Any]:
        publish = given[4]
        request = queue_pb2.PublishRequest(queue="gone")
        request.messages.add(body=b"1")
        try:
            await publish(request)
        except StatusError as error:
            seen.append(error)
        return {}

    async def run() -> None:
        async with member() as web, quorum.connect(web.url) as client:
            await client.declare("parking")
            monkeypatch.setattr(Redriver, "run", publish_only)
            assert await web.ok("POST", f"{PARKING}/redrive", {}) == {}
            found = seen[0].status
            assert (found.code, found.reason) == (Code.NOT_FOUND, "not_found")
            assert "no queue 'gone'" in found.message

    asyncio.run(run())


def test_a_limit_and_wrong_requests() -> None:
    async def run() -> None:
        async with member() as web, quorum.connect(web.url) as client:
            await park(client, "orders", "orders")
            found = await web.ok("POST", f"{PARKING}/redrive", {"limit": 1})
            assert found["moved"] == [{"queue": "orders", "messages": 1}] and not found["is_complete"]
            for body, text in (
                ({"limit": 0}, f"limit: wanted: a whole number from 1 to {dead_letters.MAX_MOVED}"),
                ({"only": 5}, "only: wanted: text"),
                ({"onyl": ""}, "unknown field 'onyl'; allowed: only, limit"),
                ([], "wanted: an object"),
            ):
                status, _, message = await web.refused("POST", f"{PARKING}/redrive", body)
                assert status == 400 and text in message
            assert (await web.refused("POST", "/api/v1/queues/none/redrive", {}))[0] == 404
            assert (await web.refused("GET", "/api/v1/queues/none/dead-letters"))[0] == 404
            assert await ready(client, "parking") == 1

    asyncio.run(run())


def test_a_message_whose_publish_is_not_answered_is_in_doubt_and_stays() -> None:
    """Another redrive of the same member is refused meanwhile."""

    async def run() -> None:
        async with serving() as (url, [api]), quorum.connect(url) as client:
            await park(client, "orders", "bills")
            redriver = Redriver(api.hub)
            others: list[str] = []

            async def publish(request: queue_pb2.PublishRequest) -> None:
                try:
                    await start()
                except StatusError as error:
                    others.append(error.status.reason)
                if request.queue == "orders":
                    raise unavailable("no_answer", "not answered")

            async def start() -> dict[str, object]:
                return await redriver.run("parking", "", 10, 1_000, publish, "ipv4:127.0.0.1:1", "")

            found = await start()
            assert found["in_doubt"] == [{"queue": "orders", "messages": 1}]
            assert found["moved"] == [{"queue": "bills", "messages": 1}]
            assert others == ["too_many_calls"] * 2
            while (described := (await client.describe("parking")).queue).checked_out:
                await asyncio.sleep(0.01)
            assert (described.ready, described.totals.settled) == (1, 1)

    asyncio.run(run())


@pytest.mark.parametrize("what", ["session", "timeout"])
def test_a_message_that_cannot_be_settled_any_more_is_in_doubt_at_once(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of the redrive ends while a publish is under way, or its messages time out."""
    sessions: list[ClientSession] = []

    def opened(hub: Hub) -> ClientSession:
        sessions.append(ClientSession(hub))
        return sessions[-1]

    async def run() -> None:
        async with serving() as (url, [api]), quorum.connect(url) as client:
            await park(client, "orders", consumer_timeout_ms=1_000)

            async def publish(request: queue_pb2.PublishRequest) -> None:
                if what == "session":
                    sessions[0].ended("node_down")
                    for _ in range(100):  # the end is heard
                        await asyncio.sleep(0)
                    return
                while not (await client.describe("parking")).queue.ready:
                    await asyncio.sleep(0.01)

            monkeypatch.setattr(dead_letters, "ClientSession", opened)
            redriver = Redriver(api.hub)
            async with asyncio.timeout(dead_letters.REDRIVE_S / 2):
                found = await redriver.run("parking", "", 10, 1_000, publish, "ipv4:127.0.0.1:1", "")
            assert (found["moved"], found["in_doubt"]) == ([], [{"queue": "orders", "messages": 1}])
            assert not found["is_complete"]

    asyncio.run(run())


def test_a_redrive_of_a_queue_whose_group_does_not_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with member() as web, quorum.connect(web.url) as client:
            await park(client, "orders")
            with monkeypatch.context() as patch:
                patch.setattr(dead_letters, "REDRIVE_S", 0.2)
                patch.setattr(dead_letters._Session, "_take", lambda *_: None)
                status, reason, _ = await web.refused("POST", f"{PARKING}/redrive", {})
                assert (status, reason) == (503, "NO_LEADER")
            found = await web.ok("POST", f"{PARKING}/redrive", {})
            assert found["moved"] == [{"queue": "orders", "messages": 1}]

    asyncio.run(run())


def test_a_redrive_that_meets_a_defect_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a defect")

    async def run() -> None:
        async with member() as web, quorum.connect(web.url) as client:
            await park(client, "orders")
            with monkeypatch.context() as patch:
                patch.setattr(dead_letters._Session, "_take", fails)
                status, reason, text = await web.refused("POST", f"{PARKING}/redrive", {})
                assert (status, reason) == (500, "FAILED") and "its log has the reason" in text
            assert (await web.ok("POST", f"{PARKING}/redrive", {}))["is_complete"]

    asyncio.run(run())


def test_messages_that_come_meanwhile_are_not_moved() -> None:
    async def run() -> None:
        async with serving() as (url, [api]), quorum.connect(url) as client:
            await park(client, "orders", "orders")
            published: list[str] = []

            async def publish(request: queue_pb2.PublishRequest) -> None:
                published.append(request.queue)

            found = await Redriver(api.hub).run("parking", "", 10, 2, publish, "ipv4:127.0.0.1:1", "")
            assert published == ["orders"] and found["moved"] == [{"queue": "orders", "messages": 1}]
            assert await ready(client, "parking") == 1

    asyncio.run(run())


def test_a_queue_whose_active_consumer_is_another_one_is_not_redriven() -> None:
    async def run() -> None:
        async with member() as web, quorum.connect(web.url) as client:
            await park(client, "orders", is_single_active=True)
            async with client.consume("parking") as active:
                assert await active.next_delivery() is not None
                status, reason, text = await web.refused("POST", f"{PARKING}/redrive", {})
                assert (status, reason) == (409, "IN_USE") and "another one is active" in text
            assert (await web.ok("POST", f"{PARKING}/redrive", {}))["moved"] == [
                {"queue": "orders", "messages": 1}
            ]

    asyncio.run(run())
