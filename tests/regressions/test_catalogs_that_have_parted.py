"""The members of the system group compare their catalogs as those of other groups compare their states, and what one
member's catalog lacks is deleted nowhere."""

from __future__ import annotations

import pytest

from quorum.catalog import machine
from quorum.catalog.commands import DeclareQueue, RemoveQueue
from quorum.node.cluster import state_requests as rebuilding
from quorum.node.queries import CheckHealth
from quorum.node.replica import state_hashes
from quorum.node.replica.replica import SYSTEM_GROUP
from support.members.cluster import Cluster, Session

MESSAGES = 10


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_hashes, "EVERY", 10)
    monkeypatch.setattr(machine, "HASHED_EVERY", 10)


def with_a_queue() -> tuple[Cluster, int, int, str]:
    """Group and id of a queue with messages; a member that leads neither its group nor the system group."""
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    session.publish(group, queue, *[b"x"] * MESSAGES)
    cluster.until(lambda: len(session.confirmed()) == MESSAGES, "all are confirmed")
    leaders = (cluster.leader(group), cluster.leader(SYSTEM_GROUP))
    return cluster, group, queue, next(name for name in cluster.names if name not in leaders)


def forget_queue(cluster: Cluster, name: str) -> None:
    """One entry of this member's catalog is lost, in memory."""
    catalog = cluster.members[name].catalog
    gone = catalog._by_name.pop("orders")
    del catalog._by_group[gone.group][gone.id]


def declare(cluster: Cluster, count: int) -> None:
    session = Session(cluster, "n1")
    for number in range(count):
        session.send(SYSTEM_GROUP, DeclareQueue(f"more{number}", ()), number)
        cluster.run(10)
    cluster.until(lambda: len(session.replies) == count, "all are declared")


def lead(cluster: Cluster, group: int, name: str) -> None:
    leader = cluster.leader(group)
    assert leader is not None
    assert cluster.members[leader].replicas[group].raft.transfer_leadership(name)
    cluster.until(lambda: cluster.leader(group) == name, f"{name} leads")


def test_a_catalog_that_has_parted_is_found_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as nobody_asks:
        nobody_asks.setattr(rebuilding, "ASK_MS", 1 << 40)
        cluster, _, _, wrong = with_a_queue()
        forget_queue(cluster, wrong)
        declare(cluster, 12)
        member = cluster.members[wrong]
        cluster.until(lambda: member.replicas[SYSTEM_GROUP].parted > 0, "it is found")
        assert not member.is_ready()
        assert member.answer(CheckHealth()).reason_to_leave == "parted"
    cluster.crash(wrong)
    cluster.start(wrong)
    cluster.ready()
    assert cluster.members[wrong].catalog.queue("orders") is not None
    cluster.settle()
    assert len(cluster.snapshots(SYSTEM_GROUP)) == 1


def test_a_queue_that_one_members_catalog_lacks_is_not_deleted_though_it_leads_the_queues_group() -> None:
    cluster, group, queue, wrong = with_a_queue()
    forget_queue(cluster, wrong)
    lead(cluster, group, wrong)
    declare(cluster, 3)  # not so many that the catalogs are compared
    cluster.run(2_000)
    for name in cluster.members:
        assert cluster.info(name, group, queue).ready == MESSAGES


def test_nothing_is_carried_out_from_a_catalog_in_doubt() -> None:
    cluster, group, queue, wrong = with_a_queue()
    lead(cluster, group, wrong)
    cluster.members[wrong].replicas[SYSTEM_GROUP].disputed = "as in a test"
    Session(cluster, "n1").call(SYSTEM_GROUP, RemoveQueue("orders"))
    cluster.members[wrong].reconciler.request()
    cluster.members[wrong]._reconcile(cluster.now_ms)
    assert cluster.members[wrong].queue_machine(group).has_queue(queue)
    cluster.members[wrong].replicas[SYSTEM_GROUP].disputed = ""
    cluster.until(
        lambda: not any(each.queue_machine(group).has_queue(queue) for each in cluster.members.values()),
        "it is deleted",
    )
