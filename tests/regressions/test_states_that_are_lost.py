"""A page of the state that cannot be read loses the state and no promise. The member votes and acknowledges as before
until it has another member's state, so two members of three may lose theirs at the same time."""

from __future__ import annotations

from fifo import commands as c
from fifo.effects import AttachedReply
from quorum.node.queries import BrowseReady
from quorum.replication.group_config import GroupConfig
from support.log.damage import flip_body
from support.members.cluster import Cluster, Session

BATCHES, BATCH = 70, 1_000
"""More than one block of a queue."""


def with_two_blocks() -> tuple[Cluster, int, int, str, str, str]:
    """Group, queue, the leader and the other two. The blocks of the queue are in pages, and in no memory."""
    cluster = Cluster(log={"recent_bytes": 0, "segment_bytes": 16 << 20}, snapshot_bytes=2_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    producers = [Session(cluster, "n1") for _ in range(2)]
    for number in range(BATCHES):
        producers[number % 2].publish(group, queue, *[b"x"] * BATCH)
        cluster.run(30)
    cluster.until(
        lambda: sum(len(each.confirmed()) for each in producers) == BATCHES * BATCH, "all are confirmed"
    )
    cluster.settle()
    for name in cluster.names:
        cluster.crash(name, power=False)
        cluster.start(name)
        cluster.ready()
    leader = cluster.leader(group)
    assert leader is not None
    return (cluster, group, queue, leader, *(name for name in cluster.names if name != leader))  # type: ignore[return-value]


def damage_page(cluster: Cluster, name: str, group: int, queue: int, block: int) -> None:
    """A bit of the page with this block of the queue turns over on the member's disk."""
    page = cluster.members[name].queue_machine(group).queues[queue].messages.blocks.at(block).page
    flip_body(cluster.disks[name], cluster.logs[name], group, page, is_page=True)


def lead(cluster: Cluster, group: int, name: str) -> None:
    leader = cluster.members[cluster.leader(group) or name]
    if leader.config.name != name:
        assert leader.replicas[group].raft.transfer_leadership(name)
    cluster.until(lambda: cluster.leader(group) == name, f"{name} leads")
    cluster.ready()


def wanting(cluster: Cluster, group: int) -> list[str]:
    """The members that want another state."""
    return [name for name, each in cluster.members.items() if each.replicas[group].wants_state]


def all_are_equal(cluster: Cluster, group: int) -> None:
    cluster.until(lambda: not wanting(cluster, group), "everybody has a state")
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def publishes(cluster: Cluster, name: str, group: int, queue: int) -> bool:
    session = Session(cluster, name)
    session.publish(group, queue, b"more")
    cluster.until(lambda: session.confirmed() == [1], "it is confirmed", limit_ms=10_000)
    return True


def consume(cluster: Cluster, name: str, group: int, queue: int) -> Session:
    consumer = Session(cluster, name)
    assert isinstance(consumer.call(group, c.Attach(queue, "d", b"", 65_000)), AttachedReply)
    return consumer


def test_two_of_three_that_meet_a_damaged_page_at_the_same_time_are_sent_the_thirds_state() -> None:
    cluster, group, queue, leader, first, second = with_two_blocks()
    damage_page(cluster, first, group, queue, 0)
    damage_page(cluster, second, group, queue, 1)
    votes = {name: cluster.logs[name].journal(group).hard_state for name in (first, second)}
    consume(cluster, leader, group, queue)  # all members read both blocks in the same entry
    cluster.until(lambda: sorted(wanting(cluster, group)) == sorted((first, second)), "both have met theirs")
    for name in (first, second):
        assert not cluster.members[name].replicas[group].raft.quarantine.is_on
        assert cluster.logs[name].journal(group).hard_state == votes[name], "votes are kept"
    assert publishes(cluster, leader, group, queue), "they acknowledge without a state"
    all_are_equal(cluster, group)


def test_a_member_whose_state_is_lost_votes_and_is_not_elected_before_it_has_another() -> None:
    cluster, group, queue, leader, lost, away = with_two_blocks()
    damage_page(cluster, lost, group, queue, 0)
    cluster.crash(away)
    consume(cluster, leader, group, queue)
    cluster.until(lambda: cluster.members[lost].replicas[group].parted > 0, "it has met the page")
    cluster.crash(leader)
    cluster.crash(lost)
    cluster.start(lost)
    assert cluster.members[lost].replicas[group].parted, "that is remembered"
    cluster.run(2_000)
    campaign = cluster.members[lost].replicas[group].raft.campaign
    assert campaign.campaigns_last, "only if no other member can lead"
    cluster.start(leader)
    cluster.until(lambda: cluster.leader(group) == leader, "it is elected with the vote of the other")
    cluster.start(away)
    assert publishes(cluster, away, group, queue)
    all_are_equal(cluster, group)


def test_a_leader_that_meets_a_damaged_page_while_it_sends_a_snapshot_hands_over() -> None:
    cluster, group, queue, leader, behind, whole = with_two_blocks()
    damage_page(cluster, leader, group, queue, 1)
    founding = cluster.members[behind]._bootstrap
    founding.lose_replica(group, "as in a test")  # its journal is gone too
    cluster.crash(behind, power=False)
    cluster.start(behind)
    assert cluster.members[behind].replicas[group].raft.quarantine.is_on
    cluster.until(lambda: cluster.leader(group) == whole, "the whole one leads", limit_ms=20_000)
    assert not cluster.members[leader].replicas[group].raft.quarantine.is_on
    cluster.until(lambda: not cluster.members[behind].replicas[group].raft.quarantine.is_on, "it is sound")
    all_are_equal(cluster, group)
    assert publishes(cluster, behind, group, queue)


def test_a_leader_that_needs_a_damaged_page_resigns_and_a_whole_member_leads() -> None:
    cluster, group, queue, leader, _, other = with_two_blocks()
    damage_page(cluster, leader, group, queue, 0)
    consume(cluster, other, group, queue)
    cluster.until(lambda: cluster.leader(group) not in (None, leader), "another one leads")
    all_are_equal(cluster, group)
    assert publishes(cluster, other, group, queue)


def test_a_question_that_meets_a_damaged_page_is_answered_from_another_state() -> None:
    cluster, group, queue, _, asked, _ = with_two_blocks()
    damage_page(cluster, asked, group, queue, 0)
    token = cluster.ask_now(asked, BrowseReady(group, queue, 0, 10))
    cluster.until(lambda: cluster.members[asked].replicas[group].parted > 0, "it has met the page")
    assert token not in cluster.told
    assert cluster.answer(token)
    all_are_equal(cluster, group)


def test_a_state_arrives_though_the_leader_keeps_few_entries_and_its_snapshot_is_older() -> None:
    """The follower's own snapshot is newer than the leader's: the leader takes another one."""
    cluster = Cluster(raft=GroupConfig(keep_entries=5), snapshot_bytes=1 << 40, snapshot_ms=1 << 40)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    lost = next(name for name in cluster.names if name != leader)
    session = Session(cluster, leader)
    for name in (leader, lost):
        for _ in range(5):
            session.publish(group, queue, b"m")
            cluster.run(50)
        replica = cluster.members[name].replicas[group]
        replica.save_snapshot(cluster.logs[name], cluster.clock_ms(name))
    newest = cluster.members[lost].replicas[group].raft.snapshot_index
    assert newest > cluster.members[leader].replicas[group].raft.snapshot_index
    member = cluster.members[lost]
    member.comparing.lose(member.replicas[group], member._bootstrap.empty_machine(group), "as in a test")
    all_are_equal(cluster, group)
    assert member.replicas[group].raft.snapshot_index >= newest
