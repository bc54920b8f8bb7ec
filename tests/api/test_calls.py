"""How calls get to the services (quorum/api/grpc/calls.py): a server in this process, clients that send any bytes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import pytest

from quorum.api import shares, status
from quorum.api.connections import close_peers
from quorum.api.grpc import calls as calls_module
from quorum.api.grpc import request_limits
from quorum.api.grpc.calls import Gate, Places
from quorum.api.grpc.rpc_status import abort
from quorum.api.owners import CALLER, client_address
from quorum.api.security.access import Access
from quorum.api.shares import ByteWindow, Shares
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import admin_pb2, admin_pb2_grpc, bulk_pb2, bulk_pb2_grpc, queue_pb2, queue_pb2_grpc
from support import virtual_time
from support.hostile.http2 import StalledClient
from support.hostile.protobuf import field
from support.members.served import serving
from support.members.services import Api

BATCH = BatchLimits(100, 1 << 20, 2 << 20)
WINDOW = 4 << 20
HANDLERS_END_S = 60
REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def listed(count: int) -> admin_pb2.ListBindingsResponse:
    return admin_pb2.ListBindingsResponse(bindings=[admin_pb2.Binding(source="e")] * count)


class Services(queue_pb2_grpc.QueueServicer, admin_pb2_grpc.AdminServicer, bulk_pb2_grpc.BulkServicer):
    """Answer with what they were given."""

    def __init__(self) -> None:
        self.sessions = 0
        self.publishes = 0
        self.bindings = 1
        self.browsed = 0
        self.callers: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def Publish(self, request: Any, context: Any) -> Any:
        self.publishes += 1
        await self.may_answer.wait()
        return queue_pb2.PublishResponse(count=len(request.messages))

    async def Browse(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for sequence in range(request.limit):
            self.browsed += 1
            yield queue_pb2.BrowseResponse(messages=[queue_pb2.StoredMessage(sequence=sequence)])

    async def Get(self, request: Any, context: Any) -> Any:
        self.callers.append(CALLER.get())
        return queue_pb2.GetResponse(messages=[queue_pb2.StoredMessage(sequence=1)])

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> None:
        self.sessions += 1
        try:
            async for request in requests:
                await context.write(
                    queue_pb2.SessionResponse(opened=queue_pb2.Opened(session=request.open.epoch))
                )
        except status.StatusError as error:
            await abort(context, error)
        finally:
            self.sessions -= 1

    async def Stage(self, requests: AsyncIterator[Any], context: Any) -> Any:
        return bulk_pb2.StageResponse(rows=len([request async for request in requests]))

    async def ListBindings(self, request: Any, context: Any) -> Any:
        return listed(self.bindings)

    async def ClusterStatus(self, request: Any, context: Any) -> Any:
        return admin_pb2.ClusterStatusResponse(answering_node="n1")


class Place:
    """A call that has a place and does nothing."""

    def __init__(self) -> None:
        self.is_ended = False

    def end(self, why: status.StatusError) -> None:
        self.is_ended = True


class World:
    def __init__(self, channel: grpc.aio.Channel, gate: Gate, services: Services, port: int) -> None:
        self.channel, self.gate, self.services, self.port = channel, gate, services, port
        self.queue: Any = queue_pb2_grpc.QueueStub(channel)
        self.admin: Any = admin_pb2_grpc.AdminStub(channel)
        self.bulk: Any = bulk_pb2_grpc.BulkStub(channel)

    async def send(self, method: str, data: bytes) -> Any:
        """Bytes as the only request of a call; the answer's bytes."""
        return await self.channel.unary_unary("/quorum.v1." + method)(data, timeout=30)


