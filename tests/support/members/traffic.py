"""What tests of members do with whole queues: messages that come and go, and all that a consumer receives."""

from __future__ import annotations

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from quorum_selectors import canonical, jms
from support.members.cluster import Cluster, Session

LATE_MS = 200
"""Time in which a message too many would arrive."""


def traffic(cluster: Cluster, name: str, group: int, queue: int, count: int) -> None:
    """Messages come and go, so that snapshots are taken and the log is collected."""
    session = Session(cluster, name)
    for _ in range(count):
        session.publish(group, queue, bytes(5_000))
        cluster.run(5)
    cluster.until(lambda: len(session.confirmed()) == count, f"{count} confirms")
    for _ in range(count):
        assert session.call(group, c.Get(queue, 1, settled=True)) == Ok(1)


def received(cluster: Cluster, name: str, group: int, queue: int, selector: str, count: int) -> list[bytes]:
    """The messages that a consumer receives, which settles `count` of them. selector: empty for all."""
    session = Session(cluster, name)
    encoded = canonical.encode(jms.parse(selector)) if selector else b""
    reply = session.call(group, c.Attach(queue, "c", encoded, 10_000))
    assert isinstance(reply, AttachedReply)
    cluster.until(lambda: len(session.received(group)) >= count, f"{count} deliveries")
    cluster.run(LATE_MS)
    found = session.received(group)
    assert session.call(group, c.Settle(queue, "c", reply.attach, ((1, count),))) == Ok(count)
    assert session.call(group, c.Cancel(queue, "c", requeue=True)) == Ok()
    return found
