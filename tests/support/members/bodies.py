"""Members that lack bodies: what is published, damaged, read and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply
from fifo.persistence.references import references
from quorum.log import LogDamaged
from quorum.node import events as ev
from quorum.node.replica.replica import state_of
from quorum.replication.group_config import GroupConfig
from quorum_selectors import canonical, columns, jms
from support.log.damage import flip_body
from support.members.cluster import Cluster, Session, batch

FAR = GroupConfig(keep_entries=5)
"""A member that misses more than a few entries is sent a snapshot."""


def far_cluster(**config: Any) -> Cluster:
    """Snapshots after each 10 kB, and hardly any entries kept behind them."""
    made = Cluster(raft=FAR, snapshot_bytes=10_000, **config)
    made.ready()
    return made


def publish(session: Session, group: int, queue: int, numbers: range, size: int = 400) -> list[bytes]:
    """One message a batch and entry, with its number as field n."""
    made = [b"%d " % number + b"x" * size for number in numbers]
    for number, body in zip(numbers, made, strict=True):
        first = session.next_sequence
        session.next_sequence += 1
        fields = columns.encode([{"application-properties.n": number}])
        command = c.Enqueue(queue, first, 1, 1, len(body), columns=fields)
        session.send(group, command, (first, first), batch([body]))
        session.cluster.run(5)
    session.cluster.until(
        lambda: len(session.confirmed()) == session.next_sequence - 1, f"{len(numbers)} confirms"
    )
    return made


def consume(cluster: Cluster, name: str, group: int, queue: int, selector: str = "") -> Session:
    session = Session(cluster, name)
    encoded = canonical.encode(jms.parse(selector)) if selector else b""
    reply = session.call(group, c.Attach(queue, "c", encoded, 10_000))
    assert isinstance(reply, AttachedReply), reply
    return session


def alike(cluster: Cluster, group: int) -> None:
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def has_all(cluster: Cluster, name: str, group: int) -> bool:
    """Whether every body that the member's state refers to can be read there."""
    for index in references(state_of(cluster.members[name].replicas[group].machine)):
        cluster.logs[name].read(group, index)
    return True


def count_fetched(cluster: Cluster, name: str) -> int:
    return cluster.members[name].body_client.fetched


def damage(cluster: Cluster, name: str, group: int, index: int) -> None:
    """Turns one bit of the body over, wherever the log has it."""
    log = cluster.logs[name]
    flip_body(cluster.disks[name], log, group, index)
    with pytest.raises(LogDamaged):
        log.read(group, index)


def damaged_cluster() -> tuple[Cluster, int, int, list[bytes]]:
    cluster = Cluster(log={"recent_bytes": 0}, snapshot_bytes=20_000)
    cluster.ready()
    group, queue = cluster.declare("orders", filter_enabled=True)
    sent = publish(Session(cluster, "n1"), group, queue, range(100))
    cluster.settle()
    return cluster, group, queue, sent


def live(cluster: Cluster, group: int) -> list[int]:
    return list(references(state_of(cluster.members["n1"].replicas[group].machine)))


def repaired(cluster: Cluster, name: str, group: int, index: int) -> None:
    token = object()
    told: list[object] = []
    hear = cluster._hear

    def listen(at: str, output: ev.Output) -> None:
        if isinstance(output, ev.QueryResult) and output.token is token:
            told.append(at)
        hear(at, output)

    cluster._hear = listen  # type: ignore[method-assign]
    cluster.submit(name, ev.RepairBody(group, index, token))
    cluster.until(lambda: told == [name], "the body is mended")


def snapshot_files(cluster: Cluster, name: str, group: int) -> list[Path]:
    return sorted(path for path in cluster.disks[name].names if path.name.startswith(f"group-{group:08x}"))
