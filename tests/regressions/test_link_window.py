"""Sessions of one node with more to say than a peer's connection holds back broke it, said it all again, and broke it
again: nothing went through, heartbeats neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from fifo.commands import Enqueue, Origin
from fifo.effects import Ok
from quorum.node import events as ev
from quorum.node.sessions.session_table import LINK_BYTES, SessionTable
from support.members.cluster import Cluster, Session

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
    assert LINK_BYTES // 4 < on_the_way(cluster, name, leader) <= LINK_BYTES // 2
    cluster.cut(name, leader)
    cluster.step(name)
    cluster.heal()
    cluster.step(name)
    assert LINK_BYTES // 4 < on_the_way(cluster, name, leader) <= LINK_BYTES // 2, "sent again"
    cluster.paused.clear()
    cluster.until(lambda: all(session.confirmed() == [1] for session in sessions), "all are confirmed")
    assert cluster.info(name, group, queue).ready == SESSIONS


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
    assert {link.total() for link in cluster.members[name]._table._in_flight.values()} == {0}


@dataclass
class Routes:
    """n2 leads all groups."""

    sent: list[int]

    def link(self, group: int) -> str:
        return "n2"

    def send(self, group: int, operations: Sequence[bytes]) -> None:
        self.sent.extend([group] * len(operations))

    def times(self) -> dict[int, int]:
        return {}


def publish(table: SessionTable, group: int, size: int) -> None:
    table.submit(ev.Submit(1, group, Enqueue(7, 1, 1, 1, size), None, bytes(size)), 0)
    table.send_submitted(0)


@pytest.mark.parametrize("sizes", [[4 << 10] * 5_000, [28_000_000] * 2], ids=["small", "large"])
def test_operations_that_a_leader_does_not_decide_leave_room_for_its_other_groups(sizes: list[int]) -> None:
    sent: list[int] = []
    table = SessionTable(
        1,
        1,
        Routes(sent),
        ev.Outputs(),
    )
    table.open(ev.OpenSession(1, bytes(16), 1), 0)
    for size in sizes:
        publish(table, 1, size)
    table.reply(1, Origin(bytes(16), 1, 0), Ok(), 0)
    publish(table, 2, 10_000)
    assert sent.count(2) == 2, "the registration and the publish"
    for n in range(1, 4):
        table.resend_overdue(1, 2_000 * n)
        table.reply(2, Origin(bytes(16), 1, n - 1), Ok(), 2_000 * n)
        publish(table, 2, 10_000)
        assert sent.count(2) == 2 + n
