"""The part of quorum.v1.Admin for definitions: queues, exchanges, bindings and policies, as they were given.

An export reads the view of the catalog at one moment. An import makes what is missing, by the same commands as the
calls for single objects, and changes nothing that exists.

A dry run applies the commands to a copy of the catalog that nobody else has (`CatalogMachine.rehearsing`), so its
answers are those of the machine itself: also the limits of numbers, and the refusals of bindings whose ends would not
exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from fifo.effects import Ok, Refused
from quorum.api import status
from quorum.api.grpc.argument_values import set_arguments
from quorum.api.grpc.handlers import Context, streaming
from quorum.api.hub.catalog_view import CatalogView
from quorum.api.hub.published_state import PublishedState
from quorum.api.owners import owner_of
from quorum.api.services.exchange_service import (
    ExchangeService,
    bind_command,
    exchange_declaration,
    read_binding,
    shown_binding,
)
from quorum.api.services.policy_service import policy_command, shown_policy
from quorum.api.services.queue_admin_service import QueueAdminService
from quorum.api.shares import Shares
from quorum.catalog.arguments import ArgumentError, with_past_defaults
from quorum.catalog.bindings import Binding, Exchange
from quorum.catalog.commands import CatalogCommand, SetPolicy
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.policies import Policy
from quorum.catalog.queues import CatalogQueue
from quorum.v1 import admin_pb2 as pb
from quorum_selectors.errors import EncodingError

PART_OBJECTS, PART_BYTES = 1_000, 256 << 10
"""Approximate maximum of objects, and of bytes, in one answer of an export. It takes some milliseconds."""
CALLS_AT_ONCE = 64
"""Objects of a request that are added at a time."""
TURN_OBJECTS = 50
"""Objects of a dry run between two turns of the event loop."""
MAX_REHEARSALS = 4
"""Dry runs of a node at a time; an address may have as many as are left free. Each has a copy of the catalog: up to
100 MB with the largest one."""
NEXT_LIMIT_S = 30.0
"""Time that an import waits for the client's next request."""
REHEARSAL_LIMIT_S = 120.0
"""Time limit of a dry run. One with 100,000 selectors takes half a minute."""

Result = pb.DefinitionResult
_ERRORS = (status.StatusError, ArgumentError, EncodingError)
_TRANSIENT = (
    status.Code.ABORTED,
    status.Code.DEADLINE_EXCEEDED,
    status.Code.INTERNAL,
    status.Code.UNAVAILABLE,
)
"""Codes that say nothing about the definition: the call fails."""


class _Catalog(NamedTuple):
    """The objects of one moment, in no particular order."""

    queues: list[CatalogQueue]
    policies: list[Policy]
    exchanges: list[Exchange]
    bindings: list[Binding]

    @classmethod
    def of(cls, view: CatalogView) -> _Catalog:
        routes = view.routes
        policies = list(view.policies.by_name.values())
        return cls(view.queues(), policies, routes.exchanges(), routes.bindings())


