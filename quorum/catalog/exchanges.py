"""The catalog's exchanges and bindings, with the commands that change them.

Only the records are replicated state, with the numbers that the next ones get. The router (router.py) is local: each
member's API builds one from the changes that `take_changes` returns.

A binding leads from an exchange to a queue or to another exchange, and all of them exist. So the deletion of an
exchange or of a queue removes the bindings from it and to it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from operator import itemgetter

from fifo.effects import Ok, Refused, Reply
from fifo.frozen_dataclasses import dataclass
from quorum.catalog.arguments import ArgumentError, Arguments, check_size
from quorum.catalog.bindings import (
    PREDECLARED,
    Binding,
    Exchange,
    check_binding,
    check_exchange,
    check_exchange_name,
    check_reserved,
)
from quorum.catalog.lease_times import UNSEEN

MAX_EXCHANGES = 10_000
"""Maximum number of exchanges, besides those that are always there."""
MAX_BINDINGS = 100_000
"""Maximum number of bindings."""
MAX_BINDINGS_EACH = 16_384
"""Maximum number of bindings from one exchange, and to one queue or exchange. One command may remove them all."""
MAX_BINDINGS_BYTES = 32 << 20
"""Maximum bytes of all bindings (Binding.size_bytes). Every member keeps them, and every snapshot of the catalog has
them."""


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Declares an exchange: creates it, or confirms that it exists with the same meaning. arguments: by name. seen: the
    number of removals (Exchanges.removals) when the command was made; no exchange is created if there are more by
    now. The reply's count is 1 if it was created."""

    name: str
    type: str
    arguments: Arguments
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """Deletes an exchange with its bindings. exchange: the id that is meant, 0 for any. if_unused: only if no binding
    leads from it."""

    name: str
    exchange: int = 0
    if_unused: bool = False


@dataclass(frozen=True, slots=True)
class Bind:
    """Adds a binding, or confirms that it exists. The fields are those of Binding; seen: as in DeclareExchange. The
    reply's count is 1 if it was added."""

    source: str
    kind: str
    destination: str
    routing_key: str = ""
    arguments: Arguments = ()
    selector: str = ""
    seen: int = UNSEEN


@dataclass(frozen=True, slots=True)
class Unbind:
    """Removes the binding with this id. The reply's count is 1 if it was there."""

    binding: int


ExchangeCommand = DeclareExchange | DeleteExchange | Bind | Unbind


@dataclass(frozen=True, slots=True)
class RoutingChanges:
    """Changes of exchanges and bindings since the last such record. A view removes first, then it adds exchanges, then
    bindings. exchanges, bindings: new ones. removed_exchanges, removed_bindings: ids. removals: as in Exchanges."""

    exchanges: tuple[Exchange, ...] = ()
    removed_exchanges: tuple[int, ...] = ()
    bindings: tuple[Binding, ...] = ()
    removed_bindings: tuple[int, ...] = ()
    removals: int = 0


