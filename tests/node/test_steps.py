"""What a member does not do: steps without a reason, ticks in which nothing is due, syncs of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fifo import commands as c
from fifo.group_machine import GroupMachine
from quorum.catalog.commands import DeclareQueue
from quorum.node import events as ev
from quorum.node.cluster.heartbeats import KIND_HEARTBEAT
from quorum.node.member import BEAT_BYTES, UPKEEP_MS
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.replica.replicas import KIND_RAFT
from quorum.node.wire.frames import Frame
from quorum.replication.engine import SLOWER, RaftEngine
from support.members.cluster import Session, batch
from support.members.step_counts import Counts, Load, Stepped


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The member of each tick of a group that was run."""
    run: list[str] = []
    tick = RaftEngine.tick

    def counted(engine: RaftEngine) -> None:
        run.append(engine.me)
        tick(engine)

    monkeypatch.setattr(RaftEngine, "tick", counted)
    return run


def test_a_lone_publish_takes_few_steps_ticks_and_syncs(ticks: list[str]) -> None:
    load = Load()
    counts = load.cluster.counts = Counts()
    ticks.clear()
    load.publish(100)
    assert counts.syncs == 300, "one on each member"
    assert counts.steps <= 650, "the member without sessions applies the message with the next one"
    assert len(ticks) <= 350, (
        "the leader's, when it has something to commit; followers have nothing to tick for"
    )


def test_only_members_with_sessions_hear_of_a_commit_at_once() -> None:
    load = Load()
    cluster = load.cluster
    assert load.leader is not None
    session = load.session
    [third] = set(cluster.names) - {load.leader, session.name}

    def applied(name: str) -> int:
        return cluster.members[name].replicas[load.group].raft.applied_index

    first = session.publish(load.group, load.queue, b"x")
    cluster.run_events(3)
    assert first in session.replies
    assert applied(third) < applied(session.name) == applied(load.leader)
    cluster.run_events(120)
    assert applied(third) == applied(load.leader), "with the next heartbeat"

    other = Session(cluster, third)
    first = other.publish(load.group, load.queue, b"y")
    cluster.run_events(5)
    assert first in other.replies, "from its first operation on"
    cluster.run_events(150)
    session.publish(load.group, load.queue, b"z")
    cluster.run_events(3)
    assert applied(third) == applied(load.leader)


def test_a_first_operation_is_answered_at_once_whenever_the_leaders_upkeep_comes() -> None:
    load = Load()
    cluster = load.cluster
    assert load.leader is not None
    [third] = set(cluster.names) - {load.leader, load.session.name}
    for phase_ms in range(UPKEEP_MS):
        cluster.run_events(2 * UPKEEP_MS + 1)
        other = Session(cluster, third)
        first = other.publish(load.group, load.queue, b"x")
        cluster.run_events(10)
        assert first in other.replies, f"phase {phase_ms}"
        cluster.submit(third, ev.EndSession(other.number, True))


def test_a_declared_queue_is_heard_of_at_once_everywhere() -> None:
    load = Load()
    cluster = load.cluster
    for number in range(12):
        cluster.run_events(137)  # another phase of heartbeats and upkeep each time
        Session(cluster, "n1").call(SYSTEM_GROUP, DeclareQueue(f"queue-{number}", ()))
        queue = cluster.members["n1"].catalog.queue(f"queue-{number}")
        assert queue is not None

        def here(name: str | None, group: int = queue.group, queue: int = queue.id) -> bool:
            assert name is not None
            machine = cluster.members[name].replicas[group].machine
            assert isinstance(machine, GroupMachine)
            return machine.has_queue(queue)

        for _ in range(2 * UPKEEP_MS):
            if here(cluster.leader(queue.group)):
                break
            cluster.run_events(1)
        cluster.run_events(3)
        assert all(map(here, cluster.names))


def test_a_new_leader_announces_commits_to_all() -> None:
    load = Load()
    cluster = load.cluster
    replica = cluster.members[load.session.name].replicas[load.group]
    assert load.leader is not None
    old = cluster.members[load.leader].replicas[load.group]
    assert old.raft.transfer_leadership(load.session.name)
    cluster.until(lambda: replica.raft.leader_ready, "the session's node leads")
    session = load.session
    first = session.publish(load.group, load.queue, b"x")
    cluster.run_events(3)
    assert first in session.replies
    assert len({each.replicas[load.group].raft.applied_index for each in cluster.members.values()}) == 1


def test_members_with_nothing_to_do_step_with_their_leaders_heartbeats(ticks: list[str]) -> None:
    load = Load()
    cluster = load.cluster
    cluster.run_events(2_000)
    counts = cluster.counts = Counts()
    ticks.clear()
    cluster.run_events(10_000)
    leaders = [cluster.leader(group) for group in cluster.members["n1"].replicas]
    assert len(ticks) <= 53 * len(leaders), "five heartbeats a second for each group"
    assert counts.steps <= 400, "heartbeats leave together, are answered together, and are gathered"
    assert counts.by_kind[KIND_RAFT] <= 53 * len(leaders) * 4, (
        "a heartbeat and its answer for each of two followers"
    )


