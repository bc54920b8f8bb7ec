"""Policies carried out: the leader of each group brings its queues to them, whoever leads, and stops."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.effects import Ok
from quorum.catalog.commands import DeclareQueue, RemovePolicy, SetPolicy
from quorum.node.replica import policy_reconciler
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire.operations import Command
from support.members.cluster import Cluster, Session

GROUPS = (1, 2, 3)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.ready()
    return made


def policy(cluster: Cluster, name: str, pattern: str, priority: int = 0, **given: int | str) -> None:
    arguments = tuple((f"x-{key.replace('_', '-')}", value) for key, value in given.items())
    assert cluster.administer(SetPolicy(name, pattern, priority, arguments)) == Ok(1)


def is_configured(cluster: Cluster, revision: int) -> bool:
    return all(
        member.queue_machine(group).configured == revision
        for member in cluster.members.values()
        for group in GROUPS
    )


def configured(cluster: Cluster, revision: int) -> None:
    cluster.until(lambda: is_configured(cluster, revision), f"revision {revision} is carried out", 20_000)


def configs(cluster: Cluster) -> dict[str, set[tuple[int, str]]]:
    """By queue: (max_length, overflow) at the members."""
    found: dict[str, set[tuple[int, str]]] = {}
    for member in cluster.members.values():
        for group in GROUPS:
            for queue in member.queue_machine(group).queue_ids():
                config = member.queue_machine(group).config_of(queue)
                assert config is not None
                found.setdefault(config.name, set()).add((config.max_length, config.overflow))
    return found


def proposals(cluster: Cluster, name: str = "n1") -> list[c.Command]:
    """All commands about configurations in the groups' logs."""
    found = []
    member = cluster.members[name]
    for group in GROUPS:
        for index in range(1, member.replicas[group].raft.applied_index + 1):
            body = bytes(cluster.logs[name].read(group, index))[1:]
            if body:
                found += [each.command for each in Command(body).decode()]
    return [each for each in found if isinstance(each, c.UpdateConfig | c.Configured)]


def test_a_policy_reaches_queues_that_are_there_and_those_to_come(cluster: Cluster) -> None:
    cluster.declare("a.1")
    cluster.declare("a.2", max_length=3)
    cluster.declare("b")
    policy(cluster, "short", "a.*", max_length=5, overflow="reject-publish")
    configured(cluster, 1)
    short = (5, "reject_publish")
    assert configs(cluster) == {"a.1": {short}, "a.2": {(3, "reject_publish")}, "b": {(-1, "drop_head")}}
    before = proposals(cluster)
    cluster.declare("a.3")
    assert proposals(cluster) == before  # it came so
    assert configs(cluster)["a.3"] == {short}
    assert cluster.administer(RemovePolicy("short")) == Ok(1)
    configured(cluster, 2)
    assert {name: next(iter(found))[0] for name, found in configs(cluster).items()} == {
        "a.1": -1,
        "a.2": 3,
        "a.3": -1,
        "b": -1,
    }


def test_it_ends_and_asks_for_nothing_twice(cluster: Cluster) -> None:
    for number in range(30):
        cluster.declare(f"q{number}")
    policy(cluster, "p", "*", max_length=5)
    configured(cluster, 1)
    asked = [each for each in proposals(cluster) if isinstance(each, c.UpdateConfig)]
    assert len({each.queue for each in asked}) == len(asked) == 30
    before = {group: cluster.members["n1"].replicas[group].raft.last_index for group in GROUPS}
    cluster.run(3_000)
    assert {group: cluster.members["n1"].replicas[group].raft.last_index for group in GROUPS} == before


def test_many_queues_are_gone_through_some_a_turn_in_few_entries(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_reconciler, "TURN_WORK", 3 * policy_reconciler.QUEUE_WORK)
    for number in range(60):
        cluster.declare(f"q{number}")
    indexes = {group: cluster.members["n1"].replicas[group].raft.last_index for group in GROUPS}
    policy(cluster, "p", "*", max_length=5)
    configured(cluster, 1)
    assert all(found == {(5, "drop_head")} for found in configs(cluster).values())
    for group in GROUPS:  # 20 queues each, 2 a turn
        assert cluster.members["n1"].replicas[group].raft.last_index - indexes[group] < 25


