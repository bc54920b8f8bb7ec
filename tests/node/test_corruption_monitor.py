"""What a running member does about damage that nobody has met (quorum/node/cluster/corruption_monitor.py,
scrubbing.py): bodies, snapshots, pages, node.json."""

from __future__ import annotations

from pathlib import Path

from fifo.persistence import checkpoint
from quorum.node.maintenance.scrubbing import Pace
from quorum.node.replica.replica import TIME_BYTES
from quorum.replication.configuration import unwrap_state
from support.log.damage import flip_body
from support.members.cluster import Cluster, Session

ALWAYS = Pace(piece_bytes=8 << 20, piece_ms=0, round_ms=0)
VICTIM = "n3"


def cluster_with(**log: int) -> tuple[Cluster, int, int]:
    """A cluster that always looks for damage, with a queue of 60 messages; group and queue."""
    cluster = Cluster(scrubbing=ALWAYS, log={"recent_bytes": 0, "segment_bytes": 64 << 10, **log})
    cluster.ready()
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    for number in range(60):
        session.publish(group, queue, b"%d" % number * 300)
        cluster.run(5)
    cluster.until(lambda: len(session.confirmed()) == 60, "60 confirms")
    cluster.settle()
    return cluster, group, queue


def take_snapshots(cluster: Cluster, group: int) -> None:
    for name, member in cluster.members.items():
        member.replicas[group].save_snapshot(cluster.logs[name], cluster.clock_ms(name))
        cluster.logs[name].sync()


def pages_of(cluster: Cluster, group: int) -> list[int]:
    """Of the victim's newest snapshot."""
    found = cluster.logs[VICTIM].journal(group).load_snapshot()[2]
    return list(checkpoint.contents(memoryview(unwrap_state(found)[1])[TIME_BYTES:])[1])


def flip(cluster: Cluster, group: int, key: int, *, is_page: bool = False) -> None:
    """A bit in the body of an entry or a page of the victim."""
    flip_body(cluster.disks[VICTIM], cluster.logs[VICTIM], group, key, is_page=is_page)


def all_is_well(cluster: Cluster, group: int) -> None:
    """Also after a restart of the victim."""
    cluster.crash(VICTIM)
    cluster.start(VICTIM)
    assert not cluster.members[VICTIM].replicas[group].raft.quarantine.is_on
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def test_a_damaged_snapshot_of_a_running_member_is_replaced() -> None:
    cluster, group, _ = cluster_with()
    take_snapshots(cluster, group)
    folder = Path("/data/log/snapshots")
    names = [
        path for path in cluster.disks[VICTIM].names if path.parent == folder and f"{group:08x}" in path.name
    ]
    for path in names:
        before = bytes(cluster.disks[VICTIM].names[path].data)
        cluster.disks[VICTIM].flip(path, 8 * 70)
        cluster.until(
            lambda path=path, before=before: (
                path not in cluster.disks[VICTIM].names  # type: ignore[misc]
                or cluster.disks[VICTIM].names[path].data == before
            ),
            "it is as it was, or gone",
        )
    assert names
    all_is_well(cluster, group)


def test_a_body_that_is_in_memory_is_written_again() -> None:
    cluster, group, _ = cluster_with(recent_bytes=64 << 20)
    replica, log = cluster.members[VICTIM].replicas[group], cluster.logs[VICTIM]
    index = replica.raft.applied_index - 3
    assert log.in_memory(group, index)
    flip(cluster, group, index)
    first = log.last_lsn
    cluster.until(lambda: log._store.look_up(group, index)[0].lsn > first, "a copy is in its place")
    cluster.until(lambda: log.damages == (), "it is well")
    assert cluster.members[VICTIM].repairer.repaired == {}, "nobody was asked for it"
    all_is_well(cluster, group)


def test_a_damaged_page_whose_block_is_in_memory_is_written_again() -> None:
    cluster, group, _ = cluster_with()
    take_snapshots(cluster, group)
    (page,) = pages_of(cluster, group)
    flip(cluster, group, page, is_page=True)
    cluster.until(lambda: page not in pages_of(cluster, group), "the newest snapshot names another one")
    all_is_well(cluster, group)


def with_a_lost_page(*, is_leader: bool) -> tuple[Cluster, int]:
    """The victim has a damaged page whose block is nowhere else; the group."""
    cluster, group, _ = cluster_with()
    take_snapshots(cluster, group)
    (page,) = pages_of(cluster, group)
    cluster.crash(VICTIM)
    cluster.start(VICTIM)
    cluster.ready()
    if is_leader != (cluster.leader(group) == VICTIM):
        leader = cluster.members[cluster.leader(group) or VICTIM]
        assert leader.replicas[group].raft.transfer_leadership(VICTIM if is_leader else "n1")
        cluster.run(200)
    assert is_leader == (cluster.leader(group) == VICTIM)
    flip(cluster, group, page, is_page=True)
    return cluster, group


def is_replaced(cluster: Cluster, group: int) -> None:
    """The victim has got another member's state, in quarantine it never was, and all is well."""
    member = cluster.members[VICTIM]
    cluster.until(lambda: member.replicas[group].lacks_page, "it has found the page")
    assert not member.replicas[group].parted, "nobody has needed the page"
    assert member.is_ready()
    cluster.until(lambda: not member.replicas[group].lacks_page, "its state is replaced")
    cluster.run(1_000)
    all_is_well(cluster, group)


def test_a_state_with_a_lost_page_serves_until_another_members_state_takes_its_place() -> None:
    cluster, group = with_a_lost_page(is_leader=False)
    is_replaced(cluster, group)


def test_a_leader_that_lost_a_page_hands_over_first() -> None:
    cluster, group = with_a_lost_page(is_leader=True)
    is_replaced(cluster, group)
    assert cluster.leader(group) != VICTIM
