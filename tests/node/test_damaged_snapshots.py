"""Replicas that cannot go on from their own snapshot or entries, and the state that they take instead."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from quorum.log import EntryMissing
from quorum.node.repair.snapshot_bodies import SnapshotBodies
from quorum.replication.configuration import State
from quorum_selectors import canonical, jms
from support.log.damage import make_unreadable
from support.members.bodies import (
    alike,
    damage,
    damaged_cluster,
    far_cluster,
    has_all,
    live,
    publish,
    snapshot_files,
)
from support.members.cluster import Cluster, Session


def _has(cluster: Cluster, name: str, group: int, index: int) -> bool:
    try:
        cluster.logs[name].read(group, index)
    except EntryMissing:
        return False
    return True


def test_a_replica_that_waits_for_a_body_that_nobody_has_any_more_is_sent_another_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own state is from before messages that have left everywhere else."""
    cluster = far_cluster(log={"recent_bytes": 0, "segment_bytes": 20_000})
    group, queue = cluster.declare("orders", filter_enabled=True)
    publish(Session(cluster, "n1"), group, queue, range(30))
    cluster.settle()
    leader = cluster.leader(group)
    assert leader is not None
    name = next(name for name in cluster.names if name != leader)
    member = cluster.members[name]
    replica = member.replicas[group]
    lost = live(cluster, group)[20]
    damage(cluster, name, group, lost)
    monkeypatch.setattr(member.body_client, "tick", lambda now_ms: None)
    replica.rebuild_from_snapshot(lost, cluster.now_ms)
    member.repairer.note(group, lost, 0, "damaged")
    taker = Session(cluster, leader)
    attached = taker.call(group, c.Attach(queue, "t", b"", 100))
    assert isinstance(attached, AttachedReply)
    cluster.until(lambda: len(taker.received(group)) == 30, "all are delivered")
    assert taker.call(group, c.Settle(queue, "t", attached.attach, ((1, 30),))) == Ok(30)
    publish(Session(cluster, leader), group, queue, range(30, 130))
    others = [other for other in cluster.names if other != name]
    cluster.until(
        lambda: not any(_has(cluster, other, group, lost) for other in others), "the others drop it", 120_000
    )
    assert replica.blocked_on_index == lost
    monkeypatch.undo()
    cluster.until(lambda: not replica.wants_state and not replica.blocked_on_index, "another state", 20_000)
    alike(cluster, group)


def test_a_replica_that_cannot_begin_again_from_its_own_files_is_sent_another_state() -> None:
    """Its snapshots are damaged, and so are the segments with the entries since the beginning."""
    cluster = far_cluster(log={"recent_bytes": 0, "segment_bytes": 20_000})
    group, queue = cluster.declare("orders", filter_enabled=True)
    publish(Session(cluster, "n1"), group, queue, range(100))
    cluster.settle()
    name = "n3"
    member, log, disk = cluster.members[name], cluster.logs[name], cluster.disks[name]
    replica = member.replicas[group]
    for path in snapshot_files(cluster, name, group):
        disk.flip(path, 8 * 70)
    for sealed in log._store.history.sealed:
        if (False, group) in sealed.parts:
            make_unreadable(disk, log, sealed)
    machine = member.queue_machine(group)
    for number in machine.queues[queue].messages.blocks.numbers():
        machine.queues[queue].messages.blocks.get(number).columns = None
    taker = Session(cluster, "n2")
    taker.send(group, c.Attach(queue, "one", canonical.encode(jms.parse("n = 99")), 1), "attach")
    cluster.until(lambda: replica.wants_state, "its state is given up")
    cluster.until(lambda: not replica.wants_state, "another state", 60_000)
    alike(cluster, group)
    publish(Session(cluster, "n2"), group, queue, range(100, 130))
    alike(cluster, group)


def without_latest(name: str) -> tuple[Cluster, int]:
    """A cluster and its group. This member is down, and gets a snapshot when it starts."""
    cluster = far_cluster()
    group, queue = cluster.declare("orders")
    cluster.crash(name)
    publish(Session(cluster, "n1"), group, queue, range(120))
    return cluster, group


def damage_received(cluster: Cluster, name: str, group: int) -> None:
    """Damages the snapshot that this member has received, which has to read it from the disk again."""
    disk = cluster.disks[name]
    [path] = [path for path in disk.names if path.suffix == ".received"]
    disk.flip(path, 8 * 70)
    cluster.members[name].replicas[group].raft._installer.incoming._source._chunk_number = -1  # type: ignore[union-attr]


