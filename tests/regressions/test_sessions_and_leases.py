"""Found by hunting (quorum/node): each of these once cost a message, a lease, memory or a member."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Confirmed, Refused
from fifo.limits import PRODUCTION
from fifo.versions import CURRENT
from quorum.catalog.lease_times import LeaseSettings, LeaseTimes
from quorum.node import events as ev
from quorum.node.leases.leases import HeartbeatAnswer, LeaderView, Leases
from quorum.node.replica.replicas import KIND_RAFT
from quorum.node.wire.forwarding import KIND_PROPOSE
from quorum.node.wire.frames import Frame
from quorum.node.wire.operations import MAX_OPERATION_BYTES
from quorum.replication.group_config import GroupConfig
from support.members.cluster import Cluster, Session, batch, enqueue


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.ready()
    return made


def end_declarations(cluster: Cluster) -> None:
    """The cluster's own sessions are ended, so that those of the test are the only ones."""
    for name, number in list(cluster.sessions):
        cluster.submit(name, ev.EndSession(number))
    cluster.run(300)
    assert not any(member.sessions for member in cluster.members.values())


def confirm(cluster: Cluster, session: Session, last: int) -> None:
    cluster.until(lambda: len(session.confirmed()) >= last, f"{last} confirms")


# ---- sessions


