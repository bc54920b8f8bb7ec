"""Checkpoints and paging in members: what is in memory changes, what is answered does not."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from fifo.limits import PRODUCTION
from fifo.persistence import checkpoint, snapshot
from fifo.queries.storage import Storage
from quorum.node.queries import DescribeQueue
from quorum.node.replica import checkpoints, replica
from quorum.node.replica.checkpoints import ExportedSnapshot, LogPages
from quorum.node.replica.replica import TIME_BYTES
from quorum.replication.configuration import unwrap_state
from quorum.replication.group_config import GroupConfig
from quorum.replication.snapshots import WINDOW_CHUNKS
from support.log.usage import usage
from support.members.cluster import Cluster, Session


def publish(cluster: Cluster, session: Session, group: int, queue: int, count: int, batches: int) -> None:
    for _ in range(batches):
        session.publish(group, queue, *[b"x" * 20] * count)
        cluster.run(5)
    cluster.until(lambda: len(session.confirmed()) >= count * batches, "confirms")


def storages(cluster: Cluster, group: int, queue: int) -> list[Storage]:
    found = [storage_at(cluster, name, group, queue) for name in cluster.members]
    return [storage for storage in found if storage is not None]


def storage_at(cluster: Cluster, name: str, group: int, queue: int) -> Storage | None:
    found = cluster.members[name].answer(DescribeQueue(group, queue, 0, 1, 1))
    return None if found is None else found.storage


def total(storage: Storage) -> int:
    return storage.alpha + storage.beta + storage.gamma + storage.delta


def drained(cluster: Cluster, session: Session, group: int, queue: int, count: int) -> list[bytes]:
    """Takes and settles everything."""
    reply = session.call(group, c.Attach(queue, "c", b"", 50_000))
    assert isinstance(reply, AttachedReply)
    cluster.until(lambda: len(session.received(group)) >= count, f"{count} messages")
    assert session.call(group, c.Settle(queue, "c", reply.attach, ((1, count),))) == Ok(count)
    return session.received(group)


def test_messages_go_through_all_four_states() -> None:
    """alpha: just published. beta: their bodies have left the memory. gamma: their block was written, too. delta: it
    has left the memory. Then they are consumed as if nothing had been."""
    cluster = Cluster(log={"recent_bytes": 64 << 10}, queue_memory_bytes=1 << 30)
    cluster.ready()
    group, queue = cluster.declare("orders")
    producer = Session(cluster, "n1")
    publish(cluster, producer, group, queue, 100, 1)
    cluster.settle()
    assert all((each.alpha, total(each)) == (100, 100) for each in storages(cluster, group, queue))
    publish(cluster, Session(cluster, "n2"), group, queue, 5_000, 4)
    cluster.run(300)
    for each in storages(cluster, group, queue):  # one block has filled, and was written while there was time
        assert total(each) == 20_100
        assert each.gamma == PRODUCTION.block_size - 1  # sequences begin at 1
        assert each.alpha + each.beta == 20_100 - (PRODUCTION.block_size - 1)
        assert each.beta > 0
    for member in cluster.members.values():
        member.pager.target_bytes = 1
    cluster.run(2_000)
    for each in storages(cluster, group, queue):
        assert each.delta > 10_000
        assert each.cold_blocks == 1
    received = drained(cluster, Session(cluster, "n3"), group, queue, 20_100)
    assert len(received) == 20_100
    cluster.settle()
    assert all(total(each) == 0 for each in storages(cluster, group, queue))


def test_a_lazy_queue_that_nobody_reads_keeps_only_what_is_being_filled() -> None:
    cluster = Cluster()
    cluster.ready()
    lazy = cluster.declare("lazy", queue_mode="lazy")
    plain = cluster.declare("plain")
    for at, (group, queue) in (("n1", lazy), ("n2", plain)):
        publish(cluster, Session(cluster, at), group, queue, 8_000, 7)
    cluster.run(1_000)
    for each in storages(cluster, *lazy):
        assert (each.cold_blocks, each.warm_blocks) == (3, 1)
    assert all(each.cold_blocks == 0 for each in storages(cluster, *plain))


def test_a_restarted_member_has_all_blocks_cold_and_serves_the_same() -> None:
    cluster = Cluster(snapshot_bytes=100_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    publish(cluster, Session(cluster, "n1"), group, queue, 5_000, 8)
    cluster.settle()
    for power in (True, False):
        cluster.crash("n2", power)
        cluster.start("n2")
        storage = storage_at(cluster, "n2", group, queue)
        assert storage is not None
        assert (storage.warm_blocks, storage.delta) == (0, total(storage))
        assert total(storage) >= 20_000
        cluster.ready()
        cluster.settle()
        assert len(cluster.snapshots(group)) == 1
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    assert len(drained(cluster, Session(cluster, "n3"), group, queue, 40_000)) == 40_000


def test_snapshots_that_are_written_little_by_little_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "WRITE_AHEAD_BYTES", 1)
    cluster = Cluster(snapshot_bytes=20_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    publish(cluster, Session(cluster, "n1"), group, queue, 5_000, 8)
    assert all(member.replicas[group].checkpoints.kept for member in cluster.members.values())
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    assert len(drained(cluster, Session(cluster, "n3"), group, queue, 40_000)) == 40_000


def test_a_member_too_far_behind_is_sent_the_canonical_snapshot() -> None:
    """Its pages mean nothing to others; a checkpoint never travels."""
    cluster = Cluster(snapshot_bytes=20_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    behind = next(name for name in cluster.names if name != leader)
    cluster.crash(behind)
    publish(cluster, Session(cluster, leader), group, queue, 5_000, 4)
    cluster.settle()
    leading = cluster.members[leader].replicas[group]
    state = leading.checkpoints.newest()
    assert isinstance(state, ExportedSnapshot)
    while not state.prepare():
        pass
    whole = b"".join(state.read(at, 777) for at in range(0, state.size, 777))
    assert len(whole) == state.size
    sent = unwrap_state(whole)[1][TIME_BYTES:]
    assert not checkpoint.is_checkpoint(sent)
    restored = snapshot.decode(sent, leading.field_source)
    assert snapshot.encode(restored) == sent
    cluster.start(behind)
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    assert len(drained(cluster, Session(cluster, behind), group, queue, 20_000)) == 20_000


def test_a_snapshot_is_made_ready_and_sent_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pages it lies in, a step of the leader reads few of them."""
    monkeypatch.setattr(checkpoints, "SLICE_PIECES", 2)
    queues = 60
    cluster = Cluster(queue_groups=1, raft=GroupConfig(keep_entries=5), snapshot_ms=2_000)
    cluster.ready()
    leader = cluster.leader(1)
    assert leader is not None
    behind = next(name for name in cluster.names if name != leader)
    cluster.crash(behind)
    session = Session(cluster, leader)
    for number in range(queues):
        cluster.members[leader].replicas[1].propose_internal(
            c.CreateQueue(1_000 + number, c.QueueConfig(name=f"q{number}"))
        )
    cluster.run(50)
    for number in range(queues):
        session.publish(1, 1_000 + number, b"x")
        cluster.run(5)
    cluster.until(lambda: len(session.confirmed()) == queues, "confirms")
    cluster.run(3_000)
    reads: dict[int, int] = {}
    read = LogPages.read

    def counted(pages: LogPages, page: int) -> bytes:
        if pages is cluster.members[leader].replicas[1].checkpoints.pages:
            reads[cluster.now_ms] = reads.get(cluster.now_ms, 0) + 1
        return read(pages, page)

    monkeypatch.setattr(LogPages, "read", counted)
    cluster.start(behind)
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(1)) == 1
    assert sum(reads.values()) >= 2 * queues  # measured, then sent
    assert max(reads.values()) <= 2 * WINDOW_CHUNKS


