"""The part of quorum.v1.Admin for exchanges and bindings."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter

from fifo.effects import Ok
from quorum.api import status
from quorum.api.grpc.argument_values import argument, set_arguments
from quorum.api.grpc.handlers import LISTED_BYTES, Context, unary_once
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.hub.filters import Filters, SelectorText, selector_text
from quorum.api.hub.hub import Hub
from quorum.api.owners import CALLER, owner_of
from quorum.catalog import exchanges as cat
from quorum.catalog.arguments import ArgumentError, ArgumentValue, check_queue_name
from quorum.catalog.bindings import (
    SELECTOR,
    Binding,
    Exchange,
    check_binding,
    check_exchange,
    check_exchange_name,
    check_reserved,
)
from quorum.catalog.commands import CatalogCommand
from quorum.catalog.exchanges import Bind, DeleteExchange, Unbind
from quorum.v1 import admin_pb2 as pb
from quorum.v1 import queue_pb2

SHOWN_STEPS = 256
"""Steps of showing bindings after which a call waits for its turn."""


class ExchangeService:
    """Methods for exchanges and bindings; AdminService has the others."""

    _hub: Hub

    # ---- exchanges

    @unary_once
    async def DeclareExchange(
        self, request: pb.DeclareExchangeRequest, context: Context
    ) -> pb.DeclareExchangeResponse:
        created = await self._declare_exchange(
            exchange_declaration(request.exchange, request.type, request.arguments)
        )
        return pb.DeclareExchangeResponse(created=created)

    async def _declare_exchange(self, declaration: cat.DeclareExchange) -> bool:
        reply = await self._hub.own_session.change(
            lambda catalog: replace(declaration, seen=catalog.routes.removals)
        )
        assert isinstance(reply, Ok)
        return bool(reply.count)

    @unary_once
    async def DeleteExchange(
        self, request: pb.DeleteExchangeRequest, context: Context
    ) -> pb.DeleteExchangeResponse:
        check_exchange_name(request.exchange)
        check_reserved(request.exchange)

        def deletion(catalog: CatalogView) -> CatalogCommand | None:
            known = catalog.routes.exchange(request.exchange)
            if known is None or request.id not in (0, known.id):
                return None
            return DeleteExchange(known.name, known.id, request.if_unused)

        if deletion(self._hub.catalog) is None:
            await self._hub.requests.current_catalog()
        if await self._hub.own_session.change(deletion) is None:
            raise _no_exchange(request.exchange, request.id)
        return pb.DeleteExchangeResponse()

    @unary_once
    async def ListExchanges(
        self, request: pb.ListExchangesRequest, context: Context
    ) -> pb.ListExchangesResponse:
        routes = (await self._hub.requests.current_catalog()).routes
        wanted = [
            each
            for each in routes.exchanges()
            if each.name.startswith(request.prefix) and each.name > request.after
        ]
        limit = request.limit or len(wanted)
        found = heapq.nsmallest(limit, wanted, key=attrgetter("name"))
        response = pb.ListExchangesResponse()
        left = LISTED_BYTES
        for exchange in found:
            shown = _shown(exchange, routes.count_from(exchange.name))
            left -= shown.ByteSize()
            if left < 0:
                break
            response.exchanges.append(shown)
        if len(response.exchanges) < len(wanted):
            response.next_after = response.exchanges[-1].name
        return response

    # ---- bindings

    @unary_once
    async def AddBinding(self, request: pb.AddBindingRequest, context: Context) -> pb.AddBindingResponse:
        added = await self._bind(await self._binding(request.binding, owner_of(context.peer())))
        return pb.AddBindingResponse(added=added)

    async def _bind(self, binding: Binding) -> bool:
        command = bind_command(binding)
        reply = await self._hub.own_session.change(
            lambda catalog: replace(command, seen=catalog.routes.removals)
        )
        assert isinstance(reply, Ok)
        return bool(reply.count)

    @unary_once
    async def RemoveBinding(
        self, request: pb.RemoveBindingRequest, context: Context
    ) -> pb.RemoveBindingResponse:
        number = request.binding.id
        if not number:
            binding = await self._binding(request.binding, owner_of(context.peer()))
            known = (await self._hub.requests.current_catalog()).routes.find(binding)
            number = 0 if known is None else known.id
        reply = await self._hub.own_session.change(lambda catalog: Unbind(number)) if number else None
        if not isinstance(reply, Ok) or not reply.count:
            raise status.not_found(f"exchange {request.binding.source!r} has no such binding")
        return pb.RemoveBindingResponse()

    @unary_once
    async def ListBindings(
        self, request: pb.ListBindingsRequest, context: Context
    ) -> pb.ListBindingsResponse:
        if request.queue and request.exchange:
            raise status.invalid(
                "bad_argument", "bindings lead to a queue or to an exchange; give one of them"
            )
        routes = (await self._hub.requests.current_catalog()).routes
        kind, name = ("queue", request.queue) if request.queue else ("exchange", request.exchange)
        if name:
            found = routes.bindings_of(kind, name)
        elif request.source:
            found = routes.bindings_of("exchange", request.source)
        else:
            found = routes.bindings()
        wanted = (kind, name) if name else None
        listed = await asyncio.to_thread(_listed, found, request.source, wanted, request.after)
        response = pb.ListBindingsResponse()
        left, steps = LISTED_BYTES, 0
        for binding in listed:
            steps += _steps_of(binding)
            if steps > SHOWN_STEPS:
                await self._hub.turns.take(CALLER.get(), steps)
                steps = 0
            shown = shown_binding(binding)
            left -= shown.ByteSize()
            if left < 0:
                response.next_after = response.bindings[-1].id
                break
            response.bindings.append(shown)
        return response

    async def _binding(self, wanted: pb.Binding, owner: int) -> Binding:
        """`read_binding`, of an exchange of the catalog. owner: of the call (owners.owner_of)."""
        check_exchange_name(wanted.source)
        known = self._hub.catalog.routes.exchange(wanted.source)
        if known is None:
            known = (await self._hub.requests.current_catalog()).routes.exchange(wanted.source)
        return await read_binding(wanted, known, self._hub.filters, owner)


def exchange_declaration(name: str, kind: str, values: Mapping[str, queue_pb2.Value]) -> cat.DeclareExchange:
    """The command that declares an exchange. Raises ArgumentError."""
    arguments = {each: argument(each, value) for each, value in values.items()}
    check_exchange(name, kind, arguments)
    return cat.DeclareExchange(name, kind, tuple(sorted(arguments.items())))


def bind_command(binding: Binding) -> Bind:
    return Bind(
        binding.source,
        binding.kind,
        binding.destination,
        binding.routing_key,
        binding.arguments,
        binding.selector,
    )


async def read_binding(wanted: pb.Binding, source: Exchange | None, filters: Filters, owner: int) -> Binding:
    """The binding that a request means, without its id. source: the exchange of its name, None if there is none. Its
    selector is parsed when it is the owner's turn. Raises ArgumentError or StatusError."""
    check_exchange_name(wanted.source)
    kind = wanted.WhichOneof("destination")
    if kind is None:
        raise ArgumentError(f"a binding of exchange {wanted.source!r} leads to a queue or to an exchange")
    destination: str = getattr(wanted, kind)
    if kind == "queue":
        check_queue_name(destination)
    else:
        check_exchange_name(destination)
    arguments: dict[str, ArgumentValue] = {
        name: argument(name, value) for name, value in wanted.arguments.items()
    }
    if source is None:
        raise _no_exchange(wanted.source)
    selector = ""
    if source.type == "selector":
        selector = (await filters.encoding(_selector(source, arguments), owner)).hex()
    pairs = tuple(sorted(arguments.items()))
    binding = Binding(0, wanted.source, kind, destination, wanted.routing_key, pairs, selector)
    check_binding(source.type, binding)
    return binding