def with_server(run: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        server = grpc.aio.server()
        services = Services()
        gate = Gate(server, BATCH, ByteWindow(WINDOW, max_waiting=WINDOW), Access())
        queue_pb2_grpc.add_QueueServicer_to_server(services, gate)
        admin_pb2_grpc.add_AdminServicer_to_server(services, gate)
        bulk_pb2_grpc.add_BulkServicer_to_server(services, gate)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                await run(World(channel, gate, services, port))
        finally:  # one that outlives its event loop fails a later test, when it is collected
            await server.stop(None)
        async with asyncio.timeout(HANDLERS_END_S):  # the last handlers may end some turns after the server
            while gate.calls.total or gate.reserved.total:
                await asyncio.sleep(0)
        assert gate._received.used == gate._received.waiting == 0, "every request was given back"

    asyncio.run(body())


async def refused(call: Any, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code, caught.value
    assert text in caught.value.details()


def test_calls_of_each_kind_are_answered() -> None:
    async def run(world: World) -> None:
        request = queue_pb2.PublishRequest(queue="q", messages=[queue_pb2.Message(body=b"x")] * 7)
        assert (await world.queue.Publish(request)).count == 7
        assert len([each async for each in world.queue.Browse(queue_pb2.BrowseRequest(limit=3))]) == 3
        assert (await world.bulk.Stage(iter([bulk_pb2.StageRequest(arrow=b"a")] * 4))).rows == 4
        assert (await world.bulk.Stage(iter([]))).rows == 0
        assert (await world.admin.ClusterStatus(admin_pb2.ClusterStatusRequest())).answering_node == "n1"
        session = world.queue.Session()
        for epoch in (3, 4):
            await session.write(queue_pb2.SessionRequest(open=queue_pb2.Open(epoch=epoch)))
            assert (await session.read()).opened.session == epoch
        await session.done_writing()
        assert await session.read() is grpc.aio.EOF
        await refused(
            world.admin.ListQueues(admin_pb2.ListQueuesRequest()),
            grpc.StatusCode.UNIMPLEMENTED,
            "not implemented",
        )

    with_server(run)


def test_a_call_is_served_under_the_address_of_its_client() -> None:
    async def run(world: World) -> None:
        await world.queue.Get(queue_pb2.GetRequest(queue="q"))
        assert world.services.callers == ["127.0.0.1"]
        assert CALLER.get() == "", "the node's own work is nobody's call"

    with_server(run)


def test_a_request_with_too_many_elements_is_not_parsed() -> None:
    async def run(world: World) -> None:
        bomb = field(2, b"") * 1_000_000
        await refused(
            world.send("Queue/Publish", bomb), REFUSED, "messages has 101 elements or more; allowed: 100"
        )
        session = world.queue.Session()
        await session.write(queue_pb2.SessionRequest(open=queue_pb2.Open(epoch=1)))
        assert (await session.read()).opened.session == 1
        ranges = [queue_pb2.Range(first=1, last=1)] * 10_001
        await session.write(queue_pb2.SessionRequest(disposition=queue_pb2.Disposition(tags=ranges)))
        await refused(session.read(), REFUSED, "Disposition.tags has 10001 elements or more; allowed: 10000")

    with_server(run)


def test_a_request_that_brings_no_messages_is_small() -> None:
    async def run(world: World) -> None:
        large = field(1, bytes(request_limits.REQUEST_BYTES))
        await refused(world.send("Admin/DeleteQueue", large), REFUSED, "allowed: 1048576")
        await refused(
            world.send("Admin/DeleteQueue", field(1, b"x" * 70_000)), REFUSED, "queue has 70000 bytes"
        )

    with_server(run)


LARGE = queue_pb2.PublishRequest(queue="q", messages=[queue_pb2.Message(body=bytes(900 << 10))])


async def turns(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANDLERS_END_S):
        while not is_so():
            await asyncio.sleep(0)


def test_a_request_that_finds_no_room_waits_unparsed_and_small_ones_pass() -> None:
    async def run(world: World) -> None:
        services, received = world.services, world.gate._received
        services.may_answer.clear()
        calls = [asyncio.ensure_future(world.queue.Publish(LARGE)) for _ in range(4)]
        await turns(lambda: received.waiting > (1 << 20) and services.publishes == 2)
        assert received.used <= WINDOW // 2, "one address has half of the window"
        small = asyncio.ensure_future(world.queue.Publish(queue_pb2.PublishRequest(queue="q")))
        await turns(lambda: services.publishes == 3)
        services.may_answer.set()
        assert [(await call).count for call in (*calls, small)] == [1, 1, 1, 1, 0]

    with_server(run)


def test_requests_beyond_what_may_wait_are_refused() -> None:
    async def run(world: World) -> None:
        services, received = world.services, world.gate._received
        services.may_answer.clear()
        calls = [asyncio.ensure_future(world.queue.Publish(LARGE)) for _ in range(4)]
        await turns(lambda: received.waiting > (1 << 20))
        await refused(world.queue.Publish(LARGE), REFUSED, "no room for a request of 9")
        session = world.queue.Session()
        large = queue_pb2.PublishBatch(batch=bytes(900 << 10))
        await session.write(queue_pb2.SessionRequest(publish=large))
        await refused(session.read(), grpc.StatusCode.UNAVAILABLE, "Queue/Session: no room")
        services.may_answer.set()
        assert [(await call).count for call in calls] == [1] * 4

    with_server(run)


def test_a_session_gives_the_bytes_of_a_request_back_when_it_asks_for_the_next() -> None:
    async def run(world: World) -> None:
        session = world.queue.Session()
        large = queue_pb2.SessionRequest(publish=queue_pb2.PublishBatch(batch=bytes(1 << 20)))
        for _ in range(8):
            await session.write(large)
            await session.read()
        await turns(lambda: world.gate._received.used == 0)
        session.cancel()

    with_server(run)


def test_bytes_that_are_no_request_are_refused() -> None:
    async def run(world: World) -> None:
        for data in (b"\xff" * 100, b"\xff" * 10_000, field(1, b"\xff\xfe")):
            await refused(world.send("Queue/Publish", data), INVALID, "the bytes are no PublishRequest")
        no_request = world.channel.stream_unary("/quorum.v1.Queue/Publish")
        await refused(no_request(iter([])), INVALID, "there is no request")

    with_server(run)


def test_a_call_that_sends_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "OPEN_LIMIT_S", 0.05)
    monkeypatch.setattr(calls_module, "REQUEST_LIMIT_S", 0.05)

    async def run(world: World) -> None:
        late = grpc.StatusCode.DEADLINE_EXCEEDED
        await refused(world.queue.Session().read(), late, "Queue/Session: no request came within 0.05 s")
        silent = world.channel.stream_unary("/quorum.v1.Queue/Publish")()
        await refused(silent, late, "Queue/Publish: no request came within 0.05 s")

    with_server(run)


class Registered:
    """A server without a network: the handlers, for a test that calls them itself."""

    def add_generic_rpc_handlers(self, handlers: object) -> None: ...

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.handlers = handlers


class SilentClient:
    """gRPC's context of a client that sends these requests, and then nothing."""

    def __init__(self, *requests: queue_pb2.SessionRequest) -> None:
        self._requests = [request.SerializeToString() for request in requests]
        self.answers: list[bytes] = []
        self.code: grpc.StatusCode | None = None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:51234"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    async def read(self) -> bytes:
        if not self._requests:
            await asyncio.Event().wait()
        return self._requests.pop(0)

    async def write(self, data: bytes) -> None:
        self.answers.append(data)

    async def abort_with_status(self, given: Any) -> None:
        self.code = given.code
        raise asyncio.CancelledError


def test_a_session_that_has_begun_may_be_silent() -> None:
    """With gRPC, the first request may come after the time limit of a test, on a busy machine."""

    async def run() -> None:
        server = Registered()
        gate = Gate(server, BATCH, ByteWindow(WINDOW), Access())  # type: ignore[arg-type]
        queue_pb2_grpc.add_QueueServicer_to_server(Services(), gate)
        session = server.handlers["Session"].stream_stream
        begun = SilentClient(queue_pb2.SessionRequest(open=queue_pb2.Open(epoch=1)))
        silent = SilentClient()
        calls = [asyncio.ensure_future(session(None, client)) for client in (begun, silent)]
        await asyncio.wait(calls, timeout=100 * calls_module.OPEN_LIMIT_S)
        assert [call.done() for call in calls] == [False, True]
        assert (len(begun.answers), begun.code) == (1, None)
        assert silent.code is grpc.StatusCode.DEADLINE_EXCEEDED
        for call in calls:
            call.cancel()

    virtual_time.run(run())


def test_sessions_leave_room_for_administration_and_for_other_addresses() -> None:
    async def run(world: World) -> None:
        world.gate.calls.most = 20
        sessions = []
        for epoch in range(1, 11):
            sessions.append(world.queue.Session())
            await sessions[-1].write(queue_pb2.SessionRequest(open=queue_pb2.Open(epoch=epoch)))
            assert (await sessions[-1].read()).opened.session == epoch
        await refused(world.queue.Session().read(), REFUSED, "has its share")
        assert (await world.admin.ClusterStatus(admin_pb2.ClusterStatusRequest())).answering_node == "n1"
        call = Place()
        assert world.gate.calls.enter("10.0.0.7", call)  # type: ignore[arg-type]
        world.gate.calls.leave("10.0.0.7", call)  # type: ignore[arg-type]
        for session in sessions:
            session.cancel()
        while world.gate.calls.total:
            await asyncio.sleep(0)

    with_server(run)


def test_an_address_has_as_many_calls_as_are_left_free() -> None:
    calls = Shares(100)
    taken = [sum(calls.enter(address) for _ in range(200)) for address in ("a", "b", "c", "d")]
    assert taken == [50, 25, 13, 6]
    assert calls.enter("e"), "a newcomer always finds room"
    calls.leave("a")
    assert not calls.enter("a"), "it still has more than are free"
    for address, count in zip("abcde", (49, 25, 13, 6, 1), strict=True):
        for _ in range(count):
            calls.leave(address)
    assert calls.total == 0
    assert not calls._held


def enter(places: Places, address: str, count: int) -> list[Place]:
    """The calls that found a place."""
    calls = [Place() for _ in range(count)]
    return [call for call in calls if places.enter(address, call)]  # type: ignore[arg-type]


def test_the_first_call_of_an_address_ends_the_oldest_of_the_address_with_the_most() -> None:
    places = Places(100)
    held = {address: enter(places, address, 100) for address in "abcdefghijklmnop"}
    assert [len(held[address]) for address in "abcdefg"] == [50, 25, 13, 6, 3, 2, 1]
    assert [call.is_ended for call in held["a"][:10]] == [True] * 9 + [False], "for each of h to p"
    assert not enter(places, "p", 1), "an address with a call gets no other one's place"
    for address, calls in held.items():
        for call in calls:
            places.leave(address, call)  # type: ignore[arg-type]
    assert places.total == 0
    assert not places._calls


def test_where_every_address_has_one_call_none_is_ended() -> None:
    places = Places(3)
    held = [enter(places, address, 1) for address in ("a", "b", "c")]
    assert [len(calls) for calls in held] == [1, 1, 1]
    assert not enter(places, "d", 1)
    assert not any(call.is_ended for calls in held for call in calls)


def test_a_session_that_gives_its_place_to_another_address_is_told_so() -> None:
    async def run(world: World) -> None:
        world.gate.calls.most = 4
        sessions = []
        for epoch in (1, 2):
            sessions.append(world.queue.Session())
            await sessions[-1].write(queue_pb2.SessionRequest(open=queue_pb2.Open(epoch=epoch)))
            assert (await sessions[-1].read()).opened.session == epoch
        others = {
            address: enter(world.gate.calls, address, 1) for address in ("10.0.0.8", "10.0.0.9", "10.0.0.10")
        }
        assert all(others.values())
        await refused(sessions[0].read(), grpc.StatusCode.UNAVAILABLE, "place went to a client that had none")
        assert world.services.sessions == 1
        sessions[1].cancel()
        for address, (call,) in others.items():
            world.gate.calls.leave(address, call)  # type: ignore[arg-type]

    with_server(run)


def test_watches_take_no_places_of_health_checks_and_administration() -> None:
    async def run(world: World) -> None:
        gate = world.gate
        kinds = {
            known: gate._places(service, known)
            for service, known in (
                ("grpc.health.v1.Health", "Health/Watch"),
                ("grpc.reflection.v1alpha.ServerReflection", "ServerReflection/ServerReflectionInfo"),
                ("grpc.health.v1.Health", "Health/Check"),
                ("quorum.v1.Admin", "Admin/ClusterStatus"),
                ("quorum.v1.Queue", "Queue/Session"),
            )
        }
        assert list(kinds.values()) == [gate.watches, gate.watches, gate.reserved, gate.reserved, gate.calls]

    with_server(run)


UNREAD = {
    "Queue/Browse": queue_pb2.BrowseRequest(queue="q", limit=3),
    "Queue/Get": queue_pb2.GetRequest(queue="q"),
    "Queue/Publish": queue_pb2.PublishRequest(queue="q"),
    "Admin/ClusterStatus": admin_pb2.ClusterStatusRequest(),
    "Admin/ListBindings": admin_pb2.ListBindingsRequest(),
}


@pytest.mark.parametrize("method", UNREAD)
def test_a_client_that_does_not_take_an_answer_in_time_loses_its_connection(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "ANSWER_LIMIT_S", 0.0)

    async def run(world: World) -> None:
        client = await StalledClient.connect(world.port)
        await client.call("/quorum.v1." + method, UNREAD[method].SerializeToString())
        while not (peers := world.gate.stalled()):
            await asyncio.sleep(0)
        assert close_peers(world.port, peers) == 1
        while world.gate.calls.total or world.gate.reserved.total:
            await asyncio.sleep(0)
        assert not world.gate.stalled()
        client.close()

    with_server(run)


@pytest.mark.parametrize(("method", "window_bytes"), [*((each, 0) for each in UNREAD), ("Queue/Browse", 20)])
def test_a_call_that_is_ended_keeps_its_place_until_its_client_has_taken_what_was_sent(
    method: str, window_bytes: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls_module, "ANSWER_LIMIT_S", 0.0)

    async def run(world: World) -> None:
        client = await StalledClient.connect(world.port, window_bytes)
        await client.call("/quorum.v1." + method, UNREAD[method].SerializeToString())
        begun = 3 if window_bytes else 0  # the third answer is the first one that the window does not take
        await turns(lambda: bool(world.gate._since) and world.services.browsed >= begun)
        peers = world.gate.stalled()
        [call] = world.gate._since
        call.end(status.exhausted("too_many_calls", "its place went to another one"))
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert world.gate.calls.total + world.gate.reserved.total == 1
        assert world.gate.stalled() == peers
        assert close_peers(world.port, peers) == 1
        while world.gate.calls.total or world.gate.reserved.total:
            await asyncio.sleep(0)
        assert not world.gate._since
        client.close()

    with_server(run)
    assert [each.getMessage() for each in caplog.records] == []


def test_unread_answers_of_one_address_take_a_limited_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 10_000
    size = listed(count).ByteSize()
    monkeypatch.setattr(calls_module, "ANSWERS_BYTES", 2 * size)  # one answer for each address
    monkeypatch.setattr(shares, "PATIENCE_S", 0.05)

    async def run(world: World) -> None:
        world.services.bindings = count
        request = admin_pb2.ListBindingsRequest()
        client = await StalledClient.connect(world.port)
        await client.call("/quorum.v1.Admin/ListBindings", request.SerializeToString())
        while not world.gate.answers.used:
            await asyncio.sleep(0)
        await refused(world.admin.ListBindings(request), REFUSED, f"no room for an answer of {size} bytes")
        await world.admin.ClusterStatus(admin_pb2.ClusterStatusRequest())  # a small one needs no room
        assert world.gate.answers.used == size
        client.close()
        while world.gate.answers.used:
            await asyncio.sleep(0)
        assert len((await world.admin.ListBindings(request)).bindings) == count

    with_server(run)


def test_clients_that_leave_during_an_answer_are_no_errors(caplog: pytest.LogCaptureFixture) -> None:
    """grpcio says so with an exception, if a client leaves at the moment of a write."""

    async def run(world: World) -> None:
        request = queue_pb2.BrowseRequest(queue="q", limit=1_000_000)
        for _ in range(20):
            clients = [await StalledClient.connect(world.port) for _ in range(4)]
            for client in clients:
                await client.call("/quorum.v1.Queue/Browse", request.SerializeToString())
            while world.gate.calls.total < len(clients):
                await asyncio.sleep(0)
            for client in clients:
                client.close()
            while world.gate.calls.total:
                await asyncio.sleep(0)

    with_server(run)
    assert [each.getMessage() for each in caplog.records] == []


def test_addresses_are_told_from_what_grpc_says() -> None:
    assert client_address("ipv4:10.0.0.7:41822") == "10.0.0.7"
    assert client_address("ipv6:%5B::1%5D:41822") == client_address("ipv6:[::1]:5")
    assert client_address("ipv6:%5B2001:db8::1%5D:1") == client_address("ipv6:%5B2001:db8::2%5D:2")
    assert client_address("ipv6:%5B2001:db8::1%5D:1") != client_address("ipv6:%5B2001:db9::1%5D:1")
    assert client_address("ipv6:%5B::ffff:10.0.0.7%5D:1") == client_address("ipv4:10.0.0.7:2"), "IPv4 in IPv6"
    assert client_address("ipv6:%5B::ffff:10.0.0.8%5D:1") != client_address("ipv4:10.0.0.7:2")
    assert client_address("ipv6:%5Bfe80::1%25eth0%5D:1") == "fe80::/64"
    assert client_address("unix:/tmp/socket") == "unix:/tmp/socket"


async def a_wrong_request(channel: grpc.aio.Channel, api: Api) -> None:
    request = queue_pb2.PublishRequest(queue="q", messages=[queue_pb2.Message()] * 5_000)
    await refused(queue_pb2_grpc.QueueStub(channel).Publish(request), REFUSED, "allowed: 4096")


async def a_refused_request(channel: grpc.aio.Channel, api: Api) -> None:
    request = queue_pb2.PublishRequest(queue="q", messages=[queue_pb2.Message()])
    found = queue_pb2_grpc.QueueStub(channel).Publish(request)
    await refused(found, grpc.StatusCode.NOT_FOUND, "no queue 'q'")


async def a_refused_stream(channel: grpc.aio.Channel, api: Api) -> None:
    found = queue_pb2_grpc.QueueStub(channel).Browse(queue_pb2.BrowseRequest(queue="q"))
    await refused(found.read(), grpc.StatusCode.NOT_FOUND, "no queue 'q'")


async def a_session_that_the_member_ends(channel: grpc.aio.Channel, api: Api) -> None:
    session = queue_pb2_grpc.QueueStub(channel).Session()
    await session.write(queue_pb2.SessionRequest(open=queue_pb2.Open(producer_id=bytes(16), epoch=1)))
    assert (await session.read()).HasField("opened")
    api.hub.leave("stopping")
    await refused(session.read(), grpc.StatusCode.UNAVAILABLE, "")


@pytest.mark.parametrize(
    "made",
    [
        a_wrong_request,
        a_refused_request,
        a_refused_stream,
        a_session_that_the_member_ends,
    ],
)
def test_a_call_that_has_failed_takes_no_memory(
    made: Callable[[grpc.aio.Channel, Api], Coroutine[Any, Any, None]],
) -> None:
    """Before, its request was kept until the next garbage collection, which comes late to an idle member: a flood of
    large requests that were refused left gigabytes behind."""

    def calls() -> int:
        return sum(isinstance(each, calls_module.Call | calls_module.Requests) for each in gc.get_objects())

    async def run() -> None:
        async with (
            asyncio.timeout(HANDLERS_END_S),
            serving() as (url, [api]),
            grpc.aio.insecure_channel(url.removeprefix("quorum://")) as channel,
        ):
            gc.collect()
            gc.disable()
            try:
                await made(channel, api)
                while calls():
                    await asyncio.sleep(0.01)
            finally:
                gc.enable()

    asyncio.run(run())
