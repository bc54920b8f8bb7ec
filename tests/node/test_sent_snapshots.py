"""The bodies that a snapshot from another member needs (quorum/node/repair/snapshot_bodies.py): they are fetched,
whatever fails meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from quorum.node.repair import body_transfer as bodies
from support.members.bodies import alike, consume, count_fetched, far_cluster, has_all, publish
from support.members.cluster import Session


@pytest.mark.parametrize("away", ["never there", "far behind"])
def test_a_member_that_is_sent_a_snapshot_has_the_bodies_too(away: str) -> None:
    cluster = far_cluster()
    if away == "never there":
        cluster.crash("n3")
    group, queue = cluster.declare("orders", filter_enabled=True)
    producer = Session(cluster, "n1")
    sent = publish(producer, group, queue, range(40))
    if away == "far behind":
        cluster.crash("n3")
    sent += publish(producer, group, queue, range(40, 160))
    cluster.start("n3")
    cluster.ready()
    alike(cluster, group)
    assert count_fetched(cluster, "n3") >= 80
    assert cluster.logs["n3"].journal(group).first_index > 100
    assert has_all(cluster, "n3", group)
    for name in ("n1", "n2"):
        cluster.crash(name)  # the bodies are n3's own now
        cluster.start(name)
    cluster.ready()
    consumer = consume(cluster, "n3", group, queue, "n >= 10 AND n < 150")
    cluster.until(lambda: len(consumer.received(group)) == 140, "all that match")
    assert consumer.received(group) == sent[10:150]
    alike(cluster, group)


def test_only_bodies_of_messages_that_are_still_there_are_fetched() -> None:
    cluster = far_cluster()
    group, queue = cluster.declare("orders", filter_enabled=True)
    cluster.crash("n3")
    producer = Session(cluster, "n1")
    publish(producer, group, queue, range(200))
    taker = Session(cluster, "n2")
    attach = taker.call(group, c.Attach(queue, "c", b"", 150))
    assert isinstance(attach, AttachedReply)
    cluster.until(lambda: len(taker.received(group)) == 150, "most")
    assert taker.call(group, c.Settle(queue, "c", attach.attach, ((1, 150),))) == Ok(150)
    publish(producer, group, queue, range(200, 260))
    cluster.start("n3")
    cluster.ready()
    alike(cluster, group)
    assert 50 <= count_fetched(cluster, "n3") <= 110
    assert has_all(cluster, "n3", group)


class Cut:
    """A cluster whose third member is in the middle of a transfer: the state is there, some of the bodies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **config: Any) -> None:
        monkeypatch.setattr(bodies, "QUESTION_ENTRIES", 8)
        monkeypatch.setattr(bodies, "SERVE_ENTRIES", 4)
        self.cluster = cluster = far_cluster(**config)
        self.group, self.queue = cluster.declare("orders", filter_enabled=True)
        cluster.crash("n3")
        self.producer = Session(cluster, "n1")
        self.sent = publish(self.producer, self.group, self.queue, range(160))
        cluster.start("n3")
        cluster.until(lambda: count_fetched(cluster, "n3") >= 40, "some bodies", 20_000)
        assert cluster.members["n3"].snapshot_bodies.missing(self.group) > 20
        self.copies = count_fetched(cluster, "n3")

    def finish(self) -> None:
        self.cluster.ready()
        alike(self.cluster, self.group)
        assert has_all(self.cluster, "n3", self.group)
        consumer = consume(self.cluster, "n3", self.group, self.queue, "n >= 0")
        self.cluster.until(lambda: len(consumer.received(self.group)) == len(self.sent), "all")
        assert consumer.received(self.group) == self.sent


def test_a_transfer_goes_on_after_the_receiver_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Cut(monkeypatch)
    cut.cluster.crash("n3")
    cut.cluster.start("n3")
    cut.finish()
    assert count_fetched(cut.cluster, "n3") <= 160 - cut.copies + 10


def test_a_transfer_goes_on_after_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Cut(monkeypatch)
    cut.cluster.isolate("n3")
    cut.cluster.run(5_000)
    cut.sent += publish(cut.producer, cut.group, cut.queue, range(160, 220))
    cut.cluster.heal()
    cut.finish()
    assert count_fetched(cut.cluster, "n3") <= 230


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_transfer_goes_on_when_who_serves_it_dies(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    cut = Cut(monkeypatch)
    leader = cut.cluster.leader(cut.group)
    gone = leader if who == "leader" else next(n for n in ("n1", "n2") if n != leader)
    cut.cluster.crash(gone)
    cut.cluster.run(1_000)
    cut.cluster.start(gone)
    cut.finish()
    assert count_fetched(cut.cluster, "n3") <= 170


def test_a_member_in_the_middle_of_a_transfer_acknowledges_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = Cut(monkeypatch)
    cluster, group = cut.cluster, cut.group
    leader = cluster.leader(group)
    other = next(name for name in ("n1", "n2") if name != leader)
    cluster.crash(other)
    session = Session(cluster, leader)
    session.publish(group, cut.queue, b"alone")
    before = cluster.members[leader].replicas[group].raft.commit_index
    cluster.cut("n3", other)
    while cluster.members["n3"].snapshot_bodies.missing(group):
        assert cluster.members[leader].replicas[group].raft.commit_index == before
        cluster.run(5)
    cluster.start(other)
    cluster.heal()
    cut.finish()  # its selector knows nothing of the message without fields


def test_the_leader_serves_while_a_transfer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = Cut(monkeypatch)
    worst = 0
    for number in range(160, 200):
        begun = cut.cluster.now_ms
        cut.sent += publish(cut.producer, cut.group, cut.queue, range(number, number + 1))
        worst = max(worst, cut.cluster.now_ms - begun)
    assert worst <= 40
    cut.finish()


def test_a_damaged_newest_snapshot_at_the_leader_is_replaced_and_the_transfer_works() -> None:
    cluster = far_cluster()
    group, queue = cluster.declare("orders")
    cluster.crash("n3")
    producer = Session(cluster, "n1")
    sent = publish(producer, group, queue, range(100))
    for name in ("n1", "n2"):
        disk = cluster.disks[name]
        for path in [p for p in disk.names if p.name.startswith(f"group-{group:08x}")]:
            disk.flip(path, 8 * 70)  # in the first chunk
    cluster.start("n3")
    cluster.ready()
    alike(cluster, group)
    consumer = consume(cluster, "n3", group, queue)
    cluster.until(lambda: len(consumer.received(group)) == 100, "all")
    assert consumer.received(group) == sent
