"""The event loop's view of exchanges and bindings, with the router that is built from them.

A part of the view of the catalog (catalog_view.py), which passes on the published changes.
"""

from __future__ import annotations

from collections.abc import Container

from quorum.catalog.bindings import PREDECLARED, Binding, Exchange
from quorum.catalog.exchanges import RoutingChanges
from quorum.catalog.router import Router


class ExchangeView:
    """queues: the names of all queues. removals: as in catalog.exchanges.Exchanges. revision: number of changes that
    this view has seen; a message is routed by one of them."""

    def __init__(self, queues: Container[str]) -> None:
        self._queues = queues
        self.revision = 0
        self._begin()

    def _begin(self) -> None:
        self.removals = 0
        self.router = Router(self._queues)
        self._by_name: dict[str, Exchange] = {}
        self._names: dict[int, str] = {}
        self._bindings: dict[int, Binding] = {}
        self._by_identity: dict[tuple[object, ...], Binding] = {}
        self._leading: dict[tuple[str, str], dict[int, Binding]] = {}
        """bindings by (kind, name) of each of their ends"""
        for exchange in PREDECLARED.values():
            self._by_name[exchange.name] = exchange
            self.router.declare(exchange)

    def replaced(self) -> None:
        """The view is empty again: a whole catalog follows."""
        self.revision += 1
        self._begin()

    def apply(self, changes: RoutingChanges) -> None:
        """Apply published changes. O(their size)."""
        self.revision += 1
        for number in changes.removed_bindings:
            self._unbind(number)
        for number in changes.removed_exchanges:
            name = self._names.pop(number, None)
            if name is not None:
                del self._by_name[name]
                self.router.delete(name)
        for exchange in changes.exchanges:
            if exchange.id not in self._names:
                self._names[exchange.id] = exchange.name
                self._by_name[exchange.name] = exchange
                self.router.declare(exchange)
        for binding in changes.bindings:
            self._bind(binding)
        self.removals = changes.removals

    def _bind(self, binding: Binding) -> None:
        if binding.id in self._bindings:
            return
        self._bindings[binding.id] = self._by_identity[binding.identity] = binding
        for end in _ends(binding):
            self._leading.setdefault(end, {})[binding.id] = binding
        self.router.bind(binding)

    def _unbind(self, number: int) -> None:
        binding = self._bindings.pop(number, None)
        if binding is None:
            return
        del self._by_identity[binding.identity]
        for end in _ends(binding):
            found = self._leading[end]
            found.pop(number, None)
            if not found:
                del self._leading[end]
        self.router.unbind(binding)

    # ---- questions

    def exchange(self, name: str) -> Exchange | None:
        """The exchange of this name. The default exchange, whose name is empty, is none of them."""
        return self._by_name.get(name)

    def exchanges(self) -> list[Exchange]:
        """Return a new list of all exchanges, in no particular order."""
        return list(self._by_name.values())

    def bindings(self) -> list[Binding]:
        """Return a new list of all bindings, in no particular order."""
        return list(self._bindings.values())

    def bindings_of(self, kind: str, name: str) -> list[Binding]:
        """Return a new list of the bindings from and to a queue or exchange."""
        return list(self._leading.get((kind, name), {}).values())

    def count_from(self, name: str) -> int:
        """The number of bindings from an exchange. O(bindings from it and to it)."""
        return sum([each.source == name for each in self._leading.get(("exchange", name), {}).values()])

    def find(self, wanted: Binding) -> Binding | None:
        """The binding with the same meaning, whatever its id."""
        return self._by_identity.get(wanted.identity)


def _ends(binding: Binding) -> dict[tuple[str, str], None]:
    """Both ends; one if the binding leads from an exchange to itself."""
    return dict.fromkeys((("exchange", binding.source), (binding.kind, binding.destination)))