def test_two_snapshots_are_told_to_the_log_and_after_a_restart_again() -> None:
    cluster = Cluster(size=1, snapshot_bytes=20_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    publish(cluster, Session(cluster, "n1"), group, queue, 1_000, 10)
    kept = cluster.members["n1"].replicas[group].checkpoints.kept
    assert len(kept) == 2
    cluster.crash("n1")
    cluster.start("n1")
    assert cluster.members["n1"].replicas[group].checkpoints.kept == kept


def test_what_was_changed_is_checkpointed_when_its_time_has_come() -> None:
    cluster = Cluster(size=1, snapshot_ms=5_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    cluster.run(6_000)
    before = cluster.members["n1"].replicas[group].checkpoints.kept
    cluster.run(20_000)
    assert cluster.members["n1"].replicas[group].checkpoints.kept == before  # nothing has happened
    publish(cluster, Session(cluster, "n1"), group, queue, 10, 1)
    cluster.run(6_000)
    assert cluster.members["n1"].replicas[group].checkpoints.kept != before


def test_the_disk_space_of_what_was_settled_comes_back() -> None:
    cluster = Cluster(size=1, log={"segment_bytes": 128 << 10, "recent_bytes": 16 << 10}, snapshot_ms=1_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    member = cluster.members["n1"]
    publish(cluster, Session(cluster, "n1"), group, queue, 5_000, 8)
    full = usage(cluster.logs["n1"]).total_bytes
    assert full > 800_000
    assert len(drained(cluster, Session(cluster, "n1"), group, queue, 40_000)) == 40_000
    for _ in range(4):  # two snapshots after the last change that still referred to it
        cluster.run(2_500)
        publish(cluster, Session(cluster, "n1"), group, queue, 1, 1)
    cluster.run(5_000)
    assert member.collecting.adopted > 0
    assert usage(cluster.logs["n1"]).total_bytes < full / 2
    cluster.crash("n1")
    cluster.start("n1")
    cluster.ready()
    assert len(drained(cluster, Session(cluster, "n1"), group, queue, 4)) == 4
