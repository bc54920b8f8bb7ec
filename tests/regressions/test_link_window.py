"""Sessions of one node with more to say than a peer's connection holds back broke it, said it all again, and broke it
again: nothing went through, heartbeats neither."""

from __future__ import annotations

from quorum.node import events as ev
from quorum.node.session_table import LINK_BYTES
from support.cluster import Cluster, Session

BODY = bytes(3 << 20)
SESSIONS = 12


def on_the_way(cluster: Cluster, sender: str, to: str) -> int:
    return sum(len(frame.data) for _, frame in cluster._links[sender, to])


def test_no_more_than_a_window_is_on_its_way_to_a_leader_however_often_it_is_sent() -> None:
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    name = next(each for each in cluster.names if each != leader)
    sessions = [Session(cluster, name) for _ in range(SESSIONS)]
    cluster.paused.add(leader)
    for session in sessions:
        session.publish(group, queue, BODY)
    cluster.step(name)
    assert LINK_BYTES // 2 < on_the_way(cluster, name, leader) < LINK_BYTES + len(BODY)
    cluster.cut(name, leader)
    cluster.step(name)
    cluster.heal()
    cluster.step(name)
    assert LINK_BYTES // 2 < on_the_way(cluster, name, leader) < LINK_BYTES + len(BODY), "sent again"
    cluster.paused.clear()
    cluster.until(lambda: all(session.confirmed() == [1] for session in sessions), "all are confirmed")
    info = cluster.members[name].queue_machine(group).info(queue)
    assert info is not None
    assert info.ready == SESSIONS


def test_what_is_on_its_way_is_counted_down_to_nothing() -> None:
    cluster = Cluster()
    cluster.ready()
    places = [cluster.declare(f"q{number}") for number in range(3)]
    group = places[0][0]
    leader = cluster.leader(group)
    name = next(each for each in cluster.names if each != leader)
    session = Session(cluster, name)
    for number in range(8):
        for each_group, each_queue in places:
            session.publish(each_group, each_queue, BODY)
        if number == 3:
            cluster.paused.add(leader or "")
    cluster.until(lambda: len(session.confirmed()) == 24, "all are confirmed, by new leaders where needed")
    cluster.paused.clear()
    cluster.submit(name, ev.EndSession(session.number))
    cluster.until(lambda: session.number not in cluster.members[name].sessions, "the session is forgotten")
    assert set(cluster.members[name]._table._in_flight.values()) == {0}
