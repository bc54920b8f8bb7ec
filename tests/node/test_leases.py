"""Who may deliver, and when a node may be declared down (quorum/node/leases/leases.py)."""

from __future__ import annotations

import pytest

from quorum.catalog.lease_times import LARGEST, LeaseSettings, LeaseTimes
from quorum.node.errors import PeerFrameError
from quorum.node.leases.leases import DRIFT_MS, Heartbeat, HeartbeatAnswer, LeaderView, Leases

LEASE, STEP_DOWN = 4_000, 1_000
VOTERS = (1, 2, 3)


def leases() -> Leases:
    return Leases(1, LeaseSettings.founded(LeaseTimes(LEASE, STEP_DOWN)))


def answer(sent_ms: int, leader: int, term: int = 5) -> HeartbeatAnswer:
    return HeartbeatAnswer(sent_ms, {1: LeaderView(leader, term, LEASE)})


def test_a_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    one = leases()
    one.answered(2, answer(1_000, leader=2))
    assert one.held_until(1, leader=2, term=5, voters=VOTERS) == 1_000 + LEASE


def test_only_the_leader_itself_renews_a_lease() -> None:
    one = leases()
    one.answered(3, answer(1_000, leader=2))
    assert one.held_until(1, leader=2, term=5, voters=VOTERS) == 0


def test_an_answer_of_another_term_renews_nothing() -> None:
    one = leases()
    one.answered(2, answer(1_000, leader=2, term=4))
    assert one.held_until(1, leader=2, term=5, voters=VOTERS) == 0


def test_without_a_leader_there_is_no_lease() -> None:
    assert leases().held_until(1, leader=0, term=5, voters=VOTERS) == 0


def test_a_leader_holds_its_own_lease_by_a_majority() -> None:
    one = leases()
    assert one.held_until(1, leader=1, term=5, voters=VOTERS) == 0
    one.answered(2, answer(1_000, leader=1))
    assert one.held_until(1, leader=1, term=5, voters=VOTERS) == 1_000 + LEASE
    one.answered(3, answer(1_500, leader=1))
    assert one.held_until(1, leader=1, term=5, voters=VOTERS) == 1_500 + LEASE


def test_a_leader_counts_only_those_that_follow_it_in_its_term() -> None:
    one = leases()
    one.answered(2, answer(1_000, leader=1, term=4))
    one.answered(3, answer(1_000, leader=3))
    assert one.held_until(1, leader=1, term=5, voters=VOTERS) == 0
    assert not one.may_grant(1, 5, 1_000, VOTERS)
    one.answered(2, answer(1_100, leader=1))
    assert one.held_until(1, leader=1, term=5, voters=VOTERS) == 1_100 + LEASE
    assert one.may_grant(1, 5, 1_100, VOTERS)


def test_with_five_members_a_leader_needs_two_others() -> None:
    one = leases()
    one.answered(2, answer(1_000, leader=1))
    assert one.held_until(1, leader=1, term=5, voters=range(1, 6)) == 0
    one.answered(3, answer(1_500, leader=1))
    assert one.held_until(1, leader=1, term=5, voters=range(1, 6)) == 1_000 + LEASE


def test_a_late_answer_does_not_shorten_a_lease() -> None:
    one = leases()
    one.answered(2, answer(2_000, leader=2))
    one.answered(2, answer(1_000, leader=2))
    assert one.held_until(1, leader=2, term=5, voters=VOTERS) == 2_000 + LEASE


def test_an_only_voter_answers_itself_with_each_heartbeat() -> None:
    one = leases()
    assert one.held_until(1, leader=1, term=5, voters=[1]) == 0
    one.hear(1, boot=7, now_ms=1_000)
    assert one.held_until(1, leader=1, term=5, voters=[1]) == 1_000 + LEASE
    one.hear(1, boot=7, now_ms=1_250)
    assert one.held_until(1, leader=1, term=5, voters=[1]) == 1_250 + LEASE


def test_a_leader_that_does_not_vote_is_no_only_voter() -> None:
    one = leases()
    one.hear(1, boot=7, now_ms=1_000)
    assert one.held_until(1, leader=1, term=5, voters=[]) == 0
    assert one.held_until(1, leader=1, term=5, voters=[2]) == 0


def test_a_silent_node_is_down_after_lease_and_drift() -> None:
    one = leases()
    one.elected(1, 0)
    one.hear(2, boot=7, now_ms=100_000)
    assert not one.is_down(1, 2, 7, 100_000 + LEASE + DRIFT_MS)
    assert one.is_down(1, 2, 7, 100_001 + LEASE + DRIFT_MS)


def test_a_new_leader_waits_until_leases_of_earlier_leaders_have_ended() -> None:
    one = leases()
    one.hear(2, boot=7, now_ms=0)
    one.elected(1, 100_000)
    assert not one.is_down(1, 2, 7, 100_000 + LEASE + STEP_DOWN + DRIFT_MS)
    assert one.is_down(1, 2, 7, 100_001 + LEASE + STEP_DOWN + DRIFT_MS)


