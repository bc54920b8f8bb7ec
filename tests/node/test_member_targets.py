"""Batches for several queues at real members: stored once, read by each queue, also after snapshots and power cuts."""

from __future__ import annotations

import itertools

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Confirmed, Deliver
from quorum_selectors import columns
from support.fifo.world import selector
from support.members.cluster import Cluster, Session, batch

BODIES = [b"%d" % number for number in range(6)]


def two_queues(cluster: Cluster) -> tuple[int, list[int]]:
    """Two queues of one group that keep fields."""
    found: dict[int, list[int]] = {}
    for number in itertools.count():
        group, queue = cluster.declare(f"q{number}", filter_enabled=True, filter_field_names="colour")
        found.setdefault(group, []).append(queue)
        if len(found[group]) == 2:
            return group, found[group]
    raise AssertionError


@pytest.mark.parametrize("power", [False, True])
def test_a_batch_for_two_queues_outlives_its_members(power: bool) -> None:
    cluster = Cluster(log={"segment_bytes": 1 << 16})
    cluster.ready()
    group, (one, other) = two_queues(cluster)
    rows = [{"application-properties.colour": "red" if number % 2 else "blue"} for number in range(6)]
    targets = (
        c.Target(one, ((0, 3), (4, 1)), columns.encode([rows[at] for at in (0, 1, 2, 4)])),
        c.Target(other, ((1, 1), (3, 3)), columns.encode([rows[at] for at in (1, 3, 4, 5)])),
    )
    command = c.Enqueue(0, 1, 1, 6, 6, targets=targets, numbers=((1, 2), (7, 4)))
    producer = Session(cluster, "n2")
    assert producer.call(group, command, batch(BODIES)) == Confirmed(1, 10)
    taker = Session(cluster, "n1")
    attached = taker.call(group, c.Attach(one, "c", b"", 10))
    assert isinstance(attached, AttachedReply)
    cluster.until(lambda: len(taker.received(group)) == 4, "the messages of the first queue")
    assert taker.received(group) == [BODIES[at] for at in (0, 1, 2, 4)]
    taker.call(group, c.Settle(one, "c", attached.attach, ((1, 4),)))
    for name in cluster.names:
        cluster.crash(name, power)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    again = Session(cluster, "n3", producer.producer, epoch=2)
    assert again.call(group, command, batch(BODIES)) == Confirmed(1, 10)
    reader = Session(cluster, "n3")
    reader.call(group, c.Attach(other, "c", selector("colour = 'red'"), 10))
    cluster.until(lambda: len(reader.received(group)) >= 3, "the messages of the second queue")
    assert reader.received(group) == [BODIES[at] for at in (1, 3, 5)]
    got = reader.call(group, c.Get(one, 10, True))
    assert getattr(got, "count", None) == 0, "nothing came twice"
    assert [type(each) for each in reader.deliveries] == [Deliver]
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
