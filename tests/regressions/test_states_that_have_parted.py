"""What most members have made of the same entries is right, whoever leads. A member with another state serves nothing
until it has the others' state. It still votes and acknowledges, since its log is right. Without a majority nobody
serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorum.catalog.members import RemoveMember
from quorum.node import events as ev
from quorum.node.cluster import state_requests as rebuilding
from quorum.node.queries import QueueCounts
from quorum.node.replica import state_hashes
from support.members.cluster import Cluster, Session

HEARTBEAT_MS = 150
WITHIN_MS = 5_000
"""By when a member has got another state from a leader."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_hashes, "EVERY", 10)


@pytest.fixture
def nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member whose state has parted keeps this state."""
    monkeypatch.setattr(rebuilding, "ASK_MS", 1 << 40)


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member whose state has parted asks for another one some seconds later than usual."""
    monkeypatch.setattr(rebuilding, "ASK_MS", 3_000)


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
    block = machine.queues[queue].messages.blocks.get(0)
    machine.queues[queue].messages.drop(block, block.ready & -block.ready, "maxlen")
    machine.running_hash ^= sum(name.encode())
    cluster.members[name].replicas[group].save_snapshot(cluster.logs[name], cluster.now_ms)


def flood(cluster: Cluster, name: str, group: int, queue: int, count: int = 25) -> list[str]:
    """Publishes, one message an entry; the members whose states have parted meanwhile, or with the next heartbeat."""
    session, before = Session(cluster, name), parted(cluster, group)

    def found() -> list[str]:
        return [each for each in parted(cluster, group) if each not in before]

    for _ in range(count):
        if session.name in cluster.members:
            session.publish(group, queue, b"m")
        for each in list(cluster.members):
            cluster.now_ms += 1
            cluster.step(each)
        cluster.now_ms += 4
    for _ in range(HEARTBEAT_MS):
        if not found():
            cluster.run(1)
    cluster.run(2)  # another one, for the same reason
    return found()


def parted(cluster: Cluster, group: int) -> list[str]:
    """The members that know that their state has parted."""
    return [name for name in cluster.members if cluster.members[name].replicas[group].parted]


def rebuilt(cluster: Cluster, group: int, *names: str) -> None:
    """These have parted, and get the others' state."""
    assert parted(cluster, group) == sorted(names)
    cluster.until(lambda: not parted(cluster, group), "their states are replaced", WITHIN_MS)
    cluster.ready()
    assert not any(member.replicas[group].disputed for member in cluster.members.values())


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
    rebuilt(cluster, group, wrong)
    assert flood(cluster, right[0], group, queue) == []
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    cluster.crash(wrong)
    cluster.start(wrong)
    assert parted(cluster, group) == []
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1, "nothing is left of what was wrong"


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
    asked = [cluster.ask_now(name, QueueCounts(group, queue)) for name in (leader, wrong)]
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
    rebuilt(cluster, group, wrong)
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
    rebuilt(cluster, group, wrong)
    for name in right:
        known = cluster.members[name].replicas[group].state_hashes
        claimed = known.claimed[parted_at].get(wrong, known.own[parted_at])
        assert claimed == known.own[parted_at], "what it claimed before is forgotten"
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
        cluster.run(100)
        if session.confirmed() == [1]:
            return True
    return False


@pytest.mark.usefixtures("seldom")
def test_two_of_five_that_part_at_the_same_entry_are_rebuilt_at_the_same_time() -> None:
    cluster, group, queue, wrong, right = two_of_five_parted()
    rebuilt(cluster, group, *wrong)
    assert publishes(cluster, right[0], group, queue)
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


@pytest.mark.usefixtures("seldom")
def test_an_absent_member_holds_up_nobody_who_is_to_be_rebuilt() -> None:
    cluster, group, _, wrong, right = two_of_five_parted()
    cluster.crash(next(name for name in right if name != cluster.leader(group)))
    rebuilt(cluster, group, *wrong)


@pytest.mark.usefixtures("nobody_asks")
def test_members_that_have_parted_vote_and_acknowledge() -> None:
    cluster, group, queue, _, right = two_of_five_parted()
    for away in right[1:]:
        cluster.crash(away)
    cluster.until(lambda: cluster.leader(group) == right[0], "the one whose state is right leads")
    assert publishes(cluster, right[0], group, queue)


@pytest.mark.usefixtures("nobody_asks")
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
    for name in (wrong, leader, away):
        cluster.crash(name)
    cluster.start(wrong)
    cluster.run(2_000)
    assert parted(cluster, group) == [wrong]
    assert not cluster.members[wrong].is_ready()
    asked = object()
    cluster.submit(wrong, ev.RunQuery(QueueCounts(group, queue), asked))
    cluster.run(2_000)
    assert asked not in cluster.told, "not even what need not be new is told"
    cluster.start(leader)
    cluster.until(lambda: cluster.leader(group) == leader, "it votes for the one whose state is right")
    assert publishes(cluster, leader, group, queue), "and acknowledges"


def test_a_crash_between_the_installation_and_the_note_of_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, group, queue, leader = founded()
    flood(cluster, leader, group, queue)
    wrong = next(name for name in cluster.names if name != leader)
    part(cluster, wrong, group, queue)
    assert flood(cluster, leader, group, queue) == [wrong]

    def save() -> None:
        raise OSError("the process ends")

    monkeypatch.setattr(cluster.members[wrong].membership.node_state, "save", save)
    with pytest.raises(OSError, match="the process ends"):
        cluster.run(WITHIN_MS)
    cluster.crash(wrong)
    cluster.start(wrong)
    rebuilt(cluster, group, wrong)
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
    rebuilt(cluster, group, leader)