def test_a_leader_that_dies_half_way_is_followed_by_one_that_finishes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_reconciler, "TURN_WORK", 1)
    for number in range(45):
        cluster.declare(f"q{number}")
    policy(cluster, "p", "*", max_length=5)
    for share in (3, 8):  # of the 15 in group 1

        def has_come_so_far(share: int = share) -> bool:
            leader = cluster.leader(1)
            if leader is None:
                return False
            machine = cluster.members[leader].queue_machine(1)
            found = [machine.config_of(queue) for queue in machine.queue_ids()]
            return sum(config is not None and config.max_length == 5 for config in found) >= share

        cluster.until(has_come_so_far, "some queues are configured")
        victim = cluster.leader(1)
        assert victim is not None and cluster.members[victim].queue_machine(1).configured == 0
        cluster.crash(victim)
        cluster.start(victim)
    configured(cluster, 1)
    cluster.settle()
    assert all(found == {(5, "drop_head")} for found in configs(cluster).values())
    assert all(len(cluster.snapshots(group)) == 1 for group in GROUPS)


def test_changes_one_upon_the_other_end_with_the_last(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_reconciler, "TURN_WORK", 1)
    for number in range(12):
        cluster.declare(f"q{number}")
    for length in (5, 6, 5, 7, 5):
        policy(cluster, "p", "*", max_length=length)
        cluster.run(cluster.random.randrange(10, 60, 5))
    assert cluster.administer(RemovePolicy("p")) == Ok(1)
    configured(cluster, 6)
    assert all(found == {(-1, "drop_head")} for found in configs(cluster).values())


def test_a_leader_whose_catalog_lags_behind_its_group_changes_nothing(cluster: Cluster) -> None:
    places = [cluster.declare(f"q{number}") for number in range(6)]
    policy(cluster, "p", "*", max_length=5)
    configured(cluster, 1)
    system, leader = cluster.leader(SYSTEM_GROUP), cluster.leader(1)
    assert system is not None and leader is not None
    laggard = next(name for name in cluster.names if name != system)
    raft = cluster.members[laggard].replicas[SYSTEM_GROUP].raft
    take = raft.take_committed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raft, "take_committed", lambda max_bytes, max_entries: [])
        policy(cluster, "p", "*", max_length=9)
        cluster.administer(DeclareQueue("late", ()), at=system)
        others = [member for name, member in cluster.members.items() if name != laggard]
        groups = [group for group in GROUPS if cluster.leader(group) != laggard]
        cluster.until(
            lambda: all(m.queue_machine(group).configured == 2 for m in others for group in groups),
            "carried out where the leader knows of it",
        )
        group = groups[0]
        cluster.members[cluster.leader(group) or ""].membership.transfer_leadership(
            cluster.members[cluster.leader(group) or ""].replicas[group], laggard
        )
        cluster.until(lambda: cluster.leader(group) == laggard, "the laggard leads")
        cluster.run(2_000)
        assert cluster.members[laggard].catalog.revision == 1
        machine = cluster.members[laggard].queue_machine(group)
        for place, queue in places:
            if place == group:
                config = machine.config_of(queue)
                assert config is not None and config.max_length == 9
    assert raft.take_committed == take
    configured(cluster, 2)
    assert all(found == {(9, "drop_head")} for found in configs(cluster).values())


def test_a_shorter_queue_drops_what_is_too_much(cluster: Cluster) -> None:
    group, queue = cluster.declare("q")
    session = Session(cluster, "n1")
    session.publish(group, queue, *(b"m%d" % number for number in range(50)))
    cluster.until(lambda: len(session.confirmed()) == 50, "confirmed")
    policy(cluster, "p", "*", max_length=5)
    configured(cluster, 1)
    info = cluster.info("n1", group, queue)
    assert (info.ready, info.first_sequence) == (5, 46)


def test_it_survives_a_power_cut_and_snapshots(cluster: Cluster) -> None:
    cluster.declare("q")
    policy(cluster, "p", "*", max_length=5)
    configured(cluster, 1)
    cluster.run(70_000)  # snapshots are taken
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    configured(cluster, 1)
    assert [member.catalog.revision for member in cluster.members.values()] == [1, 1, 1]
    cluster.declare("r")
    assert configs(cluster) == {"q": {(5, "drop_head")}, "r": {(5, "drop_head")}}
