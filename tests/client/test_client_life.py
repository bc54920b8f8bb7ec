"""The life of a client: opening and closing beside other calls, cancelled tasks, and several event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import grpc
import pytest
from google.rpc import code_pb2, status_pb2

import quorum
from quorum.client import Client
from quorum.client.connection.endpoints import parse_url
from quorum.client.errors import ClosedError, ConnectionLost, UsageError
from quorum.client.messages.batch import PreparedBatch
from quorum.client.session import session
from quorum.v1 import queue_pb2
from support import virtual_time
from support.fake_server.cluster import Refusal
from support.fake_server.harness import EVENTUALLY_S, World, eventually, on_cluster

UNENDING_MS = 3_600_000


async def _browse(client: Client) -> object:
    return [message async for message in client.browse("q")]


@on_cluster()
async def test_calls_that_wait_while_the_client_is_closed_are_told_so(world: World) -> None:
    """gRPC cancels them. Their own tasks were not cancelled."""
    world.nodes[0].has_no_majority = True
    for call in (_browse, lambda client: client.declare("new")):
        client = await quorum.connect(world.url, timeout_ms=UNENDING_MS)
        world.nodes[0].unanswered_calls = 0
        waiting = asyncio.create_task(call(client))
        await eventually(lambda: world.nodes[0].unanswered_calls == 1, "called")
        await client.close()
        with pytest.raises(ClosedError):
            await waiting


@on_cluster()
async def test_a_call_that_is_cancelled_itself_stays_cancelled(world: World) -> None:
    world.nodes[0].has_no_majority = True
    client = await quorum.connect(world.url)
    waiting = asyncio.create_task(client.declare("new"))
    await eventually(lambda: world.nodes[0].unanswered_calls == 1, "called")
    waiting.cancel()
    await client.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@on_cluster()
async def test_a_client_that_is_closed_while_it_opens_leaves_no_session(world: World) -> None:
    before = asyncio.all_tasks()
    client = quorum.connect(world.url)
    opening = asyncio.create_task(client.open())
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ClosedError):
        await opening
    assert not [task for task in asyncio.all_tasks() - before if task.get_name() == "quorum-session"]


@on_cluster()
async def test_a_client_whose_close_is_cancelled_closes_all_its_channels(world: World) -> None:
    client = await quorum.connect(world.url)
    await client.declare("new")
    channel = client._channel(0)
    world.cluster.holds_confirms = True
    publishing = asyncio.create_task(client.publish("q", b"never confirmed"))
    await eventually(lambda: "publish" in world.nodes[0].requests, "sent")
    closing = asyncio.create_task(client.close(timeout_ms=UNENDING_MS))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(ClosedError):
        await publishing
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


@on_cluster()
async def test_a_client_that_two_tasks_open_has_one_session(world: World) -> None:
    client = quorum.connect(world.url)
    await asyncio.gather(client.open(), client.open())
    sessions = [task for task in asyncio.all_tasks() if task.get_name() == "quorum-session"]
    assert len(sessions) == 1
    await client.close()
    assert sessions[0].done()


def _calls(client: Client) -> list[Callable[[], Awaitable[object]]]:
    async def transaction() -> None:
        async with client.transaction() as begun:
            await begun.publish("q", b"x")

    return [
        lambda: client.publish("q", b"x"),
        lambda: client.publish_batch("q", [b"x"]),
        lambda: client.get("q"),
        lambda: client.consume("q").start(),
        transaction,
    ]


@on_cluster()
async def test_a_client_whose_tasks_were_cancelled_fails_its_calls(world: World) -> None:
    """As by a program that ends with the cancellation of all tasks."""
    own = asyncio.all_tasks()
    client = await quorum.connect(world.url, timeout_ms=UNENDING_MS)
    consumer = await client.consume("q")
    for node in world.nodes:
        node.muted = True
    waiting = await client.send_batch("q", [b"x"])
    for task in asyncio.all_tasks() - own:
        if task.get_name() == "quorum-session":
            task.cancel()
    async with asyncio.timeout(EVENTUALLY_S):
        with pytest.raises(ClosedError, match="cancelled"):
            await waiting
        for _ in range(2):
            with pytest.raises(ClosedError, match="cancelled"):
                await consumer.next_delivery()
        for call in _calls(client):
            with pytest.raises(ClosedError):
                await call()
        await client.close(timeout_ms=UNENDING_MS)


@on_cluster()
async def test_a_client_whose_event_loop_has_ended_says_so(world: World) -> None:
    def one_loop_after_the_other() -> None:
        async def opened() -> Client:
            client = await quorum.connect(world.url, timeout_ms=UNENDING_MS)
            await client.publish("q", b"x")
            return client

        async def used(client: Client) -> None:
            for call in _calls(client):
                with pytest.raises(ClosedError):
                    await call()
            await client.close(timeout_ms=UNENDING_MS)

        asyncio.run(used(asyncio.run(opened())))

    await asyncio.to_thread(one_loop_after_the_other)


@on_cluster()
async def test_another_event_loop_is_refused(world: World) -> None:
    async with quorum.connect(world.url, timeout_ms=UNENDING_MS) as client:

        async def used() -> None:
            for call in _calls(client):
                with pytest.raises(UsageError, match="another event loop"):
                    await call()

        await asyncio.to_thread(asyncio.run, used())


@on_cluster(nodes=1)
async def test_each_session_says_which_numbers_no_earlier_one_has_sent(world: World) -> None:
    """Of the others, the service asks the groups before it refuses a message."""
    async with quorum.connect(world.url) as client:
        await client.publish_batch("q", [b"a", b"b", b"c"])
        world.nodes[0].muted = True
        undecided = asyncio.create_task(client.publish("q", b"d"))
        await eventually(lambda: world.nodes[0].requests.count("publish") == 2, "sent")
        world.nodes[0].muted = False
        world.nodes[0].cut()
        await undecided
        opened = [(each.first_new_sequence, each.takes_turns) for each in world.nodes[0].opened]
        assert opened == [(1, True), (5, True)]
        assert client.reconnect_count == 1


@on_cluster()
async def test_streams_that_end_at_once_are_opened_more_and_more_slowly(world: World) -> None:
    """A node without a leader opens a session and ends it."""
    async with quorum.connect(world.url) as client:

        async def lose_stream() -> None:
            count = client.reconnect_count
            for node in world.nodes:
                node.cut(Refusal(code_pb2.UNAVAILABLE, "LEASE_LOST", "open the session again"))
            await eventually(lambda: client.reconnect_count > count, "open again")

        with patch.object(session, "LASTED_S", EVENTUALLY_S):
            for _ in range(6):
                await lose_stream()
            assert client._live()._pause_s == session.PAUSE_LIMIT_S
            await client.publish("q", b"x")
            await lose_stream()
            assert client._live()._pause_s == session.PAUSE_FIRST_S


# ---- silence


class Answering:
    """A call on which an answer comes once a second, of the loop's clock."""

    def __init__(self, answer: queue_pb2.SessionResponse) -> None:
        self._answer = answer

    async def read(self) -> queue_pb2.SessionResponse:
        await asyncio.sleep(1)
        return self._answer


