"""When a member takes snapshots of its replicas (quorum/node/replica/snapshotter.py, snapshot_plan.py). What a snapshot
holds is in other tests; here replicas only note that one was taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import structlog

from quorum.log import LogFull
from quorum.node.replica.snapshot_plan import SnapshotPlan
from quorum.node.replica.snapshotter import RETRY_MS, Snapshotter

AFTER_BYTES, AFTER_MS = 1_000, 60_000


@dataclass
class Replica:
    number: int = 1
    parted: bool = False
    blocked_on_index: int = 0
    lacks_page: bool = False
    snapshots: SnapshotPlan = field(default_factory=SnapshotPlan)
    raft: Any = field(
        default_factory=lambda: SimpleNamespace(
            lacks_snapshot=False, applied_index=9, snapshot_index=5, is_receiving=False
        )
    )
    slices: int = 1
    """calls that a snapshot is prepared in"""
    is_log_full: bool = False
    mends: bool = True
    """whether a new snapshot takes the place of a damaged one"""
    damaged: list[int] = field(default_factory=list)
    taken_ms: list[int] = field(default_factory=list)
    woken: int = 0

    def prepare_snapshot(self) -> bool:
        self.slices -= 1
        return self.slices <= 0

    def save_snapshot(self, log: object, now_ms: int) -> None:
        if self.is_log_full:
            raise LogFull("no space")
        self.snapshots.saved(now_ms)
        self.taken_ms.append(now_ms)
        if self.mends:
            self.damaged.clear()

    def wake(self) -> None:
        self.woken += 1


class Member:
    """A snapshotter with one replica that has applied entries of so many bytes."""

    def __init__(self, applied_bytes: int = 1, **replica: Any) -> None:
        self.replica: Any = Replica(**replica)
        log: Any = SimpleNamespace(
            journal=lambda group: SimpleNamespace(damaged_snapshots=self.replica.damaged)
        )
        self.snapshotter = Snapshotter(
            log, structlog.get_logger(), after_bytes=AFTER_BYTES, after_ms=AFTER_MS
        )
        self.replica.snapshots.bytes_since = applied_bytes

    def reviewed(self, now_ms: int) -> list[int]:
        """When snapshots were taken by now."""
        self.snapshotter.review([self.replica], now_ms)
        return [*self.replica.taken_ms]

    def applied(self, now_ms: int) -> list[int]:
        self.snapshotter.save_due(self.replica, now_ms)
        return [*self.replica.taken_ms]

    def low(self, now_ms: int) -> list[int]:
        self.snapshotter.make_room([self.replica], now_ms)
        return [*self.replica.taken_ms]


def test_a_snapshot_is_due_after_more_than_its_bytes_or_at_its_time() -> None:
    assert Member(AFTER_BYTES).applied(1) == []
    assert Member(AFTER_BYTES + 1).applied(1) == [1]
    assert Member().applied(AFTER_MS - 1) == []
    assert Member().applied(AFTER_MS) == [AFTER_MS]


def test_the_time_of_a_snapshot_counts_from_the_last_one_or_from_the_first_change_after_it() -> None:
    member = Member()
    assert member.applied(AFTER_MS) == [AFTER_MS]
    member.replica.snapshots.bytes_since = 1
    assert member.applied(2 * AFTER_MS - 1) == [AFTER_MS]
    assert member.applied(2 * AFTER_MS) == [AFTER_MS, 2 * AFTER_MS]
    assert member.reviewed(10 * AFTER_MS) == [AFTER_MS, 2 * AFTER_MS], "nothing has changed"
    member.replica.snapshots.bytes_since = 1
    assert member.reviewed(11 * AFTER_MS - 1) == [AFTER_MS, 2 * AFTER_MS]
    assert member.reviewed(11 * AFTER_MS) == [AFTER_MS, 2 * AFTER_MS, 11 * AFTER_MS]


def test_a_replica_without_its_snapshot_takes_one_once_it_has_applied_something() -> None:
    member = Member()
    member.replica.raft.lacks_snapshot = True
    member.replica.raft.applied_index = 5
    assert member.applied(1) == []
    member.replica.raft.applied_index = 6
    assert member.applied(2) == [2]


def test_a_snapshot_is_prepared_in_several_steps() -> None:
    member = Member(AFTER_BYTES + 1, slices=3)
    assert (member.applied(1), member.applied(2), member.replica.woken) == ([], [], 2)
    assert (member.applied(3), member.replica.woken) == ([3], 2)


def test_where_the_log_is_full_a_snapshot_is_tried_again_later() -> None:
    member = Member(AFTER_BYTES + 1, is_log_full=True)
    with structlog.testing.capture_logs() as events:
        assert member.applied(1) == []
    assert [event["event"] for event in events] == ["no snapshot was taken"]
    member.replica.is_log_full = False
    assert member.applied(RETRY_MS) == member.reviewed(RETRY_MS) == []
    assert member.applied(1 + RETRY_MS) == [1 + RETRY_MS]


def test_no_snapshot_is_taken_of_a_state_that_is_in_doubt_blocked_or_being_replaced() -> None:
    for state in ({"parted": True}, {"blocked_on_index": 7}):
        member = Member(AFTER_BYTES + 1, **state)
        member.replica.snapshots.demand()
        assert member.reviewed(1) == []
    assert Member(AFTER_BYTES + 1, parted=True).applied(1) == []
    member = Member(AFTER_BYTES + 1, lacks_page=True)
    member.replica.raft.is_receiving = True
    assert member.applied(1) == []
    member.replica.raft.is_receiving = False
    assert member.applied(2) == [2], "a state with a page that is damaged here is better than none"
    member = Member(AFTER_BYTES + 1)
    member.replica.raft.is_receiving = True
    assert member.applied(3) == [3]


def test_a_damaged_snapshot_is_replaced_though_nothing_has_changed() -> None:
    member = Member(0, damaged=[5])
    assert member.reviewed(1) == [1]
    assert member.reviewed(2) == [1]
    member.replica.snapshots.demand()
    assert member.reviewed(3) == [1, 3]
    assert member.reviewed(4) == [1, 3]


def test_a_damaged_snapshot_that_is_not_replaced_yet_is_tried_again_after_a_while() -> None:
    member = Member(0, damaged=[5], mends=False)
    assert member.reviewed(1) == member.reviewed(RETRY_MS) == [1]
    member.replica.mends = True
    assert member.reviewed(1 + RETRY_MS) == [1, 1 + RETRY_MS]
    assert member.reviewed(2 + RETRY_MS) == [1, 1 + RETRY_MS]


def test_while_the_disk_is_low_snapshots_are_taken_early_but_not_all_the_time() -> None:
    assert Member(0).low(1) == [], "nothing has changed"
    member = Member(slices=2)
    assert (member.low(1), member.low(2)) == ([], [2])
    member.replica.snapshots.bytes_since = 1
    assert member.low(1 + RETRY_MS) == [2]
    assert member.low(2 + RETRY_MS) == [2, 2 + RETRY_MS]
