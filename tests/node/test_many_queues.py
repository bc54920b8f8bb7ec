"""A thousand queues: the whole cluster starts again in the time of a few elections, and idles as with none."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from fifo.effects import Confirmed
from quorum.catalog.commands import DeclareQueue
from quorum.node.replica.replica import SYSTEM_GROUP
from support.members.cluster import Cluster, Session, batch, enqueue

QUEUES = 1_000
LEADERS_MS = 10_000
"""Within which every group has a leader after a start of all members."""
IDLE_MS = 2_000


class CountingCluster(Cluster):
    """Counts the frames between members."""

    frames: ClassVar[Counter[str]] = Counter()

    def carry(self, sender: str, to: str, kind: int, data: bytes) -> None:
        self.frames[sender] += 1
        super().carry(sender, to, kind, data)

    def idle_frames(self) -> int:
        """How many frames an idle cluster sends."""
        self.run(2_000)
        before = self.frames.total()
        self.run(IDLE_MS)
        return self.frames.total() - before


def test_a_thousand_queues_are_led_again_soon_after_all_members_start_and_cost_nothing_while_idle() -> None:
    cluster = CountingCluster(3)
    cluster.ready()
    idle_before = cluster.idle_frames()
    admin = Session(cluster, "n1")
    for number in range(QUEUES):
        admin.send(SYSTEM_GROUP, DeclareQueue(f"q{number}", ()), number)
    catalogs = [member.catalog for member in cluster.members.values()]
    cluster.until(lambda: all(len(each.queues()) == QUEUES for each in catalogs), "all queues are there")
    cluster.settle()
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    began = cluster.now_ms
    cluster.ready()
    assert cluster.now_ms - began < LEADERS_MS
    session = Session(cluster, "n2")
    for number in (0, QUEUES // 2, QUEUES - 1):
        found = cluster.members["n2"].catalog.queue(f"q{number}")
        assert found is not None
        sequence = session.next_sequence
        session.next_sequence += 1
        reply = session.call(found.group, enqueue(found.id, sequence, [b"x"]), batch([b"x"]))
        assert isinstance(reply, Confirmed)
    session.call(SYSTEM_GROUP, DeclareQueue("last", ()))
    assert cluster.idle_frames() <= 1.1 * idle_before
