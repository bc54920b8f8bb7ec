"""Floods of calls that are reset at once and of pings: proper calls are answered, and nothing of the floods stays."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from quorum.api.grpc.calls import Gate
from quorum.api.security.access import Access
from quorum.api.shares import ByteWindow
from quorum.node.wire.batches import BatchLimits
from quorum.v1 import admin_pb2, admin_pb2_grpc
from support.hostile.http2 import FloodingClient

ROUNDS, RESETS, PINGS = 20, 100, 500
PATH = "/quorum.v1.Admin/ClusterStatus"
ENDS_S = 60


class Admin(admin_pb2_grpc.AdminServicer):
    async def ClusterStatus(self, request: Any, context: Any) -> Any:
        return admin_pb2.ClusterStatusResponse(answering_node="n1")


def test_a_flood_of_resets_and_pings_holds_up_nobody_and_leaves_nothing() -> None:
    async def scenario() -> None:
        server = grpc.aio.server()
        gate = Gate(
            server, BatchLimits(100, 1 << 20, 2 << 20), ByteWindow(1 << 20, max_waiting=1 << 20), Access()
        )
        admin_pb2_grpc.add_AdminServicer_to_server(Admin(), gate)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub: Any = admin_pb2_grpc.AdminStub(channel)
                for _ in range(ROUNDS):
                    flood = await FloodingClient.connect(port)
                    with suppress(ConnectionError):  # the server may close who pings too much
                        await flood.reset_calls(PATH, RESETS)
                        await flood.ping(PINGS)
                    answer = await stub.ClusterStatus(admin_pb2.ClusterStatusRequest(), timeout=ENDS_S)
                    assert answer.answering_node == "n1"
                    flood.close()
                async with asyncio.timeout(ENDS_S):
                    while gate.calls.total or gate.reserved.total:
                        await asyncio.sleep(0)
        finally:
            await server.stop(None)

    asyncio.run(scenario())