def test_a_session_replaced_at_its_own_node_is_forgotten_and_sends_nothing_more(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    end_declarations(cluster)
    older = Session(cluster, "n1")
    older.publish(group, queue, b"one")
    confirm(cluster, older, 1)
    newer = Session(cluster, "n1", older.producer, epoch=2)
    newer.publish(group, queue, b"one")
    confirm(cluster, newer, 1)
    assert older.ended == "fenced"
    cluster.run(500)
    assert list(cluster.members["n1"].sessions) == [newer.number]
    before = cluster.members["n1"].replicas[group].raft.last_index
    cluster.run(5_000)
    assert cluster.members["n1"].replicas[group].raft.last_index == before, "an idle group's log grows"


def test_a_group_forgets_a_session_closed_cleanly_and_remembers_a_broken_one(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    clean, broken = Session(cluster, "n1"), Session(cluster, "n2")
    for session in (clean, broken):
        session.publish(group, queue, b"one")
        confirm(cluster, session, 1)
    cluster.submit("n1", ev.EndSession(clean.number, is_clean=True))
    cluster.submit("n2", ev.EndSession(broken.number))
    cluster.run(500)
    for member in cluster.members.values():
        remembered = member.queue_machine(group).sessions.producers
        assert clean.producer not in remembered
        assert broken.producer in remembered
    again = Session(cluster, "n3", broken.producer, epoch=2)
    again.publish(group, queue, b"one")
    confirm(cluster, again, 1)
    assert cluster.info("n1", group, queue).ready == 2


def test_a_refusal_whose_answer_was_lost_stays_one_when_a_later_batch_was_taken(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders", max_length=1, overflow="reject-publish")
    first, consumer = Session(cluster, "n1"), Session(cluster, "n2")
    first.publish(group, queue, b"full")
    confirm(cluster, first, 1)
    refused = first.publish(group, queue, b"X")
    cluster.until(lambda: refused in first.replies, "X is refused")
    consumer.call(group, c.Get(queue, 1, True))
    first.publish(group, queue, b"Y")
    cluster.until(lambda: 3 in first.confirmed(), "Y is taken")
    again = Session(cluster, "n3", first.producer, epoch=2)
    again.next_sequence = 2
    x, y = again.publish(group, queue, b"X"), again.publish(group, queue, b"Y")
    cluster.until(lambda: y in again.replies, "both are answered")
    reply = again.replies[x]
    assert isinstance(reply, Refused)
    assert reply.reason == "refused_earlier"
    assert again.replies[y] == Confirmed(3, 3)


def test_a_session_that_closes_while_its_successor_works_is_forgotten(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    end_declarations(cluster)
    older = Session(cluster, "n1")
    older.publish(group, queue, b"one")
    confirm(cluster, older, 1)
    cluster.submit("n1", ev.EndSession(older.number))
    newer = Session(cluster, "n1", older.producer, epoch=2)
    newer.publish(group, queue, b"two")
    cluster.run(500)
    assert list(cluster.members["n1"].sessions) == [newer.number]


def test_a_session_that_never_spoke_to_a_group_is_forgotten(cluster: Cluster) -> None:
    silent = Session(cluster, "n1")
    cluster.run(50)
    cluster.submit("n1", ev.EndSession(silent.number))
    cluster.run(50)
    assert silent.number not in cluster.members["n1"].sessions


def test_a_closed_session_keeps_no_batches_while_its_group_has_no_leader(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    end_declarations(cluster)
    cluster.isolate("n1")
    session = Session(cluster, "n1")
    cluster.until(lambda: cluster.members["n1"].replicas[group].raft.leader is None, "n1 knows no leader")
    session.publish(group, queue, bytes(100_000))
    cluster.run(50)
    cluster.submit("n1", ev.EndSession(session.number))
    cluster.run(50)
    (kept,) = cluster.members["n1"].sessions.values()
    assert sum(len(sent.data) for sent in kept.conversations[group].unanswered) < 1_000
    cluster.heal()
    cluster.until(lambda: not cluster.members["n1"].sessions, "the group hears of the end")
    assert cluster.info("n1", group, queue).total == 0, "what nobody was told about may be missing, and is"


def test_sessions_whose_answers_a_snapshot_replaced_end_and_are_forgotten() -> None:
    cluster = Cluster(raft=GroupConfig(keep_entries=20), snapshot_bytes=20_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    end_declarations(cluster)
    leader = cluster.leader(group)
    assert leader is not None
    away = next(name for name in cluster.names if name != leader)
    there = Session(cluster, away)
    assert isinstance(there.call(group, c.Attach(queue, "c", b"", 0)), AttachedReply)
    there.publish(group, queue, b"sent, and its answer never seen")
    cluster.step(away)
    cluster.isolate(away)
    producer = Session(cluster, leader)
    for number in range(150):
        producer.publish(group, queue, b"%d" % number, bytes(500))
        cluster.run(40)  # long enough for the leader to declare the other's process down
    confirm(cluster, producer, 300)
    assert cluster.members[leader].queue_machine(group).departed_boot(cluster.members[away].me) > 0
    cluster.heal()
    cluster.until(lambda: there.ended is not None, "the session ends")
    cluster.until(lambda: not cluster.members[away].sessions, "and is forgotten")
    again = Session(cluster, away)
    reply = again.call(group, enqueue(queue, 1, [b"x"]), batch([b"x"]))
    assert isinstance(reply, Confirmed), (
        "the snapshot says that this process was declared down: it needs a new name"
    )


# ---- leases


def leaders_differ() -> tuple[Cluster, dict[str, tuple[int, int]]]:
    """A cluster in which two members lead a queue's group each; leader -> (group, queue)."""
    for seed in range(1, 50):
        cluster = Cluster(seed=seed)
        cluster.ready()
        places: dict[str, tuple[int, int]] = {}
        for number in range(3):
            group, queue = cluster.declare(f"q{number}")
            places[cluster.leader(group) or ""] = group, queue
            if len(places) == 2:
                return cluster, places
    raise AssertionError("no seed gives two leaders")


def test_being_declared_down_in_one_group_ends_nothing_in_another() -> None:
    cluster, places = leaders_differ()
    cut_from, other_leader = places
    (cut_group, cut_queue), (group, queue) = places.values()
    (name,) = set(cluster.names) - set(places)
    holder, lost = Session(cluster, name), Session(cluster, name)
    assert isinstance(holder.call(group, c.Attach(queue, "c", b"", 10)), AttachedReply)
    assert isinstance(lost.call(cut_group, c.Attach(cut_queue, "c", b"", 10)), AttachedReply)
    cluster.cut(name, cut_from)
    cluster.run(9_000)
    member = cluster.members[name]
    assert cluster.members[cut_from].queue_machine(cut_group).departed_boot(member.me) >= member.config.boot
    cluster.heal()
    cluster.until(lambda: lost.ended is not None, "the group that declared it down says so")
    cluster.run(3_000)
    assert member.boot > member.config.boot
    assert cluster.members[other_leader].queue_machine(group).departed_boot(member.me) == -1
    assert holder.ended is None


def test_a_session_of_a_fenced_process_name_hears_that_the_node_was_down() -> None:
    cluster, places = leaders_differ()
    cut_from = next(iter(places))
    (cut_group, cut_queue), (group, queue) = places.values()
    (name,) = set(cluster.names) - set(places)
    session, first = Session(cluster, name), Session(cluster, name)
    assert isinstance(session.call(group, enqueue(queue, 1, [b"x"]), batch([b"x"])), Confirmed)
    assert isinstance(first.call(cut_group, c.Attach(cut_queue, "c", b"", 10)), AttachedReply)
    cluster.cut(name, cut_from)
    cluster.run(9_000)
    cluster.heal()
    cluster.until(lambda: first.ended is not None, "the node hears that it was declared down")
    cluster.ready()
    assert session.call(cut_group, enqueue(cut_queue, 2, [b"y"]), batch([b"y"])) is None
    assert session.ended == "node_down", "not fenced: no other session has taken over"


def test_the_end_of_a_lease_is_told_before_its_renewal(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, _ = cluster.declare("orders")
    name = next(name for name in cluster.names if name != cluster.leader(group))
    told: list[ev.Output] = []
    hear = cluster._hear

    def record(node: str, output: ev.Output) -> None:
        if node == name and isinstance(output, (ev.LeaseLapsed, ev.LeaseGranted)) and output.group == group:
            told.append(output)
        hear(node, output)

    monkeypatch.setattr(cluster, "_hear", record)
    cluster.paused.add(name)
    cluster.run(10_000)
    cluster.paused.clear()
    cluster.until(lambda: cluster.may_deliver(name, group), "a lease again")
    assert isinstance(told[0], ev.LeaseLapsed)
    assert [type(each) for each in told].count(ev.LeaseLapsed) == 1


def test_a_leader_grants_leases_on_what_a_majority_said_lately_only() -> None:
    voters = (1, 2, 3, 4, 5)
    leases = Leases(1, LeaseSettings.founded(LeaseTimes(4_000, 1_500)))
    leases.answered(2, HeartbeatAnswer(10_000, {7: LeaderView(1, 3)}))
    assert not leases.may_grant(7, 3, 10_001, voters), "two of five"
    leases.answered(3, HeartbeatAnswer(10_200, {7: LeaderView(1, 3)}))
    assert leases.may_grant(7, 3, 11_499, voters)
    assert not leases.may_grant(7, 3, 11_500, voters), "the successor may have been elected 1,500 ms ago"
    assert not leases.may_grant(7, 4, 10_300, voters), "said in another term"


# ---- frames


def test_a_frame_that_does_not_decode_is_dropped(cluster: Cluster) -> None:
    member = cluster.members["n1"]
    for data in (b"", struct.pack("<I", 1), struct.pack("<I", 1) + b"\xff\xff"):
        member.step(cluster.now_ms, [Frame("n2", KIND_RAFT, data)], [])
    assert member._frames.malformed == 3


def test_an_operation_that_no_follower_would_take_is_not_written(cluster: Cluster) -> None:
    leader = cluster.members[cluster.leader(1) or ""]
    peer = next(name for name in cluster.names if name != leader.config.name)
    size = MAX_OPERATION_BYTES + 1
    frame = Frame(peer, KIND_PROPOSE, struct.pack("<II", 1, size) + bytes(size))
    leader.step(cluster.now_ms, [frame], [])
    assert leader._frames.malformed == 1
    assert not leader.replicas[1].proposals.pending


def test_a_queue_that_was_deleted_again_is_not_waited_for(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    member = cluster.members["n1"]
    member.replicas[group].proposals.pending.clear()
    for each in cluster.members.values():
        each.queue_machine(group).apply(
            c.Meta(1 << 40, 1, 1 << 50, CURRENT), [c.Operation(0, None, c.DeleteQueue(queue))]
        )
    token = object()
    outputs = member.step(cluster.now_ms, [], [ev.AwaitQueue(group, queue, True, token)])
    assert ev.QueryResult(token, True) in outputs


def test_a_registration_that_is_refused_ends_the_session() -> None:
    cluster = Cluster(limits=replace(PRODUCTION, max_producers=1))
    cluster.ready()
    group, queue = cluster.declare("orders")
    end_declarations(cluster)
    first, second = Session(cluster, "n1"), Session(cluster, "n2")
    assert not isinstance(first.call(group, c.Attach(queue, "c", b"", 0)), Refused)
    second.call(group, c.Attach(queue, "c", b"", 0))
    assert second.ended == "limit"
    cluster.run(100)
    assert not cluster.members["n2"].sessions


def test_a_node_that_stood_still_does_not_publish_again_what_a_later_session_has_published() -> None:
    """The later session is closed cleanly, and more sessions end than the group has fences."""
    cluster = Cluster(3, queue_groups=1, limits=replace(PRODUCTION, max_fences=5))
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    slow, other = (name for name in cluster.names if name != leader)
    first = Session(cluster, slow, b"P" * 16, 1)
    first.publish(group, queue, b"a", b"b", b"c")
    cluster.paused.add(slow)
    cluster.run(10_000)

    def publish_and_close(session: Session, *bodies: bytes) -> None:
        session.publish(group, queue, *bodies)
        expected = list(range(1, len(bodies) + 1))
        cluster.until(lambda: session.confirmed() == expected, "everything is confirmed")
        cluster.submit(other, ev.EndSession(session.number, is_clean=True))
        cluster.run(50)

    publish_and_close(Session(cluster, other, b"P" * 16, 2), b"a", b"b", b"c")
    for _ in range(7):
        publish_and_close(Session(cluster, other), b"x")
    cluster.paused.clear()
    cluster.until(lambda: first.ended is not None, "the node ends the first session")
    assert cluster.info(leader, group, queue).ready == 10
    assert first.ended == "resync", "its client may open it again"
