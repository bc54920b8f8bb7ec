"""A disk without room for node.json (quorum/node/identity/identity.py) ends no member: what depends on it waits for
room."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from quorum.catalog.lease_times import SetLeaseTimes
from quorum.node.cluster import rollback_marks as marks_module
from quorum.node.cluster.rollback_marks import RollbackMarks, RolledBack
from quorum.node.errors import PageUnreadable
from quorum.node.identity.identity import NodeState
from support.members.cluster import Cluster, copied

NO_ROOM = [errno.ENOSPC, errno.EDQUOT, errno.EMFILE]


def fill(node_state: NodeState, number: int = errno.ENOSPC) -> Callable[[], None]:
    """From now on the memory's file cannot be written; what makes room again."""
    save = node_state.save

    def fail() -> None:
        raise OSError(number, "node.json cannot be written")

    def make_room() -> None:
        node_state.save = save

    node_state.save = fail
    return make_room


def fill_at(cluster: Cluster, name: str, number: int = errno.ENOSPC) -> Callable[[], None]:
    return fill(cluster.members[name].membership.node_state, number)


def is_established(cluster: Cluster, name: str) -> bool:
    return cluster.members[name].membership.node_state.is_established


@pytest.mark.parametrize("number", NO_ROOM)
def test_founding_members_wait_for_one_that_cannot_remember_them(number: int) -> None:
    cluster = Cluster()
    make_room = fill_at(cluster, "n1", number)
    cluster.run(5_000)
    assert [name for name in cluster.names if is_established(cluster, name)] == []
    assert cluster.members["n1"].membership.node_state.known_incarnations == {}
    make_room()
    cluster.ready()
    assert cluster.node_states["n1"].is_established
    assert sorted(cluster.node_states["n1"].known_incarnations) == ["n2", "n3"]


def test_a_member_takes_part_only_once_its_disk_says_that_it_is_established() -> None:
    cluster = Cluster()
    node_state = cluster.members["n1"].membership.node_state
    save = node_state.save

    def save_if_it_fits() -> None:
        if node_state.is_established:
            raise OSError(errno.ENOSPC, "no room for another byte")
        save()

    node_state.save = save_if_it_fits
    cluster.run(5_000)
    assert [name for name in cluster.names if is_established(cluster, name)] == ["n2", "n3"]
    assert all(replica.raft.term == 0 for replica in cluster.members["n1"].replicas.values())
    node_state.save = save
    cluster.ready()
    assert cluster.node_states["n1"].is_established


def test_new_lease_times_are_used_once_they_can_be_remembered() -> None:
    cluster = Cluster()
    cluster.ready()
    make_room = fill_at(cluster, "n1")
    cluster.administer(SetLeaseTimes(6_000, 2_000), at="n2")
    cluster.run(3_000)
    revisions = {name: member.leases.revision for name, member in cluster.members.items()}
    assert revisions["n1"] < revisions["n2"] == revisions["n3"]
    make_room()
    cluster.until(
        lambda: all(
            (settings := member.catalog.lease_settings) is not None
            and settings.is_settled
            and member.leases.revision == settings.revision
            for member in cluster.members.values()
        ),
        "all use the new times",
    )


def test_a_state_that_is_lost_is_given_up_at_once_and_remembered_once_there_is_room() -> None:
    cluster = Cluster()
    cluster.ready()
    group, _ = cluster.declare("orders")
    cluster.isolate("n1")
    member = cluster.members["n1"]
    make_room = fill_at(cluster, "n1")
    replica = member.replicas[group]
    member.lose_state(PageUnreadable(group, 1, "its page is damaged"))
    assert replica.parted
    cluster.run(1_000)
    assert cluster.node_states["n1"].parted == ()
    make_room()
    cluster.run(1_000)
    assert cluster.node_states["n1"].parted == ((group, replica.parted),)
    cluster.heal()
    cluster.until(lambda: not replica.parted, "its state is replaced")
    cluster.ready()


def test_a_member_that_finds_itself_put_back_says_so_though_its_disk_is_full() -> None:
    cluster = Cluster()
    cluster.ready()
    node_state = copied(cluster.node_states["n1"])
    fill(node_state)
    marks = RollbackMarks(node_state, cluster.logs["n1"], range(4), lambda *_: None)
    with pytest.raises(RolledBack):
        marks.remembered("n2", (1 << 40).to_bytes(8, "little"), 1)


@pytest.mark.parametrize("number", NO_ROOM)
def test_marks_are_given_and_remembered_again_once_there_is_room(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks_module, "MARK_MS", 500)
    monkeypatch.setattr(marks_module, "GIVEN_MS", 100)
    cluster = Cluster()
    cluster.ready()
    make_room = fill_at(cluster, "n1", number)
    given, heard = cluster.node_states["n1"].mark, cluster.node_states["n1"].heard["n2"]
    cluster.run(3_000)
    assert cluster.node_states["n1"].mark == given
    assert cluster.node_states["n2"].heard["n1"] <= given
    make_room()
    cluster.run(3_000)
    assert cluster.node_states["n2"].heard["n1"] > given
    assert cluster.node_states["n1"].heard["n2"] > heard


def test_a_disk_that_has_failed_ends_the_member() -> None:
    cluster = Cluster()
    fill_at(cluster, "n1", errno.EIO)
    with pytest.raises(OSError, match=r"node\.json cannot be written"):
        cluster.run(5_000)
