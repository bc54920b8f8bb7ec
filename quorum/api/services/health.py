"""The gRPC health service of one node (grpc.health.v1): one state for all of the node's services.

`set_serving` waits for no client. Each Watch call writes the new states to its own client and holds no lock while it
writes, so a client that does not read delays only its own call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from quorum.api.grpc.handlers import Context


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The state is NOT_SERVING until `set_serving` changes it. The empty service name means the whole node."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(("", *services))
        self._is_serving = False
        self._changed = asyncio.Event()
        self._is_stopped = False

    def set_serving(self, serving: bool) -> None:
        """Set the state of all services. Has no effect after `stop`."""
        if self._is_stopped or serving == self._is_serving:
            return
        self._is_serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self) -> None:
        """Set NOT_SERVING for the rest of the process's life."""
        self.set_serving(False)
        self._is_stopped = True

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"there is no service {request.service[:80]!r}; known: {', '.join(sorted(self._services - {''}))}",
            )
        return _response(self._is_serving)

    async def Watch(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """Yield the current state, and the state after each change. A slow client may miss intermediate states."""
        if request.service not in self._services:
            yield pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
            await asyncio.Event().wait()  # the protocol keeps the call open; the client or the server ends it
        sent: bool | None = None
        while True:
            changed = self._changed
            if self._is_serving == sent:
                await changed.wait()
                continue
            sent = self._is_serving
            yield _response(sent)


def _response(is_serving: bool) -> pb.HealthCheckResponse:
    state = pb.HealthCheckResponse.SERVING if is_serving else pb.HealthCheckResponse.NOT_SERVING
    return pb.HealthCheckResponse(status=state)
