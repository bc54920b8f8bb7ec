"""A message is never delivered by two members at a time, however the cluster came to its voters and settings
(quorum/node/leases.py, heartbeats.py)."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.effects import Ok
from quorum.catalog.members import RemoveMember
from quorum.node.leases import HEARTBEAT_MS
from support.cluster import Cluster, Session

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
    assert not cluster.members[leader].replicas[group].down_proposed_ms
