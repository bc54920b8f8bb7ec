"""A member is removed for a newcomer only when the newcomer votes in every group and answers."""

from __future__ import annotations

import pytest

from fifo import versions
from fifo.effects import Ok, Refused
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.members import AddMember, DrainMember, RemoveMember
from support.members.cluster import Cluster, Session

HEX = "ab" * 16


def replacement(member: str, name: str, incarnation: str = HEX) -> AddMember:
    host = member.replace("~", "-")
    return AddMember(member, name, f"{host}:1", f"{host}:2", incarnation, replaces=True)


def members(cluster: Cluster) -> dict[str, bool]:
    """Who is a member and still joining, as n1 knows it."""
    return {each.id: each.is_joining for each in cluster.members["n1"].catalog.members.by_id.values()}


def is_served(cluster: Cluster, name: str, group: int, queue: int) -> None:
    session = Session(cluster, name)
    session.publish(group, queue, b"m")
    cluster.until(lambda: session.confirmed() == [1], "confirmed")


@pytest.mark.parametrize("size", [1, 3])
def test_a_member_stays_as_long_as_nobody_answers_for_the_newcomer(size: int) -> None:
    cluster = Cluster(size, queue_groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    assert cluster.administer(replacement("n1~nobody", "n1")) == Ok(1)
    cluster.run(3_000)
    assert cluster.members["n1"].membership.standing == "member"
    assert members(cluster)["n1"] is False
    assert members(cluster)["n1~nobody"] is True, "who waits can be seen"
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()
    is_served(cluster, "n1", group, queue)


def test_a_replacement_that_waits_is_cancelled_by_removing_the_newcomer() -> None:
    cluster = Cluster(1, queue_groups=1)
    cluster.ready()
    cluster.administer(replacement("n1~nobody", "n1"))
    cluster.run(500)
    assert cluster.administer(RemoveMember("n1~nobody")) == Ok(1)
    cluster.run(500)
    assert members(cluster) == {"n1": False}


def test_a_newcomer_that_waits_counts_as_nobody_when_others_are_removed_or_drained() -> None:
    """Adding an address where nobody answers and then removing the only member would be the same."""
    cluster = Cluster(1, queue_groups=1)
    cluster.ready()
    cluster.administer(AddMember("n2~nobody", "n2", "n2:1", "n2:2", HEX))
    cluster.run(500)
    assert isinstance(cluster.administer(RemoveMember("n1")), Refused)
    assert isinstance(cluster.administer(DrainMember("n1", True)), Refused)
    assert members(cluster) == {"n1": False, "n2~nobody": True}


def test_a_second_newcomer_takes_the_place_of_one_that_never_came() -> None:
    cluster = Cluster(3, queue_groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    cluster.administer(replacement("n3~nobody", "n3"))
    cluster.crash("n3")
    cluster.join("n3~there")
    there = replacement("n3~there", "n3", cluster.node_states["n3~there"].incarnation)
    assert cluster.administer(there) == Ok(1)
    assert cluster.administer(there) == Ok(0), "the answer may have been lost"
    cluster.until(
        lambda: members(cluster) == {"n1": False, "n2": False, "n3~there": False}, "it has taken its place"
    )
    cluster.until(
        lambda: all(
            replica.raft.configuration.everybody == ("n1", "n2", "n3~there")
            for name in ("n1", "n2")
            for replica in cluster.members[name].replicas.values()
        ),
        "the others are in no group",
    )
    is_served(cluster, "n3~there", group, queue)


def test_the_only_member_hands_everything_to_the_newcomer_before_it_goes() -> None:
    cluster = Cluster(1, queue_groups=1)
    cluster.ready()
    group, queue = cluster.declare("orders")
    is_served(cluster, "n1", group, queue)
    cluster.join("n1~there")
    cluster.administer(replacement("n1~there", "n1", cluster.node_states["n1~there"].incarnation))
    stayed = []

    def has_gone() -> bool:
        newcomer = cluster.members["n1~there"].replicas.values()
        if "n1" not in cluster.members["n1"].catalog.members.by_id:
            stayed.append(all("n1~there" in each.raft.configuration.voters for each in newcomer))
        return all(each.raft.configuration.everybody == ("n1~there",) for each in newcomer)

    cluster.until(has_gone, "it is alone")
    assert stayed[0], "it voted in every group before the other one was removed"
    cluster.crash("n1")
    cluster.ready()
    assert cluster.info("n1~there", group, queue).ready == 1
    is_served(cluster, "n1~there", group, queue)


def test_what_waits_is_in_the_catalogs_snapshot_and_nothing_more_is_once_it_is_confirmed() -> None:
    cluster = Cluster(1, queue_groups=1)
    cluster.ready()
    cluster.administer(replacement("n1~nobody", "n1"))
    catalog = cluster.members["n1"].catalog
    assert CatalogMachine.restore(catalog.snapshot()).members.by_id == catalog.members.by_id
    assert catalog.members.by_id["n1~nobody"].replaces == "n1"
    cluster.administer(RemoveMember("n1~nobody"))
    assert b"joining" not in cluster.members["n1"].catalog.snapshot(), "as older versions wrote it"


def test_entries_of_version_1_remove_at_once_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3, queue_groups=1)
    cluster.ready()
    monkeypatch.setattr(versions, "BASE", 1)
    cluster.administer(replacement("n3~nobody", "n3"))
    cluster.run(100)
    assert members(cluster) == {"n1": False, "n2": False, "n3~nobody": False}
