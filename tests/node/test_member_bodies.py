"""Members that lack bodies (quorum/node/repair/body_transfer.py, snapshot_bodies.py, repairer.py): after a
snapshot, after damage."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from fifo.persistence.references import references
from fifo.results import BrowsePage, QueueInfo
from quorum.log import EntryMissing, LogDamaged
from quorum.node import events as ev
from quorum.node import queries as q
from quorum.node.repair import body_transfer as bodies
from quorum.node.repair.snapshot_bodies import SnapshotBodies
from quorum.node.replica.replica import state_of
from quorum.node.wire.frames import Frame, Send
from quorum.replication.configuration import State
from quorum.replication.group_config import GroupConfig
from quorum_selectors import canonical, columns, jms
from support.log.damage import make_unreadable
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


# ---- snapshots


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


# ---- damage


def damage(cluster: Cluster, name: str, group: int, index: int) -> None:
    """Turns one bit of the body over, wherever the log has it."""
    log = cluster.logs[name]
    found, segment = log._store.look_up(group, index)
    assert found is not None
    assert segment is not None
    log._store.release(segment)
    offset = found.place & 0xFFFFFFFF
    cluster.disks[name].flip(segment.path, 8 * (offset + 56 + found.length // 2))
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


def reader_of_damaged(settled: int) -> tuple[Cluster, str, int, int]:
    """A follower that has applied so many settled messages, and whose bodies behind them are damaged."""
    cluster, group, queue, _ = damaged_cluster()
    leader = cluster.leader(group)
    assert leader is not None
    name = next(name for name in cluster.names if name != leader)
    consumer = Session(cluster, leader)
    attached = consumer.call(group, c.Attach(queue, "t", b"", settled))
    assert isinstance(attached, AttachedReply)
    cluster.until(lambda: len(consumer.received(group)) == settled, "the messages are delivered")
    assert consumer.call(group, c.Settle(queue, "t", attached.attach, ((1, settled),))) == Ok(settled)
    cluster.settle()
    review = cluster.members[name]._review_due
    last_ms = review.next_ms
    cluster.until(lambda: review.next_ms > last_ms, "the next scan for damage is half a second away")
    for index in live(cluster, group)[settled + 1 : settled + 4]:
        damage(cluster, name, group, index)
    blocks = cluster.members[name].queue_machine(group).queues[queue].messages.blocks
    for number in blocks.numbers():
        block = blocks.get(number)
        assert block is not None
        block.columns = None  # they are read from the bodies again
    return cluster, name, group, queue


def test_no_question_is_answered_from_before_a_state_that_was_shown() -> None:
    cluster, name, group, queue = reader_of_damaged(30)
    member = cluster.members[name]
    counts = q.QueueCounts(group, queue)

    def total(token: object) -> int:
        info = cluster.answer(token)
        assert isinstance(info, QueueInfo)
        return info.total

    assert total(cluster.ask_now(name, counts)) == 70
    selector = canonical.encode(jms.parse("n = 99"))
    Session(cluster, name).send(group, c.Attach(queue, "s", selector, 1), "s")
    cluster.until(
        lambda: member.replicas[group].blocked_on_index > 0, "the replica went back to its snapshot"
    )
    early, later = object(), cluster.ask_now(name, counts)
    cluster.submit(name, ev.RunQuery(counts, early))
    cluster.step(name)
    assert member.replicas[group].blocked_on_index, "the bodies have not come yet"
    assert early not in cluster.told
    assert later not in cluster.told
    assert total(early) == 70
    assert total(later) == 70


def test_a_question_that_meets_a_damaged_body_waits_for_its_repair_and_is_not_asked_again_before() -> None:
    cluster, name, group, queue = reader_of_damaged(30)
    cluster.isolate(name)
    selector = canonical.encode(jms.parse("n = 99"))
    asked: list[object] = []
    table = cluster.members[name]._queries
    answer = table.answer

    def counted(query: q.Query[object], now_ms: int) -> object:
        asked.append(query)
        return answer(query, now_ms)

    table.answer = counted  # type: ignore[assignment, method-assign]
    token = object()
    cluster.submit(name, ev.RunQuery(q.BrowseReady(group, queue, 0, 10, selector), token))
    cluster.run(500)
    assert len(asked) == 1
    assert token not in cluster.told
    cluster.heal()
    found = cluster.answer(token)
    assert isinstance(found, BrowsePage)
    assert sum(run.count for run in found.runs) == 1
    assert len(asked) <= 4, "once more for each body that was damaged"


def test_nothing_is_kept_of_questions_that_nobody_waits_for_any_more() -> None:
    cluster, name, group, queue = reader_of_damaged(30)
    cluster.isolate(name)
    cluster.run(3_000)
    member = cluster.members[name]
    selector = canonical.encode(jms.parse("n = 99"))
    inputs: list[ev.Input] = [
        ev.RunQuery(q.BrowseReady(group, queue, 0, 10, selector), "damaged"),
        ev.RunQuery(q.ReadBarrier((group, 0)), "now", is_current=True),
        ev.AwaitQueue(group, queue + 1, True, "queue"),
        ev.AwaitConfigured(group, 1 << 40, "configured"),
        ev.RepairBody(group, live(cluster, group)[31], "body"),
    ]
    cluster.submit(name, *inputs)
    cluster.run(50)
    assert len(member.questions) == 4
    assert member.repairer.waiters == 2
    cluster.submit(name, *(ev.Forget(token) for token in ("damaged", "now", "queue", "configured", "body")))
    cluster.run(50)
    assert len(member.questions) == 0
    assert member.repairer.waiters == 0
    cluster.heal()
    cluster.run(2_000)
    assert not {"damaged", "now", "queue", "configured", "body"} & {*cluster.told}


def test_a_delivery_that_meets_a_damaged_body_waits_until_it_is_healed() -> None:
    cluster, group, queue, sent = damaged_cluster()
    index = live(cluster, group)[50]
    damage(cluster, "n2", group, index)
    repaired(cluster, "n2", group, index)
    assert cluster.members["n2"].repairer.repaired == {group: 1}
    consumer = consume(cluster, "n2", group, queue)
    cluster.until(lambda: len(consumer.received(group)) == 100, "all")
    assert consumer.received(group) == sent


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_replica_that_needs_a_damaged_body_waits_for_it_and_goes_on_as_the_others(who: str) -> None:
    """A selector is evaluated over a block whose columns have to be read again, and one body in it is damaged."""
    cluster, group, queue, sent = damaged_cluster()
    leader = cluster.leader(group)
    name = leader if who == "leader" else next(n for n in cluster.names if n != leader)
    assert name is not None
    for index in live(cluster, group)[20:23]:
        damage(cluster, name, group, index)
    machine = cluster.members[name].queue_machine(group)
    for number in machine.queues[queue].messages.blocks.numbers():
        machine.queues[queue].messages.blocks.get(number).columns = None
    other = next(n for n in cluster.names if n != name)
    consumer = consume(cluster, other, group, queue, "n >= 0")
    cluster.until(lambda: len(consumer.received(group)) == 100, "all")
    assert consumer.received(group) == sent
    alike(cluster, group)
    assert cluster.members[name].repairer.repaired == {group: 3}
    assert cluster.members[name].repairer.lost(group) == 0
    assert has_all(cluster, name, group)


def snapshot_files(cluster: Cluster, name: str, group: int) -> list[Path]:
    return sorted(path for path in cluster.disks[name].names if path.name.startswith(f"group-{group:08x}"))


def _has(cluster: Cluster, name: str, group: int, index: int) -> bool:
    try:
        cluster.logs[name].read(group, index)
    except EntryMissing:
        return False
    return True


def test_a_replica_that_waits_for_a_body_that_nobody_has_any_more_is_sent_another_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own state is from before messages that have left everywhere else."""
    cluster = far_cluster(log={"recent_bytes": 0, "segment_bytes": 20_000})
    group, queue = cluster.declare("orders", filter_enabled=True)
    publish(Session(cluster, "n1"), group, queue, range(30))
    cluster.settle()
    leader = cluster.leader(group)
    assert leader is not None
    name = next(name for name in cluster.names if name != leader)
    member = cluster.members[name]
    replica = member.replicas[group]
    lost = live(cluster, group)[20]
    damage(cluster, name, group, lost)
    monkeypatch.setattr(member.body_client, "tick", lambda now_ms: None)
    replica.rebuild_from_snapshot(lost, cluster.now_ms)
    member.repairer.note(group, lost, 0, "damaged")
    taker = Session(cluster, leader)
    attached = taker.call(group, c.Attach(queue, "t", b"", 100))
    assert isinstance(attached, AttachedReply)
    cluster.until(lambda: len(taker.received(group)) == 30, "all are delivered")
    assert taker.call(group, c.Settle(queue, "t", attached.attach, ((1, 30),))) == Ok(30)
    publish(Session(cluster, leader), group, queue, range(30, 130))
    others = [other for other in cluster.names if other != name]
    cluster.until(
        lambda: not any(_has(cluster, other, group, lost) for other in others), "the others drop it", 120_000
    )
    assert replica.blocked_on_index == lost
    monkeypatch.undo()
    cluster.until(lambda: not replica.wants_state and not replica.blocked_on_index, "another state", 20_000)
    alike(cluster, group)


