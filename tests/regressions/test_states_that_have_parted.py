"""What most members have made of the same entries is right, whoever leads. A member with another state serves nothing
until it is rebuilt from the others, one member after the other. It still votes and acknowledges, since its log is
right. Without a majority nobody serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorum.catalog.members import AddMember, RemoveMember
from quorum.node import digests, rebuilding
from quorum.node import events as ev
from quorum.node.lost_log import quarantine
from quorum.node.replica import SYSTEM_GROUP
from support.cluster import Cluster, Session

TURN_MS = 1_500
"""Short, but longer than it takes until others know of a quarantine."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "EVERY", 10)
    monkeypatch.setattr(rebuilding, "TURN_MS", TURN_MS)
    monkeypatch.setattr(rebuilding, "QUARANTINE_SEEN_MS", TURN_MS)


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
    """Publishes, one message an entry; the members whose states have parted meanwhile."""
    session, before = Session(cluster, name), parted(cluster, group)
    for _ in range(count):
        if session.name in cluster.members:
            session.publish(group, queue, b"m")
        for each in list(cluster.members):
            cluster.now_ms += 1
            cluster.step(each)
        cluster.now_ms += 4
    return [each for each in parted(cluster, group) if each not in before]


def parted(cluster: Cluster, group: int) -> list[str]:
    """The members that know that their state has parted."""
    return [name for name in cluster.members if cluster.members[name].replicas[group].parted]


def run(cluster: Cluster, ms: int, most: int = 9) -> list[str]:
    """Time passes, until so many members have ended to be rebuilt: they are started again. Their names, in this
    order."""
    ended: list[str] = []
    until_ms = cluster.now_ms + ms
    while cluster.now_ms < until_ms and len(ended) < most:
        cluster.now_ms += 5
        for name in list(cluster.members):
            try:
                cluster.step(name)
            except digests.Diverged:
                ended.append(name)
                cluster.crash(name, power=False)
                cluster.start(name)
    return ended


@pytest.mark.parametrize("who", ["follower", "leader"])
def test_the_one_that_differs_is_rebuilt_from_the_others_even_if_it_led(who: str) -> None:
    cluster, group, queue, leader = founded()
    flood(cluster, leader, group, queue)
    wrong = leader if who == "leader" else next(name for name in cluster.names if name != leader)
    right = [name for name in cluster.names if name != wrong]
    part(cluster, wrong, group, queue)
    assert flood(cluster, leader, group, queue) == [wrong], "the others go on"
    assert not cluster.members[wrong].is_ready()
    assert not cluster.may_deliver(wrong, group)
    disk = cluster.disks[wrong]
    assert any("diverged-group-1" in name for name in disk.list_directory(Path("/data"))), (
        "the evidence is kept"
    )
    with pytest.raises(digests.Diverged):
        cluster.run(5 * TURN_MS)
    cluster.crash(wrong)
    cluster.start(wrong)
    replica = cluster.members[wrong].replicas[group]
    assert replica.raft.quarantine.is_deaf, "it neither serves nor votes nor stands for office"
    assert not replica.parted
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
    cluster.until(lambda: parted(cluster, group) == [wrong], "the third is heard")
    assert not cluster.members[leader].replicas[group].disputed
    assert run(cluster, 4 * TURN_MS) == [wrong]
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
    parted_at = cluster.members[wrong].replicas[group].parted
    for _ in range(20):  # so far that it begins behind the entry at which it differed
        flood(cluster, right[0], group, queue, 1)
        cluster.run(100)
    assert run(cluster, 4 * TURN_MS) == [wrong]
    cluster.until(lambda: not cluster.members[wrong].replicas[group].raft.quarantine.is_on, "it is rebuilt")
    cluster.ready()
    for name in right:
        claimed = cluster.members[name].replicas[group].digests.claimed[parted_at]
        assert wrong not in claimed, "what it claimed before is forgotten"
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


def two_of_five_parted() -> tuple[Cluster, int, int, list[str], list[str]]:
    """Group, queue, the two that have parted at the same entry, the other three."""
    cluster, group, queue, leader = founded(5)
    flood(cluster, leader, group, queue, 12)
    wrong = [name for name in cluster.names if name != leader][:2]
    for name in wrong:
        part(cluster, name, group, queue)
    assert sorted(flood(cluster, leader, group, queue)) == wrong
    return cluster, group, queue, wrong, [name for name in cluster.names if name not in wrong]


def publishes(cluster: Cluster, name: str, group: int, queue: int) -> bool:
    session = Session(cluster, name)
    session.publish(group, queue, b"more")
    for _ in range(100):
        assert run(cluster, 100) == []
        if session.confirmed() == [1]:
            return True
    return False


