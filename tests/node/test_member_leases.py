"""A message is never delivered by two members at a time, however the cluster came to its voters and settings
(quorum/node/leases/leases.py, heartbeats.py)."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.effects import Ok
from quorum.catalog.lease_times import SMALLEST, LeaseSettings, SetLeaseTimes
from quorum.catalog.members import AddMember, RemoveMember
from quorum.node import events as ev
from quorum.node.cluster.lease_times import LeaseTimesKeeper
from quorum.node.leases.leases import HEARTBEAT_MS
from quorum.node.replica.replica import SYSTEM_GROUP
from support.members.cluster import Cluster, Session

LEASE_MS = 4_000


def attach(cluster: Cluster, name: str, group: int, queue: int) -> Session:
    session = Session(cluster, name)
    session.call(group, c.Attach(queue, "all", b"", 10))
    return session


def hand_over_by_silence(cluster: Cluster, silent: str, taker: str) -> None:
    """A consumer at `silent` has a message, the member is cut off, and a consumer at `taker` gets the message: by then
    the first member may not deliver any more."""
    group, queue = cluster.declare(f"orders of {silent}")
    holder, producer = attach(cluster, silent, group, queue), Session(cluster, taker)
    producer.publish(group, queue, b"precious")
    cluster.until(lambda: holder.received(group) == [b"precious"], "the message is held")
    cluster.isolate(silent)
    cluster.until(lambda: cluster.leader(group) != silent, "another leader")
    successor = attach(cluster, taker, group, queue)
    cluster.until(lambda: successor.received(group) == [b"precious"], "the message is handed out again")
    assert not cluster.may_deliver(silent, group)
    cluster.heal()
    cluster.until(lambda: holder.ended is not None, "the first holder hears of it")


def leases_end(cluster: Cluster) -> None:
    """No lease of any member lasts longer than one granted now would."""
    for name in cluster.members:
        for until in cluster.leases[name].values():
            assert until <= cluster.clock_ms(name) + LEASE_MS


def test_the_lease_of_an_only_voter_ends_and_is_renewed() -> None:
    cluster = Cluster(1)
    cluster.ready()
    for _ in range(100):
        cluster.run(100)
        leases_end(cluster)
        for group in cluster.members["n1"].replicas:
            assert cluster.leases["n1"][group] >= cluster.now_ms + LEASE_MS - 2 * HEARTBEAT_MS


class Far(Cluster):
    """A frame takes 50 ms."""

    def delay_ms(self, sender: str, to: str) -> int:
        return 50


def test_the_shortest_lease_holds_while_answers_take_a_tenth_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Far(3, lease_ms=SMALLEST.lease_ms)
    cluster.ready()
    cluster.run(2_000)
    found: list[ev.Output] = []
    hear = cluster._hear

    def noted(name: str, output: ev.Output) -> None:
        if isinstance(output, ev.LeaseLapsed):
            found.append(output)
        hear(name, output)

    monkeypatch.setattr(cluster, "_hear", noted)
    cluster.run(10_000)
    assert found == []


def test_an_only_voter_that_was_paused_has_no_lease_when_it_wakes() -> None:
    cluster = Cluster(1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    holder = attach(cluster, "n1", group, queue)
    cluster.paused.add("n1")
    cluster.run(LEASE_MS + 1_000)
    assert not cluster.may_deliver("n1", group)
    cluster.paused.clear()
    cluster.until(lambda: cluster.may_deliver("n1", group), "a lease again")
    assert holder.ended is None, "nobody else has had its messages: there is nobody else"


@pytest.mark.parametrize("silent", [0, 1])
def test_a_cluster_that_grew_from_one_member_hands_out_no_message_twice(silent: int) -> None:
    cluster = Cluster.grown(3)
    leases_end(cluster)
    hand_over_by_silence(cluster, cluster.names[silent], cluster.names[2])


def test_leases_are_derived_again_with_each_change_of_voters() -> None:
    cluster = Cluster(1)
    cluster.ready()
    group, _ = cluster.declare("orders")
    cluster.grow(2)
    leases_end(cluster)
    lead = cluster.leader(group)
    assert lead is not None
    cluster.isolate(lead)
    cluster.run(LEASE_MS + HEARTBEAT_MS)
    assert not cluster.may_deliver(lead, group), "one of two voters is no majority"
    cluster.heal()
    cluster.ready()
    cluster.grow(3)
    leases_end(cluster)
    hand_over_by_silence(cluster, "n1", cluster.names[2])


def test_a_cluster_that_shrank_to_one_member_and_grew_again_hands_out_no_message_twice() -> None:
    cluster = Cluster(3)
    cluster.ready()
    for gone in ("n2", "n3"):
        assert cluster.administer(RemoveMember(gone), at="n1") == Ok(1)
        cluster.voters_are(*({"n1", "n2", "n3"} - {"n2", gone}))
        cluster.crash(gone, power=False)
    cluster.run(10_000)
    leases_end(cluster)
    cluster.grow(3)
    names = sorted(cluster.members)
    hand_over_by_silence(cluster, "n1", names[2])


def test_a_pair_whose_second_member_is_replaced_hands_out_no_message_twice() -> None:
    cluster = Cluster(2)
    cluster.ready()
    assert cluster.administer(RemoveMember("n2"), at="n1") == Ok(1)
    cluster.voters_are("n1")
    cluster.crash("n2", power=False)
    cluster.run(10_000)
    leases_end(cluster)
    cluster.grow(3)
    names = sorted(cluster.members)
    hand_over_by_silence(cluster, "n1", names[2])


def test_a_leader_forgets_the_processes_that_it_has_declared_down() -> None:
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    other = next(name for name in cluster.names if name != leader)
    for _ in range(3):
        attach(cluster, other, group, queue)
        cluster.crash(other, power=False)
        cluster.start(other)
        cluster.ready()
    cluster.run(1_000)
    assert cluster.leader(group) == leader
    assert not cluster.members[leader].replicas[group].proposals._down_ms


# ---- whose lease times count


def lease_lengths(cluster: Cluster, group: int) -> set[int]:
    """How long leases are that leaders grant now, to the next 500 ms."""
    cluster.run(1_000)
    return {
        -(-(cluster.leases[name].get(group, 0) - cluster.clock_ms(name)) // 500) * 500
        for name in cluster.members
    }


def settings(cluster: Cluster, name: str) -> LeaseSettings:
    found = cluster.members[name].catalog.lease_settings
    assert found is not None
    return found


def change_leases(cluster: Cluster, at: str, lease_ms: int) -> None:
    wanted = SetLeaseTimes(lease_ms, settings(cluster, at).wanted.step_down_ms)
    assert cluster.administer(wanted, at=at) == Ok(1)


@pytest.mark.parametrize("configured_ms", [500, 30_000])
def test_a_member_that_is_configured_otherwise_goes_by_the_clusters_lease(
    configured_ms: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(3, lease_ms=LEASE_MS)
    cluster.ready()
    group, _ = cluster.declare("orders")
    changed = next(name for name in cluster.names if name != cluster.leader(group))
    cluster.crash(changed, power=False)
    cluster._config["lease_ms"] = configured_ms
    capsys.readouterr()
    cluster.start(changed)
    said = capsys.readouterr().out
    assert "4000" in said
    assert str(configured_ms) in said
    cluster.ready()
    assert lease_lengths(cluster, group) == {LEASE_MS}
    taker = next(name for name in cluster.names if name not in (changed, cluster.leader(group)))
    hand_over_by_silence(cluster, changed, taker)


def test_all_members_configured_otherwise_go_by_the_lease_that_the_cluster_was_founded_with() -> None:
    cluster = Cluster(3, lease_ms=LEASE_MS)
    cluster.ready()
    group, _ = cluster.declare("orders")
    cluster._config["lease_ms"] = 30_000
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    assert lease_lengths(cluster, group) == {LEASE_MS}


def test_a_longer_lease_is_granted_only_when_every_member_waits_for_it() -> None:
    cluster = Cluster(3, lease_ms=LEASE_MS)
    cluster.ready()
    group, _ = cluster.declare("orders")
    late = next(
        name for name in cluster.names if name not in (cluster.leader(group), cluster.leader(SYSTEM_GROUP))
    )
    cluster.isolate(late)
    change_leases(cluster, cluster.leader(group) or "", 20_000)
    cluster.run(60_000)
    granted = {settings(cluster, name).granted.lease_ms for name in cluster.names}
    assert granted == {LEASE_MS}, "one member may lead next and does not know yet how long to wait"
    assert settings(cluster, cluster.leader(SYSTEM_GROUP) or "").awaited.lease_ms == 20_000
    cluster.heal()
    cluster.until(
        lambda: all(settings(cluster, name).is_settled for name in cluster.names), "the change is settled"
    )
    assert lease_lengths(cluster, group) == {20_000}
    leader = cluster.leader(group) or ""
    hand_over_by_silence(cluster, leader, late if late != leader else cluster.names[0])


def test_successors_wait_for_the_longer_lease_until_it_has_ended_everywhere() -> None:
    cluster = Cluster(3, lease_ms=20_000)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    silent, taker = (name for name in cluster.names if name != leader)
    holder = attach(cluster, silent, group, queue)
    Session(cluster, taker).publish(group, queue, b"precious")
    cluster.until(lambda: holder.received(group) == [b"precious"], "the message is held")
    cluster.isolate(silent)
    held_until = cluster.leases[silent][group]
    change_leases(cluster, taker, 1_000)
    successor = attach(cluster, taker, group, queue)
    cluster.until(lambda: successor.received(group) == [b"precious"], "the message is handed out again")
    assert cluster.clock_ms(silent) > held_until
    assert not cluster.may_deliver(silent, group)
    assert settings(cluster, taker).granted.lease_ms == 1_000
    assert settings(cluster, taker).awaited.lease_ms == 20_000, "the silent member has not said that it knows"
    cluster.heal()
    cluster.until(
        lambda: all(settings(cluster, name).is_settled for name in cluster.names), "the change is settled"
    )
    assert lease_lengths(cluster, group) == {1_000}
    begun = cluster.now_ms
    hand_over_by_silence(cluster, silent, taker)
    assert cluster.now_ms - begun < 10_000, "nobody waits for the longer lease any more"


def test_a_member_remembers_the_clusters_lease_before_its_catalog_has_caught_up() -> None:
    cluster = Cluster(3, lease_ms=LEASE_MS)
    cluster.ready()
    change_leases(cluster, "n1", 20_000)
    cluster.until(
        lambda: all(settings(cluster, name).is_settled for name in cluster.names), "the change is settled"
    )
    for name in cluster.names:
        cluster.crash(name)
    cluster.start("n1")
    member = cluster.members["n1"]
    assert member.catalog.lease_settings is None, "alone it cannot know what is committed"
    assert member.leases.settings is not None
    assert member.leases.settings.awaited.lease_ms == 20_000


def test_a_newcomer_votes_once_it_knows_the_clusters_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1)
    cluster.ready()
    monkeypatch.setattr(LeaseTimesKeeper, "is_followed_by", lambda keeper, node: node == 1)
    name = "n2~aaaaaaaaaaaa"
    cluster.join(name)
    cluster.administer(AddMember(name, "n2", "n2:1", "n2:2", cluster.node_states[name].incarnation))
    cluster.run(5_000)
    for replica in cluster.members["n1"].replicas.values():
        assert replica.raft.configuration.voters == ("n1",)
        assert replica.raft.configuration.learners == (name,)
    monkeypatch.undo()
    cluster.voters_are("n1", name)
    assert cluster.members["n1"].leases.revision_of(2) == settings(cluster, "n1").revision