class Exchanges:
    """All exchanges and bindings.

    next_id: of the next exchange or binding. removals: number of exchanges and bindings that were removed. by_name: the
    exchanges, with those that are always there. bindings: by id, ascending.
    """

    def __init__(self) -> None:
        self.next_id = 1
        self.removals = 0
        self.by_name: dict[str, Exchange] = dict(PREDECLARED)
        self.bindings: dict[int, Binding] = {}
        self._by_identity: dict[tuple[object, ...], int] = {}
        self._leading: dict[tuple[str, str, str], dict[int, None]] = {}
        """ids of bindings by ("from" or "to", kind, name) of each of their ends"""
        self._size_bytes = 0
        self._changed_exchanges: dict[int, Exchange | None] = {}
        self._changed_bindings: dict[int, Binding | None] = {}
        """see take_changes; local, never in a snapshot"""
        self._taken_removals = -1

    # ---- commands

    def declare(self, command: DeclareExchange) -> Reply:
        arguments = dict(command.arguments)
        try:
            check_exchange(command.name, command.type, arguments)
            known = self.by_name.get(command.name)
            if known is None:
                check_reserved(command.name)
                check_size(arguments)
        except ArgumentError as error:
            return Refused("bad_argument", str(error))
        wanted = Exchange(
            self.next_id,
            command.name,
            command.type,
            tuple((key, arguments[key]) for key in sorted(arguments)),
        )
        if known is not None:
            if replace(wanted, id=known.id) == known:
                return Ok(0)
            return Refused(
                "different_arguments",
                f"exchange {known.name!r} exists as {_described(known)}, not as {_described(wanted)}",
            )
        if command.seen not in (UNSEEN, self.removals):
            return _outdated(command)
        count = len(self.by_name) - len(PREDECLARED)
        if count >= MAX_EXCHANGES:
            return Refused("limit", f"there are {count} exchanges; at most {MAX_EXCHANGES} are allowed")
        self.next_id += 1
        self.add_exchange(wanted)
        return Ok(1)

    def delete(self, command: DeleteExchange) -> Reply:
        try:
            check_exchange_name(command.name)
            check_reserved(command.name)
        except ArgumentError as error:
            return Refused("bad_argument", str(error))
        exchange = self.by_name.get(command.name)
        if exchange is None:
            return Refused("not_found", f"there is no exchange {command.name!r}")
        if command.exchange not in (0, exchange.id):
            return _outdated(command)
        bindings = self._leading.get(("from", "exchange", exchange.name), {})
        if command.if_unused and bindings:
            return Refused(
                "in_use", f"exchange {exchange.name!r} has {len(bindings)} bindings; remove them first"
            )
        self._remove_bindings("exchange", exchange.name)
        del self.by_name[exchange.name]
        self.removals += 1
        _note_removed(self._changed_exchanges, exchange.id)
        return Ok(1)

    def bind(self, command: Bind, queues: Container[str]) -> Reply:
        """queues: the names of all queues."""
        binding = Binding(
            self.next_id,
            command.source,
            command.kind,
            command.destination,
            command.routing_key,
            tuple(sorted(command.arguments, key=itemgetter(0))),
            command.selector,
        )
        try:
            check_exchange_name(command.source)
            if command.kind == "exchange":
                check_exchange_name(command.destination)
            source = self.by_name.get(command.source)
            if source is None:
                return Refused("not_found", f"there is no exchange {command.source!r}")
            check_binding(source.type, binding)
        except ArgumentError as error:
            return Refused("bad_argument", str(error))
        if command.destination not in (queues if command.kind == "queue" else self.by_name):
            return Refused("not_found", f"there is no {command.kind} {command.destination!r}")
        if binding.identity in self._by_identity:
            return Ok(0)
        if command.seen not in (UNSEEN, self.removals):
            return _outdated(command)
        refused = self._refuse_more(binding)
        if refused is not None:
            return refused
        self.next_id += 1
        self.add_binding(binding)
        return Ok(1)

    def _refuse_more(self, binding: Binding) -> Refused | None:
        if len(self.bindings) >= MAX_BINDINGS:
            return Refused(
                "limit", f"there are {len(self.bindings)} bindings; at most {MAX_BINDINGS} are allowed"
            )
        for end in _ends(binding):
            count = len(self._leading.get(end, ()))
            if count >= MAX_BINDINGS_EACH:
                way, kind, name = end
                return Refused(
                    "limit",
                    f"{count} bindings lead {way} the {kind} {name!r}; at most {MAX_BINDINGS_EACH} are allowed",
                )
        size = self._size_bytes + binding.size_bytes
        if size > MAX_BINDINGS_BYTES:
            return Refused("limit", f"bindings of {size} bytes; at most {MAX_BINDINGS_BYTES} are allowed")
        return None

    def unbind(self, command: Unbind) -> Reply:
        if command.binding not in self.bindings:
            return Ok(0)
        self._remove_binding(command.binding)
        return Ok(1)

    def forget_queue(self, name: str) -> None:
        """Remove the bindings of a queue that is removed."""
        self._remove_bindings("queue", name)

    # ---- state

    def add_exchange(self, exchange: Exchange) -> None:
        """Add an exchange that was checked."""
        self.by_name[exchange.name] = exchange
        self._changed_exchanges[exchange.id] = exchange

    def add_binding(self, binding: Binding) -> None:
        """Add a binding that was checked, with the highest id so far."""
        self.bindings[binding.id] = binding
        self._by_identity[binding.identity] = binding.id
        for end in _ends(binding):
            self._leading.setdefault(end, {})[binding.id] = None
        self._size_bytes += binding.size_bytes
        self._changed_bindings[binding.id] = binding

    def _remove_bindings(self, kind: str, name: str) -> None:
        for way in ("from", "to"):
            for number in list(self._leading.get((way, kind, name), ())):
                self._remove_binding(number)

    def _remove_binding(self, number: int) -> None:
        binding = self.bindings.pop(number)
        del self._by_identity[binding.identity]
        for end in _ends(binding):
            numbers = self._leading[end]
            del numbers[number]
            if not numbers:
                del self._leading[end]
        self._size_bytes -= binding.size_bytes
        self.removals += 1
        _note_removed(self._changed_bindings, number)

    # ---- changes

    def take_changes(self) -> RoutingChanges | None:
        """What has changed since the last call (everything, at the first call); None if nothing has. O(changes)."""
        exchanges, bindings = self._changed_exchanges, self._changed_bindings
        if not exchanges and not bindings and self.removals == self._taken_removals:
            return None
        self._taken_removals = self.removals
        self._changed_exchanges, self._changed_bindings = {}, {}
        return RoutingChanges(
            tuple([each for each in exchanges.values() if each is not None]),
            tuple([number for number, each in exchanges.items() if each is None]),
            tuple([each for each in bindings.values() if each is not None]),
            tuple([number for number, each in bindings.items() if each is None]),
            self.removals,
        )

    def whole(self) -> RoutingChanges:
        """Everything, for a view that is empty."""
        exchanges = tuple([each for each in self.by_name.values() if each.id])
        return RoutingChanges(exchanges, (), tuple(self.bindings.values()), (), self.removals)


def _note_removed(changed: dict[int, Exchange | None] | dict[int, Binding | None], number: int) -> None:
    """Note that this was removed; if its addition was not taken yet, there is nothing to note."""
    if changed.get(number) is not None:
        del changed[number]
    else:
        changed[number] = None


def _ends(binding: Binding) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    return ("from", "exchange", binding.source), ("to", binding.kind, binding.destination)


def _described(exchange: Exchange) -> str:
    arguments = ", ".join(f"{name} {value!r}" for name, value in exchange.arguments)
    return f"{exchange.type} with {arguments}" if arguments else exchange.type


def _outdated(command: ExchangeCommand) -> Refused:
    return Refused(
        "outdated",
        f"the state that {type(command).__name__} was made from has changed; make the command again",
    )
