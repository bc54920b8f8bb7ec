"""What a leader knows of a follower: three states, the window, and the one place that counts majorities."""

from __future__ import annotations

import pytest

from quorum.replication.configuration import majority
from quorum.replication.progress import Inflights, Progress, ProgressState
from quorum.replication.snapshots import WINDOW_CHUNKS, Outgoing
from support.raft.log import HeldSnapshot


@pytest.mark.parametrize("voters", range(16))
def test_a_majority_is_the_fewest_that_are_more_than_half(voters: int) -> None:
    assert [count * 2 > voters for count in (majority(voters) - 1, majority(voters))] == [False, True]


def test_a_follower_is_sent_entries_or_a_snapshot_as_the_journal_has_its_next_entry() -> None:
    progress = Progress()
    assert progress.state is ProgressState.REPLICATE
    for has_next, state in ((False, ProgressState.SNAPSHOT), (True, ProgressState.REPLICATE)):
        progress.follow_journal(has_next=has_next)
        assert progress.state is state


@pytest.mark.parametrize("has_next", [True, False])
def test_a_probe_ends_with_a_heartbeat_and_not_before(has_next: bool) -> None:
    progress = Progress()
    progress.follow_journal(has_next=has_next)
    progress.probe()
    progress.follow_journal(has_next=True)
    progress.follow_journal(has_next=False)
    assert progress.state is ProgressState.PROBE
    progress.end_probe()
    assert progress.state is ProgressState.REPLICATE
    progress.follow_journal(has_next=False)
    progress.end_probe()
    assert progress.state is ProgressState.SNAPSHOT, "there was no probe to end"


def test_the_window_is_free_again_with_what_is_acknowledged() -> None:
    inflights = Inflights()
    for last_index, size in ((3, 100), (5, 10), (9, 1)):
        inflights.add(last_index, size)
    inflights.free_to(4)
    assert inflights.bytes == 11
    inflights.free_to(9)
    assert inflights.bytes == 0
    inflights.add(10, 7)
    inflights.clear()
    inflights.free_to(20)
    assert inflights.bytes == 0


def test_a_quarantined_follower_is_begun_anew_once_a_process_and_leadership() -> None:
    progress = Progress()
    progress.inflights.add(3, 100)
    progress.probe()
    assert progress.reset_for(7)
    assert (progress.inflights.bytes, progress.state) == (0, ProgressState.REPLICATE)
    assert not progress.reset_for(7)
    assert progress.reset_for(8)
    progress.begin_leadership()
    assert progress.reset_for(8)


def test_a_lost_state_is_wanted_for_a_while_only() -> None:
    progress = Progress()
    progress.want_state(5, 10.0)
    assert (progress.wants_state(9.9), progress.wants_state(10.0), progress.state_from) == (True, False, 5)
    progress.want_state(5, 20.0)
    progress.begin_leadership()
    assert not progress.wants_state(11.0)


def test_a_window_of_a_snapshots_chunks_is_under_way_and_what_is_lost_is_sent_again() -> None:
    outgoing = Outgoing(HeldSnapshot(9, 3, bytes(650)), 100, 0.0, 0.0)

    def sent() -> list[tuple[int, int]]:
        """Offset and length of the chunks that are sent now."""
        return [(offset, len(data)) for offset, data in iter(outgoing.next_chunk, None)]

    assert sent() == [(0, 100), (100, 100), (200, 100), (300, 100)]
    assert WINDOW_CHUNKS == 4
    outgoing.answered(200, 1.0)
    assert sent() == [(400, 100), (500, 100)]
    outgoing.heartbeat()
    assert sent() == [], "there was an answer since the last heartbeat"
    outgoing.heartbeat()
    assert sent() == [(200, 100), (300, 100), (400, 100), (500, 100)]
    outgoing.answered(100, 2.0)
    assert sent() == [(100, 100), (200, 100), (300, 100), (400, 100)], "the follower has begun again"
    outgoing.answered(651, 3.0)
    for _ in range(2):
        outgoing.heartbeat()
    assert sent() == [(100, 100), (200, 100), (300, 100), (400, 100)], "it cannot have more than there is"
    outgoing.answered(500, 3.0)
    outgoing.answered(650, 4.0)
    assert sent() == []
    for _ in range(2):
        outgoing.heartbeat()
    assert sent() == [(650, 0)], "all is sent: an empty chunk asks again"