async def _ends_for_silence(answer: queue_pb2.SessionResponse, *, is_owed: bool) -> bool:
    """Whether a session takes a service that answers so for silent, within a minute."""
    opened = _silent_session()
    if is_owed:
        opened._stream.ask("getting")
    reading, watching = [
        asyncio.create_task(job) for job in (opened._read(Answering(answer)), opened._watch())
    ]
    await asyncio.wait({reading, watching}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    reading.cancel()
    watching.cancel()
    assert not reading.done()
    if not watching.done():
        return False
    assert isinstance(watching.exception(), ConnectionLost)
    return True


@pytest.mark.parametrize(
    ("code", "is_owed", "ends"),
    [
        (code_pb2.NOT_FOUND, True, False),
        (code_pb2.UNAVAILABLE, True, True),
        (code_pb2.UNAVAILABLE, False, False),
    ],
)
def test_a_service_is_silent_that_owes_an_answer_and_says_only_that_it_cannot_serve(
    code: int, is_owed: bool, ends: bool
) -> None:
    failed = queue_pb2.Failed(request_id=9, status=status_pb2.Status(code=code))
    answer = queue_pb2.SessionResponse(failed=failed)
    assert virtual_time.run(_ends_for_silence(answer, is_owed=is_owed)) is ends


def _silent_session() -> session.Session:
    return session.Session(("host:1",), 3_000, lambda: 3_000, parse_url("quorum://host:1").open_channel)


def test_the_client_waits_twice_as_long_after_each_silence_up_to_a_limit() -> None:
    async def scenario() -> list[float]:
        opened, loop, waited_s = _silent_session(), asyncio.get_running_loop(), []
        opened._stream.ask("getting")
        for _ in range(6):
            began_s = loop.time()
            with pytest.raises(ConnectionLost, match="was silent"):
                await opened._watch()
            waited_s.append(loop.time() - began_s)
        return waited_s

    assert virtual_time.run(scenario()) == [3, 6, 12, 24, 48, 48]


def test_a_service_owes_an_answer_to_what_was_published() -> None:
    async def scenario() -> None:
        opened = _silent_session()
        watching = asyncio.create_task(opened._watch())
        await asyncio.sleep(60)
        assert not watching.done(), "nothing is owed"
        await opened.publisher.admit("q", PreparedBatch(b"x", 1), None)
        with pytest.raises(ConnectionLost, match=r"was silent for 3\.0 s"):
            await watching

    virtual_time.run(scenario())