def test_a_replica_that_cannot_begin_again_from_its_own_files_is_sent_another_state() -> None:
    """Its snapshots are damaged, and so are the segments with the entries since the beginning."""
    cluster = far_cluster(log={"recent_bytes": 0, "segment_bytes": 20_000})
    group, queue = cluster.declare("orders", filter_enabled=True)
    publish(Session(cluster, "n1"), group, queue, range(100))
    cluster.settle()
    name = "n3"
    member, log, disk = cluster.members[name], cluster.logs[name], cluster.disks[name]
    replica = member.replicas[group]
    for path in snapshot_files(cluster, name, group):
        disk.flip(path, 8 * 70)
    for sealed in log._store.history.sealed:
        if (False, group) in sealed.parts:
            make_unreadable(disk, log, sealed)
    machine = member.queue_machine(group)
    for number in machine.queues[queue].messages.blocks.numbers():
        machine.queues[queue].messages.blocks.get(number).columns = None
    taker = Session(cluster, "n2")
    taker.send(group, c.Attach(queue, "one", canonical.encode(jms.parse("n = 99")), 1), "attach")
    cluster.until(lambda: replica.wants_state, "its state is given up")
    cluster.until(lambda: not replica.wants_state, "another state", 60_000)
    alike(cluster, group)
    publish(Session(cluster, "n2"), group, queue, range(100, 130))
    alike(cluster, group)


