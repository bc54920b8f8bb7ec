"""How calls get to the services: admitted, received within a time, counted on the wire, and only then parsed.

A service is registered through a `Gate`, as it would be with the gRPC server itself. Whatever its methods are, the
server sees methods that take a stream of bytes: so the gate hears of a call before its first byte, and sees the bytes
of each request before they become a message.

- Calls are admitted by kind and by the client's address (`Calls`). Administration and health have places of their own,
  which sessions do not take.
- The first request has to come within a time; a call that says nothing ends.
- A request with too many bytes or elements (request_limits.py) ends its call, and is not parsed.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.rpc import code_pb2

from quorum.api import request_limits, status
from quorum.api.handlers import Context
from quorum.node.batches import BatchLimits
from quorum.node.wire_scan import ScanError, Shape, scan

MAX_CALLS = 10_000
"""Sessions and calls at a time."""
MAX_RESERVED_CALLS = 500
"""Calls of administration, health and reflection: beside the others."""
IS_RESERVED = ("quorum.v1.Admin", "grpc.health.", "grpc.reflection.")
"""How the names of services begin whose calls are reserved."""
OPEN_LIMIT_S = 5.0
"""A session's first request comes within this time."""
REQUEST_LIMIT_S = 30.0
"""The first request of another call does: 32 MiB over a slow line take a while."""
IPV6_PREFIX = 64
"""One client has a network of this size to take its addresses from."""


class Calls:
    """Calls under way, by the client's address. An address may have as many as are left free: one alone has half of
    all, and the next one half of the rest, so that there is always room for another."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._by_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """False: there is no room for it. True: `leave` has to follow."""
        if self._by_address[address] >= self.most - self.total:
            return False
        self._by_address[address] += 1
        self.total += 1
        return True

    def leave(self, address: str) -> None:
        self.total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """What a host's calls and connections are counted by: its address, or the network that an IPv6 address is of."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))


def client_address(peer: str) -> str:
    """network_of what gRPC calls a peer, as in ipv4:10.0.0.7:41822."""
    scheme, _, rest = peer.partition(":")
    if scheme not in ("ipv4", "ipv6"):
        return peer
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]").partition("%")[0]
    return network_of(host)


@dataclass(frozen=True, slots=True)
class _Method:
    name: str
    """as in Queue/Publish"""
    calls: Calls
    limit_s: float
    max_bytes: int
    max_tags: int
    shape: Shape
    parse: Callable[[bytes], Any]

    def read(self, data: bytes) -> Any:
        """The request; StatusError where it is refused."""
        if len(data) > self.max_bytes:
            text = f"{self.name}: a request of {len(data)} bytes; allowed: {self.max_bytes}"
            raise status.StatusError(status.make(code_pb2.RESOURCE_EXHAUSTED, "request_too_large", text))
        try:
            scan(data, self.shape, self.max_tags)
            return self.parse(data)
        except ScanError as error:
            if error.is_malformed:
                raise status.invalid("bad_request", f"{self.name}: {error}") from error
            text = f"{self.name}: {error}"
            raise status.StatusError(
                status.make(code_pb2.RESOURCE_EXHAUSTED, "request_too_large", text)
            ) from error
        except DecodeError as error:
            raise status.invalid(
                "bad_request", f"{self.name}: the bytes are no {self.shape.name}: {error}"
            ) from error


class Gate:
    """Has the parts of grpc.aio.Server that services are registered with."""

    def __init__(self, server: grpc.aio.Server, batch: BatchLimits) -> None:
        self._server = server
        self._batch = batch
        self.calls = Calls(MAX_CALLS)
        self.reserved = Calls(MAX_RESERVED_CALLS)

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """They are registered by name."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        methods = descriptor_pool.Default().FindServiceByName(service).methods_by_name
        taken = {
            name: _handler(handler, self._method(service, name, methods[name].input_type, handler))
            for name, handler in handlers.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, taken),))
        self._server.add_registered_method_handlers(service, taken)

    def _method(self, service: str, name: str, request: Descriptor, handler: Any) -> _Method:
        known = f"{service.rpartition('.')[2]}/{name}"
        return _Method(
            known,
            self.reserved if service.startswith(IS_RESERVED) else self.calls,
            OPEN_LIMIT_S if known == "Queue/Session" else REQUEST_LIMIT_S,
            request_limits.max_bytes(known),
            request_limits.max_tags(self._batch),
            request_limits.request_shape(request, self._batch),
            handler.request_deserializer,
        )


def _handler(handler: Any, method: _Method) -> grpc.RpcMethodHandler[Any, Any]:
    """The same method for the server: it takes a stream of bytes."""
    behaviour = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    async def run(requests: AsyncIterator[bytes], context: Context) -> Any:
        address = client_address(context.peer())
        if not method.calls.enter(address):
            await status.abort(context, _no_room(method))
        try:
            taken = _taken(requests, method)
            first = await _first(taken, method)
            if handler.request_streaming:
                given: Any = _stream(first, taken)
            elif first is None:
                raise status.invalid("bad_request", f"{method.name}: there is no request")
            else:
                given = first
            made = behaviour(given, context)
            if not inspect.isasyncgen(made):
                return await made
            async for response in made:
                await context.write(response)
        except status.StatusError as error:
            await status.abort(context, error)
        finally:
            method.calls.leave(address)

    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming
        else grpc.stream_unary_rpc_method_handler
    )
    return make(run, None, handler.response_serializer)


async def _taken(requests: AsyncIterator[bytes], method: _Method) -> AsyncIterator[Any]:
    async for data in requests:
        yield method.read(data)


async def _first(taken: AsyncIterator[Any], method: _Method) -> Any:
    """None where the client has said that it sends nothing."""
    try:
        async with asyncio.timeout(method.limit_s):
            return await anext(taken, None)
    except TimeoutError as error:
        text = f"{method.name}: no request came within {method.limit_s:g} s"
        raise status.StatusError(status.make(code_pb2.DEADLINE_EXCEEDED, "no_request", text)) from error


async def _stream(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    if first is None:
        return
    yield first
    async for request in rest:
        yield request


def _no_room(method: _Method) -> status.StatusError:
    text = (
        f"{method.name}: {method.calls.total} calls are under way at this node, and this client has its share of them; "
        f"allowed: {method.calls.most}, and of one address as many as are left free"
    )
    return status.StatusError(status.make(code_pb2.RESOURCE_EXHAUSTED, "too_many_calls", text))
