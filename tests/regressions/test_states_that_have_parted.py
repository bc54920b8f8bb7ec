"""What most members have made of the same entries is right, whoever leads. The one that has something else is rebuilt
from another member before it serves, votes or stands for office; without a majority nobody serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorum.catalog.members import RemoveMember
from quorum.node import digests
from support.cluster import Cluster, Session


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "EVERY", 10)


def founded(size: int = 3) -> tuple[Cluster, int, int, str]:
    cluster = Cluster(size, queue_groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    return cluster, group, queue, leader


def part(cluster: Cluster, name: str, group: int, queue: int) -> None:
    """A bit turned in this member's memory, and its next snapshot keeps that."""
    machine = cluster.members[name].queue_machine(group)
    block = machine.queues[queue].blocks.get(0)
    machine.queues[queue].drop_ready(block, block.ready & -block.ready, "maxlen")
    machine.running_hash ^= sum(name.encode())
    cluster.members[name].replicas[group].save_snapshot(cluster.logs[name], cluster.now_ms)


def flood(cluster: Cluster, name: str, group: int, queue: int, count: int = 25) -> list[str]:
    """Publishes, one message an entry; who has ended."""
    session, ended = Session(cluster, name), []
    for _ in range(count):
        if session.name in cluster.members:
            session.publish(group, queue, b"m")
        for each in list(cluster.members):
            cluster.now_ms += 1
            try:
                cluster.step(each)
            except digests.Diverged:
                ended.append(each)
                cluster.crash(each, power=False)
        cluster.now_ms += 4
    return ended


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_the_one_that_differs_is_rebuilt_from_the_others_even_if_it_led(who: str) -> None:
    cluster, group, queue, leader = founded()
    flood(cluster, leader, group, queue)
    wrong = leader if who == "leader" else next(name for name in cluster.names if name != leader)
    right = [name for name in cluster.names if name != wrong]
    part(cluster, wrong, group, queue)
    assert flood(cluster, leader, group, queue) == [wrong], "the others go on"
    disk = cluster.disks[wrong]
    assert any("diverged-group-1" in name for name in disk.list_directory(Path("/data"))), (
        "the evidence is kept"
    )
    cluster.start(wrong)
    replica = cluster.members[wrong].replicas[group]
    assert replica.raft.quarantine.is_deaf, "it neither serves nor votes nor stands for office"
    assert cluster.members[wrong].queue_machine(group).info(queue) is None, (
        "nothing is left of what was wrong"
    )
    cluster.until(lambda: not cluster.members[wrong].replicas[group].raft.quarantine.is_on, "it is rebuilt")
    cluster.ready()
    assert flood(cluster, right[0], group, queue) == []
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def test_without_a_majority_nobody_serves_and_says_so() -> None:
    cluster, group, queue, leader = founded()
    flood(cluster, leader, group, queue)
    for number, name in enumerate(cluster.names):
        cluster.members[name].queue_machine(group).running_hash ^= number + 1
    assert flood(cluster, leader, group, queue) == [], "nobody knows who is right"
    for name, member in cluster.members.items():
        assert "no majority of the 3 voters" in member.replicas[group].disputed
        assert not member.is_ready()
        assert not cluster.may_deliver(name, group)
    applied = {member.replicas[group].raft.applied_index for member in cluster.members.values()}
    flood(cluster, leader, group, queue)
    assert applied == {member.replicas[group].raft.applied_index for member in cluster.members.values()}


def test_a_read_of_now_waits_while_nobody_serves() -> None:
    cluster, group, queue, leader = founded()
    flood(cluster, leader, group, queue, 12)
    wrong, away = (name for name in cluster.names if name != leader)
    cluster.isolate(away)
    part(cluster, wrong, group, queue)
    flood(cluster, leader, group, queue)
    assert all(cluster.members[name].replicas[group].disputed for name in (leader, wrong))
    asked = [
        cluster.ask_now(name, lambda member: member.queue_machine(group).info(queue).ready, group)
        for name in (leader, wrong)
    ]
    cluster.run(2_000)
    assert not any(token in cluster.told for token in asked)


def test_two_that_differ_wait_for_the_third() -> None:
    cluster, group, queue, leader = founded()
    flood(cluster, leader, group, queue)
    wrong, away = (name for name in cluster.names if name != leader)
    cluster.isolate(away)
    part(cluster, wrong, group, queue)
    assert flood(cluster, leader, group, queue) == []
    assert cluster.members[leader].replicas[group].disputed
    cluster.heal()
    assert flood(cluster, leader, group, queue, 400) == [wrong]
    assert not cluster.members[leader].replicas[group].disputed
    cluster.start(wrong)
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


@pytest.mark.parametrize("change", ["grow", "remove"])
def test_the_hash_of_a_member_before_it_was_rebuilt_says_nothing_when_the_members_change(change: str) -> None:
    cluster = Cluster(3, queue_groups=1, snapshot_ms=2_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    wrong = cluster.leader(group)
    assert wrong is not None
    right = [name for name in cluster.names if name != wrong]
    flood(cluster, wrong, group, queue)
    part(cluster, wrong, group, queue)
    assert flood(cluster, wrong, group, queue) == [wrong]
    for _ in range(30):  # so far that it begins behind the entry at which it differed
        flood(cluster, right[0], group, queue, 1)
        cluster.run(100)
    cluster.start(wrong)
    cluster.until(lambda: not cluster.members[wrong].replicas[group].raft.quarantine.is_on, "it is rebuilt")
    cluster.ready()
    for name in right:
        assert all(
            wrong not in claims
            for index, claims in cluster.members[name].replicas[group].digests.claimed.items()
            if index <= cluster.members[wrong].replicas[group].raft.snapshot_index
        ), "what it claimed before is forgotten"
    if change == "grow":
        cluster.grow(4)
    else:
        cluster.administer(RemoveMember(right[1]))
        cluster.until(
            lambda: len(cluster.members[right[0]].replicas[group].raft.configuration.voters) == 2, "it left"
        )
    assert flood(cluster, right[0], group, queue) == []
    voters = cluster.members[right[0]].replicas[group].raft.configuration.voters
    assert not any(cluster.members[name].replicas[group].disputed for name in voters)
    session = Session(cluster, right[0])
    session.publish(group, queue, b"more")
    cluster.until(lambda: session.confirmed() == [1], "it serves")
