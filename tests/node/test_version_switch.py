"""The machine's version is raised when every member knows the new one (quorum/node/cluster/version_switch.py)."""

from __future__ import annotations

import pytest

from fifo import commands as c
from fifo.versions import BASE, UnknownVersion
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.members import RemoveMember
from quorum.node.cluster.version_switch import VersionSwitch
from quorum.node.replica.replica import SYSTEM_GROUP
from quorum.node.wire.operations import Command
from simulator.broken.parts import known_by_a_majority
from support.members.cluster import Cluster, Session

NEW = BASE + 1
NAMES = ("n1", "n2", "n3")


def cluster_of(**known: int) -> Cluster:
    """Members that know these versions; the others know BASE."""
    cluster = Cluster(3, is_started=False)
    cluster.known_versions = dict.fromkeys(NAMES, BASE) | known
    for name in NAMES:
        cluster.start(name)
    cluster.ready()
    return cluster


def upgrade(cluster: Cluster, name: str, to: int = NEW) -> None:
    """The member's process is started again with another build."""
    cluster.crash(name, power=False)
    cluster.known_versions[name] = to
    cluster.start(name)


def versions(cluster: Cluster) -> set[int]:
    """Of all groups at all members that are up."""
    return {replica.version for member in cluster.members.values() for replica in member.replicas.values()}


def switched(cluster: Cluster) -> None:
    cluster.until(lambda: versions(cluster) == {NEW}, "all groups have switched at all members")


def entry_versions(cluster: Cluster, group: int) -> list[int]:
    """Of the group's entries, as its leader has them."""
    name = cluster.leader(group)
    assert name is not None
    journal = cluster.logs[name].journal(group)
    found = [
        bytes(cluster.logs[name].read(group, index))
        for index in range(journal.first_index, cluster.members[name].replicas[group].raft.applied_index + 1)
    ]
    return [Command(body[1:]).version for body in found if len(body) > 1 and body[0] == 0]


def test_members_of_one_build_need_no_switch() -> None:
    cluster = cluster_of()
    cluster.run(3_000)
    assert {each.machine.version for each in cluster.members["n1"].replicas.values()} == {1}
    assert versions(cluster) == {BASE}


def test_members_are_upgraded_one_by_one_under_load_and_the_last_one_switches() -> None:
    cluster = cluster_of()
    group, queue = cluster.declare("orders")
    published = 0
    for name in NAMES:
        assert versions(cluster) == {BASE}
        upgrade(cluster, name)
        session = Session(cluster, next(each for each in NAMES if each != name))
        for _ in range(5):
            session.publish(group, queue, b"one", b"two")
            published += 2
            cluster.run(200)
        cluster.ready()
    switched(cluster)
    writer = Session(cluster, "n1")
    writer.publish(group, queue, b"last")
    cluster.until(lambda: writer.confirmed() == [1], "publishing goes on")
    cluster.settle()
    assert len(cluster.snapshots(group)) == len(cluster.snapshots(SYSTEM_GROUP)) == 1
    assert cluster.info("n2", group, queue).total == published + 1


def test_a_majority_that_knows_a_version_is_not_enough() -> None:
    try:
        cluster = cluster_of(n1=NEW, n2=NEW)
        cluster.run(10_000)
    except UnknownVersion as error:
        raise AssertionError("a member met a version that it does not know") from error
    assert versions(cluster) == {BASE}


def test_a_member_that_is_down_and_never_said_that_it_knows_a_version_is_waited_for() -> None:
    cluster = cluster_of()
    cluster.crash("n3")
    for name in ("n1", "n2"):
        upgrade(cluster, name)
    cluster.ready()
    cluster.run(20_000)
    assert versions(cluster) == {BASE}
    assert cluster.members["n1"].versions.known_by("n3") == 0
    cluster.known_versions["n3"] = NEW
    cluster.start("n3")
    switched(cluster)


def test_a_member_that_is_down_has_said_what_it_knows() -> None:
    cluster = cluster_of(n2=NEW, n3=NEW)
    cluster.crash("n3")
    upgrade(cluster, "n1")  # it has never spoken to n3
    assert cluster.members["n2"].versions.known_by("n3") == NEW
    cluster.until(lambda: cluster.leader(1) is not None, "a leader")
    cluster.members["n2"].membership.transfer(1, "n2")
    cluster.until(
        lambda: cluster.members["n2"].replicas[1].version == NEW, "the group that n2 leads switches"
    )