def _selector(exchange: Exchange, arguments: dict[str, ArgumentValue]) -> SelectorText:
    """Take the selector from a binding's arguments. Without one, the binding selects every message."""
    text = arguments.pop(SELECTOR, "")
    if not isinstance(text, str):
        raise ArgumentError(
            f"a binding of the selector exchange {exchange.name!r} has {SELECTOR} {text!r}; allowed: a JMS selector, "
            "as text"
        )
    return SelectorText(text)


def _shown(exchange: Exchange, bindings: int) -> pb.ExchangeInfo:
    shown = pb.ExchangeInfo(name=exchange.name, type=exchange.type, id=exchange.id, bindings=bindings)
    set_arguments(shown.arguments, exchange.arguments)
    return shown


def _listed(found: list[Binding], source: str, to: tuple[str, str] | None, after: int) -> list[Binding]:
    """Those from this source, empty for any, to this destination, with an id above `after`, by id."""
    return sorted(
        [
            each
            for each in found
            if each.id > after
            and source in ("", each.source)
            and (to is None or (each.kind, each.destination) == to)
        ],
        key=attrgetter("id"),
    )


def _steps_of(binding: Binding) -> int:
    """The steps of `shown_binding` (api.turns)."""
    return 4 + len(binding.selector) // 16


def shown_binding(binding: Binding) -> pb.Binding:
    shown = pb.Binding(source=binding.source, routing_key=binding.routing_key, id=binding.id)
    setattr(shown, binding.kind, binding.destination)
    set_arguments(shown.arguments, binding.arguments)
    if binding.selector:
        shown.arguments[SELECTOR].text = selector_text(bytes.fromhex(binding.selector))
    return shown


def _no_exchange(name: str, number: int = 0) -> status.StatusError:
    """number: the id that was asked for, 0 for any."""
    text = f"there is no exchange {name!r}" + (f" with the id {number}" if number else "")
    return status.not_found(text)