def without_latest(name: str) -> tuple[Cluster, int]:
    """A cluster and its group. This member is down, and gets a snapshot when it starts."""
    cluster = far_cluster()
    group, queue = cluster.declare("orders")
    cluster.crash(name)
    publish(Session(cluster, "n1"), group, queue, range(120))
    return cluster, group


def damage_received(cluster: Cluster, name: str, group: int) -> None:
    """Damages the snapshot that this member has received, which has to read it from the disk again."""
    disk = cluster.disks[name]
    [path] = [path for path in disk.names if path.suffix == ".received"]
    disk.flip(path, 8 * 70)
    cluster.members[name].replicas[group].raft._installer.incoming._source._chunk_number = -1  # type: ignore[union-attr]


def test_a_received_snapshot_that_is_damaged_before_it_is_installed_is_received_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bodies take their time."""
    name = "n3"
    cluster, group = without_latest(name)
    cluster.start(name)
    member = cluster.members[name]
    monkeypatch.setattr(member.body_client, "tick", lambda now_ms: None)
    cluster.until(lambda: member.snapshot_bodies.missing(group) > 0, "its bodies are missing")
    incoming = member.replicas[group].raft._installer.incoming
    damage_received(cluster, name, group)
    cluster.until(lambda: incoming._source is None, "it is dropped")
    monkeypatch.undo()
    alike(cluster, group)
    assert has_all(cluster, name, group)


def test_a_received_snapshot_that_is_damaged_in_the_step_that_installs_it_is_received_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "n3"
    cluster, group = without_latest(name)
    prepare = SnapshotBodies.prepare
    damaged: list[int] = []

    def prepare_and_damage(
        self: SnapshotBodies, number: int, index: int, term: int, state: State
    ) -> int | None:
        proven = prepare(self, number, index, term, state)
        if proven is not None and number == group and not damaged:
            damage_received(cluster, name, group)
            damaged.append(index)
        return proven

    monkeypatch.setattr(SnapshotBodies, "prepare", prepare_and_damage)
    cluster.start(name)
    cluster.until(lambda: bool(damaged), "it is damaged")
    cluster.ready()
    alike(cluster, group)
    assert has_all(cluster, name, group)


def test_messages_are_not_delivered_again_while_entries_are_applied_again() -> None:
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    sessions = [consume(cluster, name, group, queue) for name in cluster.names]
    publish(sessions[0], group, queue, range(30))
    cluster.settle()
    before = [session.received(group) for session in sessions]
    assert sorted(map(len, before)) == [10, 10, 10]
    for name in cluster.names:
        cluster.members[name].replicas[group].rebuild_from_snapshot(0, cluster.now_ms)
    publish(sessions[0], group, queue, range(30, 33))
    alike(cluster, group)
    found = [session.received(group) for session in sessions]
    assert [found[place][:10] for place in range(3)] == before
    assert sum(map(len, found)) == 33
    assert not any(session.ended for session in sessions)


@pytest.mark.parametrize("how_many", [1, 2])
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "started from the newest"])
def test_a_replica_goes_back_to_an_older_snapshot_where_the_newest_is_damaged_with_a_body(
    restarts: bool, how_many: int
) -> None:
    """What counts as kept, and the members of the group, are those of what was really loaded; with both files gone all
    entries are applied again."""
    cluster, group, queue, sent = damaged_cluster()
    producer = Session(cluster, "n1")
    name = "n3"
    if restarts:
        cluster.crash(name)
        cluster.start(name)
        cluster.ready()
    member = cluster.members[name]
    replica = member.replicas[group]
    older, newest = replica.checkpoints.kept
    for path in snapshot_files(cluster, name, group)[2 - how_many :]:
        cluster.disks[name].flip(path, 8 * 70)
    for index in live(cluster, group)[20:23]:
        damage(cluster, name, group, index)
    machine = member.queue_machine(group)
    for number in machine.queues[queue].messages.blocks.numbers():
        machine.queues[queue].messages.blocks.get(number).columns = None
    for taker in (Session(cluster, "n2"), Session(cluster, name)):  # one here, so that it hears of it at once
        taker.send(group, c.Attach(queue, "one", canonical.encode(jms.parse("n = 99")), 1), "attach")
    cluster.until(lambda: replica.blocked_on_index > 0, "it has gone back")
    base = older if how_many == 1 else 0
    assert replica.raft.snapshot_index == base
    assert replica.raft.applied_index == max(1, base)
    assert replica.checkpoints.kept == ((older,) if base else ())
    assert replica.raft.configuration.voters == cluster.names
    log = cluster.logs[name]
    alike(cluster, group)
    assert not replica.raft.quarantine.is_on
    sent += publish(producer, group, queue, range(100, 220))  # two more snapshots
    cluster.settle()
    assert list(reversed(replica.checkpoints.kept)) == log.journal(group).snapshot_indices()
    assert min(replica.checkpoints.kept) > newest
    cluster.crash(name)
    cluster.start(name)
    cluster.ready()
    alike(cluster, group)
    assert not cluster.members[name].replicas[group].raft.quarantine.is_on
    assert has_all(cluster, name, group)


def test_a_snapshot_taken_after_going_back_keeps_what_the_older_file_refers_to() -> None:
    """The log keeps what the files that are here refer to, not the highest indices that were ever kept: else the one
    that is left beside the new one could not be used any more."""
    cluster, group, queue, _ = damaged_cluster()
    name = "n3"
    replica = cluster.members[name].replicas[group]
    older, newest = replica.checkpoints.kept
    cluster.disks[name].flip(snapshot_files(cluster, name, group)[-1], 8 * 70)
    replica.rebuild_from_snapshot(0, cluster.now_ms)
    cluster.settle()
    replica.save_snapshot(cluster.logs[name], cluster.now_ms)
    kept = replica.checkpoints.kept
    assert kept == (older, replica.raft.applied_index)
    assert list(reversed(kept)) == cluster.logs[name].journal(group).snapshot_indices()
    cluster.crash(name)
    cluster.disks[name].flip(snapshot_files(cluster, name, group)[-1], 8 * 70)
    cluster.start(name)
    assert not cluster.members[name].replicas[group].raft.quarantine.is_on
    assert cluster.members[name].replicas[group].checkpoints.kept == (older,)
    cluster.ready()
    alike(cluster, group)
    assert newest > older and queue


def test_disjoint_damage_on_all_members_is_healed_from_each_other() -> None:
    cluster, group, queue, sent = damaged_cluster()
    indexes = live(cluster, group)
    for place, index in enumerate(indexes):
        damage(cluster, cluster.names[place % 3], group, index)
        if place % 2:
            damage(cluster, cluster.names[(place + 1) % 3], group, index)
    for name in cluster.names:
        for index in indexes:
            cluster.submit(name, ev.RepairBody(group, index, object()))
    cluster.until(
        lambda: (
            all(sum(m.repairer.repaired.values()) for m in cluster.members.values())
            and not any(m.repairer.lost(group) for m in cluster.members.values())
        ),
        "everything is repaired",
    )
    for name in cluster.names:
        assert has_all(cluster, name, group)
    consumer = consume(cluster, "n1", group, queue)
    cluster.until(lambda: len(consumer.received(group)) == 100, "all")
    assert consumer.received(group) == sent


def test_damage_that_opening_finds_is_healed_without_anybody_asking() -> None:
    cluster, group, queue, sent = damaged_cluster()
    indexes = live(cluster, group)[20:25]
    for index in indexes:
        damage(cluster, "n3", group, index)
    cluster.crash("n3")
    cluster.start("n3")
    cluster.ready()
    cluster.until(lambda: cluster.members["n3"].repairer.repaired == {group: 5}, "all five are repaired")
    assert not [damage for damage in cluster.logs["n3"].damages if damage.kind == "ENTRY"]
    assert has_all(cluster, "n3", group)
    consumer = consume(cluster, "n3", group, queue)
    cluster.until(lambda: len(consumer.received(group)) == 100, "all")
    assert consumer.received(group) == sent


def test_what_nobody_has_is_said_and_never_answered_with_wrong_bytes() -> None:
    cluster, group, queue, sent = damaged_cluster()
    index = live(cluster, group)[50]
    for name in cluster.names:
        damage(cluster, name, group, index)
    for name in cluster.names:
        cluster.submit(name, ev.RepairBody(group, index, object()))
    cluster.run(5_000)
    for name in cluster.names:
        assert cluster.members[name].repairer.lost(group) == 1
        with pytest.raises((LogDamaged, EntryMissing)):
            cluster.logs[name].read(group, index)
    assert len(sent) == 100 and queue


def test_a_leader_that_cannot_read_what_a_follower_lacks_is_mended_by_the_other_one() -> None:
    cluster, group, queue, _ = damaged_cluster()
    leader = cluster.leader(group)
    behind, other = [name for name in cluster.names if name != leader]
    assert leader is not None
    cluster.isolate(behind)
    producer = Session(cluster, other)
    publish(producer, group, queue, range(20))
    damage(cluster, leader, group, cluster.logs[leader].journal(group).last_index - 5)
    with structlog.testing.capture_logs() as events:
        cluster.heal()
        alike(cluster, group)
    assert cluster.members[leader].repairer.repaired == {group: 1}
    (told,) = [each["reason"] for each in events if each["event"] == "entry unreadable"]
    assert re.search(r"segment-\d+\.log at byte \d+, LSN \d+ .* fails its CRC", told)


def test_a_leader_that_cannot_read_what_only_it_has_leaves_office_to_others() -> None:
    cluster, group, queue, sent = damaged_cluster()
    leader = cluster.leader(group)
    assert leader is not None
    cluster.isolate(leader)
    producer = Session(cluster, leader)
    producer.publish(group, queue, b"of the old leader")
    cluster.run(50)
    last = cluster.logs[leader].journal(group).last_index
    assert last > cluster.members[leader].replicas[group].raft.commit_index
    damage(cluster, leader, group, last)
    cluster.heal()
    confirmed = Session(cluster, next(name for name in cluster.names if name != leader))
    more = publish(confirmed, group, queue, range(100, 110))
    assert cluster.leader(group) != leader
    cluster.until(lambda: cluster.members[leader].repairer.lost(group) == 0, "nothing is lost any more")
    alike(cluster, group)
    consumer = consume(cluster, leader, group, queue, "n >= 0")
    cluster.until(lambda: len(consumer.received(group)) == 110, "all that was confirmed")
    assert consumer.received(group) == sent + more


def test_a_damaged_member_stands_for_office_last() -> None:
    for seed in range(4):
        cluster = Cluster(seed=seed, log={"recent_bytes": 0}, raft=GroupConfig(election_max_s=0.6))
        cluster.ready()
        group, queue = cluster.declare("orders")
        publish(Session(cluster, "n1"), group, queue, range(10))
        leader = cluster.leader(group)
        assert leader is not None
        damaged = next(name for name in cluster.names if name != leader)
        index = live(cluster, group)[5]
        damage(cluster, damaged, group, index)
        for member in cluster.members.values():
            member.body_server.ask = lambda peer, question: None  # type: ignore[method-assign]
        cluster.submit(damaged, ev.RepairBody(group, index, object()))
        cluster.run(200)
        cluster.crash(leader)
        cluster.ready()
        assert cluster.leader(group) not in (leader, damaged)


# ---- the protocol


class OneLog:
    """Bodies of one group, and copies that come."""

    def __init__(self, *terms: tuple[int, int, bytes]) -> None:
        self.entries = {index: (term, body) for index, term, body in terms}
        self.synced_lsn = 0
        self.lsn = 0

    def read_entry(self, group: int, index: int) -> tuple[int, bytes]:
        if index not in self.entries:
            raise EntryMissing(str(index))
        return self.entries[index]

    def put_copy(self, group: int, index: int, term: int, parts: Any) -> int:
        self.entries[index] = (term, b"".join(bytes(part) for part in parts))
        self.lsn += 1
        return self.lsn


@dataclass
class Replicas:
    commit: int

    def commit_index(self, group: int) -> int:
        return self.commit


@dataclass
class Notes:
    name: str
    lost: list[tuple[str, int]]

    def note(self, group: int, index: int, term: int, reason: str) -> None:
        self.lost.append((self.name, index))


class Talk:
    """A member that asks and others that answer, frame by frame."""

    def __init__(self, here: OneLog, **there: tuple[OneLog, int]) -> None:
        self.now = 0
        self.here = here
        self.up = list(there)
        self.lost: list[tuple[str, int]] = []
        self.frames: list[tuple[str, str, int, bytes]] = []
        self.body_client = bodies.BodyClient(here, self.sender("me"), self)
        self.body_servers = {
            name: bodies.BodyServer(
                log,
                Replicas(commit),
                self.sender(name),
                Notes(name, self.lost),
            )
            for name, (log, commit) in there.items()
        }
        self.change: Callable[[bytes], bytes] = lambda data: data

    def candidates(self, group: int) -> list[str]:
        return self.up

    def sender(self, sender: str) -> Send:
        def send(peer: str, kind: int, parts: list[bytes | memoryview]) -> None:
            self.frames.append((sender, peer, kind, b"".join(parts)))

        return send

    def turn(self, ms: int = 5) -> None:
        self.now += ms
        self.body_client.tick(self.now)
        for body_server in self.body_servers.values():
            body_server.serve(self.now)
        frames, self.frames = self.frames, []
        for sender, peer, kind, data in frames:
            if kind == bodies.KIND_FETCH:
                if peer in self.up:
                    self.body_servers[peer].ask("me", bodies.Question.decode(data))
            else:
                self.body_client.take(sender, bodies.Answer.decode(self.change(data)), self.now)
        self.here.synced_lsn = self.here.lsn
        self.body_client.settle()

    def run(self, job: bodies.Job, turns: int = 200) -> None:
        for _ in range(turns):
            if job.is_complete:
                return
            self.turn()


def many(count: int, size: int = 100, term: int = 3) -> OneLog:
    return OneLog(*((index, term, b"%d" % index * size) for index in range(1, count + 1)))


def wish(*indexes: int) -> Any:
    return array("Q", indexes)


def test_bodies_come_from_whoever_has_them_in_slices() -> None:
    here = OneLog()
    first, second = many(3_000), many(3_000)
    for index in range(1, 3_000, 2):
        del first.entries[index]
    talk = Talk(here, one=(first, 3_000), two=(second, 3_000))
    done: list[int] = []
    job = talk.body_client.fetch(1, wish(*range(1, 3_001)), lambda: done.append(1))
    talk.run(job)
    assert done == [1]
    assert here.entries == second.entries
    assert talk.body_servers["two"].served_bytes < sum(len(body) for _, body in second.entries.values())


def test_bodies_come_once_however_slowly_they_are_served() -> None:
    here, there = OneLog(), many(3 * bodies.QUESTION_ENTRIES, size=1)
    talk = Talk(here, one=(there, len(there.entries)))
    job = talk.body_client.fetch(1, wish(*there.entries), lambda: None)
    for _ in range(2 * len(there.entries) // bodies.SERVE_ENTRIES):
        talk.turn(bodies.SILENCE_MS // 10)  # an answer to one question is no silence about the other
    assert job.is_complete
    assert talk.body_servers["one"].served_bytes == sum(len(body) for _, body in there.entries.values())


def test_large_bodies_travel_within_the_window() -> None:
    here, there = OneLog(), many(40, size=1 << 19)
    talk = Talk(here, one=(there, 40))
    job = talk.body_client.fetch(1, wish(*range(1, 41)), lambda: None)
    before = 0
    while not job.is_complete:
        talk.turn()
        fetched = sum(len(body) for _, body in here.entries.values())
        assert fetched - before <= bodies.WINDOW_BYTES
        before = fetched
    assert here.entries == there.entries


def test_the_pace_does_not_depend_on_how_large_entries_are() -> None:
    for size in (10_000, 1 << 20):
        there = OneLog(*((index, 1, bytes(size)) for index in range(1, 60)))
        talk = Talk(OneLog(), a=(there, 60))
        talk.body_client.fetch(1, array("Q", range(1, 60)), lambda: None)
        served = []
        for _ in range(180):
            talk.turn(1)
            served.append(talk.body_servers["a"].served_bytes)
        paced = bodies.SERVE_BYTES * len(served) / bodies.SERVE_PAUSE_MS
        assert min(served[-1], 59 * size) <= paced + (1 << 20)
        assert served[-1] >= min(59 * size, paced / 2)


def test_nothing_above_the_answerers_commit_index_is_given() -> None:
    here, there = OneLog(), many(10)
    talk = Talk(here, one=(there, 4))
    job = talk.body_client.fetch(1, wish(*range(1, 11)), lambda: None)
    talk.run(job, 400)
    assert sorted(here.entries) == [1, 2, 3, 4]
    assert job.missing == 6
    talk.body_servers["one"]._commits = Replicas(10)
    talk.run(job, 400)
    assert here.entries == there.entries


def test_a_body_of_another_term_than_the_known_one_is_not_taken() -> None:
    here = OneLog()
    talk = Talk(here, one=(many(3, term=4), 3), two=(many(3, term=3), 3))
    job = talk.body_client.fetch(1, wish(1, 2, 3), lambda: None, terms={2: 3})
    talk.run(job)
    assert {index: term for index, (term, _) in here.entries.items()} == {1: 4, 2: 3, 3: 4}


def test_the_same_entry_is_only_said_to_be_the_same() -> None:
    here = OneLog()
    talk = Talk(here, one=(many(5), 5))
    job = talk.body_client.fetch(
        1, wish(1, 2, 3), lambda: None, term_here=lambda index: 3 if index < 3 else 2
    )
    talk.run(job)
    assert sorted(here.entries) == [3]
    assert job.proven == 2


def test_who_is_silent_is_not_waited_for() -> None:
    here, there = OneLog(), many(5)
    talk = Talk(here, one=(many(5), 5), two=(there, 5))
    talk.body_servers["one"].ask = lambda peer, question: None  # type: ignore[method-assign]
    job = talk.body_client.fetch(1, wish(1, 2), lambda: None)
    talk.run(job, bodies.SILENCE_MS // 5 - 2)
    assert not here.entries
    talk.run(job)
    assert job.is_complete and sorted(here.entries) == [1, 2]
    talk.up = ["one", "two"]
    job = talk.body_client.fetch(1, wish(3), lambda: None)
    talk.turn()
    talk.body_client.disconnected("one")
    talk.up = ["two"]
    talk.run(job, 5)
    assert job.is_complete


def test_a_body_that_changed_on_the_way_is_asked_of_the_next() -> None:
    here = OneLog()
    talk = Talk(here, one=(many(3), 3), two=(many(3), 3))
    changed = []

    def change(data: bytes) -> bytes:
        if changed:
            return data
        changed.append(data)
        return data[:-1] + bytes([data[-1] ^ 1])

    talk.change = change
    job = talk.body_client.fetch(1, wish(1, 2, 3), lambda: None)
    talk.run(job)
    assert changed and here.entries == many(3).entries


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 23,
        bodies.Answer(1, 1, True, []).encode()[0] + b"x",
        bodies.Answer(1, 1, True, [bodies.Found(1, 1, bodies.State.ABSENT, 0, b"xx")]).encode()[0] + b"xx",
        bodies.Answer(1, 1, True, [bodies.Found(1, 1, bodies.State.HERE, 0, b"xx")]).encode()[0] + b"x",
        bodies.Question(1, 1, 1, []).encode()[0],
        bodies.Question(1, 1, 1, [(1, 1)]).encode()[0],
    ],
)
def test_rubbish_is_counted_and_ignored(data: bytes) -> None:
    cluster = Cluster()
    member = cluster.members["n1"]
    frames = [Frame("n2", bodies.KIND_FETCH, data), Frame("n2", bodies.KIND_BODIES, data)]
    member.step(cluster.clock_ms("n1"), frames, [])
    assert member._frames.malformed >= 1