class DefinitionService(ExchangeService, QueueAdminService):
    """Methods for definitions; AdminService has the others."""

    def __init__(self) -> None:
        super().__init__()
        self._rehearsals = Shares(MAX_REHEARSALS)
        """dry runs under way, by address"""

    @streaming
    async def ExportDefinitions(
        self, request: pb.ExportDefinitionsRequest, context: Context
    ) -> AsyncIterator[pb.ExportDefinitionsResponse]:
        found = await asyncio.to_thread(_sorted, _Catalog.of(await self._hub.requests.current_catalog()))
        for part in _parts(found):
            yield pb.ExportDefinitionsResponse(definitions=part)

    @streaming
    async def ImportDefinitions(
        self,
        requests: AsyncIterator[pb.ImportDefinitionsRequest],
        context: Context,
    ) -> AsyncIterator[pb.ImportDefinitionsResponse]:
        first = await _next(requests, NEXT_LIMIT_S)
        if first is None:
            return
        if first.dry_run:
            async with aclosing(self._rehearse(first, requests, owner_of(context.peer()))) as responses:
                async for response in responses:
                    yield response
            return
        request: pb.ImportDefinitionsRequest | None = first
        while request is not None:
            await self._hub.requests.current_catalog()
            results = await self._import(request.definitions, owner_of(context.peer()))
            yield pb.ImportDefinitionsResponse(results=results)
            request = await _next(requests, NEXT_LIMIT_S)

    # ---- an import

    async def _import(self, definitions: pb.Definitions, owner: int) -> list[pb.DefinitionResult]:
        results = await _several(self._import_exchange, definitions.exchanges)
        results += await _several(self._import_queue, definitions.queues)
        results += await _several(partial(self._import_binding, owner), definitions.bindings)
        policies = [await _judged(self._import_policy(each)) for each in definitions.policies]
        if any(each.outcome == Result.ADDED for each in policies):
            await self._hub.requests.await_configured()
        return results + policies

    async def _import_exchange(self, wire: pb.ExchangeDefinition) -> bool:
        return await self._declare_exchange(exchange_declaration(wire.name, wire.type, wire.arguments))

    async def _import_queue(self, wire: pb.QueueDefinition) -> bool:
        return await self._declare_queue(self._queue_declaration(wire.name, wire.arguments))

    async def _import_binding(self, owner: int, wire: pb.Binding) -> bool:
        return await self._bind(await self._binding(wire, owner))

    async def _import_policy(self, wire: pb.Policy) -> bool:
        command = policy_command(wire)

        def made(catalog: CatalogView) -> SetPolicy | None:
            if command.name in catalog.policies.by_name:
                return None
            return SetPolicy(
                command.name, command.pattern, command.priority, command.arguments, catalog.changes
            )

        if await self._hub.own_session.change(made) is not None:
            return True
        _compare_policies(self._hub.catalog.policies.by_name[command.name], command)
        return False

    # ---- a dry run

    async def _rehearse(
        self,
        first: pb.ImportDefinitionsRequest,
        requests: AsyncIterator[pb.ImportDefinitionsRequest],
        owner: int,
    ) -> AsyncGenerator[pb.ImportDefinitionsResponse, None]:
        with self._place(owner):
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + REHEARSAL_LIMIT_S
            view = await self._hub.requests.current_catalog()
            machine = await asyncio.to_thread(
                CatalogMachine.rehearsing, view.queue_groups, *_Catalog.of(view)
            )
            request: pb.ImportDefinitionsRequest | None = first
            while request is not None:
                results: list[pb.DefinitionResult] = []
                for make in self._commands(machine, request.definitions, owner):
                    if len(results) % TURN_OBJECTS == 0:
                        await asyncio.sleep(0)
                    results.append(await _rehearsed(machine, make, self._hub.published))
                yield pb.ImportDefinitionsResponse(results=results)
                left_s = max(0.0, deadline_s - loop.time())
                request = await _next(requests, min(NEXT_LIMIT_S, left_s))

    @contextmanager
    def _place(self, owner: int) -> Iterator[None]:
        shares = self._rehearsals
        if not shares.enter(owner):
            raise status.unavailable(
                "overloaded",
                f"{shares.total} dry runs are under way at this node, {shares.of(owner)} of them of this client's "
                f"address; allowed: {shares.most}, and of one address as many as are left free; try again later",
            )
        try:
            yield
        finally:
            shares.leave(owner)

    def _commands(
        self, machine: CatalogMachine, definitions: pb.Definitions, owner: int
    ) -> Iterator[Callable[[], CatalogCommand | Awaitable[CatalogCommand]]]:
        """Functions that return the commands of an import, or raise one of _ERRORS, in the order of the results."""
        for exchange in definitions.exchanges:
            yield partial(exchange_declaration, exchange.name, exchange.type, exchange.arguments)
        for queue in definitions.queues:
            yield partial(self._queue_declaration, queue.name, queue.arguments)
        for binding in definitions.bindings:
            yield partial(self._bind_command, machine, binding, owner)
        for policy in definitions.policies:
            yield partial(policy_command, policy)

    async def _bind_command(self, machine: CatalogMachine, wire: pb.Binding, owner: int) -> CatalogCommand:
        source = machine.exchanges.by_name.get(wire.source)
        return bind_command(await read_binding(wire, source, self._hub.filters, owner))


async def _rehearsed(
    machine: CatalogMachine,
    make: Callable[[], CatalogCommand | Awaitable[CatalogCommand]],
    published: PublishedState,
) -> pb.DefinitionResult:
    try:
        made = make()
        command = await made if isinstance(made, Awaitable) else made
        published.check_version(command)
        if isinstance(command, SetPolicy):
            known = machine.policies.by_name.get(command.name)
            if known is not None:
                _compare_policies(known, command)
        reply = machine.rehearse(command, published.version)
        if isinstance(reply, Refused):
            raise status.StatusError(status.of_refused(reply))
    except _ERRORS as error:
        return _refusal(error)
    assert isinstance(reply, Ok)
    return _accepted(bool(reply.count))


