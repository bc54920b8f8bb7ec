"""Routes messages through exchanges to queues: a local index over the catalog's exchanges and bindings.

A message visits exchanges, each once, so bindings between exchanges may form cycles. At each exchange it takes the
bindings that select it. If none does, it goes on to the exchange's alternate one, if that exists. The queues that it
reaches are sorted and distinct, so the result depends on the exchanges and bindings alone.

Adding or removing a binding costs its own size. The bindings of headers and selector exchanges are conditions in a
`PredicateIndex`, each different condition once: a message is compared only with those that it may meet.

The router counts steps: nodes of topic trees, conditions and lookups, long texts, bindings taken. A message that needs
more than MAX_STEPS is refused (`TooManySteps`), because the event loop does nothing else meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from fifo.frozen_dataclasses import dataclass
from quorum.catalog.bindings import Binding, Exchange, condition_of
from quorum.catalog.topics import TopicTree
from quorum_selectors.compiled import Condition, compile_expression
from quorum_selectors.expression import Expression, Field, FieldValue, Like, steps, walk
from quorum_selectors.predicates import PredicateIndex

Fields = Mapping[str, FieldValue]
Destination = tuple[str, str]
"""(kind, name)"""
MAX_STEPS = 131_072
"""Maximum steps for one message. They take up to 0.1 s."""
SEARCHED_A_STEP = 128
"""Characters in which one step looks for the literal segments of a LIKE pattern. A segment with `_` takes a step for
each character."""


class TooManySteps(Exception):
    """Routing one message would take too long; fewer bindings have to apply to it."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a message goes. queues: names, sorted and distinct. steps: what it cost."""

    queues: tuple[str, ...]
    steps: int


class _Message:
    """A message on its way. fields: called once at most, when an exchange needs them."""

    __slots__ = ("_fields", "_read", "key", "steps")

    def __init__(self, key: str, read: Callable[[], Fields]) -> None:
        self.key = key
        self._read = read
        self._fields: Fields | None = None
        self.steps = 0

    @property
    def fields(self) -> Fields:
        if self._fields is None:
            self._fields = self._read()
        return self._fields

    def spend(self, count: int) -> None:
        self.steps += count
        if self.steps > MAX_STEPS:
            raise TooManySteps(f"routing a message takes more than {MAX_STEPS} steps")


class _Direct:
    """Bindings by their key; those of a fanout exchange have all the same one."""

    def __init__(self, *, is_fanout: bool) -> None:
        self._is_fanout = is_fanout
        self._by_key: dict[str, dict[Destination, None]] = {}

    def add(self, binding: Binding, destination: Destination) -> None:
        self._by_key.setdefault(binding.routing_key, {})[destination] = None

    def remove(self, binding: Binding, destination: Destination) -> None:
        found = self._by_key[binding.routing_key]
        del found[destination]
        if not found:
            del self._by_key[binding.routing_key]

    def select(self, message: _Message) -> Iterable[Iterable[Destination]]:
        found = self._by_key.get("" if self._is_fanout else message.key)
        return () if found is None else (found,)


class _Topic:
    def __init__(self) -> None:
        self._tree: TopicTree[Destination] = TopicTree()

    def add(self, binding: Binding, destination: Destination) -> None:
        self._tree.add(binding.routing_key, destination)

    def remove(self, binding: Binding, destination: Destination) -> None:
        self._tree.remove(binding.routing_key, destination)

    def select(self, message: _Message) -> Iterable[Iterable[Destination]]:
        return self._tree.match(message.key, message.spend)


class _Condition:
    """A condition, and the bindings that have it, by their id."""

    __slots__ = ("_searches", "_steps", "_test", "by_binding", "expression")

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self._steps = steps(expression)
        self._searches = _searches(expression)
        self.by_binding: dict[int, Destination] = {}
        self._test: Condition | None = None

    def cost(self, fields: Fields) -> int:
        """The steps of evaluating it."""
        count = self._steps
        for key, characters in self._searches:
            text = fields.get(key)
            if isinstance(text, str):
                count += len(text) // characters
        return count

    def holds(self, fields: Fields) -> bool:
        if self._test is None:
            self._test = compile_expression(self.expression)
        return self._test(fields) is True


