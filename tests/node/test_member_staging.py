"""Staged messages in members: their bodies lie in the log before they are the queue's, and are kept, sent to others,
read, and let go like those of any message (fifo/staging.py)."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.effects import Ok, Published, Refused
from quorum.log import EntryMissing
from quorum.replication.group_config import GroupConfig
from quorum_selectors import columns
from support.members.cluster import Cluster, Session, batch
from support.members.traffic import received, traffic

SEGMENT = 100_000
PARTS = (b"a" * 16, b"b" * 16)


@pytest.fixture
def cluster() -> Cluster:
    """Snapshots after each 10 kB, hardly any entries kept behind them, nothing of the log in memory."""
    made = Cluster(
        raft=GroupConfig(keep_entries=5),
        snapshot_bytes=10_000,
        log={"segment_bytes": SEGMENT, "recent_bytes": 0},
    )
    made.ready()
    return made


def stage(session: Session, group: int, queue: int, part: bytes, chunk: int, numbers: range) -> list[bytes]:
    """One chunk; each message has its number as field n."""
    bodies = [b"%d " % number + b"s" * 300 for number in numbers]
    fields = columns.encode([{"application-properties.n": number} for number in numbers])
    size = sum(map(len, bodies))
    command = c.Stage(queue, "writer", 1, part, chunk, len(bodies), size, columns=fields)
    assert isinstance(session.call(group, command, batch(bodies)), Ok)
    return bodies


def applied_index(cluster: Cluster, group: int) -> int:
    leader = cluster.leader(group)
    assert leader is not None
    return cluster.members[leader].replicas[group].raft.applied_index


def refers(cluster: Cluster, group: int, index: int) -> bool:
    leader = cluster.leader(group)
    assert leader is not None
    return cluster.members[leader].replicas[group].checkpoints.refer_to(index)


def restart(cluster: Cluster) -> None:
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()


def test_staged_bodies_outlast_collections_restarts_and_snapshots_that_are_sent(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders", filter_enabled=True, filter_field_names="n")
    behind = next(name for name in cluster.names if name != cluster.leader(group))
    cluster.crash(behind)
    writer = Session(cluster, next(name for name in cluster.names if name != behind))
    first = stage(writer, group, queue, PARTS[0], 0, range(10))
    second = stage(writer, group, queue, PARTS[1], 0, range(10, 11))
    third = stage(writer, group, queue, PARTS[0], 1, range(11, 30))
    staged = range(1, applied_index(cluster, group) + 1)
    traffic(cluster, writer.name, group, queue, 60)
    kept = [index for index in staged if refers(cluster, group, index)]
    assert len(kept) == 3
    cluster.start(behind)
    cluster.ready()
    cluster.settle()
    restart(cluster)
    for name in cluster.names:
        assert all(cluster.logs[name].read(group, index) for index in kept)
    writer = Session(cluster, "n2")
    parts = ((PARTS[1], 1), (PARTS[0], 29))
    assert writer.call(group, c.PublishStaged(queue, "writer", 1, parts)) == Published(61, 30)
    restart(cluster)  # the fields of its messages are read again, out of the staged chunks
    everything = second + first + third
    low = [body for body in everything if int(body.split()[0]) < 15]
    assert received(cluster, behind, group, queue, "n < 15", len(low)) == low
    high = [body for body in everything if body not in low]
    assert received(cluster, "n1", group, queue, "", len(high)) == high
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


@pytest.mark.parametrize("how", ["discarded", "settled"])
def test_staged_bodies_are_garbage_once_nobody_can_ask_for_them(cluster: Cluster, how: str) -> None:
    group, queue = cluster.declare("orders")
    writer = Session(cluster, "n1")
    before = applied_index(cluster, group)
    bodies = stage(writer, group, queue, PARTS[0], 0, range(10))
    staged = range(before + 1, applied_index(cluster, group) + 1)
    traffic(cluster, "n1", group, queue, 30)
    assert any(refers(cluster, group, index) for index in staged)
    if how == "discarded":
        assert writer.call(group, c.DiscardStaged(queue, "writer", 1)) == Ok(10)
    else:
        assert writer.call(group, c.PublishStaged(queue, "writer", 1, ((PARTS[0], 10),))) == Published(31, 10)
        assert received(cluster, "n2", group, queue, "", 10) == bodies
    traffic(cluster, "n1", group, queue, 60)
    cluster.run(20_000)
    for name in cluster.names:
        for index in staged:
            assert not cluster.members[name].replicas[group].checkpoints.refer_to(index)
            with pytest.raises(EntryMissing):
                cluster.logs[name].read(group, index)


def test_a_chunk_that_is_too_high_is_refused_and_its_session_serves_on(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    writer = Session(cluster, "n1")
    early = writer.call(group, c.Stage(queue, "writer", 1, PARTS[0], 1, 1, 1), batch([b"x"]))
    assert isinstance(early, Refused)
    assert early.reason == "gap"
    stage(writer, group, queue, PARTS[0], 0, range(3))
    assert writer.call(group, c.PublishStaged(queue, "writer", 1, ((PARTS[0], 3),))) == Published(1, 3)


def test_a_publication_sent_again_is_published_once(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    stage(Session(cluster, "n1"), group, queue, PARTS[0], 0, range(10))
    publish = c.PublishStaged(queue, "writer", 1, ((PARTS[0], 10),))
    assert Session(cluster, "n1").call(group, publish) == Published(1, 10)
    restart(cluster)
    late = Session(cluster, "n3")
    assert late.call(group, publish) == Published(0, 0, is_duplicate=True)
    reply = late.call(group, c.Stage(queue, "writer", 1, PARTS[1], 0, 1, 1), batch([b"x"]))
    assert isinstance(reply, Refused)
    assert reply.reason == "published"
    assert len(received(cluster, "n2", group, queue, "", 10)) == 10
