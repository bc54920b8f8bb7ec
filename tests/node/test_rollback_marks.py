"""A data directory that was put back to an earlier state (quorum/node/cluster/rollback_marks.py): the member notices it
by what others remember, and votes for nobody until it has everything again."""

from __future__ import annotations

import copy
import errno

import pytest

from quorum.node.cluster import rollback_marks as marks_module
from quorum.node.cluster.rollback_marks import RollbackMarks, RolledBack
from support.members.cluster import Cluster, Session, copied

MARK_MS, GIVEN_MS = 2_000, 1_000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(marks_module, "MARK_MS", MARK_MS)
    monkeypatch.setattr(marks_module, "GIVEN_MS", GIVEN_MS)
    made = Cluster(3)
    made.ready()
    return made


def image(cluster: Cluster, name: str) -> tuple[object, object]:
    """Of a member's disk, taken while the member runs."""
    disk = copy.deepcopy(cluster.disks[name])
    disk.power_cut(1)
    return disk, copied(cluster.node_states[name])


def put_back(cluster: Cluster, name: str, taken: tuple[object, object]) -> None:
    """The member's machine fails, and another one starts from the image."""
    if name in cluster.members:
        cluster.crash(name)
    cluster.disks[name], cluster.node_states[name] = copy.deepcopy(taken[0]), copied(taken[1])  # type: ignore[assignment, arg-type]
    cluster.start(name)


def publish(cluster: Cluster, at: str, group: int, queue: int, count: int = 20) -> None:
    session = Session(cluster, at)
    for number in range(count):
        session.publish(group, queue, b"%d" % number)
    cluster.until(lambda: len(session.confirmed()) == count, "all is confirmed")


def is_quarantined(cluster: Cluster, name: str) -> bool:
    return any(replica.raft.quarantine.is_on for replica in cluster.members[name].replicas.values())


def test_a_member_that_was_put_back_stops_and_has_everything_again_after_its_next_start(
    cluster: Cluster,
) -> None:
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    name = next(each for each in cluster.names if each != leader)
    taken = image(cluster, name)
    cluster.run(MARK_MS + 1_000)
    publish(cluster, leader, group, queue)
    put_back(cluster, name, taken)
    with pytest.raises(RolledBack, match="put back to an earlier state"):
        cluster.run(10_000)
    cluster.crash(name, power=False)
    cluster.start(name)
    assert is_quarantined(cluster, name)
    cluster.until(lambda: not is_quarantined(cluster, name), "it has everything again")
    cluster.settle()
    assert cluster.info(name, group, queue).ready == 20
    cluster.run(MARK_MS + 1_000)


def confirmed_by_one_that_was_put_back(cluster: Cluster) -> int:
    """How many of 20 confirmed messages are left: one of the two that hold them fails, the other one is put back to
    what it was long ago, and the third one was away."""
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    follower, away = (each for each in cluster.names if each != leader)
    taken = image(cluster, follower)
    cluster.run(MARK_MS + 1_000)
    cluster.isolate(away)
    publish(cluster, leader, group, queue)
    cluster.crash(leader)
    put_back(cluster, follower, taken)
    cluster.heal()
    cluster.until(lambda: cluster.leader(group) is not None, "there is a leader", 20_000)
    cluster.settle()
    return cluster.info(away, group, queue).ready


def test_it_does_not_help_to_elect_a_member_without_what_it_once_acknowledged(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RolledBack):
        confirmed_by_one_that_was_put_back(cluster)
    monkeypatch.setattr(marks_module.RollbackMarks, "remembered", lambda *_: None)
    without = Cluster(3)
    without.ready()
    assert confirmed_by_one_that_was_put_back(without) == 0, "without the marks confirmed messages are lost"


def test_starts_crashes_and_new_connections_are_no_roll_back(cluster: Cluster) -> None:
    for name in cluster.names:
        cluster.crash(name)
        cluster.run(2_000)
        cluster.start(name)
        cluster.ready()
        cluster.isolate(name)
        cluster.run(GIVEN_MS + 1_000)
        cluster.heal()
        cluster.ready()
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.ready()


def test_a_copy_that_starts_where_the_original_has_stopped_is_no_roll_back(cluster: Cluster) -> None:
    cluster.crash("n1", power=False)
    taken = cluster.disks["n1"], cluster.node_states["n1"]
    cluster.run(2 * MARK_MS)
    put_back(cluster, "n1", taken)
    cluster.ready()


def test_a_connection_that_comes_and_goes_costs_few_marks(cluster: Cluster) -> None:
    cluster.run(GIVEN_MS)
    before = sum(node_state.mark for node_state in cluster.node_states.values())
    for _ in range(50):
        cluster.isolate("n1")
        cluster.run(50)
        cluster.heal()
        cluster.run(50)
    links = 3 * 2
    assert sum(node_state.mark for node_state in cluster.node_states.values()) - before <= links * (
        5_000 // GIVEN_MS + 1
    )


def test_a_mark_that_a_full_disk_does_not_take_is_told_to_nobody(cluster: Cluster) -> None:
    node_state = copied(cluster.node_states["n1"])
    sent: list[object] = []
    marks = RollbackMarks(node_state, cluster.logs["n1"], range(4), lambda *frame: sent.append(frame))

    def full() -> None:
        raise OSError(errno.ENOSPC, "no space left")

    node_state.save = full
    marks.remembered("n2", (0).to_bytes(8, "little"), 1)
    assert sent == []
    node_state.save = lambda: None
    marks.remembered("n2", (0).to_bytes(8, "little"), 2)
    assert len(sent) == 1