def _searches(expression: Expression) -> list[tuple[str, int]]:
    """The LIKE tests that search a field for what is between two `%`: its key, and the characters of one step."""
    found = []
    for part in walk(expression):
        match part:
            case Like(Field(key), pattern) if len(pattern) > 2:
                has_wildcard = any(isinstance(run, int) for segment in pattern[1:-1] for run in segment)
                found.append((key, 1 if has_wildcard else SEARCHED_A_STEP))
    return found


class _Conditions:
    """Bindings with conditions. Equal conditions are evaluated once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._index: PredicateIndex[bytes] = PredicateIndex()
        self._conditions: dict[bytes, _Condition] = {}
        """by their encoding"""

    def add(self, binding: Binding, destination: Destination) -> None:
        encoded, expression = condition_of(self._kind, binding)
        condition = self._conditions.get(encoded)
        if condition is None:
            condition = self._conditions[encoded] = _Condition(expression)
            self._index.add(encoded, expression)
        condition.by_binding[binding.id] = destination

    def remove(self, binding: Binding, destination: Destination) -> None:
        encoded, _ = condition_of(self._kind, binding)
        condition = self._conditions[encoded]
        del condition.by_binding[binding.id]
        if not condition.by_binding:
            del self._conditions[encoded]
            self._index.remove(encoded)

    def select(self, message: _Message) -> Iterable[Iterable[Destination]]:
        fields = message.fields
        message.spend(self._index.lookups)
        for tokens in (self._index.named(fields), self._index.rest):
            for token in tokens:
                condition = self._conditions[token]
                message.spend(condition.cost(fields))
                if condition.holds(fields):
                    yield condition.by_binding.values()


_Bindings = _Direct | _Topic | _Conditions


def _bindings_of(kind: str) -> _Bindings:
    if kind in ("direct", "fanout"):
        return _Direct(is_fanout=kind == "fanout")
    return _Topic() if kind == "topic" else _Conditions(kind)


class Router:
    """Exchanges and bindings, to route by. It belongs to one thread.

    queues: the names of all queues, for the default exchange, whose name is empty; it routes to the queue whose name is
    the routing key. The bindings of a deleted exchange or queue are removed before it. A caller routes only through
    exchanges that exist.
    """

    def __init__(self, queues: Container[str]) -> None:
        self._queues = queues
        self._exchanges: dict[str, tuple[_Bindings, str]] = {}
        """bindings and alternate exchange, by name"""

    def declare(self, exchange: Exchange) -> None:
        """Add an exchange; its name is free."""
        self._exchanges[exchange.name] = _bindings_of(exchange.type), exchange.alternate

    def delete(self, name: str) -> None:
        """Remove an exchange."""
        del self._exchanges[name]

    def bind(self, binding: Binding) -> None:
        """Add a binding; its exchange is there. O(size of the binding)."""
        self._exchanges[binding.source][0].add(binding, (binding.kind, binding.destination))

    def unbind(self, binding: Binding) -> None:
        """Remove a binding. O(size of the binding), and as `PredicateIndex.remove`."""
        self._exchanges[binding.source][0].remove(binding, (binding.kind, binding.destination))

    def route(self, exchange: str, key: str, fields: Callable[[], Fields] = dict) -> Routed:
        """Where a message goes. fields: reads its properties; called only if an exchange on the way needs them. Raises
        TooManySteps."""
        message = _Message(key, fields)
        if not exchange:
            return Routed((key,) if key in self._queues else (), 1)
        queues: dict[str, None] = {}
        seen = {exchange: None}
        waiting = [exchange]
        while waiting:
            message.spend(1)
            known = self._exchanges.get(waiting.pop())
            if known is None:  # an alternate exchange that does not exist
                continue
            bindings, alternate = known
            is_selected = False
            for destinations in bindings.select(message):
                message.spend(len(destinations))  # type: ignore[arg-type]
                for kind, name in destinations:
                    is_selected = True
                    if kind == "queue":
                        queues[name] = None
                    elif name not in seen:
                        seen[name] = None
                        waiting.append(name)
            if not is_selected and alternate and alternate not in seen:
                seen[alternate] = None
                waiting.append(alternate)
        return Routed(tuple(sorted(queues)), message.steps)
