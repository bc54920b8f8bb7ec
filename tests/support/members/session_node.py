"""A node with one client's session, whose Raft thread is the test."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fifo import commands as c
from fifo.effects import AttachedReply, Deliver, Run
from quorum.api.hub.hub import Hub
from quorum.api.session import consumers as session_consumers
from quorum.api.session.client_session import ClientSession
from quorum.api.session.outcomes import Attached, Outcome
from quorum.catalog.queues import CatalogQueue
from quorum.node import events as ev
from quorum.node.wire.batches import BatchLimits
from quorum.node.wire.operations import command_parts, encode
from support import virtual_time
from support.members.cluster import batch

GROUP = 1
QUEUE = CatalogQueue(7, "orders", GROUP, (), c.QueueConfig("orders"))
ADDRESS = c.Address(1, 1, 1)


class Log:
    """Entry 5 has a batch of two messages."""

    def read(self, group: int, index: int, *, waits: bool = True) -> bytes:
        operation = encode(c.Enqueue(7, 1, 1, 2, 2), c.Origin(bytes(16), 1, 1), batch([b"a", b"b"]))
        return b"\0" + b"".join(command_parts([operation], 0, 1))


class Node:
    """A node whose Raft thread is the test."""

    def __init__(self) -> None:
        self.items: list[ev.Input] = []
        self.hub = Hub("n1", Log(), BatchLimits(10, 1_000, 10_000), 2_000, 100_000)  # type: ignore[arg-type]
        self.hub.attach(self)
        self.say(
            ev.CatalogChanged((QUEUE,), (), (), 8, 0, 0, 0, (GROUP,), is_whole=True),
            ev.StandingChanged("member"),
            ev.LeaseGranted(GROUP, 1 << 60),
        )
        self.session = ClientSession(self.hub)
        self.session.open(b"p" * 16, 1, owner=9)

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        self.items += items

    def say(self, *outputs: ev.Output) -> None:
        self.hub._dispatch(outputs)

    @property
    def submitted(self) -> list[ev.Submit]:
        return [item for item in self.items if isinstance(item, ev.Submit)]

    def answer(self, reply: Any, number: int = -1) -> None:
        item = self.submitted[number]
        self.say(ev.Answered(item.session, item.token, reply))

    def deliver(self, tag: str, attach: int, first_tag: int = 1) -> None:
        deliver = Deliver(ADDRESS, 7, tag, attach, first_tag, (Run(30, 2, 5, 0, 0),))
        self.say(ev.Delivered(self.session.number, GROUP, deliver))

    def deliver_singles(self, session: ClientSession, count: int, first_tag: int = 1) -> None:
        """A delivery of single messages that are no neighbours, to consumer c."""
        runs = tuple(Run(first_tag + 2 * number, 1, 5, 0, 0) for number in range(count))
        self.say(ev.Delivered(session.number, GROUP, Deliver(ADDRESS, 7, "c", 5, first_tag, runs)))

    def told(self) -> list[Outcome]:
        """What there is to tell the client now."""
        return [each for each, _ in self.session._ready() if not isinstance(each, Exception)]

    async def attach(self, tag: str = "c") -> None:
        await self.session.consumers.attach(1, tag, "orders", None, 10)
        self.answer(AttachedReply(5))
        assert self.told() == [Attached(1, tag, 5)]


def on_node(scenario: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        await scenario(Node())

    virtual_time.run(body())


async def holding(node: Node, credit_to: int = 10) -> session_consumers.Consumer:
    """A consumer that holds tags 1 and 2, and has credit up to `credit_to`."""
    await node.session.consumers.attach(1, "c", "orders", None, credit_to)
    node.answer(AttachedReply(5))
    node.deliver("c", 5)
    node.items.clear()
    consumer = node.session.consumers.find(0, "c")
    assert consumer is not None
    return consumer
