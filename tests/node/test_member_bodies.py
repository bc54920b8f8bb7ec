"""Members whose bodies are damaged (quorum/node/repair/repairer.py): who waits, and from whom the bodies come."""

from __future__ import annotations

import re

import pytest
import structlog

from fifo import commands as c
from fifo.effects import AttachedReply, Ok
from fifo.results import BrowsePage, QueueInfo
from quorum.log import EntryMissing, LogDamaged
from quorum.node import events as ev
from quorum.node import queries as q
from quorum.replication.group_config import GroupConfig
from quorum_selectors import canonical, jms
from support.members.bodies import alike, consume, damage, damaged_cluster, has_all, live, publish, repaired
from support.members.cluster import Cluster, Session


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
