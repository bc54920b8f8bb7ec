"""What a leader has proposed, and what it proposes by itself (quorum/node/replica/proposals.py)."""

from __future__ import annotations

import pytest

from fifo.commands import NodeDown, Wake
from quorum.node.replica import replica
from quorum.node.replica.proposals import Proposals
from quorum.node.sessions.conversation import RESEND_AFTER_MS
from quorum.node.wire.operations import COMMAND_BYTES, MAX_OPERATIONS, encode
from support.members.cluster import Cluster, Session

WAKE = encode(Wake(), None)


def down(node: int, boot: int) -> bytes:
    return encode(NodeDown(node, boot), None)


def test_bytes_are_in_flight_until_their_entry_is_taken() -> None:
    proposals = Proposals()
    for index, size in ((5, 100), (7, 20), (8, 3)):
        proposals.sent(index, size)
    for index, left in ((4, 123), (5, 23), (6, 23), (7, 3), (9, 0)):
        proposals.taken(index)
        assert proposals.in_flight_bytes == left


def test_an_entry_has_a_limited_number_of_bytes_and_operations() -> None:
    proposals = Proposals()
    third = bytes(COMMAND_BYTES // 3)
    for operations, taken in (
        ([third] * 2 + [third + b"x"] + [third], [3, 1]),
        ([third] * 2 + [third + b"xx"] + [third], [2, 2]),
        ([bytes(2 * COMMAND_BYTES), third], [1, 1]),
        ([WAKE] * (MAX_OPERATIONS + 2), [MAX_OPERATIONS, 2]),
    ):
        proposals.add(operations)
        for count in taken:
            found, size = proposals.next_entry()
            assert (len(found), size) == (count, sum(map(len, found)))
        assert not proposals.pending


def test_nothing_of_an_earlier_term_is_waited_for() -> None:
    proposals = Proposals()
    proposals.sent(5, 100)
    proposals.wake()
    proposals.down([(2, 1)], [(2, 1)], 0)
    proposals.begin_term()
    assert (list(proposals.pending), proposals.in_flight_bytes) == ([], 0)
    proposals.taken(5)
    assert proposals.in_flight_bytes == 0
    proposals.wake()
    proposals.down([(2, 1)], [(2, 1)], 0)
    assert list(proposals.pending) == [WAKE, down(2, 1)]


def test_one_wake_at_a_time_is_under_way() -> None:
    proposals = Proposals()
    proposals.wake()
    proposals.wake()
    assert list(proposals.pending) == [WAKE]
    proposals.next_entry()
    proposals.wake()
    assert not proposals.pending
    proposals.wake_applied()
    proposals.wake()
    assert list(proposals.pending) == [WAKE]
    proposals.drop_pending()
    proposals.wake()
    assert list(proposals.pending) == [WAKE]


def test_a_node_is_declared_down_again_when_no_answer_has_come() -> None:
    proposals = Proposals()
    live = [(2, 1), (3, 4)]
    for now_ms, is_repeated in ((0, True), (RESEND_AFTER_MS, False), (RESEND_AFTER_MS + 1, True)):
        proposals.down(live, [(2, 1)], now_ms)
        assert list(proposals.pending) == [down(2, 1)] * is_repeated
        proposals.pending.clear()
    proposals.down([(3, 4)], [], RESEND_AFTER_MS + 2)
    proposals.down(live, [(2, 1)], RESEND_AFTER_MS + 3)
    assert list(proposals.pending) == [down(2, 1)], "the machine had forgotten it, and knows it again"


def test_followers_are_told_of_a_commit_once() -> None:
    proposals = Proposals()
    assert [proposals.announce(index) for index in (0, 3, 3, 2, 4)] == [False, True, False, False, True]


def test_a_leader_holds_operations_back_while_much_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "IN_FLIGHT_BYTES", 10_000)
    cluster = Cluster()
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    session = Session(cluster, leader)
    cluster.paused.update(name for name in cluster.names if name != leader)
    for _ in range(10):
        session.publish(group, queue, bytes(4_000))
        cluster.step(leader)
    proposals = cluster.members[leader].replicas[group].proposals
    assert 10_000 <= proposals.in_flight_bytes < 15_000
    assert proposals.pending
    cluster.paused.clear()
    cluster.until(lambda: session.confirmed() == list(range(1, 11)), "all are confirmed")
    assert cluster.members[leader].replicas[group].proposals.in_flight_bytes == 0
