"""The gRPC server of one node: the queue, bulk and admin services, health and reflection."""

from __future__ import annotations

import asyncio

import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from quorum.api.bulk.service import BulkService
from quorum.api.connections import LOOK_S, close_excess, close_peers, max_connections
from quorum.api.grpc.calls import ANSWER_LIMIT_S, Gate
from quorum.api.grpc.grpc_server import GrpcServer
from quorum.api.hub.hub import Hub
from quorum.api.listening import why_not
from quorum.api.security.certificates import Certificates
from quorum.api.services.admin_service import AdminService
from quorum.api.services.health import Health
from quorum.api.services.queue_service import QueueService
from quorum.config import NodeConfig
from quorum.errors import OperatorError
from quorum.node.wire.batches import FRAME_BYTES
from quorum.v1 import admin_pb2, admin_pb2_grpc, bulk_pb2, bulk_pb2_grpc, queue_pb2, queue_pb2_grpc

HANDSHAKE_LIMIT_MS = 5_000
"""A connection that has not begun HTTP/2 within this time is closed."""
IDLE_LIMIT_MS = 300_000
"""A connection without calls is closed after this time. The client opens another one for its next call."""
NO_COMPRESSION = 1
"""gRPC's set of algorithms: only identity. A compressed request could expand to many times its size on the wire before
its bytes are counted. Clients may compress message bodies themselves."""
MAX_STREAMS = 1_000
"""Calls of one connection at a time; the client queues further calls."""
STOP_LIMIT_S = 5.0
"""Time for gRPC to end its calls after the grace period. After it the node stops, whatever clients do."""
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
SERVICES = (
    queue_pb2.DESCRIPTOR.services_by_name["Queue"].full_name,
    bulk_pb2.DESCRIPTOR.services_by_name["Bulk"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
)


class Server:
    """The server and the periodic check of its connections."""

    def __init__(self, hub: Hub, config: NodeConfig, certificates: Certificates | None = None) -> None:
        """certificates: for clients; None for plain text."""
        self.certificates = certificates
        self._health = Health(SERVICES)
        self._max_connections = max_connections()
        self.tasks: list[asyncio.Task[None]] = []
        """end only after `stop`"""
        self._server = GrpcServer(
            options=[
                ("grpc.max_receive_message_length", FRAME_BYTES),
                ("grpc.max_send_message_length", FRAME_BYTES),
                ("grpc.compression_enabled_algorithms_bitset", NO_COMPRESSION),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                ("grpc.max_allowed_incoming_connections", self._max_connections),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_LIMIT_MS),
                ("grpc.max_connection_idle_ms", IDLE_LIMIT_MS),
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        gate = self._gate = Gate(self._server, hub.limits, hub.received, hub.access)
        self.queues = QueueService(hub)
        self.admin = AdminService(hub, config)
        self.bulk = BulkService(hub, config)
        queue_pb2_grpc.add_QueueServicer_to_server(self.queues, gate)
        bulk_pb2_grpc.add_BulkServicer_to_server(self.bulk, gate)
        admin_pb2_grpc.add_AdminServicer_to_server(self.admin, gate)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, gate)
        reflection.enable_server_reflection((*SERVICES, HEALTH, reflection.SERVICE_NAME), gate)

    async def start(self, address: str) -> int:
        """Listen on host:port, with TLS if there is a certificate; return the port. OperatorError if the
        address cannot be used."""
        certificates = self.certificates
        try:
            port: int = (
                self._server.add_insecure_port(address)
                if certificates is None
                else self._server.add_secure_port(address, certificates.credentials())
            )
        except RuntimeError as error:
            reason = why_not(address)  # gRPC does not report it
            why = "gRPC could not, just now" if reason is None else reason.strerror or str(reason)
            raise OperatorError(f"cannot listen for clients on {address}: {why}") from error
        await self._server.start()
        self.tasks.append(asyncio.create_task(self._watch(port)))
        return port

    async def _watch(self, port: int) -> None:
        """Close excess connections of an address, and connections whose clients do not read their answers."""
        logger = structlog.get_logger()
        while True:
            await asyncio.sleep(LOOK_S)
            closed = await asyncio.to_thread(close_excess, port, self._max_connections)
            if closed:
                logger.warning(
                    "clients' connections closed: an address had too many",
                    closed=closed,
                    most=self._max_connections,
                )
            peers = self._gate.stalled()
            shut = await asyncio.to_thread(close_peers, port, peers) if peers else 0
            if shut:
                logger.warning(
                    "clients' connections closed: they did not take their answers",
                    peers=sorted(peers)[:10],
                    waited_s=ANSWER_LIMIT_S,
                )

    def set_serving(self, serving: bool) -> None:
        """Set the state that the health service reports. It does not wait for any client."""
        self._health.set_serving(serving)

    async def stop(self, grace_s: float) -> None:
        """Stop listening, and end the calls that are still under way after grace_s seconds. Return after grace_s +
        STOP_LIMIT_S at the latest."""
        for task in self.tasks:
            task.cancel()
        self._health.stop()
        stopping = asyncio.ensure_future(self._server.stop(grace_s))
        _, late = await asyncio.wait({stopping}, timeout=grace_s + STOP_LIMIT_S)
        if late:
            structlog.get_logger().warning(
                "calls did not end with the server", waited_s=grace_s + STOP_LIMIT_S
            )
