"""The calls of the Admin service for transactions, on a cluster of one member with three groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import Ok, Reply
from quorum.api import status
from quorum.api.services import transaction_service
from quorum.v1 import admin_pb2 as pb
from support.members.cluster import Cluster, Session, batch, enqueue
from support.members.services import Aborted, Api, Context

OPEN, PREPARED, COMMITTED = pb.TransactionInfo.OPEN, pb.TransactionInfo.PREPARED, pb.TransactionInfo.COMMITTED
QUEUES = ("orders", "bills", "notes")
"""the queues of groups 1 to 3"""


class World:
    """The calls, and a session whose transactions they show."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = Api(cluster, "n1")
        self.session = Session(cluster, "n1", b"p" * 16)

    async def call(self, method: str, request: Any) -> Any:
        return await self.api.call(getattr(self.api.admin, method)(request, Context()))

    def do(self, group: int, command: c.Command, data: bytes = b"") -> Reply | None:
        return self.session.call(group, command, data)

    def publish(self, group: int, tx: int, count: int = 2) -> None:
        found = self.cluster.members["n1"].catalog.queue(QUEUES[group - 1])
        assert found is not None
        bodies = [b"body"] * count
        command = c.InTransaction(tx, enqueue(found.id, 0, bodies))
        assert self.do(group, command, batch(bodies)) == Ok(count)

    def prepare(self, tx: int) -> None:
        """Of two parts, group 2 waits for the decision of group 1."""
        self.publish(1, tx)
        self.publish(2, tx)
        assert self.do(2, c.Prepare(tx, 1, 1, 1)) == Ok()

    def ready(self, group: int) -> int:
        queues = self.cluster.members["n1"].queue_machine(group).queues
        return sum([machine.messages.ready_count for machine in queues.values()])

    async def listed(self, group: int = 0) -> list[tuple[int, int, int]]:
        """(group, number, state) of each."""
        request = pb.ListTransactionsRequest(group=group)
        found = []
        while True:
            page = await self.call("ListTransactions", request)
            found += [(each.id.group, each.id.number, each.state) for each in page.transactions]
            if not page.has_more:
                return found
            request.after.CopyFrom(page.transactions[-1].id)

    async def resolve(self, tx: int, outcome: int = 0, group: int = 2) -> pb.ResolveTransactionResponse:
        number = pb.TransactionId(group=group, producer=self.session.producer, number=tx)
        request = pb.ResolveTransactionRequest(id=number)
        request.outcome = outcome  # type: ignore[assignment]
        found: pb.ResolveTransactionResponse = await self.call("ResolveTransaction", request)
        return found

    def first_group_is_lost(self, reason: str = "no_leader") -> None:
        """No question for a decision is answered any more."""
        answered = self.api.hub.own_session.call

        async def call(group: int, command: Any) -> Reply | None:
            if isinstance(command, c.Resolve):
                raise status.unavailable(reason, "group 1 is lost")
            return await answered(group, command)

        self.api.hub.own_session.call = call  # type: ignore[method-assign]


