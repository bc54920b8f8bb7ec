"""The client's calls for exchanges and bindings."""

from __future__ import annotations

from collections.abc import Mapping

from quorum.client.admin.calls import AdminCalls
from quorum.client.admin.records import BindingInfo, ExchangeInfo
from quorum.client.errors import NotFound, UsageError
from quorum.client.values import arguments as values
from quorum.client.values import require_flag, require_text, require_texts
from quorum.v1 import admin_pb2

LISTED = 1_000
"""Exchanges that one call of ListExchanges asks for."""


class ExchangeCalls(AdminCalls):
    """The calls of Client for exchanges and bindings."""

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        arguments: Mapping[str, object] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> bool:
        """Make sure that the exchange exists with this type and these arguments. True if this call created it.

        type: direct, fanout, topic, headers or selector. arguments: `alternate-exchange`, the name of an exchange.
        """
        require_texts(name=name, type=type)
        request = admin_pb2.DeclareExchangeRequest(exchange=name, type=type, arguments=values(arguments))
        return bool((await self._admin("DeclareExchange", request, timeout_ms)).created)

    async def delete_exchange(
        self, name: str, *, if_unused: bool = False, timeout_ms: int | None = None
    ) -> None:
        """Delete the exchange with its bindings. if_unused: RefusedError if bindings lead from it. A repeat never
        deletes another exchange that was declared under this name meanwhile."""
        require_text("name", name)
        require_flag("if_unused", if_unused)
        left_ms = self._time_left(timeout_ms)
        found = await self._exchange(name, "deleting", left_ms())
        request = admin_pb2.DeleteExchangeRequest(exchange=name, id=found.id, if_unused=if_unused)
        await self._admin("DeleteExchange", request, left_ms())

    async def exchanges(self, prefix: str = "", *, timeout_ms: int | None = None) -> list[ExchangeInfo]:
        """The exchanges whose names begin with the prefix, by name."""
        require_text("prefix", prefix)
        return await self._exchanges(prefix, 0, timeout_ms)

    async def describe_exchange(
        self, name: str, *, timeout_ms: int | None = None
    ) -> tuple[ExchangeInfo, list[BindingInfo], list[BindingInfo]]:
        """An exchange, the bindings from it, and those to it."""
        require_text("name", name)
        left_ms = self._time_left(timeout_ms)
        found = await self._exchange(name, "asking for", left_ms())
        leaving = await self.bindings(name, timeout_ms=left_ms())
        return found, leaving, await self.bindings(exchange=name, timeout_ms=left_ms())

    async def bind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        arguments: Mapping[str, object] | None = None,
        *,
        to: str = "queue",
        timeout_ms: int | None = None,
    ) -> bool:
        """Make sure that a binding exists from an exchange to a queue, or with to="exchange" to an exchange. True if
        this call added it.

        arguments: of a headers exchange `x-match` and the values to compare; of a selector exchange `x-selector`.
        """
        binding = _binding(source, destination, routing_key, arguments, to)
        request = admin_pb2.AddBindingRequest(binding=binding)
        return bool((await self._admin("AddBinding", request, timeout_ms)).added)

    async def unbind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        arguments: Mapping[str, object] | None = None,
        *,
        to: str = "queue",
        timeout_ms: int | None = None,
    ) -> None:
        """Remove the binding that `bind` with the same arguments has added."""
        binding = _binding(source, destination, routing_key, arguments, to)
        await self._admin("RemoveBinding", admin_pb2.RemoveBindingRequest(binding=binding), timeout_ms)

    async def bindings(
        self, source: str = "", *, queue: str = "", exchange: str = "", timeout_ms: int | None = None
    ) -> list[BindingInfo]:
        """The bindings from an exchange, to a queue or to an exchange, in the order in which they were added. Without
        names: all bindings."""
        require_texts(source=source, queue=queue, exchange=exchange)
        request = admin_pb2.ListBindingsRequest(source=source, queue=queue, exchange=exchange)
        found: list[BindingInfo] = []
        left_ms = self._time_left(timeout_ms)
        while True:
            response = await self._admin("ListBindings", request, left_ms())
            found += [BindingInfo.of(each) for each in response.bindings]
            if not response.next_after:
                return found
            request.after = response.next_after

    async def _exchange(self, name: str, doing: str, timeout_ms: int | None) -> ExchangeInfo:
        for found in await self._exchanges(name, 1, timeout_ms):  # a name sorts before all that begin with it
            if found.name == name:
                return found
        raise NotFound(f"{doing} exchange {name!r}: there is no exchange {name!r}", reason="NOT_FOUND")

    async def _exchanges(self, prefix: str, limit: int, timeout_ms: int | None) -> list[ExchangeInfo]:
        """limit: 0 for all."""
        request = admin_pb2.ListExchangesRequest(prefix=prefix, limit=limit or LISTED)
        found: list[ExchangeInfo] = []
        left_ms = self._time_left(timeout_ms)
        while True:
            response = await self._admin("ListExchanges", request, left_ms())
            found += [ExchangeInfo.of(each) for each in response.exchanges]
            if limit or not response.next_after:
                return found
            request.after = response.next_after


def _binding(
    source: str, destination: str, routing_key: str, arguments: Mapping[str, object] | None, to: str
) -> admin_pb2.Binding:
    require_texts(source=source, destination=destination, routing_key=routing_key)
    binding = admin_pb2.Binding(source=source, routing_key=routing_key, arguments=values(arguments))
    if to not in ("queue", "exchange"):
        raise UsageError(f"a binding to {to!r}; allowed: queue, exchange")
    setattr(binding, to, destination)
    return binding
