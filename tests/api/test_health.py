"""The health service (quorum/api/services/health.py), in a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from quorum.api import health_watch, server
from quorum.api.security.access import Access
from quorum.api.server import Server
from quorum.api.shares import ByteWindow
from quorum.node.queries import CheckHealth, Health
from quorum.node.wire.batches import BatchLimits
from support.hostile.http2 import StalledClient

SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
WATCH = "/grpc.health.v1.Health/Watch"
LIMIT_S = 120.0
GRACE_S = 2.0
"""Time for a watch to tell that the server stops, on a busy machine."""


def with_server(run: Callable[[Server, Any, int], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        hub: Any = SimpleNamespace(
            limits=BatchLimits(100, 1 << 20, 2 << 20), received=ByteWindow(1 << 20), access=Access()
        )
        config: Any = SimpleNamespace(
            name="n1", members={"n1": SimpleNamespace(client="127.0.0.1:7400")}, tls_certificate_file=None
        )
        made = Server(hub, config)
        port = await made.start("127.0.0.1:0")
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with asyncio.timeout(LIMIT_S):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                await run(made, health_pb2_grpc.HealthStub(channel), port)
            await made.stop(0.1)

    asyncio.run(body())


async def state(stub: Any, service: str = "") -> int:
    reply = await stub.Check(pb.HealthCheckRequest(service=service), timeout=LIMIT_S)
    return int(reply.status)


def test_every_service_has_the_state_of_the_node() -> None:
    async def run(made: Server, stub: Any, port: int) -> None:
        for serving, expected in ((None, NOT_SERVING), (True, SERVING), (False, NOT_SERVING)):
            if serving is not None:
                made.set_serving(serving)
            assert [await state(stub, each) for each in ("", *server.SERVICES)] == [expected] * 4

    with_server(run)


def test_a_service_that_does_not_exist_is_not_found() -> None:
    async def run(made: Server, stub: Any, port: int) -> None:
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"no service 'quorum\.v1\.Nothing'; known: quorum"
        ) as caught:
            await state(stub, "quorum.v1.Nothing")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(pb.HealthCheckRequest(service="quorum.v1.Nothing"))
        assert (await watch.read()).status == pb.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()

    with_server(run)


def test_a_watch_tells_each_change() -> None:
    async def run(made: Server, stub: Any, port: int) -> None:
        watch = stub.Watch(pb.HealthCheckRequest())
        assert (await watch.read()).status == NOT_SERVING
        for serving, expected in ((True, SERVING), (False, NOT_SERVING)):
            made.set_serving(serving)
            assert (await watch.read()).status == expected
        watch.cancel()

    with_server(run)


def test_a_stopping_server_tells_that_it_does_not_serve_and_stays_with_that() -> None:
    async def run(made: Server, stub: Any, port: int) -> None:
        made.set_serving(True)
        watch = stub.Watch(pb.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        stopping = asyncio.create_task(made.stop(GRACE_S))
        assert (await watch.read()).status == NOT_SERVING
        made.set_serving(True)
        with pytest.raises(grpc.aio.AioRpcError):
            assert await watch.read() is grpc.aio.EOF
        await stopping

    with_server(run)


def test_a_watch_whose_client_does_not_read_delays_no_change_of_state_and_no_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STOP_LIMIT_S", 2 * LIMIT_S)

    async def run(made: Server, stub: Any, port: int) -> None:
        stalled = await StalledClient.connect(port)
        for _ in range(3):
            await stalled.call(WATCH, pb.HealthCheckRequest().SerializeToString())
        for serving, expected in ((True, SERVING), (False, NOT_SERVING), (True, SERVING)):
            made.set_serving(serving)
            assert await state(stub) == expected
        await made.stop(0.1)
        stalled.close()

    with_server(run)


class Node:
    """The hub as the health watch sees it. The node is ready at every other look."""

    def __init__(self) -> None:
        self.access = Access()
        self.looks = 0
        self.requests = self
        self.has_looked_often = asyncio.Event()

    async def query(self, query: CheckHealth) -> Health:
        self.looks += 1
        return Health("member", bool(self.looks % 2), "", {})

    query_at_leisure = query

    def leave(self, reason: str) -> None: ...

    def check_leases(self) -> None:
        if self.looks > 20:
            self.has_looked_often.set()


def test_the_health_watch_is_not_held_by_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_watch, "STARTING_POLL_S", 0.0)
    monkeypatch.setattr(health_watch, "SERVING_POLL_S", 0.0)

    async def run(made: Server, stub: Any, port: int) -> None:
        stalled = await StalledClient.connect(port)
        await stalled.call(WATCH, pb.HealthCheckRequest().SerializeToString())
        node: Any = Node()
        watching = asyncio.create_task(health_watch.watch_health(node, made))
        await node.has_looked_often.wait()
        assert node.access._is_told, "it has looked for users when the node was ready"
        watching.cancel()
        stalled.close()

    with_server(run)


class StuckNode:
    """The hub of a node whose Raft thread answers queries only while `runs` is set."""

    def __init__(self) -> None:
        self.access = Access()
        self.runs = asyncio.Event()
        self.runs.set()
        self.requests = self
        self.waiting = 0
        self.lease_checks = 0

    async def query(self, query: CheckHealth) -> Health:
        self.waiting += 1
        await self.runs.wait()
        self.waiting -= 1
        return Health("member", True, "", {})

    query_at_leisure = query

    def leave(self, reason: str) -> None: ...

    def check_leases(self) -> None:
        self.lease_checks += 1


def test_a_node_whose_raft_thread_is_stuck_does_not_serve_until_it_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_watch, "SERVING_POLL_S", 0.01)
    monkeypatch.setattr(health_watch, "UNANSWERED_S", 0.01)

    async def run(made: Server, stub: Any, port: int) -> None:
        async def until(expected: int) -> None:
            while await state(stub) != expected:
                await asyncio.sleep(0.01)

        node: Any = StuckNode()
        watching = asyncio.create_task(health_watch.watch_health(node, made))
        await until(SERVING)
        node.runs.clear()
        await until(NOT_SERVING)
        before = node.lease_checks
        while node.lease_checks < before + 3:
            await asyncio.sleep(0.01)
        assert node.waiting == 1, "no further query waits behind the first"
        node.runs.set()
        await until(SERVING)
        watching.cancel()

    with_server(run)
