"""Transactions in members. What they publish is in the log before it is in a queue.

A member keeps it until the transaction ends, and sends it to members that are behind. Another leader may commit the
transaction. After its end the log is collected."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from quorum.log import EntryMissing
from quorum.replication.group_config import GroupConfig
from quorum_selectors import columns
from support.members.cluster import Cluster, Session, batch
from support.members.traffic import received, traffic


@pytest.fixture
def cluster() -> Cluster:
    """Snapshots after each 10 kB, hardly any entries kept behind them, nothing of the log in memory."""
    made = Cluster(
        queue_groups=1,
        raft=GroupConfig(keep_entries=5),
        snapshot_bytes=10_000,
        log={"segment_bytes": 100_000, "recent_bytes": 0},
    )
    made.ready()
    return made


def part(queue: int, numbers: range, priority: int = 0) -> tuple[c.Enqueue, bytes, list[bytes]]:
    """Messages with their numbers as field n."""
    bodies = [b"%d " % number + b"t" * 300 for number in numbers]
    fields = columns.encode([{"application-properties.n": number} for number in numbers])
    size = sum(map(len, bodies))
    command = c.Enqueue(
        queue, 0, 0, len(bodies), size, columns=fields, priorities=bytes([priority]) if priority else b""
    )
    return command, batch(bodies), bodies


def refers(cluster: Cluster, group: int, index: int) -> list[bool]:
    return [m.replicas[group].checkpoints.refer_to(index) for m in cluster.members.values()]


def applied(cluster: Cluster, group: int) -> int:
    leader = cluster.leader(group)
    assert leader is not None
    return cluster.members[leader].replicas[group].raft.applied_index


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_ends_under_a_leader_that_has_it_from_a_snapshot(cluster: Cluster, end: str) -> None:
    group, queue = cluster.declare("orders", filter_enabled=True, filter_field_names="n", max_priority=5)
    _, other = cluster.declare("others")
    leader = cluster.leader(group)
    assert leader is not None
    name, behind = [each for each in cluster.names if each != leader]
    session = Session(cluster, name)
    session.publish(group, other, b"work")
    cluster.until(lambda: session.confirmed() == [1], "a message")
    attached = session.call(group, c.Attach(other, "w", b"", 1))
    assert isinstance(attached, AttachedReply)
    cluster.until(lambda: len(session.received(group)) == 1, "it is delivered")
    cluster.crash(behind)
    cluster.run(500)
    before = applied(cluster, group)
    first, data, low = part(queue, range(10))
    assert session.call(group, c.InTransaction(1, first), data) == Ok(10)
    settle = c.Settle(other, "w", attached.attach, ((1, 1),))
    assert session.call(group, c.InTransaction(1, settle)) == Ok(1)
    second, data, high = part(queue, range(10, 14), 3)
    assert session.call(group, c.InTransaction(1, second), data) == Ok(4)
    embargoed = range(before + 1, applied(cluster, group) + 1)
    traffic(cluster, leader, group, other, 40)
    cluster.start(behind)
    cluster.ready()
    cluster.settle()
    kept = [index for index in embargoed if all(refers(cluster, group, index))]
    assert len(kept) == 2
    assert len(cluster.snapshots(group)) == 1
    cluster.crash(leader)
    cluster.until(lambda: cluster.leader(group) is not None, "another leads")
    traffic(cluster, behind, group, other, 40)
    if end == "commit":
        assert session.call(group, c.Commit(1, 3, 14)) == Ok()
        cluster.start(leader)
        cluster.ready()
        cluster.settle()
        for each in cluster.names:
            cluster.crash(each)
        for each in cluster.names:
            cluster.start(each)
        cluster.ready()
        assert received(cluster, behind, group, queue, "n >= 5", 9) == high + low[5:]
        assert received(cluster, leader, group, queue, "", 5) == low[:5]
        got = Session(cluster, name).call(group, c.Get(other, 1, True))
        assert got == Ok(0)
    else:
        assert session.call(group, c.Rollback(1)) == Ok()
        assert session.call(group, settle) == Ok(1)
        cluster.start(leader)
        cluster.ready()
    traffic(cluster, behind, group, other, 60)
    cluster.run(20_000)
    cluster.settle()
    for each in cluster.names:
        for index in kept:
            assert not cluster.members[each].replicas[group].checkpoints.refer_to(index)
            with pytest.raises(EntryMissing):
                cluster.logs[each].read(group, index)
    assert len(cluster.snapshots(group)) == 1


def test_a_transaction_of_lost_processes_is_rolled_back(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders", expires=60_000)
    session = Session(cluster, "n1")
    command, data, _ = part(queue, range(5))
    assert session.call(group, c.InTransaction(1, command), data) == Ok(5)
    for each in cluster.names:
        cluster.crash(each)
    for each in cluster.names:
        cluster.start(each)
    cluster.ready()
    again = Session(cluster, "n2", session.producer, epoch=2)
    reply = again.call(group, c.Commit(1))
    assert getattr(reply, "reason", "") == "rolled_back"
    cluster.run(20_000)
    cluster.settle()
    for member in cluster.members.values():
        machine = member.queue_machine(group)
        assert not machine.transactions.by_key
        assert not machine.queues[queue].transactions.embargo.parts