def test_two_of_five_that_part_at_the_same_entry_are_rebuilt_one_after_the_other() -> None:
    cluster, group, queue, wrong, right = two_of_five_parted()
    assert run(cluster, 30 * TURN_MS, 2) == wrong
    cluster.ready()
    assert publishes(cluster, right[0], group, queue)
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def test_members_that_wait_for_the_same_absent_member_are_not_rebuilt_together() -> None:
    cluster, group, _, wrong, right = two_of_five_parted()
    away = next(name for name in right if name != cluster.leader(group))
    cluster.crash(away)
    assert run(cluster, 10 * TURN_MS) == [], "a rebuilt member would wait for the absent one"
    cluster.start(away)
    assert run(cluster, 30 * TURN_MS, 2) == wrong
    cluster.ready()


def test_members_that_have_parted_vote_and_acknowledge() -> None:
    cluster, group, queue, _, right = two_of_five_parted()
    for away in right[1:]:
        cluster.crash(away)
    cluster.until(lambda: cluster.leader(group) == right[0], "the one whose state is right leads")
    assert publishes(cluster, right[0], group, queue)


def test_a_member_that_has_parted_leads_only_to_bring_one_up_to_date_that_may_lead() -> None:
    cluster, group, queue, _, right = two_of_five_parted()
    cluster.until(lambda: cluster.leader(group) in right, "one whose state is right leads")
    leader = cluster.leader(group)
    assert leader is not None
    last = next(name for name in right if name != leader)
    cluster.isolate(last)
    assert publishes(cluster, leader, group, queue)
    for away in right:
        if away != last:
            cluster.crash(away)
    cluster.heal()  # the log of the one that is right is behind those of the two that have parted
    cluster.until(lambda: cluster.leader(group) == last, "it leads")
    assert publishes(cluster, last, group, queue)


def test_that_a_state_has_parted_is_remembered_over_a_restart() -> None:
    cluster, group, queue, _ = founded()
    leader = cluster.leader(group)
    assert leader is not None
    flood(cluster, leader, group, queue)
    wrong, away = (name for name in cluster.names if name != leader)
    part(cluster, wrong, group, queue)
    assert flood(cluster, leader, group, queue) == [wrong]
    cluster.crash(wrong)
    cluster.crash(away)
    cluster.start(wrong)
    cluster.run(2_000)
    assert parted(cluster, group) == [wrong]
    assert not cluster.members[wrong].is_ready()
    asked = object()
    question = ev.Ask(lambda member: member.queue_machine(group).info(queue), asked, (group,))
    cluster.submit(wrong, question)
    cluster.run(2_000)
    assert asked not in cluster.told, "not even what need not be new is told"
    assert publishes(cluster, leader, group, queue), "it votes and acknowledges"


def test_a_crash_while_the_replica_is_given_up_leaves_nothing_of_the_wrong_state() -> None:
    cluster, group, queue, leader = founded()
    flood(cluster, leader, group, queue)
    wrong = next(name for name in cluster.names if name != leader)
    part(cluster, wrong, group, queue)
    assert flood(cluster, leader, group, queue) == [wrong]
    quarantine(cluster.logs[wrong], group)
    cluster.logs[wrong].sync()  # the mark is there, and nothing more
    cluster.crash(wrong)
    cluster.start(wrong)
    replica = cluster.members[wrong].replicas[group]
    assert replica.raft.quarantine.is_on
    assert not replica.parted
    assert cluster.members[wrong].queue_machine(group).info(queue) is None
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def test_an_absent_member_is_replaced_while_two_of_five_wait_to_be_rebuilt() -> None:
    cluster, group, queue, wrong, right = two_of_five_parted()
    away = next(name for name in right if name != cluster.leader(group))
    cluster.crash(away)
    joined = f"{away}~aaaaaaaaaaaa"
    cluster.join(joined)
    incarnation = cluster.memories[joined].incarnation
    here = next(name for name in right if name != away)
    session = Session(cluster, here)
    added = AddMember(joined, away, "n6:1", "n6:2", incarnation, replaces=True)
    session.send(SYSTEM_GROUP, added, "add")
    assert run(cluster, 60 * TURN_MS, 2) == wrong, "with the absent member replaced nothing holds them up"
    cluster.voters_are(*cluster.members)
    cluster.ready()
    assert publishes(cluster, joined, group, queue)
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def test_two_of_three_that_part_alike_are_the_majority() -> None:
    cluster, group, queue, leader = founded()
    flood(cluster, leader, group, queue, 12)
    cluster.settle()
    for name in cluster.names:
        if name != leader:
            cluster.members[name].queue_machine(group).running_hash ^= 7
    assert flood(cluster, leader, group, queue) == [leader], "nobody can tell that they are wrong"
    names = cluster.disks[leader].list_directory(Path("/data"))
    assert any("diverged-group-1" in name for name in names), "the right state is put aside"
    assert run(cluster, 4 * TURN_MS) == [leader]
    cluster.ready()