def _accepted(is_new: bool) -> pb.DefinitionResult:
    return Result(outcome=Result.ADDED if is_new else Result.SAME)


def _refusal(
    error: status.StatusError | ArgumentError | EncodingError,
) -> pb.DefinitionResult:
    """The result of a definition that the catalog, or the check of the request, refuses. Raises the error if it says
    nothing about the definition."""
    found = error.status if isinstance(error, status.StatusError) else status.of_error(error)
    if found.code in _TRANSIENT:
        raise error
    if found.reason == "different_arguments":
        return Result(outcome=Result.DIFFERS, text=found.message)
    return Result(outcome=Result.REFUSED, reason=found.reason.upper(), text=found.message)


async def _judged(work: Awaitable[bool]) -> pb.DefinitionResult:
    try:
        return _accepted(await work)
    except _ERRORS as error:
        return _refusal(error)


async def _several(add: Callable[[Any], Awaitable[bool]], wires: Sequence[Any]) -> list[pb.DefinitionResult]:
    """The results in the order of the definitions. CALLS_AT_ONCE are added at a time."""
    results: list[pb.DefinitionResult] = []
    for first in range(0, len(wires), CALLS_AT_ONCE):
        part = [_judged(add(wire)) for wire in wires[first : first + CALLS_AT_ONCE]]
        for result in await asyncio.gather(*part, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
    return results


def _compare_policies(known: Policy, wanted: SetPolicy) -> None:
    """StatusError if an import would change the policy."""
    found = []
    for what in ("pattern", "priority"):
        old, new = getattr(known, what), getattr(wanted, what)
        if old != new:
            found.append(f"the {what} is {old!r}, not {new!r}")
    old_arguments, new_arguments = dict(known.arguments), dict(wanted.arguments)
    for name in sorted(old_arguments | new_arguments):
        old, new = old_arguments.get(name), new_arguments.get(name)
        if old != new or type(old) is not type(new):
            found.append(f"{name} is {_shown(old)}, not {_shown(new)}")
    if found:
        text = f"policy {known.name!r} exists otherwise: {'; '.join(found)}"
        raise status.StatusError(status.make(status.Code.FAILED_PRECONDITION, "different_arguments", text))


def _shown(value: object) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


async def _next(
    requests: AsyncIterator[pb.ImportDefinitionsRequest], limit_s: float
) -> pb.ImportDefinitionsRequest | None:
    """The client's next request; None after the last one. StatusError if it does not come in time."""
    try:
        async with asyncio.timeout(limit_s):
            return await anext(requests, None)
    except TimeoutError as error:
        text = f"an import's next request did not come within {limit_s:g} s"
        raise status.StatusError(status.make(status.Code.DEADLINE_EXCEEDED, "no_request", text)) from error


# ---- exports


def _sorted(found: _Catalog) -> _Catalog:
    name = attrgetter("name")
    return _Catalog(
        sorted(found.queues, key=name),
        sorted(found.policies, key=name),
        sorted((each for each in found.exchanges if each.id), key=name),
        sorted(found.bindings, key=attrgetter("id")),
    )


def _parts(found: _Catalog) -> Iterator[pb.Definitions]:
    """The definitions in answers of PART_OBJECTS and about PART_BYTES."""
    part, count, size = pb.Definitions(), 0, 0
    for name, shown in _shown_definitions(found):
        getattr(part, name).append(shown)
        count, size = count + 1, size + shown.ByteSize()
        if count >= PART_OBJECTS or size >= PART_BYTES:
            yield part
            part, count, size = pb.Definitions(), 0, 0
    if count:
        yield part


def _shown_definitions(found: _Catalog) -> Iterator[tuple[str, Any]]:
    """(field of Definitions, the definition)."""
    for exchange in found.exchanges:
        definition = pb.ExchangeDefinition(name=exchange.name, type=exchange.type)
        set_arguments(definition.arguments, exchange.arguments)
        yield "exchanges", definition
    for queue in found.queues:
        declared = pb.QueueDefinition(name=queue.name)
        set_arguments(declared.arguments, with_past_defaults(queue.arguments, queue.version))
        yield "queues", declared
    for binding in found.bindings:
        wire = shown_binding(binding)
        wire.id = 0
        yield "bindings", wire
    for policy in found.policies:
        yield "policies", shown_policy(policy)
