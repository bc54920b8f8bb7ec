"""Calls of the Admin service: retried at the next endpoint while a node is unavailable, until their deadline."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from quorum.client.connection.endpoints import with_call_id
from quorum.client.errors import NotFound, QuorumError, UnavailableError, from_rpc_error
from quorum.client.values import require_timeout
from quorum.v1 import admin_pb2, admin_pb2_grpc

T = TypeVar("T")

UNARY_PAUSE_S = 0.05

DOING = {
    "DeclareQueue": "declaring queue",
    "DeleteQueue": "deleting queue",
    "PurgeQueue": "purging queue",
    "DescribeQueue": "asking for queue",
    "ListQueues": "listing queues",
    "DeclareExchange": "declaring exchange",
    "DeleteExchange": "deleting exchange",
    "ListExchanges": "listing exchanges",
    "AddBinding": "adding a binding",
    "RemoveBinding": "removing a binding",
    "ListBindings": "listing bindings of",
    "ExportDefinitions": "exporting definitions",
    "ImportDefinitions": "importing definitions",
    "SetPolicy": "setting a policy",
    "DeletePolicy": "deleting a policy",
    "SetUser": "setting user",
    "SetPermissions": "setting permissions of user",
    "DeleteUser": "deleting user",
    "ListUsers": "listing users",
    "ListPolicies": "listing policies",
    "ListTransactions": "listing transactions",
    "ResolveTransaction": "resolving a transaction",
    "ClusterStatus": "asking for the cluster's status",
    "AddMember": "adding a member",
    "RemoveMember": "removing a member",
    "DrainMember": "draining a member",
    "TransferLeadership": "moving leadership",
    "RebalanceLeaders": "spreading leaders",
    "SetLeaseTimes": "setting lease times",
}
"""Methods of the Admin service in the words of an error."""
GONE: dict[str, Any] = {
    "DeleteQueue": admin_pb2.DeleteQueueResponse(),
    "DeleteExchange": admin_pb2.DeleteExchangeResponse(),
    "RemoveBinding": admin_pb2.RemoveBindingResponse(),
    "DeletePolicy": admin_pb2.DeletePolicyResponse(),
    "RemoveMember": admin_pb2.RemoveMemberResponse(),
}
"""The answer if a later try finds that the object does not exist any more."""


class AdminCalls:
    """The base of the classes with the client's calls for each kind of object; Client is all of them."""

    _endpoints: tuple[str, ...]
    _default_ms: Callable[[], int]

    def _channel(self, attempt: int) -> grpc.aio.Channel:
        """A channel to the endpoint for this attempt, from 0 on."""
        raise NotImplementedError

    def _require_own_cancellation(self) -> None:
        """After a CancelledError: raise ClosedError if it comes from the client's `close`."""
        raise NotImplementedError

    def _limit(self, timeout_ms: int | None) -> int:
        if timeout_ms is None:
            return self._default_ms()
        require_timeout("timeout_ms", timeout_ms, may_be_over=True)
        return timeout_ms

    def _time_left(self, timeout_ms: int | None) -> Callable[[], int]:
        """A function that returns the milliseconds left for a call of several steps, at least 1."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit(timeout_ms) / 1000
        return lambda: max(1, int((deadline - loop.time()) * 1000))

    async def _admin(
        self, method: str, request: Any, timeout_ms: int | None, doing: str | None = None
    ) -> Any:
        """Make one unary call. doing: replaces the method's words in error texts."""
        doing = doing or DOING[method]
        fields = ("queue", "exchange", "user")
        named = next((found for each in fields if (found := getattr(request, each, ""))), "")
        doing = f"{doing} {named!r}" if named else doing.removesuffix(" of")

        async def call(stub: Any, timeout_s: float, attempt: int) -> Any:
            try:
                return await getattr(stub, method)(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as problem:
                if attempt and method in GONE and isinstance(from_rpc_error(problem, doing), NotFound):
                    return GONE[method]  # an earlier try removed it
                raise

        return await self._attempts(doing, timeout_ms, call)

    async def _attempts(
        self, doing: str, timeout_ms: int | None, work: Callable[[Any, float, int], Awaitable[T]]
    ) -> T:
        """Make a call of the Admin service; retry it at the next endpoint while a node is unavailable and the deadline
        allows. work: takes the stub, the seconds that this try may take, and the number of tries before it."""
        limit_s = self._limit(timeout_ms) / 1000
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        attempt = 0
        call_id = uuid.uuid4().hex
        told: QuorumError | None = None
        while True:
            stub = admin_pb2_grpc.AdminStub(with_call_id(self._channel(attempt), call_id))
            left_s = max(0.001, deadline - loop.time())
            # one node gets only a share of the remaining time while there are others
            share_s = left_s if len(self._endpoints) == 1 else max(left_s / 3, 0.001)
            try:
                return await work(stub, share_s, attempt)
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem, doing)
                if not isinstance(error, UnavailableError):
                    raise error from problem
                if error.reason or told is None:
                    told = error  # prefer an error with a reason to one of an unreachable node
                if deadline - loop.time() <= 2 * UNARY_PAUSE_S:
                    raise told from problem
            except asyncio.CancelledError:
                self._require_own_cancellation()
                raise
            attempt += 1
            await asyncio.sleep(UNARY_PAUSE_S)
