"""The states of members' disks: how they are sent, how long they count, and when syncs are slow."""

from __future__ import annotations

import pytest

from quorum.node.leases.disk_state import (
    REMEMBERED_MS,
    SLOW_AFTER_MS,
    SLOW_SYNC_MS,
    SYNCS_KEPT,
    Disks,
    DiskState,
    DiskStateError,
    SyncTimes,
    decode,
)


@pytest.mark.parametrize("low", [(), (5,), (2, 5, 70_000)])
def test_a_state_is_received_as_it_was_sent_with_the_nodes_that_are_low(low: tuple[int, ...]) -> None:
    for state in (
        DiskState(),
        DiskState(1 << 40, 7, 9, True),
        DiskState(is_full=True),
        DiskState(is_slow=True),
    ):
        assert decode(state.encode(reversed(low))) == (state, low)


def test_bytes_that_are_too_few_or_too_many_are_no_state() -> None:
    data = DiskState().encode([1, 2])
    for wrong in (b"", data[:5], data[:-1], data + b"x"):
        with pytest.raises(DiskStateError, match=f"{len(wrong)} bytes"):
            decode(wrong)


def test_what_a_heartbeat_said_of_disks_counts_for_its_whole_time() -> None:
    disks = Disks(1)
    disks.hear(2, DiskState(is_low=True), (3,), 5_000)
    assert disks.low(5_000 + REMEMBERED_MS) == [2, 3]
    assert disks.known_low(5_000 + REMEMBERED_MS) == [2]
    assert disks.low(5_001 + REMEMBERED_MS) == []


def test_a_single_sync_makes_a_disk_slow_if_it_takes_long_enough() -> None:
    """It has been slow since the sync began."""
    for took_ms, is_slow in ((SLOW_AFTER_MS, True), (SLOW_AFTER_MS - 1, False)):
        times = SyncTimes()
        times.took(took_ms * 1_000, 50_000)
        assert times.is_slow(50_000) is is_slow


def test_a_disk_is_not_slow_as_long_as_some_syncs_are_quick() -> None:
    times = SyncTimes()
    for now_ms in range(0, 10 * SLOW_AFTER_MS, SLOW_AFTER_MS):
        times.took(SLOW_SYNC_MS * 1_000, now_ms + SLOW_SYNC_MS)
        times.took(SLOW_SYNC_MS * 1_000 - 1, now_ms + 2 * SLOW_SYNC_MS)
        assert not times.is_slow(now_ms + 2 * SLOW_SYNC_MS)
    for now_ms in (100_000, 100_000 + SLOW_AFTER_MS):
        times.took(SLOW_SYNC_MS * 1_000, now_ms)
    assert times.is_slow(100_000 + SLOW_AFTER_MS), "no sync was below the limit"


def test_one_sync_of_a_hundred_took_longer_than_the_percentile() -> None:
    times = SyncTimes()
    assert times.p99_us() == 0
    for took_us in range(1, 201):
        times.took(took_us, 0)
    assert times.p99_us() == 199
    for _ in range(SYNCS_KEPT):
        times.took(7, 0)
    assert times.p99_us() == 7, "the latest count"