def on_one_member(run: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        cluster = Cluster(1)
        cluster.ready()
        for name in QUEUES:
            cluster.declare(name)

        async def body() -> None:
            await run(World(cluster))

        asyncio.run(body())

    test.__name__ = run.__name__
    return test


@on_one_member
async def test_transactions_are_listed_in_every_state(world: World) -> None:
    world.prepare(7)
    world.publish(3, 9, count=5)
    [first, second, third] = (await world.call("ListTransactions", pb.ListTransactionsRequest())).transactions
    assert (first.state, list(first.queues), first.messages, first.deciding_group) == (OPEN, ["orders"], 2, 0)
    assert first.id == pb.TransactionId(group=1, producer=b"p" * 16, number=7)
    assert (second.state, second.id.group, second.deciding_group) == (PREPARED, 2, 1)
    assert (second.messages, second.bytes) == (2, 8)
    assert (third.state, third.id.number, list(third.queues), third.messages) == (OPEN, 9, ["notes"], 5)
    assert first.since_ms <= second.since_ms
    assert world.do(1, c.Decide(7, 1, 1, (2,))) == Ok()
    [decided] = (await world.call("ListTransactions", pb.ListTransactionsRequest(group=1))).transactions
    assert (decided.state, list(decided.unfinished_groups), list(decided.queues)) == (COMMITTED, [2], [])


@pytest.mark.parametrize("part", [1, 3])
def test_a_long_list_comes_in_several_answers(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_service, "LISTED_BYTES", 200)
    monkeypatch.setattr(transaction_service, "PART", part)

    @on_one_member
    async def test(world: World) -> None:
        numbers = list(range(1, 8))
        for number in numbers:
            world.publish(1, number, 1)
            world.publish(3, number, 1)
        first = await world.call("ListTransactions", pb.ListTransactionsRequest())
        assert first.has_more
        assert 0 < len(first.transactions) < len(numbers)
        assert await world.listed() == [(group, number, OPEN) for group in (1, 3) for number in numbers]
        assert await world.listed(3) == [(3, number, OPEN) for number in numbers]
        assert await world.listed(2) == []

    test()


@on_one_member
async def test_the_group_that_decides_is_asked_whatever_the_operator_wants(world: World) -> None:
    world.prepare(1)
    assert world.do(1, c.Decide(1, 1, 1, (2,))) == Ok()
    found = await world.resolve(1, pb.ResolveTransactionRequest.ROLLBACK)
    assert (found.committed, found.by_hand) == (True, False)
    assert (world.ready(1), world.ready(2)) == (2, 2)
    world.prepare(2)
    found = await world.resolve(2, pb.ResolveTransactionRequest.COMMIT)
    assert (found.committed, found.by_hand) == (False, False), "the question rolls back what is not decided"
    assert (world.ready(1), world.ready(2)) == (2, 2)
    assert [tx for _, tx, state in await world.listed() if state != COMMITTED] == []


@on_one_member
async def test_without_the_group_that_decides_the_operator_does(world: World) -> None:
    world.prepare(1)
    world.prepare(2)
    world.first_group_is_lost()
    with pytest.raises(Aborted, match="group 1 is lost"):
        await world.resolve(1)
    assert [tx for group, tx, _ in await world.listed(2)] == [1, 2], "it stays without an outcome"
    found = await world.resolve(1, pb.ResolveTransactionRequest.COMMIT)
    assert (found.committed, found.by_hand) == (True, True)
    assert world.ready(2) == 2
    found = await world.resolve(2, pb.ResolveTransactionRequest.ROLLBACK)
    assert (found.committed, found.by_hand) == (False, True)
    assert world.ready(2) == 2
    assert await world.listed(2) == []


@on_one_member
async def test_a_group_that_may_answer_later_is_not_lost(world: World) -> None:
    world.prepare(1)
    world.first_group_is_lost("overloaded")
    with pytest.raises(Aborted, match="group 1 is lost"):
        await world.resolve(1, pb.ResolveTransactionRequest.COMMIT)
    assert await world.listed(2) == [(2, 1, PREPARED)]


@on_one_member
async def test_what_does_not_wait_is_not_resolved(world: World) -> None:
    world.publish(2, 1)
    with pytest.raises(Aborted, match="group 2 has no prepared part of transaction 1 of producer 7070"):
        await world.resolve(1, pb.ResolveTransactionRequest.COMMIT)
    for group in (0, 4, (1 << 32) - 1):
        with pytest.raises(Aborted, match=f"there is no group {group} with queues; allowed: 1 to 3"):
            await world.resolve(1, group=group)
    with pytest.raises(Aborted, match="there is no group 4 with queues; allowed: 1 to 3"):
        await world.listed(4)
    with pytest.raises(Aborted, match="outcome 9; allowed: 0, COMMIT, ROLLBACK"):
        await world.resolve(1, 9)
    assert await world.listed() == [(2, 1, OPEN)]
