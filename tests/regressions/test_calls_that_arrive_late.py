"""A call whose caller has been told to try elsewhere, and did, undoes nothing when it arrives at last."""

from __future__ import annotations

from collections.abc import Callable

from fifo.effects import Ok
from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.node import events as ev
from quorum.node.replica import SYSTEM_GROUP
from support.cluster import Cluster, Session

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
    given_up = False
    session = Session(cluster, other)
    item = ev.Submit(session.number, SYSTEM_GROUP, RemoveQueue("orders"), "t", is_wanted=lambda: not given_up)
    cluster.submit(other, item)
    cluster.run(LATE_MS)
    given_up = True
    cluster.heal()
    cluster.run(4 * LATE_MS)
    assert cluster.members[leader].catalog.queue("orders") is not None
