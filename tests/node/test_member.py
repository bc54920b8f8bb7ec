"""Members together (quorum/node/member.py): real machines, Raft and log, over a simulated disk, network and clock."""

from __future__ import annotations

import sys

import pytest

from fifo import commands as c
from fifo.effects import AttachedReply, Confirmed, Ok, Refused
from fifo.limits import SMALL
from quorum.node.member import UPKEEP_MS
from quorum.node.queries import CheckHealth
from quorum.node.replica import state_hashes
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.replication.group_config import GroupConfig
from support.members.cluster import Cluster, Session, batch, enqueue


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.ready()
    return made


def attach(session: Session, group: int, queue: int, tag: str = "c", credit: int = 1_000) -> int:
    reply = session.call(group, c.Attach(queue, tag, b"", credit))
    assert isinstance(reply, AttachedReply), reply
    return reply.attach


def receive(cluster: Cluster, session: Session, group: int, count: int) -> None:
    cluster.until(lambda: len(session.received(group)) >= count, f"{count} messages")


def confirm(cluster: Cluster, session: Session, last: int) -> None:
    cluster.until(lambda: len(session.confirmed()) >= last, f"{last} confirms")


def test_any_node_takes_and_any_node_delivers(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    for producer_at in cluster.names:
        for consumer_at in cluster.names:
            producer, consumer = Session(cluster, producer_at), Session(cluster, consumer_at)
            producer.publish(group, queue, b"one", b"two")
            confirm(cluster, producer, 2)
            attached = attach(consumer, group, queue)
            receive(cluster, consumer, group, 2)
            assert consumer.received(group) == [b"one", b"two"]
            assert consumer.call(group, c.Settle(queue, "c", attached, ((1, 2),))) == Ok(2)
            consumer.call(group, c.Cancel(queue, "c", requeue=True))
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    assert cluster.info("n1", group, queue).total == 0


def test_every_declared_queue_is_on_every_member_and_a_deleted_one_on_none(cluster: Cluster) -> None:
    places = [cluster.declare(f"q{number}") for number in range(9)]
    assert sorted({group for group, _ in places}) == [1, 2, 3]
    cluster.settle()
    for group in (SYSTEM_GROUP, 1, 2, 3):
        assert len(cluster.snapshots(group)) == 1


def test_a_confirmed_message_survives_a_power_cut_of_all_members(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    producer = Session(cluster, "n2")
    for number in range(20):
        producer.publish(group, queue, b"a%d" % number, b"b%d" % number)
    confirm(cluster, producer, 40)
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    consumer = Session(cluster, "n3")
    attach(consumer, group, queue)
    cluster.until(lambda: len(consumer.received(group)) == 40, "all messages")
    assert consumer.received(group) == [b"%c%d" % (letter, n) for n in range(20) for letter in b"ab"]


@pytest.mark.parametrize("power", [True, False])
def test_publishing_goes_on_when_the_leader_dies_and_nothing_comes_twice(
    cluster: Cluster, power: bool
) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    other = next(name for name in cluster.names if name != leader)
    producer = Session(cluster, other)
    for number in range(30):
        producer.publish(group, queue, b"%d" % number)
        if number == 10:
            cluster.run(20)
            cluster.crash(leader, power)
        cluster.run(5)
    confirm(cluster, producer, 30)
    assert cluster.leader(group) != leader
    consumer = Session(cluster, other)
    attach(consumer, group, queue)
    cluster.until(lambda: len(consumer.received(group)) >= 30, "all messages")
    assert consumer.received(group) == [b"%d" % number for number in range(30)]
    cluster.start(leader)
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def test_a_batch_sent_again_under_a_higher_epoch_is_taken_once(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    first = Session(cluster, "n1")
    first.publish(group, queue, b"one", b"two")
    confirm(cluster, first, 2)
    second = Session(cluster, "n2", first.producer, epoch=2)
    second.publish(group, queue, b"one", b"two")
    second.publish(group, queue, b"three")
    confirm(cluster, second, 3)
    consumer = Session(cluster, "n3")
    attach(consumer, group, queue)
    cluster.until(lambda: len(consumer.received(group)) >= 3, "the messages")
    cluster.run(500)
    assert consumer.received(group) == [b"one", b"two", b"three"]
    first.send(group, enqueue(queue, 3, [b"late"]), "late", batch([b"late"]))
    cluster.until(lambda: first.ended == "fenced", "the older epoch is fenced")


def test_messages_of_a_silent_node_return_only_after_its_lease(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    silent, other = [name for name in cluster.names if name != leader]
    producer, holder = Session(cluster, leader), Session(cluster, silent)
    attach(holder, group, queue)
    producer.publish(group, queue, b"precious")
    cluster.until(lambda: holder.received(group) == [b"precious"], "the message is held")
    taker = Session(cluster, other)
    attach(taker, group, queue)
    held_until = cluster.members[silent].heartbeats.lease_until[group]
    cluster.isolate(silent)
    cluster.until(lambda: taker.received(group) == [b"precious"], "the message is handed out again")
    assert cluster.now_ms > held_until
    assert cluster.members[silent].heartbeats.lease_until[group] < cluster.now_ms
    assert taker.deliveries[0].redelivered == 1
    cluster.heal()
    cluster.until(lambda: holder.ended is not None, "the old holder hears of it")
    cluster.until(
        lambda: cluster.members[silent].heartbeats.lease_until[group] > cluster.now_ms, "a lease again"
    )
    again = Session(cluster, silent)
    attach(again, group, queue)


def test_a_paused_leader_has_no_lease_when_it_wakes(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    other = next(name for name in cluster.names if name != leader)
    holder = Session(cluster, leader)
    attach(holder, group, queue)
    producer = Session(cluster, other)
    producer.publish(group, queue, b"precious")
    cluster.until(lambda: holder.received(group) == [b"precious"], "the message is held")
    taker = Session(cluster, other)
    attach(taker, group, queue)
    cluster.paused.add(leader)
    cluster.until(lambda: taker.received(group) == [b"precious"], "the message is handed out again")
    assert cluster.members[leader].heartbeats.lease_until[group] < cluster.now_ms
    cluster.paused.clear()
    cluster.step(leader)
    assert cluster.members[leader].heartbeats.lease_until[group] < cluster.now_ms
    cluster.until(lambda: holder.ended is not None, "the old holder hears of it")


def test_a_restarted_node_gives_back_at_once_what_its_consumers_held(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    name = next(name for name in cluster.names if name != leader)
    holder, producer = Session(cluster, name), Session(cluster, leader)
    attach(holder, group, queue)
    producer.publish(group, queue, b"m")
    cluster.until(lambda: holder.received(group) == [b"m"], "the message is held")
    cluster.crash(name, power=False)
    cluster.start(name)
    taker = Session(cluster, leader)
    attach(taker, group, queue)
    start = cluster.now_ms
    cluster.until(lambda: taker.received(group) == [b"m"], "the message is handed out again")
    assert cluster.now_ms - start < cluster.members[leader].config.lease_ms


def test_work_that_a_budget_has_ended_goes_on_at_once_and_not_at_the_next_upkeep() -> None:
    cluster = Cluster(limits=SMALL)
    cluster.ready()
    group, queue = cluster.declare("orders")
    times = []
    for pause_ms in (0, 15, 35, 55, 75):
        producer, consumer = Session(cluster, "n1"), Session(cluster, "n1")
        for _ in range(6):
            producer.publish(group, queue, *[b"x"] * 10)
        confirm(cluster, producer, 60)
        cluster.run(pause_ms)
        began_ms = cluster.now_ms
        attached = attach(consumer, group, queue, credit=60)
        while len(consumer.received(group)) < 40:
            cluster.run(5)
        times.append(cluster.now_ms - began_ms)
        assert consumer.call(group, c.Settle(queue, "c", attached, ((1, 40),))) == Ok(40)
        consumer.call(group, c.Cancel(queue, "c", requeue=False))
    assert max(times) < UPKEEP_MS


def test_an_unknown_queue_is_refused_and_the_session_goes_on(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    reply = session.call(group, enqueue(999, 1, [b"x"]), batch([b"x"]))
    assert isinstance(reply, Refused)
    assert reply.reason == "not_found"
    assert isinstance(session.call(group, enqueue(queue, 2, [b"x"]), batch([b"x"])), Confirmed)


def test_time_to_live_runs_on_without_traffic(cluster: Cluster) -> None:
    group, queue = cluster.declare("short", message_ttl=500)
    session = Session(cluster, "n1")
    session.publish(group, queue, b"x", b"y")
    confirm(cluster, session, 2)
    cluster.run(150)
    assert cluster.info("n3", group, queue).ready == 2
    cluster.run(1_500)
    assert {cluster.info(name, group, queue).ready for name in cluster.members} == {0}


def test_a_member_cut_off_for_long_catches_up(cluster: Cluster) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    away = next(name for name in cluster.names if name != leader)
    cluster.isolate(away)
    producer = Session(cluster, leader)
    for number in range(200):
        producer.publish(group, queue, b"%d" % number)
        cluster.run(5)
    confirm(cluster, producer, 200)
    cluster.heal()
    cluster.ready()
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    assert cluster.info(away, group, queue).ready == 200


def test_five_members_bear_the_loss_of_two() -> None:
    cluster = Cluster(size=5)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    others = [name for name in cluster.names if name != leader]
    producer = Session(cluster, others[0])
    producer.publish(group, queue, b"before")
    confirm(cluster, producer, 1)
    cluster.crash(leader)
    cluster.crash(others[1])
    producer.publish(group, queue, b"after")
    confirm(cluster, producer, 2)


def lines_of_apply(cluster: Cluster, group: int, queue: int, size: int) -> int:
    """Python lines that one member executes to apply a batch of this size, its delivery and its settlement."""
    name = cluster.leader(group)
    session = Session(cluster, name)
    attached = attach(session, group, queue, f"c{size}", credit=size)
    before = len(session.received(group))
    member = cluster.members[name]
    replica = member.replicas[group]
    lines = 0

    def count(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    apply = type(member.applier).apply

    def traced(self: object, which: object, now_ms: int) -> None:
        if which is replica:
            sys.settrace(count)
        try:
            apply(self, which, now_ms)
        finally:
            sys.settrace(None)

    type(member.applier).apply = traced
    try:
        for _ in range(size // 10_000 or 1):
            session.publish(group, queue, *[b"x"] * size)
        cluster.until(lambda: len(session.received(group)) - before == size, "the batch is delivered")
        session.call(group, c.Settle(queue, f"c{size}", attached, ((1, size),)))
    finally:
        type(member.applier).apply = apply
    session.call(group, c.Cancel(queue, f"c{size}", requeue=True))
    return lines


def test_a_batch_of_ten_thousand_executes_at_most_twice_the_lines_of_a_batch_of_ten(cluster: Cluster) -> None:
    group, queue = cluster.declare("plain")
    lines_of_apply(cluster, group, queue, 10)
    small = lines_of_apply(cluster, group, queue, 10)
    large = lines_of_apply(cluster, group, queue, 10_000)
    assert small > 50, "the trace saw nothing"
    assert large <= 2 * small


def test_a_member_goes_on_from_its_snapshot() -> None:
    cluster = Cluster(snapshot_bytes=20_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    producer = Session(cluster, "n1")
    for number in range(100):
        producer.publish(group, queue, b"%d" % number, bytes(500))
        cluster.run(5)
    confirm(cluster, producer, 200)
    before = cluster.info("n1", group, queue)
    for name in cluster.names:
        assert cluster.logs[name].journal(group).load_snapshot() is not None
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    assert cluster.info("n1", group, queue) == before
    consumer = Session(cluster, "n2")
    attach(consumer, group, queue)
    receive(cluster, consumer, group, 200)
    assert consumer.received(group)[::2] == [b"%d" % number for number in range(100)]
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1


def test_a_member_too_far_behind_gets_a_snapshot_and_its_sessions_start_over() -> None:
    cluster = Cluster(snapshot_bytes=20_000, raft=GroupConfig(keep_entries=20))
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    away = next(name for name in cluster.names if name != leader)
    there = Session(cluster, away)
    attach(there, group, queue, credit=0)
    cluster.isolate(away)
    producer = Session(cluster, leader)
    for number in range(150):
        producer.publish(group, queue, b"%d" % number, bytes(500))
        cluster.run(5)
    confirm(cluster, producer, 300)
    cluster.heal()
    cluster.until(lambda: there.ended is not None, "the session at the late member ends")
    cluster.settle()
    assert len(cluster.snapshots(group)) == 1
    assert cluster.info(away, group, queue).ready == 300
    assert isinstance(Session(cluster, away).call(group, enqueue(queue, 1, [b"x"]), batch([b"x"])), Confirmed)


def publish_singly(cluster: Cluster, session: Session, group: int, queue: int, count: int) -> None:
    """One entry for each message."""
    for number in range(count):
        session.publish(group, queue, b"%d" % number)
        cluster.run(10)


def test_a_member_whose_state_has_parted_serves_nothing_until_it_has_another(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_hashes, "EVERY", 10)
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    other = next(name for name in cluster.names if name != leader)
    producer = Session(cluster, leader)
    publish_singly(cluster, producer, group, queue, 30)
    confirm(cluster, producer, 30)
    cluster.members[other].queue_machine(group).running_hash ^= 1
    for _ in range(30):
        publish_singly(cluster, producer, group, queue, 1)
        if cluster.members[other].answer(CheckHealth()).reason_to_leave:
            break
    assert cluster.members[other].answer(CheckHealth()).reason_to_leave == "parted"
    cluster.until(
        lambda: not cluster.members[other].answer(CheckHealth()).reason_to_leave, "it has another state"
    )
    cluster.ready()