def test_a_member_that_comes_back_with_an_older_build_takes_back_what_it_said() -> None:
    cluster = cluster_of(n3=NEW)
    upgrade(cluster, "n3", BASE)
    cluster.ready()
    for name in ("n1", "n2"):
        upgrade(cluster, name)
        cluster.ready()
    cluster.run(5_000)
    assert versions(cluster) == {BASE}


def test_a_member_that_was_removed_is_not_waited_for() -> None:
    cluster = cluster_of(n1=NEW, n2=NEW)
    cluster.crash("n3")
    cluster.administer(RemoveMember("n3"))
    cluster.voters_are("n1", "n2")
    switched(cluster)


def test_after_the_switch_an_older_member_is_refused_until_it_is_upgraded() -> None:
    cluster = cluster_of(n1=NEW, n2=NEW)
    cluster.crash("n3")
    cluster.known_versions["n3"] = NEW
    cluster.start("n3")
    switched(cluster)
    upgrade(cluster, "n3", BASE)
    cluster.run(10_000)
    assert not cluster.is_linked("n1", "n3")
    assert not cluster.members["n3"].is_ready()
    assert cluster.members["n1"].is_ready()
    upgrade(cluster, "n3")
    cluster.ready()


def test_an_older_member_does_not_start_on_a_state_that_it_does_not_know() -> None:
    cluster = cluster_of(n1=NEW, n2=NEW, n3=NEW)
    switched(cluster)
    for replica in cluster.members["n3"].replicas.values():
        replica.save_snapshot(cluster.logs["n3"], cluster.now_ms)
    with pytest.raises(UnknownVersion, match=f"machine version {NEW}; this build knows 1 to {BASE}"):
        upgrade(cluster, "n3", BASE)


def test_the_system_group_is_the_last_to_switch() -> None:
    cluster = cluster_of(n1=NEW, n2=NEW)
    upgrade(cluster, "n3")

    def looked_at() -> bool:
        members = cluster.members.values()
        if any(each.catalog.version == NEW for each in members):
            for group in range(1, cluster.members["n1"].config.queue_groups + 1):
                assert any(each.replicas[group].version == NEW for each in members)
        return versions(cluster) == {NEW}

    cluster.until(looked_at, "all groups have switched")


def test_entries_never_go_back_to_an_older_version() -> None:
    cluster = cluster_of(n1=NEW, n2=NEW)
    group, queue = cluster.declare("orders")
    session = Session(cluster, "n1")
    upgrade(cluster, "n3")
    for number in range(30):
        session.publish(group, queue, b"%d" % number)
        cluster.run(50)
    switched(cluster)
    session.publish(group, queue, b"last")
    cluster.until(lambda: len(session.confirmed()) == 31, "all is confirmed")
    cluster.settle()
    found = entry_versions(cluster, group)
    assert found == sorted(found)
    assert set(found) == {BASE, NEW}


def test_a_switch_survives_snapshots_and_restarts() -> None:
    cluster = cluster_of(n1=NEW, n2=NEW, n3=NEW)
    switched(cluster)
    for name in NAMES:
        state = cluster.members[name].catalog.snapshot()
        assert CatalogMachine.restore(state, NEW).version == NEW
        with pytest.raises(UnknownVersion):
            CatalogMachine.restore(state, BASE)
        for replica in cluster.members[name].replicas.values():
            replica.save_snapshot(cluster.logs[name], cluster.now_ms)
        upgrade(cluster, name)  # it begins with its snapshots
        assert {each.version for each in cluster.members[name].replicas.values()} == {NEW}
        assert cluster.needed_versions[name] == NEW


def test_a_switch_to_a_version_that_a_build_does_not_know_stops_it() -> None:
    machine = CatalogMachine((1,), BASE)
    with pytest.raises(UnknownVersion, match=f"machine version {NEW}"):
        machine.apply(c.Meta(1, 1, 1, BASE), [c.Operation(0, None, c.SetVersion(NEW))])


def test_a_build_that_switches_when_a_majority_knows_a_version_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The simulation looks for the same build (simulator/broken/canaries.py)."""
    monkeypatch.setattr(VersionSwitch, "_known_by_all", known_by_a_majority)
    with pytest.raises(AssertionError):
        test_a_majority_that_knows_a_version_is_not_enough()
