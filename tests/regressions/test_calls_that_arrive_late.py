"""A call whose caller has been told to try elsewhere, and did, undoes nothing when it arrives at last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fifo import commands as c
from fifo.effects import Ok
from fifo.queries import group as queries
from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.node import events as ev
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire import forwarding
from quorum.v1 import bulk_pb2
from support.members.cluster import Cluster, Session, batch
from support.members.services import Api, Context

LATE_MS = 1_500


def followed() -> tuple[Cluster, str, str]:
    """A cluster with the queue `orders`, the system group's leader, and another member."""
    cluster = Cluster(3)
    cluster.ready()
    cluster.declare("orders")
    cluster.settle()
    leader = cluster.leader(SYSTEM_GROUP)
    return cluster, leader, next(name for name in cluster.names if name != leader)


def holding(cluster: Cluster, to: str) -> Callable[[], None]:
    """What comes to this member is held from now on; the result lets it through."""
    carry, held = cluster.carry, []

    def late(sender: str, receiver: str, kind: int, data: bytes) -> None:
        if receiver == to:
            held.append((sender, receiver, kind, data))
        else:
            carry(sender, receiver, kind, data)

    def let_through() -> None:
        cluster.carry = carry  # type: ignore[method-assign]
        for frame in held:
            carry(*frame)

    cluster.carry = late  # type: ignore[method-assign]
    return let_through


def declared_again(cluster: Cluster, at: str) -> int:
    """The queue is declared and gets two messages that are confirmed; its id."""
    session = Session(cluster, at)
    assert isinstance(session.call(SYSTEM_GROUP, DeclareQueue("orders", ())), Ok)
    queue = cluster.members[at].catalog.queue("orders")
    assert queue is not None
    cluster.until(lambda: cluster.members[at].queue_machine(queue.group).has_queue(queue.id), "it is there")
    session.publish(queue.group, queue.id, b"one", b"two")
    cluster.until(lambda: session.confirmed() == [1, 2], "both are confirmed")
    return queue.id


def check_there(cluster: Cluster, queue: int) -> None:
    for name, member in cluster.members.items():
        found = member.catalog.queue("orders")
        assert found is not None and found.id == queue, f"{name} has lost the queue"


def test_the_first_command_of_a_session_that_was_closed_is_not_done_twice() -> None:
    cluster, leader, other = followed()
    let_through = holding(cluster, other)
    session = Session(cluster, other)
    session.send(SYSTEM_GROUP, RemoveQueue("orders"), "token")
    cluster.submit(other, ev.EndSession(session.number))
    cluster.run(300)
    assert cluster.members[leader].catalog.queue("orders") is None
    queue = declared_again(cluster, leader)
    cluster.run(2 * LATE_MS)
    let_through()
    cluster.run(2 * LATE_MS)
    check_there(cluster, queue)


def test_a_command_that_nobody_waits_for_is_not_done_when_the_way_to_the_leader_is_back() -> None:
    cluster, leader, other = followed()
    cluster.isolate(other)
    session = Session(cluster, other)
    item = ev.Submit(session.number, SYSTEM_GROUP, RemoveQueue("orders"), "t")
    cluster.submit(other, item)
    cluster.run(LATE_MS)
    cluster.submit(other, ev.Withdraw(session.number, SYSTEM_GROUP, "t"))
    cluster.heal()
    cluster.run(4 * LATE_MS)
    assert cluster.members[leader].catalog.queue("orders") is not None


def stage(session: Session, group: int, queue: int, part: bytes) -> None:
    """A part of one message of batch 1."""
    assert session.call(group, c.Stage(queue, "writer", 1, part, 0, 1, 1), batch([b"x"])) == Ok(1)


def test_a_late_discard_of_a_whole_batch_leaves_the_parts_that_were_staged_after_it() -> None:
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    other = next(name for name in cluster.names if name != leader)
    machine = cluster.members[leader].queue_machine(group)
    session, first, second = Session(cluster, leader), b"1" * 16, b"2" * 16
    stage(session, group, queue, first)
    carry = cluster.carry
    held: list[bytes] = []

    def hold(sender: str, receiver: str, kind: int, data: bytes) -> None:
        if sender == other and kind == forwarding.KIND_PROPOSE:
            held.append(data)
        else:
            carry(sender, receiver, kind, data)

    async def discard_and_leave() -> None:
        api = Api(cluster, other)
        await api.call(api.hub.requests.queue("orders"))
        cluster.carry = hold  # type: ignore[method-assign]
        request = bulk_pb2.DiscardStagedRequest(queue="orders", producer="writer", batch=1)
        call = asyncio.ensure_future(api.bulk.Discard(request, Context()))  # type: ignore[arg-type]
        while not any(b"writer" in data for data in held):
            cluster.run(5)
            await asyncio.sleep(0)
        call.cancel()

    asyncio.run(discard_and_leave())
    stage(session, group, queue, second)
    assert [each.part for each in queries.staged(machine, queue)] == [first, second]
    cluster.carry = carry  # type: ignore[method-assign]
    for data in held:
        carry(other, leader, forwarding.KIND_PROPOSE, data)
    cluster.until(lambda: first not in [each.part for each in queries.staged(machine, queue)], "it arrives")
    assert [each.part for each in queries.staged(machine, queue)] == [second]
