"""A node that publishes to two groups: its session is real, and so are the groups' machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fifo import commands as c
from fifo.effects import Refused, Reply
from fifo.group_machine import GroupMachine
from fifo.queries import group as queries
from fifo.versions import CURRENT
from quorum.api.hub.hub import Hub
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import Confirms
from quorum.catalog.bindings import PREDECLARED, Binding, Exchange, check_binding
from quorum.catalog.exchanges import RoutingChanges
from quorum.catalog.queues import CatalogQueue
from quorum.client.messages.batch import Message, encode_batch
from quorum.node import events as ev
from quorum.node.queries import FindTaken, Query, ReadBarrier, TakenMessages
from quorum.node.wire import operations as op
from quorum.node.wire.batches import BatchLimits, messages

FULL = {"overflow": "reject_publish", "max_length": 1}
FIELDS = {"filter_enabled": True, "filter_field_names": ("colour",)}
SMALL_FIELDS = {**FIELDS, "filter_max_in_memory_bytes_per_msg": 200}
CONFIGS: dict[str, dict[str, Any]] = {
    "a": {}, "b": {}, "full": FULL, "red": FIELDS, "small": SMALL_FIELDS, "far": {}, "far full": FULL,
    **{f"all {number}": {"filter_enabled": True, "filter_field_names": ("*",)} for number in range(5)},
    "urgent": {"max_priority": 5},
}  # fmt: skip
QUEUES = {
    name: CatalogQueue(number, name, 2 if "far" in name else 1, (), c.QueueConfig(name, **config))
    for number, (name, config) in enumerate(CONFIGS.items(), 1)
}
KEYS = tuple(QUEUES)


class Log:
    """The columns of stored operations."""

    def __init__(self) -> None:
        self.operations: dict[tuple[int, int], memoryview] = {}

    def columns(self, index: int, operation: int, queue: int) -> Any:
        return op.columns_of(self.operations[index, operation], queue)


LIMITS = BatchLimits(5_000, 1_000, 1_000_000)


class Node:
    """A node whose groups 1 and 2 apply what is submitted when `groups_answer` is called."""

    def __init__(
        self,
        epoch: int = 1,
        groups: dict[int, GroupMachine] | None = None,
        *,
        limits: BatchLimits = LIMITS,
    ) -> None:
        self.logs = {1: Log(), 2: Log()}
        self.groups = groups or {group: GroupMachine(log) for group, log in self.logs.items()}
        self.sent: list[ev.Submit] = []
        self.commands: list[c.Enqueue] = []
        self.replies: list[Reply | None] = []
        self.barriers = 0
        self.exchanges = {name: each.type for name, each in PREDECLARED.items()}
        self.unseen: list[Exchange | Binding] = []
        """what this node learns of with the next look at the current catalog"""
        self.epoch = epoch
        self.numbers = {1: 0, 2: 0}
        self.hub = Hub("n1", None, limits, 1_000_000, 1_000_000)  # type: ignore[arg-type]
        self.hub.attach(self)  # type: ignore[arg-type]
        self.hub.requests.query_current = self.query_current  # type: ignore[method-assign, assignment]
        self.hub.requests.query = self.query  # type: ignore[method-assign, assignment]
        self.hub._dispatch([
            ev.CatalogChanged(tuple(QUEUES.values()), (), (), 99, 0, 0, 0, (1, 2), is_whole=True),
            ev.StandingChanged("member"),
        ])  # fmt: skip
        self.session = ClientSession(self.hub)
        for group, machine in self.groups.items():
            if groups is None:
                for queue in QUEUES.values():
                    if queue.group == group:
                        self.apply(group, None, c.CreateQueue(queue.id, queue.config))
            register = c.RegisterProducer(c.Address(1, 1, epoch), heard_ms=machine.now_ms)
            self.apply(group, c.Origin(b"p" * 16, epoch, 0), register)

    def change_routes(self, *added: Exchange | Binding, removed: Sequence[int] = ()) -> None:
        """The node's catalog has other exchanges and bindings. removed: ids of bindings."""
        exchanges = tuple([each for each in added if isinstance(each, Exchange)])
        bindings = tuple([each for each in added if isinstance(each, Binding)])
        self.exchanges |= {each.name: each.type for each in exchanges}
        for each in bindings:
            check_binding(self.exchanges[each.source], each)
        routing = RoutingChanges(exchanges, (), bindings, tuple(removed))
        self.hub._dispatch([ev.CatalogChanged((), (), None, 99, 0, 0, 0, (1, 2), routing=routing)])

    async def query_current(self, query: Query[Any]) -> None:
        assert isinstance(query, ReadBarrier)
        self.barriers += 1
        self.change_routes(*self.unseen)
        self.unseen.clear()

    async def query(self, query: Query[Any]) -> TakenMessages | None:
        assert isinstance(query, FindTaken)
        found = self.groups[query.group].taken(query.producer, query.epoch, query.first, query.last)
        assert found is not None
        return TakenMessages(tuple(found[0]), found[1])

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        for item in items:
            if isinstance(item, ev.Submit):
                self.sent.append(item)
                if isinstance(item.command, c.Wake):  # a registration
                    self.hub._dispatch([ev.Answered(item.session, item.token, None)])

    def apply(self, group: int, origin: c.Origin | None, command: Any, batch: bytes = b"") -> Reply | None:
        machine = self.groups[group]
        data = memoryview(op.encode(command, origin, batch))
        source = machine.field_source
        assert isinstance(source, Log)
        source.operations[machine.index + 1, 0] = data
        meta = c.Meta(machine.index + 1, 1, machine.now_ms + 1, CURRENT)
        return machine.apply(meta, [op.decode(data, 0)]).replies[0]

    def groups_answer(self) -> None:
        for item in self.sent:
            if isinstance(item.command, c.Enqueue):
                self.numbers[item.group] += 1
                origin = c.Origin(b"p" * 16, self.epoch, self.numbers[item.group])
                self.commands.append(item.command)
                self.replies.append(self.apply(item.group, origin, item.command, item.batch))
                self.hub._dispatch([ev.Answered(item.session, item.token, self.replies[-1])])
        self.sent.clear()

    async def publish(
        self,
        keys: Sequence[str],
        bodies: Sequence[Message] = (),
        first: int = 1,
        exchange: str = "",
        **more: Any,
    ) -> dict[int, str]:
        """What becomes of each message: "" if it is confirmed, else the reason."""
        data = encode_batch(bodies or [Message(b"%d" % (first + i)) for i in range(len(keys))]).data
        await self.session.publisher.publish(
            "", first, more.pop("lowest", 1), data, exchange=exchange, routing_keys=keys, **more
        )
        self.groups_answer()
        return self.told()

    def told(self) -> dict[int, str]:
        """The same of all messages that were decided since the last call, each once."""
        found: dict[int, str] = {}
        for each in self.session.outbox.take():
            assert isinstance(each, Confirms)
            outcomes = [(span, "") for span in each.confirmed]
            outcomes += [(rejection.span, rejection.why.reason) for rejection in each.rejected]
            for (first, last), reason in outcomes:
                assert not found.keys() & {*range(first, last + 1)}, "a message has one outcome"
                found |= dict.fromkeys(range(first, last + 1), reason)
        return dict(sorted(found.items()))

    def bodies(self, name: str) -> list[bytes]:
        """What is ready in a queue, in order."""
        queue = QUEUES[name]
        machine = self.groups[queue.group]
        page = queries.browse(machine, queue.id, 0, 1_000)
        assert not isinstance(page, Refused)
        source = machine.field_source
        assert isinstance(source, Log)
        found = []
        for run in page.runs:
            for i in range(run.count):
                place = (run.operation + i, 0) if run.one_each else (run.operation, run.ordinal + i)
                stored = [body for body, _ in messages(op.batch_of(source.operations[run.index, place[0]]))]
                found.append(stored[place[1]])
        return found


def on_node(scenario: Callable[[Node], Coroutine[Any, Any, None]], limits: BatchLimits = LIMITS) -> None:
    async def body() -> None:
        node = Node(limits=limits)
        node.session.open(b"p" * 16, 1, owner=9)
        await scenario(node)

    asyncio.run(body())
