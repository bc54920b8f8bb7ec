"""Queues that are not used leave their groups and the catalog, whoever leads."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest

from fifo import commands as c
from quorum.catalog.commands import SetPolicy
from quorum.node import events as ev
from quorum.node.replica.reconciler import Reconciler
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.v1 import admin_pb2
from support.members.cluster import Cluster, Session
from support.members.services import Api, Context, on_member

EXPIRES_MS = 3_000


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.ready()
    return made


def is_gone(cluster: Cluster, queue: int, group: int) -> bool:
    """At every member: from the catalog, from its group, and from the group's memory of expired queues."""
    return all(
        member.catalog.is_gone(queue, group)
        and not member.queue_machine(group).has_queue(queue)
        and not member.queue_machine(group).expired
        for member in cluster.members.values()
    )


def test_a_queue_that_nobody_uses_leaves_its_group_and_the_catalog(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders", expires=EXPIRES_MS)
    began_ms = cluster.now_ms
    Session(cluster, "n2").publish(group, queue, b"first")
    cluster.until(lambda: is_gone(cluster, queue, group), "the queue is gone", 20_000)
    assert cluster.now_ms - began_ms >= EXPIRES_MS * 0.8
    assert cluster.members["n1"].catalog.queue("orders") is None
    again = cluster.declare("orders", expires=EXPIRES_MS)
    assert again[1] != queue


def test_a_consumer_keeps_its_queue_through_a_change_of_leaders(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders", expires=EXPIRES_MS)
    leader = cluster.leader(group)
    assert leader is not None
    node = next(name for name in cluster.names if name != leader)
    session = Session(cluster, node)
    session.call(group, c.Attach(queue, "a", b"", 5))
    cluster.crash(leader)
    cluster.run(3 * EXPIRES_MS)
    assert cluster.members[node].queue_machine(group).has_queue(queue)
    cluster.start(leader)
    session.call(group, c.Cancel(queue, "a", True))
    cluster.until(lambda: is_gone(cluster, queue, group), "the queue is gone", 20_000)


@pytest.mark.parametrize("lost", ["the group's leader", "the system group's leader"])
def test_the_queue_is_removed_once_though_a_leader_is_lost(cluster: Cluster, lost: str) -> None:
    group, queue = cluster.declare("orders", expires=EXPIRES_MS)
    other_group, other = cluster.declare("invoices")
    number = group if lost == "the group's leader" else SYSTEM_GROUP

    def has_expired() -> bool:
        return any(queue in member.queue_machine(group).expired for member in cluster.members.values())

    cluster.until(has_expired, "the group has deleted the queue", 20_000)
    leader = cluster.leader(number)
    assert leader is not None
    cluster.crash(leader)
    cluster.until(lambda: is_gone(cluster, queue, group), "the others remove it", 20_000)
    cluster.start(leader)
    cluster.until(lambda: is_gone(cluster, queue, group), "the queue is gone", 20_000)
    cluster.settle()
    assert all(member.catalog.removals == 1 for member in cluster.members.values())
    assert all(member.queue_machine(other_group).has_queue(other) for member in cluster.members.values())


def test_a_leader_that_looks_before_it_may_propose_removes_the_queue_later(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders", expires=EXPIRES_MS)
    removals = [member.reconciler for member in cluster.members.values()]
    turn = Reconciler.turn
    for removal in removals:
        removal.turn = lambda *_: False  # type: ignore[method-assign]
    members = cluster.members.values()
    cluster.until(
        lambda: all(queue in member.queue_machine(group).expired for member in members), "expired", 20_000
    )
    old = cluster.leader(SYSTEM_GROUP)
    assert old is not None
    name = next(each for each in cluster.names if each not in (old, cluster.leader(group)))
    heir, system = cluster.members[name], cluster.members[name].replicas[SYSTEM_GROUP]
    cluster.submit(old, ev.Transfer(SYSTEM_GROUP, name))
    cluster.until(lambda: system.raft.is_leader, "another member leads the system group", 20_000)
    assert not system.leads
    for removal in removals:
        removal.turn = functools.partial(turn, removal)  # type: ignore[method-assign]
    heir.reconciler.run(heir.catalog, cluster.now_ms)
    cluster.until(lambda: is_gone(cluster, queue, group), "the queue is gone", 20_000)


def test_a_restart_of_all_members_never_shortens_the_time(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders", expires=EXPIRES_MS)
    cluster.run(EXPIRES_MS // 2)
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    began_ms = cluster.now_ms
    cluster.until(lambda: is_gone(cluster, queue, group), "the queue is gone", 20_000)
    assert EXPIRES_MS * 0.4 <= cluster.now_ms - began_ms <= EXPIRES_MS * 1.5


def test_a_policy_makes_queues_expire(cluster: Cluster) -> None:
    group, queue = cluster.declare("tmp.1")
    cluster.administer(SetPolicy("tmp", "tmp.*", 0, (("x-expires", EXPIRES_MS),)))
    cluster.until(lambda: is_gone(cluster, queue, group), "the queue is gone", 20_000)


def test_an_expired_queue_that_the_catalog_still_has_does_not_hold_up_policies(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders", expires=EXPIRES_MS)
    members = cluster.members.values()
    for member in members:
        member.reconciler._remove_expired = lambda *_: False  # type: ignore[method-assign]
    cluster.until(
        lambda: all(queue in member.queue_machine(group).expired for member in members), "expired", 20_000
    )
    cluster.administer(SetPolicy("short", "*", 0, (("x-max-length", 5),)))
    cluster.until(
        lambda: all(member.queue_machine(group).configured == 1 for member in members), "configured", 2_000
    )


# ---- declared again


def asked(run: Callable[[Api], Awaitable[None]]) -> None:
    cluster = Cluster(queue_groups=1)
    cluster.ready()
    on_member(cluster, run)


async def declare(api: Api) -> bool:
    request = admin_pb2.DeclareQueueRequest(queue="orders")
    request.arguments["x-expires"].integer = EXPIRES_MS
    answer = await api.call(api.admin.DeclareQueue(request, Context()))  # type: ignore[arg-type]
    return bool(answer.created)


def test_declaring_a_queue_again_keeps_it() -> None:
    async def run(api: Api) -> None:
        assert await declare(api)
        for _ in range(4):
            api.cluster.run(EXPIRES_MS // 2)
            assert not await declare(api)
        assert api.cluster.members["n1"].catalog.removals == 0

    asked(run)


def test_declaring_a_queue_that_has_just_expired_makes_another_one() -> None:
    """Its group has deleted it, and the catalog still has it."""

    async def run(api: Api) -> None:
        assert await declare(api)
        cluster = api.cluster
        old = cluster.members["n1"].catalog.queue("orders")
        assert old is not None

        def has_expired() -> bool:
            return all(old.id in member.queue_machine(1).expired for member in cluster.members.values())

        removal = cluster.members[str(cluster.leader(SYSTEM_GROUP))].reconciler
        turn, removal.turn = removal.turn, lambda *_: False  # type: ignore[method-assign]
        cluster.until(has_expired, "the group has deleted the queue", 20_000)
        removal.turn = turn  # type: ignore[method-assign]
        assert await declare(api)
        found = cluster.members["n1"].catalog.queue("orders")
        assert found is not None and found.id != old.id
        assert cluster.members["n1"].queue_machine(1).has_queue(found.id)

    asked(run)
