"""What a member makes of the state of its own disk (quorum/node/cluster/disk_monitor.py): the log and the groups are
stand-ins. tests/node/test_member_space.py has whole clusters."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from quorum.log import LogFailed
from quorum.node.cluster.disk_monitor import REFUSED_MS, TRANSFER_RETRY_MS, DiskMonitor
from quorum.node.events import DisksLow, LowDisk
from quorum.node.leases.disk_state import SLOW_AFTER_MS, SLOW_FORGOTTEN_MS, SPACE_MS, DiskState
from quorum.node.replica.proposals import FULL_RETRY_MS

NAMES = {1: "n1", 2: "n2", 3: "n3"}


@dataclass
class Log:
    has_small_room: bool = True
    has_room: bool = True
    is_low: bool = False
    is_synced: bool = False
    failure: LogFailed | None = None
    unfilled: int = 0
    """calls that the reserve needs to be filled up"""
    looks: int = 0
    sync_ms: int = 0
    now_ms: int = 0
    stats: Any = field(default_factory=lambda: SimpleNamespace(rolls=0))

    def make_small_room(self) -> bool:
        self.looks += 1
        return self.has_small_room

    def make_room(self, size: int) -> bool:
        return self.has_room

    def refill_reserve(self) -> bool:
        self.unfilled -= 1
        return self.unfilled >= 0

    def space(self) -> Any:
        self.looks += 1
        return SimpleNamespace(free_bytes=70, limit_bytes=80, reserve_bytes=90, is_low=self.is_low)

    def sync(self) -> None:
        self.now_ms += self.sync_ms
        if self.failure is not None:
            raise self.failure


class World:
    """n1, and a group that it leads."""

    def __init__(self) -> None:
        self.log: Any = Log()
        self.transfers: list[str] = []
        self.takes = True
        """whether a transfer of leadership can begin"""
        self.applied = {"n2", "n3"}
        raft = SimpleNamespace(is_leader=True, is_full=False, transfer_leadership=self._transfer)
        self.replica: Any = SimpleNamespace(
            number=7,
            raft=raft,
            proposals=SimpleNamespace(full_until_ms=-(1 << 40)),
            has_applied=lambda name: name in self.applied,
        )
        self.monitor = DiskMonitor(
            1, NAMES, self.log, lambda: self.log.now_ms / 1_000, structlog.get_logger()
        )

    def _transfer(self, to: str) -> bool:
        self.transfers.append(to)
        return self.takes

    def look(self, now_ms: int) -> DiskState:
        self.monitor.look(now_ms, [self.replica])
        return self.monitor.disks.own

    def hear(self, node: int, state: DiskState, now_ms: int) -> None:
        self.monitor.disks.hear(node, state, (), now_ms)


def test_a_log_without_room_for_votes_is_tried_again_after_a_while() -> None:
    world = World()
    assert world.monitor.can_write_votes(1)
    world.log.has_small_room = False
    with structlog.testing.capture_logs() as events:
        assert not world.monitor.can_write_votes(2)
        looks, world.log.has_small_room = world.log.looks, True
        assert not world.monitor.can_write_votes(1 + FULL_RETRY_MS)
        assert world.log.looks == looks
        assert world.monitor.can_write_votes(2 + FULL_RETRY_MS)
        assert world.monitor.can_write_votes(3 + FULL_RETRY_MS)
    assert [event["event"] for event in events] == [
        "log has no room for votes: groups stop",
        "groups run again",
    ]


@pytest.mark.parametrize("is_synced", [True, False])
def test_a_failed_disk_is_noticed_also_by_a_sync_that_writes_nothing(is_synced: bool) -> None:
    world = World()
    world.log.is_synced, world.log.failure = is_synced, LogFailed("the disk has failed")
    with pytest.raises(LogFailed):
        world.monitor.sync()


def test_only_a_sync_that_writes_is_timed() -> None:
    world = World()
    world.log.now_ms, world.log.sync_ms = 5_000, 30
    world.monitor.sync()
    assert world.monitor.syncs.p99_us() == 30_000
    world.log.is_synced, world.log.sync_ms = True, 400
    world.monitor.sync()
    assert world.monitor.syncs.p99_us() == 30_000


def test_a_sync_counts_at_its_end() -> None:
    world = World()
    world.log.now_ms, world.log.sync_ms = 5_000, SLOW_AFTER_MS
    world.monitor.sync()
    last_ms = 5_000 + SLOW_AFTER_MS + SLOW_FORGOTTEN_MS
    assert [world.monitor.syncs.is_slow(now_ms) for now_ms in (last_ms, last_ms + 1)] == [True, False]


def test_a_member_that_gets_its_number_knows_which_disk_is_its_own() -> None:
    world = World()
    world.monitor.become(3)
    world.monitor.disks.own = DiskState(is_full=True)
    assert world.monitor.disks.state(3, 1_000) == DiskState(is_full=True)
    world.hear(1, DiskState(), 1_000)
    assert world.monitor.should_drain_clients(1_000)


def test_the_room_is_measured_once_a_second_and_when_another_segment_was_taken() -> None:
    world = World()
    assert world.look(1_000) == DiskState(70, 80)
    looks = world.log.looks
    world.look(999 + SPACE_MS)
    assert world.log.looks == looks
    world.log.stats.rolls = 1
    world.look(999 + SPACE_MS)
    world.look(999 + SPACE_MS)
    assert world.log.looks == looks + 1
    world.look(999 + 2 * SPACE_MS)
    assert world.log.looks == looks + 2


def test_the_whole_reserve_is_filled_before_the_room_is_measured() -> None:
    world = World()
    world.log.unfilled = 3
    with structlog.testing.capture_logs() as events:
        world.look(1_000)
    assert [event["event"] for event in events] == ["reserve filled up"] * 3


def test_a_log_is_full_while_its_disk_is_low_and_an_entry_was_refused_or_would_be() -> None:
    world = World()
    now_ms = 0

    def is_full(**log: bool) -> bool:
        nonlocal now_ms
        now_ms += SPACE_MS
        world.log.__dict__.update({"is_low": True, "has_room": True} | log)
        return world.look(now_ms).is_full

    assert not is_full()
    assert is_full(has_room=False)
    assert not is_full(has_room=False, is_low=False)
    world.replica.raft.is_full = True
    assert is_full()
    assert not is_full(is_low=False)
    world.replica.raft.is_full = False
    world.replica.proposals.full_until_ms = now_ms + SPACE_MS - REFUSED_MS + 1
    assert is_full()
    world.replica.proposals.full_until_ms = now_ms + SPACE_MS - REFUSED_MS
    assert not is_full()
    world.monitor.is_silent = True
    assert is_full()
    world.monitor.is_silent = False
    other = SimpleNamespace(
        raft=SimpleNamespace(is_full=True, is_leader=False),
        proposals=world.replica.proposals,
    )
    world.monitor.look(now_ms + SPACE_MS, [world.replica, other])  # type: ignore[list-item]
    assert world.monitor.disks.own.is_full, "one group's entry did not fit"


def test_the_operator_is_told_of_each_change_once() -> None:
    world = World()
    now_ms = 0

    def told(**log: bool) -> list[str]:
        nonlocal now_ms
        now_ms += SPACE_MS
        world.log.__dict__.update(log)
        with structlog.testing.capture_logs() as events:
            world.look(now_ms)
        now_ms += SPACE_MS
        with structlog.testing.capture_logs() as again:
            world.look(now_ms)
        assert again == []
        return [event["event"] for event in events]

    assert told() == []
    assert told(is_low=True) == ["disk space low: publishes are refused"]
    assert told(has_room=False) == ["disk full: this member's log takes no entries"]
    assert told(has_room=True) == ["the log takes entries again"]
    assert told(is_low=False) == ["disk space is back"]
    world.monitor.syncs.took((SLOW_AFTER_MS + 1_000) * 1_000, now_ms)
    assert told() == ["disk slow: others should lead"]
    world.monitor.syncs.took(1_000, now_ms)
    assert told() == ["the disk is fast again"]


def full_leader(world: World, now_ms: int) -> None:
    """The second look of a member whose log is full."""
    world.log.is_low, world.log.has_room = True, False
    world.look(now_ms - SPACE_MS)
    assert world.transfers == []
    world.look(now_ms)


def test_a_leader_with_a_full_disk_hands_over_at_its_second_look() -> None:
    world = World()
    world.hear(2, DiskState(is_slow=True), 9_900)
    world.hear(3, DiskState(is_low=True), 9_900)
    full_leader(world, 10_000)
    assert world.transfers == ["n3"], "not to one whose disk is no better"
    world.hear(3, DiskState(), 9_999 + TRANSFER_RETRY_MS)
    world.look(9_999 + TRANSFER_RETRY_MS)
    assert world.transfers == ["n3"]
    world.look(10_999 + TRANSFER_RETRY_MS)
    assert world.transfers == ["n3", "n3"]


def test_one_member_gets_the_leadership() -> None:
    world = World()
    for node in (2, 3):
        world.hear(node, DiskState(), 9_900)
    with structlog.testing.capture_logs() as events:
        full_leader(world, 10_000)
    assert world.transfers == ["n2"]
    assert (events[-1]["event"], events[-1]["reason"]) == ("handing leadership over", "disk full")


def test_a_leader_whose_disk_has_room_again_stays() -> None:
    world = World()
    world.hear(2, DiskState(), 9_900)
    world.log.is_low, world.log.has_room = True, False
    world.look(9_000)
    world.log.has_room = True
    world.look(10_000)
    assert world.transfers == []


def test_a_follower_hands_nothing_over() -> None:
    world = World()
    world.replica.raft.is_leader = False
    world.hear(3, DiskState(), 9_900)
    full_leader(world, 10_000)
    assert world.transfers == []


def test_a_member_that_has_applied_everything_is_asked_first_and_then_the_next_one() -> None:
    world = World()
    world.takes = False
    world.applied = {"n3"}
    for node in (2, 3):
        world.hear(node, DiskState(), 9_900)
    full_leader(world, 10_000)
    assert world.transfers == ["n3", "n2"]


def test_clients_leave_a_full_member_if_another_one_is_not_full() -> None:
    world = World()
    world.hear(2, DiskState(is_full=True), 1_000)
    world.monitor.disks.own = DiskState(is_full=True)
    assert not world.monitor.should_drain_clients(1_000)
    world.hear(3, DiskState(is_low=True), 1_000)
    assert world.monitor.should_drain_clients(1_000)
    world.monitor.disks.own = DiskState(is_low=True)
    assert not world.monitor.should_drain_clients(1_000)


def test_the_groups_that_get_no_publishes_are_told_when_they_have_changed() -> None:
    world = World()
    voters = {7: (1, 2), 8: (3,)}

    def told(now_ms: int) -> DisksLow | None:
        return world.monitor.low_groups(now_ms, lambda: voters)

    assert told(1_000) is None
    world.hear(2, DiskState(5, 6, is_low=True), 1_000)
    assert told(1_000) == DisksLow({7: (LowDisk("n2", 5, 6),)})
    assert told(1_001) is None
    world.monitor.disks.hear(3, DiskState(), (4,), 1_001)
    voters[8] = (3, 4)
    assert told(1_001) == DisksLow({7: (LowDisk("n2", 5, 6),), 8: (LowDisk("4", -1, 0),)})
    assert told(60_000) == DisksLow({})
    assert told(60_001) is None
