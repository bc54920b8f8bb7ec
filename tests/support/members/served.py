"""A real member behind a real gRPC server, for tests of the client and the command line with the service's own answers.

The member is a cluster of one, or one of several, in one thread (cluster.py), whose time goes on with the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import grpc
import structlog

from quorum.api.dead_letters.worker import forward_dead_letters
from quorum.api.grpc.calls import MAX_CALLS, Gate
from quorum.api.grpc.grpc_server import GrpcServer
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import admin_pb2_grpc, bulk_pb2_grpc, queue_pb2_grpc
from support.members.cluster import Cluster
from support.members.services import Api

LIMITS = BatchLimits(4_096, 1 << 20, 4 << 20)
TURN_S = 0.001
STEP_MS = 5
LIMIT_S = 120.0


@contextlib.asynccontextmanager
async def served(size: int = 1, members: int = 1) -> AsyncIterator[str]:
    """The URL of a new cluster of this size, of which so many members are served."""
    async with serving(size, members) as (url, _):
        yield url


@contextlib.asynccontextmanager
async def serving(
    size: int = 1,
    members: int = 1,
    credentials: grpc.ServerCredentials | None = None,
    max_calls: int = MAX_CALLS,
) -> AsyncIterator[tuple[str, list[Api]]]:
    """The same with the services of these members. credentials: for TLS."""
    cluster = Cluster(size)
    cluster.ready()
    cluster.switched()
    apis = []
    servers, addresses, forwarding = [], [], []
    for name in cluster.names[:members]:
        api = Api(cluster, name, LIMITS)
        apis.append(api)
        server = GrpcServer()
        gate = Gate(server, api.hub.limits, api.hub.received, api.hub.access)
        gate.calls.most = max_calls
        queue_pb2_grpc.add_QueueServicer_to_server(api.queues, gate)
        admin_pb2_grpc.add_AdminServicer_to_server(api.admin, gate)
        bulk_pb2_grpc.add_BulkServicer_to_server(api.bulk, gate)
        port = (
            server.add_insecure_port("127.0.0.1:0")
            if credentials is None
            else server.add_secure_port("127.0.0.1:0", credentials)
        )
        addresses.append(f"127.0.0.1:{port}")
        await server.start()
        servers.append(server)
        forwarding.append(asyncio.create_task(forward_dead_letters(api.hub)))

    async def go_on() -> None:
        while True:
            cluster.run(STEP_MS)
            await asyncio.sleep(TURN_S)

    running = asyncio.create_task(go_on())
    try:
        yield "quorum://" + ",".join(addresses), apis
    finally:
        for server in servers:
            await server.stop(0)
        for task in (*forwarding, running):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@contextlib.contextmanager
def served_in_a_thread(size: int = 1) -> Iterator[str]:
    """The same for blocking clients, on an event loop of its own thread. Only warnings are logged, because the log goes
    where the tested commands print."""
    started, stopping = threading.Event(), threading.Event()
    logging = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    urls: list[str] = []

    async def serve() -> None:
        async with served(size) as url:
            urls.append(url)
            started.set()
            while not stopping.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(LIMIT_S)
        yield urls[0]
    finally:
        stopping.set()
        thread.join(LIMIT_S)
        structlog.configure(**logging)
