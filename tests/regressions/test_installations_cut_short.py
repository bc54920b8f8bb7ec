"""Found by hunting (quorum/log, quorum/node): a crash between a received snapshot's file and the log that goes with
it once cost bodies that this member had promised to keep."""

from __future__ import annotations

import pytest

from fifo.persistence import checkpoint
from quorum.log import EntryMissing
from quorum.replication.group_config import GroupConfig
from quorum.replication.journal_view import JournalView
from support.log.disk import Crashed
from support.members.cluster import Cluster, Session


def lacking(cluster: Cluster, name: str, group: int) -> list[int]:
    """The entries that the member's state refers to and that cannot be read there."""
    found = []
    for index in checkpoint.Checkpointer(cluster.members[name].replicas[group].machine).take().entries:
        try:
            cluster.logs[name].read(group, index)
        except EntryMissing:
            found.append(index)
    return found


def publish(cluster: Cluster, session: Session, group: int, queue: int, count: int) -> None:
    for _ in range(count):
        session.publish(group, queue, b"x" * 400)
        cluster.run(5)
    cluster.until(lambda: len(session.confirmed()) == session.next_sequence - 1, "all is confirmed")


def test_a_crash_before_the_log_follows_an_installed_snapshot_costs_no_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(raft=GroupConfig(keep_entries=5), snapshot_bytes=10_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    producer = Session(cluster, "n1")
    publish(cluster, producer, group, queue, 20)  # n3 has these, and counts for them
    cluster.settle()
    cluster.crash("n3")
    publish(cluster, producer, group, queue, 120)

    def die(*_: object) -> None:
        raise Crashed

    with monkeypatch.context() as patch:
        patch.setattr(JournalView, "install_snapshot", die)
        cluster.start("n3")
        with pytest.raises(Crashed):
            cluster.run(20_000)
    cluster.crash("n3")
    cluster.start("n3")
    cluster.ready()
    cluster.settle()
    cluster.run(3_000)  # nobody reads anything there
    assert lacking(cluster, "n3", group) == []