def timeouts_s(cluster: Stepped, group: int) -> list[float]:
    """When the followers of a group would campaign, from now."""
    return [
        member.replicas[group].raft.next_due() - cluster.clock_ms(name) / 1000
        for name, member in cluster.members.items()
        if name != cluster.leader(group)
    ]


def test_followers_of_a_leader_with_nothing_to_do_wait_longer_until_its_first_entry() -> None:
    load = Load()
    cluster, config = load.cluster, load.cluster.members["n1"].config.raft
    longest_s = SLOWER * config.heartbeat_s
    cluster.run_events(3_000)
    for _ in range(100):
        cluster.run_events(10)
        assert min(timeouts_s(cluster, load.group)) >= SLOWER * config.election_min_s - longest_s - 0.01
    load.begin_publish()
    cluster.run_events(5)
    assert max(timeouts_s(cluster, load.group)) <= config.election_max_s
    for _ in range(50):
        cluster.run_events(10)
        assert min(timeouts_s(cluster, load.group)) >= config.election_min_s - config.heartbeat_s - 0.01


def test_a_leader_sends_no_slow_heartbeats_while_a_member_is_away() -> None:
    load = Load()
    cluster = load.cluster
    [third] = set(cluster.names) - {load.leader, load.session.name}
    cluster.isolate(third)
    load.publish(1)
    cluster.run_events(3_000)
    assert load.leader == cluster.leader(load.group)
    replica = cluster.members[load.session.name].replicas[load.group]
    limit_s = cluster.members["n1"].config.raft.election_max_s
    for _ in range(50):
        cluster.run_events(10)
        assert replica.raft.next_due() - cluster.clock_ms(load.session.name) / 1000 <= limit_s


def test_a_message_expires_at_its_time_in_an_idle_cluster() -> None:
    load = Load()
    cluster, session = load.cluster, load.session
    assert load.leader is not None
    machine = cluster.members[load.leader].queue_machine(load.group)
    messages = machine.queues[load.queue].messages
    for ttl_ms in (1_234, 777, 3_001):
        first = session.next_sequence
        session.next_sequence += 1
        command = c.Enqueue(load.queue, first, 1, 1, 1, ttl_ms)
        before, waiting = cluster.now_ms, messages.total_count
        session.send(load.group, command, (first, first), batch([b"x"]))
        cluster.run_events(200)
        assert messages.total_count == waiting + 1
        while messages.total_count > waiting:
            cluster.run_events(1)
        assert ttl_ms <= cluster.now_ms - before <= ttl_ms + 15


def test_a_publish_is_not_gathered_with_heartbeats() -> None:
    load = Load()
    cluster = load.cluster
    assert load.leader is not None
    member = cluster.members[load.leader]
    other = next(name for name in cluster.names if name != load.leader)
    beat = Frame(other, KIND_RAFT, bytes(BEAT_BYTES))
    assert member.may_gather([beat, Frame(other, KIND_HEARTBEAT, bytes(200))])
    assert not member.may_gather([beat, Frame(other, KIND_RAFT, bytes(BEAT_BYTES + 1))]), "it brings an entry"
    cluster.isolate(load.leader)
    Session(cluster, load.leader).publish(load.group, load.queue, b"x")
    cluster.run_events(5)
    assert not member.may_gather([beat]), "it may be the answer that commits the entry"


def test_heartbeats_without_news_do_not_go_through_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load()
    passed: list[str] = []
    receive = RaftEngine.receive

    def counted(engine: RaftEngine, name: str, message: dict[str, Any]) -> None:
        passed.append(message["type"])
        receive(engine, name, message)

    monkeypatch.setattr(RaftEngine, "receive", counted)
    load.cluster.run_events(2_000)
    assert set(passed) == {"next_node_idx"}, "only the leaders' answers"


def test_a_timer_that_was_set_behind_the_members_back_is_noticed() -> None:
    load = Load()
    cluster = load.cluster
    leader = cluster.leader(1)
    assert leader is not None
    cluster.paused.add(leader)
    for name, member in cluster.members.items():
        if name != leader:
            member.replicas[1].due_ms = 1 << 60
    others = [name for name in cluster.names if name != leader]
    cluster.until(
        lambda: any(cluster.members[name].replicas[1].raft.is_leader for name in others),
        "another member leads",
        limit_ms=10_000,
    )


def test_the_heartbeats_of_all_groups_fall_together() -> None:
    load = Load()
    cluster = load.cluster
    leaders = {group: cluster.leader(group) for group in cluster.members["n1"].replicas}
    assert len(set(leaders.values())) > 1, "several members lead"
    cluster.run_events(2_000)
    due_ms = [
        cluster.members[name].replicas[group].raft.next_due() * 1000
        for group, name in leaders.items()
        if name is not None
    ]
    assert max(due_ms) - min(due_ms) < 5
