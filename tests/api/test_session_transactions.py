"""Transactions of a client's session (quorum/api/session/transactions.py). The groups are real machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Deliver
from fifo.group_machine import GroupMachine
from fifo.queries import group as queries
from fifo.versions import CURRENT
from quorum.api import status
from quorum.api.hub.hub import Hub
from quorum.api.session.client_session import ClientSession
from quorum.api.session.consumers import Disposition
from quorum.api.session.outcomes import Done, Failed
from quorum.api.session.session_routes import Route
from quorum.api.session.transactions import MAX_TRANSACTIONS
from quorum.api.status import StatusError
from quorum.catalog.bindings import Binding
from quorum.catalog.exchanges import RoutingChanges
from quorum.catalog.queues import CatalogQueue
from quorum.client.messages.batch import Message, encode_batch
from quorum.node import events as ev
from quorum.node.queries import Query
from quorum.node.wire import operations as op
from quorum.node.wire.batches import BatchLimits

CONFIGS: dict[str, dict[str, Any]] = {
    "a": {},
    "b": {},
    "full": {"overflow": "reject_publish", "max_length": 1},
    "far": {},
    "far full": {"overflow": "reject_publish", "max_length": 1},
    "third": {},
}
GROUPS = {"far": 2, "far full": 2, "third": 3}
"""of queues; the others are in group 1"""
QUEUES = {
    name: CatalogQueue(number, name, GROUPS.get(name, 1), (), c.QueueConfig(name, **config))
    for number, (name, config) in enumerate(CONFIGS.items(), 1)
}
PRODUCER = b"p" * 16
IDS = count(1)
"""of bindings"""


class Node:
    """A node whose groups 1 to 3 apply at once what is submitted, and answer when `answer` is called."""

    def __init__(self) -> None:
        self.operations: dict[tuple[int, int], memoryview] = {}
        self.groups = {group: GroupMachine(self) for group in (1, 2, 3)}  # type: ignore[arg-type]
        self.commands: list[tuple[int, Any]] = []
        self.waiting: list[ev.Output] = []
        for queue in QUEUES.values():
            self.apply(queue.group, None, c.CreateQueue(queue.id, queue.config))
        limits = BatchLimits(5_000, 1_000, 1_000_000)
        self.hub = Hub("n1", None, limits, 1_000_000, 1_000_000)  # type: ignore[arg-type]
        self.hub.attach(self)  # type: ignore[arg-type]
        self.hub.requests.query_current = self.query_current  # type: ignore[method-assign, assignment]
        self.hub._dispatch([
            ev.CatalogChanged(tuple(QUEUES.values()), (), (), 99, 0, 0, 0, (1, 2, 3), is_whole=True),
            ev.StandingChanged("member"),
            ev.VersionChanged(CURRENT),
        ])  # fmt: skip
        self.open(1)

    def open(self, epoch: int) -> None:
        self.epoch, self.numbers = epoch, dict.fromkeys(self.groups, 0)
        for group, machine in self.groups.items():
            register = c.RegisterProducer(c.Address(1, 1, epoch), heard_ms=machine.now_ms)
            self.apply(group, c.Origin(PRODUCER, epoch, 0), register)
        self.session = ClientSession(self.hub)
        self.session.open(PRODUCER, epoch, 7)

    async def query_current(self, query: Query[Any]) -> None:
        return None

    def columns(self, index: int, operation: int, queue: int) -> Any:
        return op.columns_of(self.operations[index, operation], queue)

    def apply(self, group: int, origin: c.Origin | None, command: Any, batch: bytes = b"") -> Any:
        machine = self.groups[group]
        data = memoryview(op.encode(command, origin, batch))
        self.operations[machine.index + 1, 0] = data
        meta = c.Meta(machine.index + 1, 1, machine.now_ms + 1, CURRENT)
        return machine.apply(meta, [op.decode(data, 0)])

    def submit(self, items: tuple[ev.Input, ...]) -> None:
        for item in items:
            if isinstance(item, ev.Submit):
                self.commands.append((item.group, item.command))
                origin = None
                if item.session != self.hub.own_session._number:
                    self.numbers[item.group] += 1
                    origin = c.Origin(PRODUCER, self.epoch, self.numbers[item.group])
                applied = self.apply(item.group, origin, item.command, item.batch)
                self.waiting.append(ev.Answered(item.session, item.token, applied.replies[0]))
                self.waiting += [
                    ev.Delivered(item.session, item.group, each)
                    for each in applied.effects
                    if isinstance(each, Deliver)
                ]

    def answer(self) -> dict[int, str]:
        """The reasons of the requests that were answered, "" for Done. Each is answered once."""
        waiting, self.waiting = self.waiting, []
        self.hub._dispatch(waiting)
        found: dict[int, str] = {}
        for item in self.session.outbox.take():
            told: dict[int, str] = {}
            if isinstance(item, Done):
                told = dict.fromkeys(item.request_ids, "")
            elif isinstance(item, Failed):
                told = {item.request_id: item.why.reason.upper()}
            assert not found.keys() & told.keys()
            found |= told
        return found

    async def answers(self) -> dict[int, str]:
        """The same of all requests, with those that follow from the answers."""
        found: dict[int, str] = {}
        for _ in range(30):
            found |= self.answer()
            await asyncio.sleep(0)
        return found

    def kinds(self, group: int) -> list[str]:
        """The commands about transactions that a group got, but for their parts."""
        names = [type(command).__name__ for number, command in self.commands if number == group]
        return [name for name in names if name not in ("InTransaction", "Enqueue", "Attach")]

    async def publish(
        self,
        tx: int,
        *names: str,
        exchange: str = "",
        mandatory: bool = False,
        properties: Sequence[dict[str, Any]] = (),
    ) -> None:
        """properties: of each message, if they have any."""
        key, keys = (names[0], ()) if len(names) == 1 else ("", names)
        data = encode_batch([
            Message(b"body", *each) for each in zip(properties or [None] * len(names), strict=True)
        ]).data  # fmt: skip
        await self.session.transactions.publish(
            tx, data, Route(exchange, key, keys), mandatory=mandatory, immediate=False
        )

    def bind(self, exchange: str, *queues: str) -> None:
        """Binds queues to amq.fanout, or by their names."""
        is_fanout = exchange == "amq.fanout"
        bindings = tuple([
            Binding(next(IDS), exchange, "queue", name, "" if is_fanout else name) for name in queues
        ])  # fmt: skip
        routing = RoutingChanges((), (), bindings, ())
        self.hub._dispatch([ev.CatalogChanged((), (), None, 99, 0, 0, 0, (1, 2, 3), routing=routing)])

    async def hold(self, name: str, number: int) -> None:
        """A consumer of this name holds so many messages."""
        for n in range(1, number + 1):
            await self.session.publisher.publish(name, n, n, encode_batch([b"held"]).data, independent=False)
        await self.session.consumers.attach(90, name, name, None, number)
        self.answer()

    def settle(self, tx: int, request_id: int, name: str, *tags: tuple[int, int]) -> None:
        consumer = self.session.consumers.by_tag.get(name)
        attach = 0 if consumer is None else consumer.attach
        self.session.transactions.settle(tx, request_id, consumer, Disposition(c.Settle, attach, tags))

    def ready(self, name: str) -> int:
        queue = QUEUES[name]
        info = queries.info(self.groups[queue.group], queue.id)
        assert info is not None
        return info.ready


def on_node(scenario: Callable[[Node], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            await scenario(Node())

        asyncio.run(run())

    test.__name__ = scenario.__name__
    return test


@on_node
async def test_a_transaction_counts_at_its_commit(node: Node) -> None:
    await node.hold("a", 2)
    await node.publish(1, "a")
    await node.publish(1, "b", "a", "b")
    node.settle(1, 5, "a", (1, 2))
    assert node.answer() == {5: ""}
    assert (node.ready("a"), node.ready("b")) == (0, 0)
    node.session.transactions.commit(6, 1)
    assert node.answer() == {6: ""}
    assert (node.ready("a"), node.ready("b")) == (2, 2)
    assert not node.session._commands.undecided
    assert not node.session.publisher.size_bytes
    assert node.commands[-1] == (1, c.Commit(1, 1 + 2 + 1, 1 + 3 + 1))


@pytest.mark.parametrize("name", ["ttl", "delivery-delay"])
def test_messages_with_times_of_their_own_are_told_as_ranges(name: str) -> None:
    """The leader limits the ranges of an entry by what the commits in it say."""

    async def run() -> None:
        node = Node()
        node.bind("amq.direct", "a", "b")
        properties = [{name: 1_000 * number} for number in (1, 2, 1)]
        await node.publish(1, "a", "a", "a", properties=properties)
        node.answer()
        await node.publish(1, "b", "a", "b", exchange="amq.direct", properties=properties)
        ranges = sum(each.ranges for each in node.groups[1].transactions.by_key.values())
        assert ranges == 3 + 3
        node.session.transactions.commit(5, 1)
        assert node.commands[-1] == (1, c.Commit(1, 3, ranges))

    asyncio.run(run())


@on_node
async def test_a_refused_request_ends_the_transaction_and_its_commit_says_why(node: Node) -> None:
    await node.hold("a", 1)
    for number, reason in enumerate(("NOT_FOUND", "NO_EXCHANGE", "NOT_ATTACHED", "NOT_CHECKED_OUT"), 1):
        await node.publish(number, "a")
        if reason == "NOT_FOUND":
            await node.publish(number, "nowhere")
        elif reason == "NO_EXCHANGE":
            assert node.answer() == {}
            await node.publish(number, "a", exchange="x")
        else:
            node.settle(number, 0, "b" if reason == "NOT_ATTACHED" else "a", (5, 5))
        await node.publish(number, "a")
        node.session.transactions.commit(50 + number, number)
        assert node.answer() == {50 + number: reason}
        assert node.ready("a") == 0
    assert not node.groups[1].transactions.by_key


@on_node
async def test_a_wrong_settlement_is_refused_and_ends_its_transaction(node: Node) -> None:
    await node.hold("a", 1)
    node.settle(1, 5, "a", (2, 1))
    node.session.transactions.commit(6, 1)
    assert node.answer() == {5: "BAD_ARGUMENT", 6: "BAD_ARGUMENT"}


@on_node
async def test_a_settlement_of_a_refused_transaction_brings_its_credit(node: Node) -> None:
    """The client sends each credit once. If it were lost, the consumer would wait for ever."""
    await node.hold("a", 1)
    await node.session.publisher.publish("a", 2, 2, encode_batch([b"next"]).data, independent=False)
    await node.publish(1, "nowhere")
    consumer = node.session.consumers.by_tag["a"]
    settlement = Disposition(c.Modify, consumer.attach, ((1, 1),), credit_to=2, delivery_failed=True)
    node.session.transactions.settle(1, 5, consumer, settlement)
    node.session.transactions.commit(6, 1)
    assert node.answer() == {5: "NOT_FOUND", 6: "NOT_FOUND"}
    info = queries.info(node.groups[1], QUEUES["a"].id)
    assert info is not None
    assert (info.ready, info.checked_out) == (0, 2), "nothing is settled, and the second message is delivered"


@on_node
async def test_a_transaction_over_several_groups_counts_in_all_of_them(node: Node) -> None:
    await node.hold("far", 2)
    await node.publish(1, "a", "far", "third")
    node.settle(1, 5, "far", (1, 2))
    assert node.answer() == {5: ""}
    node.session.transactions.commit(6, 1)
    assert await node.answers() == {6: ""}
    assert (node.ready("a"), node.ready("far"), node.ready("third")) == (1, 1, 1)
    assert node.kinds(1) == ["Decide", "Finished"]
    assert node.kinds(2) == node.kinds(3) == ["Prepare", "Finish"]
    assert not any(machine.decisions.are_waiting for machine in node.groups.values())
    assert not node.session._commands.undecided


@on_node
async def test_the_client_hears_at_once_that_the_last_group_has_finished(node: Node) -> None:
    await node.publish(1, "a", "far")
    node.session.transactions.commit(5, 1)
    for _ in range(30):
        if "Finish" not in node.kinds(2):
            assert node.answer() == {}
            await asyncio.sleep(0)
    node.session._commands.work.clear()  # all that was to be told is told
    node.hub._dispatch(node.waiting)
    node.waiting.clear()
    await node.session._commands.work.wait()
    assert node.answer() == {5: ""}


@on_node
async def test_the_first_group_has_all_of_its_part_before_others_prepare(node: Node) -> None:
    """What comes late may begin a transaction that another group has been told is rolled back."""
    await node.publish(1, "a", "far")
    late, node.waiting = node.waiting, []
    node.session.transactions.commit(5, 1)
    assert node.kinds(2) == []
    node.waiting = late
    assert await node.answers() == {5: ""}
    assert (node.ready("a"), node.ready("far")) == (1, 1)


@pytest.mark.parametrize(
    "names",
    [
        ("full", "full", "a", "far"),
        ("far full", "far full", "a", "far"),
        ("a", "far full", "far full", "far"),
    ],
)
def test_a_group_that_refuses_ends_the_transaction_in_all(names: Sequence[str]) -> None:
    """The first group refuses to decide, or another one to prepare."""

    async def run() -> None:
        node = Node()
        await node.hold("third", 2)
        await node.publish(1, *names)
        node.settle(1, 5, "third", (1, 1))
        assert await node.answers() == {5: ""}
        node.session.transactions.commit(6, 1)
        assert await node.answers() == {6: "QUEUE_FULL"}
        assert [node.ready(name) for name in QUEUES] == [0] * len(QUEUES)
        assert not any(machine.decisions.are_waiting for machine in node.groups.values())
        assert not any(machine.transactions.by_key for machine in node.groups.values())
        await node.publish(2, "a")
        node.settle(2, 7, "third", (1, 2))
        node.session.transactions.commit(8, 2)
        assert await node.answers() == {7: "", 8: ""}, "the messages are held as before"

    asyncio.run(run())


@on_node
async def test_a_request_that_one_group_refuses_ends_the_transaction_in_all(node: Node) -> None:
    await node.hold("far", 1)
    await node.publish(1, "a")
    node.settle(1, 0, "far", (5, 5))
    node.answer()
    node.session.transactions.commit(6, 1)
    assert await node.answers() == {6: "NOT_CHECKED_OUT"}
    await node.publish(2, "a", "far")
    await node.publish(2, "nowhere")
    node.session.transactions.commit(7, 2)
    assert await node.answers() == {7: "NOT_FOUND"}
    assert not any(machine.transactions.by_key for machine in node.groups.values())


@on_node
async def test_a_commit_that_is_under_way_is_not_begun_again(node: Node) -> None:
    await node.publish(1, "a", "far")
    node.session.transactions.commit(5, 1)
    node.session.transactions.commit(6, 1)
    node.session.transactions.rollback(7, 1)
    with pytest.raises(StatusError, match="being committed"):
        await node.publish(1, "a")
    assert await node.answers() == {5: "", 6: "", 7: "BAD_ARGUMENT"}
    assert node.kinds(1) == ["Decide", "Finished"]
    assert (node.ready("a"), node.ready("far")) == (1, 1)
    node.session.transactions.commit(8, 1)
    assert await node.answers() == {8: ""}, "the groups know it still"


@on_node
async def test_a_limited_number_of_requests_waits_for_a_commit(node: Node) -> None:
    await node.publish(1, "a", "far")
    for request_id in range(1, MAX_TRANSACTIONS + 2):
        node.session.transactions.commit(request_id, 1)
    told = await node.answers()
    assert told.pop(MAX_TRANSACTIONS + 1) == "BAD_ARGUMENT"
    assert set(told.values()) == {""}


@on_node
async def test_a_rollback_is_one_in_all_groups(node: Node) -> None:
    await node.publish(1, "a", "far")
    node.session.transactions.rollback(5, 1)
    assert await node.answers() == {5: ""}
    assert not any(machine.transactions.by_key for machine in node.groups.values())


def due(node: Node, group: int) -> None:
    """The leader of a group finds that it has waited too long."""
    decisions = node.groups[group].decisions.due(1 << 50)
    node.hub._dispatch([ev.DecisionsDue(group, *decisions)])


@on_node
async def test_what_a_lost_node_has_decided_is_finished_by_the_leader(node: Node) -> None:
    await node.publish(1, "a", "far", "third")
    node.answer()
    node.session.transactions.commit(5, 1)
    prepared, node.waiting = node.waiting, []
    node.hub._dispatch(prepared)  # Decide is applied; its answer is lost with the node
    node.waiting.clear()
    assert (node.ready("a"), node.ready("far")) == (1, 0)
    due(node, 1)
    due(node, 1)
    await node.answers()
    assert (node.ready("a"), node.ready("far"), node.ready("third")) == (1, 1, 1)
    assert not any(machine.decisions.are_waiting for machine in node.groups.values())
    assert node.kinds(2) == ["Prepare", "Finish"], "it is told once at a time"


@on_node
async def test_what_a_lost_node_has_not_decided_is_rolled_back_by_the_leader_of_a_prepared_part(
    node: Node,
) -> None:
    await node.publish(1, "a", "far")
    node.answer()
    node.session.transactions.commit(5, 1)
    node.waiting.clear()
    due(node, 2)
    await node.answers()
    assert [node.ready(name) for name in ("a", "far")] == [0, 0]
    assert not node.groups[2].decisions.are_waiting
    late = c.Decide(1, 1, 1, (2,))
    origin = c.Origin(PRODUCER, 1, node.numbers[1] + 1)
    assert node.apply(1, origin, late).replies[0].reason == "rolled_back"


def without_answer(node: Node, kind: type[c.Command]) -> Callable[[], None]:
    """Commands of this kind get no answer until the returned function is called."""
    own = node.hub.own_session
    call = own.call

    async def refusing(group: int, command: c.Command) -> Any:
        if isinstance(command, kind):
            raise status.unavailable("no_leader", f"group {group} has no leader")
        return await call(group, command)

    own.call = refusing  # type: ignore[method-assign, assignment]

    def again() -> None:
        own.call = call  # type: ignore[method-assign]

    return again


@on_node
async def test_a_commit_is_in_doubt_while_a_group_has_not_finished_it(node: Node) -> None:
    await node.publish(1, "a", "far")
    answered_again = without_answer(node, c.Finish)
    node.session.transactions.commit(5, 1)
    assert await node.answers() == {5: "IN_DOUBT"}
    assert node.kinds(1) == ["Decide"], "the decision is kept for the group that waits"
    answered_again()
    due(node, 1)
    await node.answers()
    assert node.kinds(1) == ["Decide", "Finished"]
    assert (node.ready("a"), node.ready("far")) == (1, 1)


@on_node
async def test_a_commit_counts_though_the_first_group_was_not_told_that_all_have_finished(node: Node) -> None:
    await node.publish(1, "a", "far")
    without_answer(node, c.Finished)
    node.session.transactions.commit(5, 1)
    assert await node.answers() == {5: ""}


@on_node
async def test_a_prepared_part_waits_while_the_first_group_does_not_answer(node: Node) -> None:
    await node.publish(1, "a", "far")
    node.answer()
    node.session.transactions.commit(5, 1)
    prepared, node.waiting = node.waiting, []
    node.hub._dispatch(prepared)
    node.waiting.clear()
    answered_again = without_answer(node, c.Resolve)
    due(node, 2)
    await node.answers()
    assert node.groups[2].decisions.are_waiting
    answered_again()
    due(node, 2)
    await node.answers()
    assert not node.groups[2].decisions.are_waiting
    assert node.ready("far") == 1, "the first group had committed"


@pytest.mark.parametrize("first", ["a", "far"])
def test_a_commit_that_is_not_finished_in_all_groups_is_asked_again(first: str) -> None:
    """Groups that do not know the transaction refuse it, before the one that has decided or after it."""

    async def scenario(node: Node) -> None:
        await node.publish(1, first, "third")
        node.answer()
        node.session.transactions.commit(5, 1)
        prepared, node.waiting = node.waiting, []
        node.hub._dispatch(prepared)
        node.waiting.clear()
        node.open(2)
        node.session.transactions.commit(6, 1)
        assert await node.answers() == {6: "IN_DOUBT"}
        due(node, QUEUES[first].group)
        await node.answers()
        node.open(3)
        node.session.transactions.commit(7, 1)
        assert await node.answers() == {7: ""}

    on_node(scenario)()


@on_node
async def test_a_full_queue_refuses_the_commit(node: Node) -> None:
    await node.publish(1, "full", "full", "a")
    node.session.transactions.commit(5, 1)
    assert node.answer() == {5: "QUEUE_FULL"}
    assert (node.ready("full"), node.ready("a")) == (0, 0)


@on_node
async def test_a_rollback_drops_everything(node: Node) -> None:
    await node.publish(1, "a")
    node.session.transactions.rollback(5, 1)
    node.session.transactions.rollback(6, 9)
    assert node.answer() == {5: "", 6: ""}
    node.session.transactions.commit(7, 1)
    assert node.answer() == {7: "ROLLED_BACK"}
    assert node.ready("a") == 0


@on_node
async def test_a_commit_is_answered_again_in_a_later_session(node: Node) -> None:
    await node.publish(1, "a")
    node.session.transactions.commit(5, 1)
    await node.publish(2, "a")
    node.waiting.clear()
    node.open(2)
    node.session.transactions.commit(5, 1)
    node.session.transactions.commit(6, 2)
    assert node.answer() == {5: "", 6: "ROLLED_BACK"}
    assert node.ready("a") == 1


@on_node
async def test_a_commit_that_one_group_knows_waits_for_no_other_group(node: Node) -> None:
    await node.publish(1, "a")
    node.session.transactions.commit(5, 1)
    node.waiting.clear()
    node.open(2)
    node.session.transactions.commit(5, 1)
    of_a, *late = node.waiting
    node.waiting = [of_a]
    assert node.answer() == {5: ""}
    node.waiting = late
    assert node.answer() == {}


@on_node
async def test_a_commit_that_several_groups_know_is_answered_once(node: Node) -> None:
    """They do if a client has used the number of a committed transaction again, for queues of another group."""
    for request_id, name in enumerate(("a", "far"), 1):
        await node.publish(1, name)
        node.session.transactions.commit(request_id, 1)
        assert node.answer() == {request_id: ""}
    node.session.transactions.commit(5, 1)
    each, answers = node.waiting, []
    for node.waiting in [[one] for one in each]:
        answers.append(node.answer())
    assert answers == [{5: ""}, {}, {}]


@on_node
async def test_what_goes_through_an_exchange_counts_at_the_commit(node: Node) -> None:
    node.bind("amq.direct", "a", "b", "far")
    node.bind("amq.fanout", "a", "b")
    await node.publish(1, "b", exchange="amq.direct")
    await node.publish(1, "a", "nowhere", "b", exchange="amq.direct")
    await node.publish(1, "any", exchange="amq.fanout")
    assert (node.ready("a"), node.ready("b")) == (0, 0)
    node.session.transactions.commit(5, 1)
    assert node.answer() == {5: ""}
    assert (node.ready("a"), node.ready("b")) == (2, 3)
    assert node.commands[-1] == (1, c.Commit(1, 1 + 2 + 2, 1 + 2 + 2))


@on_node
async def test_a_transaction_of_messages_without_a_queue_is_done_without_a_group(node: Node) -> None:
    node.bind("amq.direct", "a")
    await node.publish(1, "nowhere", exchange="amq.direct")
    node.session.transactions.commit(5, 1)
    await node.publish(2, "a", exchange="amq.direct")
    await node.publish(2, "nowhere", exchange="amq.direct", mandatory=True)
    node.session.transactions.commit(6, 2)
    assert node.answer() == {5: "", 6: "UNROUTABLE"}
    assert node.ready("a") == 0


@on_node
async def test_an_exchange_may_lead_to_several_groups(node: Node) -> None:
    node.bind("amq.fanout", "a", "far")
    await node.publish(1, "any", exchange="amq.fanout")
    node.session.transactions.commit(5, 1)
    assert await node.answers() == {5: ""}
    assert (node.ready("a"), node.ready("far")) == (1, 1)


@on_node
async def test_a_session_has_a_limited_number_of_transactions(node: Node) -> None:
    for number in range(1, 257):
        node.settle(number, 0, "nobody", (1, 1))
    with pytest.raises(StatusError):
        node.settle(257, 0, "nobody", (1, 1))