def test_a_newer_process_proves_that_the_older_is_gone() -> None:
    one = leases()
    one.elected(1, 0)
    one.hear(2, boot=8, now_ms=10)
    assert one.is_down(1, 2, 7, 11)
    assert not one.is_down(1, 2, 8, 11)


def test_a_node_never_heard_of_is_down_in_the_end() -> None:
    one = leases()
    one.elected(1, 1_000)
    assert one.is_down(1, 3, 1, 1_001 + LEASE + STEP_DOWN + DRIFT_MS)


def test_the_leaders_answer_names_the_lease_whatever_this_node_would_grant() -> None:
    one = leases()
    one.answered(2, HeartbeatAnswer(1_000, {1: LeaderView(2, 5, lease_ms=700)}))
    assert one.held_until(1, leader=2, term=5, voters=VOTERS) == 1_700


def test_a_node_that_does_not_know_the_clusters_lease_times_grants_nothing_and_declares_nobody_down() -> None:
    one = Leases(1)
    one.elected(1, 0)
    one.hear(1, boot=1, now_ms=10_000)
    one.hear(2, boot=7, now_ms=10_000)
    one.answered(2, answer(10_000, leader=1))
    assert not one.may_grant(1, 5, 10_001, VOTERS)
    assert one.held_until(1, leader=1, term=5, voters=VOTERS) == 0
    assert not one.is_down(1, 3, 1, 1 << 40)
    assert one.is_down(1, 2, 6, 10_001), "a newer process proves it by itself"


def test_a_successor_waits_for_the_largest_lease_that_anybody_may_hold() -> None:
    settings = leases().settings
    assert settings is not None
    for wanted in (LeaseTimes(30_000, 2_000), LeaseTimes(1_000, 500)):
        one = Leases(1, settings.changed(wanted))
        one.elected(1, 0)
        one.hear(2, boot=7, now_ms=1_000_000)
        longest = max(LEASE, wanted.lease_ms)
        assert not one.is_down(1, 2, 7, 1_000_000 + longest + DRIFT_MS)
        assert one.is_down(1, 2, 7, 1_000_001 + longest + DRIFT_MS)
        one.elected(1, 2_000_000)
        longest += max(STEP_DOWN, wanted.step_down_ms)
        assert not one.is_down(1, 2, 7, 2_000_000 + longest + DRIFT_MS)
        assert one.is_down(1, 2, 7, 2_000_001 + longest + DRIFT_MS)


def test_a_leader_grants_the_smaller_lease_while_the_times_change() -> None:
    settings = leases().settings
    assert settings is not None
    for wanted in (LeaseTimes(30_000, 2_000), LeaseTimes(1_000, 500)):
        changing = settings.changed(wanted)
        for each, times in ((changing, settings.granted.smaller(wanted)), (changing.settled(), wanted)):
            one = Leases(1, each)
            one.answered(2, answer(10_000, leader=1))
            assert one.held_until(1, leader=1, term=5, voters=VOTERS) == 10_000 + times.lease_ms
            assert one.may_grant(1, 5, 9_999 + times.step_down_ms, VOTERS)
            assert not one.may_grant(1, 5, 10_000 + times.step_down_ms, VOTERS)


def test_after_a_catalog_without_lease_times_a_successor_waits_for_the_largest_that_was_allowed() -> None:
    found = LeaseSettings.founded(LeaseTimes(LEASE, STEP_DOWN), is_new=False)
    assert (found.granted, found.awaited) == (LeaseTimes(LEASE, STEP_DOWN), LARGEST)
    assert found.settled().awaited == LeaseTimes(LEASE, STEP_DOWN)


def test_a_node_knows_its_own_lease_times_and_those_that_the_others_have_named() -> None:
    one = leases()
    one.revisions[2] = 7
    assert [one.revision_of(node) for node in (1, 2, 3)] == [one.revision, 7, 0]
    assert one.revision > 0
    assert Leases(1).revision_of(1) == 0


def test_frames_survive_the_wire() -> None:
    beat = Heartbeat(1, 2, 3, lease_revision=4)
    assert Heartbeat.decode(beat.encode()) == beat
    full = HeartbeatAnswer(9, {0: LeaderView(1, 2, 3, 4), 3: LeaderView(0, 4), 4: LeaderView(2, 4, behind=5)})
    assert HeartbeatAnswer.decode(full.encode()) == full


@pytest.mark.parametrize("cut", range(len(HeartbeatAnswer(9, {0: LeaderView(1, 2)}).encode())))
def test_a_cut_answer_is_refused(cut: int) -> None:
    with pytest.raises(PeerFrameError):
        HeartbeatAnswer.decode(HeartbeatAnswer(9, {0: LeaderView(1, 2)}).encode()[:cut])
