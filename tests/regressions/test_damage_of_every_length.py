"""A damaged entry is healed whatever its length is. A configuration is found by its length when a member starts, so an
entry of that length that cannot be read may be one: the member waits with standing for office, and loses nothing."""

from __future__ import annotations

import pytest

from quorum.catalog.members import AddMember
from quorum.node.replica import proposals
from quorum.replication.configuration import CONFIGURATION_BYTES
from support.log.damage import flip_body
from support.members.cluster import Cluster, Session, batch, enqueue

AROUND = 6


def lone_cluster(**config: object) -> Cluster:
    """Every body is read from the disk, and no snapshot covers it."""
    cluster = Cluster(
        log={"recent_bytes": 0}, snapshot_bytes=1 << 30, snapshot_ms=1 << 40, queue_groups=1, **config
    )
    cluster.ready()
    return cluster


def damage(cluster: Cluster, name: str, group: int, index: int) -> None:
    flip_body(cluster.disks[name], cluster.logs[name], group, index)


def start_again(cluster: Cluster) -> None:
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)


def entries_of_lengths(cluster: Cluster, group: int, queue: int, lengths: list[int]) -> dict[int, int]:
    """Index -> length of entries of about these lengths, one message each."""
    log, session = cluster.logs["n1"], Session(cluster, "n1")

    def publish(size: int) -> int:
        first = session.next_sequence
        session.next_sequence += 1
        body = b"x" * size
        session.send(group, enqueue(queue, first, [body]), (first, first), batch([body]))
        cluster.until(lambda: first in session.confirmed(), "confirmed")
        return cluster.members["n1"].replicas[group].raft.last_index

    publish(1)  # the session registers with it
    beside = len(log.read(group, publish(4_000))) - 4_000
    found = [publish(length - beside) for length in lengths]
    cluster.settle()
    return {index: len(log.read(group, index)) for index in found}


def is_well(cluster: Cluster, group: int, indexes: list[int]) -> bool:
    """All can be read everywhere, nothing is quarantined, and members stand for office as ever."""
    for name, member in cluster.members.items():
        raft = member.replicas[group].raft
        if raft.quarantine.is_on or raft.unread_configurations or member.repairer.lost(group):
            return False
        for index in indexes:
            cluster.logs[name].read(group, index)
    return True


@pytest.mark.parametrize("older", [False, True], ids=["this version's log", "an older version's log"])
def test_disjoint_damage_on_two_of_three_is_healed_whatever_the_length(
    older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if older:
        monkeypatch.setattr(proposals, "CONFIGURATION_BYTES", 0)
    cluster = lone_cluster()
    group, queue = cluster.declare("orders")
    wanted = [*range(CONFIGURATION_BYTES - AROUND, CONFIGURATION_BYTES + AROUND), 300] * 2
    entries = entries_of_lengths(cluster, group, queue, wanted)
    assert (CONFIGURATION_BYTES in entries.values()) == older, "a command never has a configuration's size"
    indexes = sorted(entries)
    for index in indexes[: len(indexes) // 2]:
        damage(cluster, "n1", group, index)
    for index in indexes[len(indexes) // 2 :]:
        damage(cluster, "n2", group, index)
    start_again(cluster)
    cluster.ready()
    cluster.until(lambda: is_well(cluster, group, indexes), "all is healed")
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def test_damage_of_any_length_on_all_three_is_healed() -> None:
    cluster = lone_cluster()
    group, queue = cluster.declare("orders")
    entries = sorted(
        entries_of_lengths(cluster, group, queue, [CONFIGURATION_BYTES - 1, CONFIGURATION_BYTES] * 3)
    )
    for place, name in enumerate(cluster.names):
        for index in entries[2 * place : 2 * place + 2]:
            damage(cluster, name, group, index)
    start_again(cluster)
    cluster.ready()
    cluster.until(lambda: is_well(cluster, group, entries), "all is healed")


def test_a_damaged_configuration_is_healed_and_its_member_stands_for_no_office_before() -> None:
    cluster = lone_cluster()
    group, _ = cluster.declare("orders")
    cluster.join("n4~a")
    new = AddMember("n4~a", "n4", "n4:1", "n4:2", cluster.node_states["n4~a"].incarnation)
    cluster.administer(new)
    everybody = ("n1", "n2", "n3", "n4~a")

    def all_know() -> bool:
        rafts = [member.replicas[group].raft for member in cluster.members.values()]
        return all(raft.configuration.voters == everybody and raft.is_settled for raft in rafts)

    cluster.until(all_know, "four vote")
    cluster.run(3_000)  # what is last is not taken for a torn write then
    configurations = cluster.logs["n2"].journal(group).indices_of_length(CONFIGURATION_BYTES)
    damage(cluster, "n2", group, configurations[-1])
    start_again(cluster)
    for name in ("n1", "n3", "n4~a"):
        cluster.isolate(name)
    cluster.run(3_000)
    raft = cluster.members["n2"].replicas[group].raft
    assert list(raft.unread_configurations) == configurations[-1:]
    assert not raft.is_settled
    assert not raft.is_leader
    cluster.heal()
    cluster.until(all_know, "it knows again who votes")
    assert is_well(cluster, group, configurations)