def test_a_received_snapshot_that_is_damaged_before_it_is_installed_is_received_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bodies take their time."""
    name = "n3"
    cluster, group = without_latest(name)
    cluster.start(name)
    member = cluster.members[name]
    monkeypatch.setattr(member.body_client, "tick", lambda now_ms: None)
    cluster.until(lambda: member.snapshot_bodies.missing(group) > 0, "its bodies are missing")
    incoming = member.replicas[group].raft._installer.incoming
    damage_received(cluster, name, group)
    cluster.until(lambda: incoming._source is None, "it is dropped")
    monkeypatch.undo()
    alike(cluster, group)
    assert has_all(cluster, name, group)


def test_a_received_snapshot_that_is_damaged_in_the_step_that_installs_it_is_received_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "n3"
    cluster, group = without_latest(name)
    prepare = SnapshotBodies.prepare
    damaged: list[int] = []

    def prepare_and_damage(
        self: SnapshotBodies, number: int, index: int, term: int, state: State
    ) -> int | None:
        proven = prepare(self, number, index, term, state)
        if proven is not None and number == group and not damaged:
            damage_received(cluster, name, group)
            damaged.append(index)
        return proven

    monkeypatch.setattr(SnapshotBodies, "prepare", prepare_and_damage)
    cluster.start(name)
    cluster.until(lambda: bool(damaged), "it is damaged")
    cluster.ready()
    alike(cluster, group)
    assert has_all(cluster, name, group)


@pytest.mark.parametrize("how_many", [1, 2])
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "started from the newest"])
def test_a_replica_goes_back_to_an_older_snapshot_where_the_newest_is_damaged_with_a_body(
    restarts: bool, how_many: int
) -> None:
    """What counts as kept, and the members of the group, are those of what was really loaded; with both files gone all
    entries are applied again."""
    cluster, group, queue, sent = damaged_cluster()
    producer = Session(cluster, "n1")
    name = "n3"
    if restarts:
        cluster.crash(name)
        cluster.start(name)
        cluster.ready()
    member = cluster.members[name]
    replica = member.replicas[group]
    older, newest = replica.checkpoints.kept
    for path in snapshot_files(cluster, name, group)[2 - how_many :]:
        cluster.disks[name].flip(path, 8 * 70)
    for index in live(cluster, group)[20:23]:
        damage(cluster, name, group, index)
    machine = member.queue_machine(group)
    for number in machine.queues[queue].messages.blocks.numbers():
        machine.queues[queue].messages.blocks.get(number).columns = None
    for taker in (Session(cluster, "n2"), Session(cluster, name)):  # one here, so that it hears of it at once
        taker.send(group, c.Attach(queue, "one", canonical.encode(jms.parse("n = 99")), 1), "attach")
    cluster.until(lambda: replica.blocked_on_index > 0, "it has gone back")
    base = older if how_many == 1 else 0
    assert replica.raft.snapshot_index == base
    assert replica.raft.applied_index == max(1, base)
    assert replica.checkpoints.kept == ((older,) if base else ())
    assert replica.raft.configuration.voters == cluster.names
    log = cluster.logs[name]
    alike(cluster, group)
    assert not replica.raft.quarantine.is_on
    sent += publish(producer, group, queue, range(100, 220))  # two more snapshots
    cluster.settle()
    assert list(reversed(replica.checkpoints.kept)) == log.journal(group).snapshot_indices()
    assert min(replica.checkpoints.kept) > newest
    cluster.crash(name)
    cluster.start(name)
    cluster.ready()
    alike(cluster, group)
    assert not cluster.members[name].replicas[group].raft.quarantine.is_on
    assert has_all(cluster, name, group)


def test_a_snapshot_taken_after_going_back_keeps_what_the_older_file_refers_to() -> None:
    """The log keeps what the files that are here refer to, not the highest indices that were ever kept: else the one
    that is left beside the new one could not be used any more."""
    cluster, group, queue, _ = damaged_cluster()
    name = "n3"
    replica = cluster.members[name].replicas[group]
    older, newest = replica.checkpoints.kept
    cluster.disks[name].flip(snapshot_files(cluster, name, group)[-1], 8 * 70)
    replica.rebuild_from_snapshot(0, cluster.now_ms)
    cluster.settle()
    replica.save_snapshot(cluster.logs[name], cluster.now_ms)
    kept = replica.checkpoints.kept
    assert kept == (older, replica.raft.applied_index)
    assert list(reversed(kept)) == cluster.logs[name].journal(group).snapshot_indices()
    cluster.crash(name)
    cluster.disks[name].flip(snapshot_files(cluster, name, group)[-1], 8 * 70)
    cluster.start(name)
    assert not cluster.members[name].replicas[group].raft.quarantine.is_on
    assert cluster.members[name].replicas[group].checkpoints.kept == (older,)
    cluster.ready()
    alike(cluster, group)
    assert newest > older and queue
