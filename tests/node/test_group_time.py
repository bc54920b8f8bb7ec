"""Group time never goes back and never leaps (quorum/node/replica/group_clock.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fifo import commands as c
from fifo.effects import Confirmed
from fifo.queries import group as queries
from quorum.node.replica.group_clock import MAX_SLEWED_MS, SLEW_DIVISOR, GroupClock
from support.members.cluster import Cluster, Session, batch

TERM = 3


def test_a_new_group_begins_at_the_median_of_the_wall_clocks() -> None:
    assert GroupClock().now(50, [1_000, 9_000_000, 1_010], TERM) == 1_010


def test_time_goes_on_from_the_log_by_the_leaders_own_progress() -> None:
    clock = GroupClock()
    clock.observe(5_000)
    assert clock.now(100, [5_000], TERM) == 5_000
    assert clock.now(300, [5_200], TERM) == 5_200


def test_a_wall_clock_an_hour_ahead_is_approached_by_a_tenth() -> None:
    clock = GroupClock()
    clock.observe(5_000)
    clock.now(0, [3_600_000], TERM)
    assert clock.now(1_000, [3_600_000], TERM) == 6_100


def test_a_wall_clock_that_went_back_slows_time_by_a_tenth() -> None:
    clock = GroupClock()
    clock.observe(3_600_000)
    clock.now(0, [0], TERM)
    assert clock.now(1_000, [0], TERM) == 3_600_900


def test_many_small_steps_slew_as_much_as_one() -> None:
    clock = GroupClock()
    clock.observe(5_000)
    clock.now(0, [3_600_000], TERM)
    for at in range(1, 1_001):
        last = clock.now(at, [3_600_000], TERM)
    assert last == 6_100


def test_time_does_not_leap_when_a_new_member_moves_the_median_of_the_wall_clocks() -> None:
    clock = GroupClock()
    clock.observe(5_000)
    for at in range(0, 10_000, 10):
        clock.now(at, [5_000 + at, 9_000_000], TERM)
    assert clock.last == 14_990
    assert clock.now(10_000, [15_000, 9_000_000, 9_000_000], TERM) == 15_001


def test_a_follower_counts_nine_tenths_of_its_own_progress_since_the_entry_that_it_applied() -> None:
    clock = GroupClock()
    clock.observe(5_000, 100)
    assert clock.now(60_100, [65_000], TERM) == 59_000


def test_a_leader_counts_all_its_progress_in_its_own_term() -> None:
    clock = GroupClock()
    clock.observe(5_000, 100)
    clock.now(100, [5_000], TERM)
    assert clock.now(60_100, [65_000], TERM) == 65_000
    assert clock.now(120_100, [119_000], TERM + 2) == 119_000, "another member may have led in between"


def test_a_member_that_was_paused_leads_next_and_time_does_not_leap() -> None:
    leader, paused = GroupClock(), GroupClock()
    for clock in leader, paused:
        clock.observe(5_000, 0)
    leader.now(0, [0], TERM)
    at = 6_000
    for each in range(20, at, 20):
        last = leader.now(each, [0], TERM)
    paused.observe(last, at)  # it catches up with what the leader has proposed
    assert last <= paused.now(at, [0], TERM + 1) <= last + 20


def test_an_older_entry_that_is_applied_later_changes_nothing() -> None:
    clock = GroupClock()
    clock.observe(5_000, 100)
    clock.observe(5_500, 1_100)
    assert clock.estimate(1_100) == 5_900


def test_a_member_that_catches_up_is_behind_and_never_ahead() -> None:
    clock = GroupClock()
    clock.observe(1_000)  # a snapshot
    assert clock.estimate(3_600_000) == 1_000
    for at, entry in enumerate(range(2_000, 1_000_000, 1_000)):
        clock.observe(entry, 3_600_000 + at)
        assert clock.estimate(3_600_000 + at) == entry
    clock.heard(3_600_500, asked_ms=3_601_000, monotonic_ms=3_601_010, term=TERM)
    assert clock.estimate(3_601_010) == 3_600_500


def test_a_leaders_answer_bounds_the_estimate_from_both_sides() -> None:
    clock = GroupClock()
    clock.observe(5_000, 0)
    clock.heard(5_905, asked_ms=980, monotonic_ms=1_000, term=TERM)
    assert clock.estimate(1_000) == 5_905, "it was behind"
    clock.heard(5_900, asked_ms=990, monotonic_ms=1_010, term=TERM)
    assert clock.estimate(1_010) == 5_914, "what this member thinks is possible"
    clock.heard(7_000, asked_ms=1_400, monotonic_ms=1_420, term=TERM)
    assert clock.estimate(1_420) == 7_000, "it was behind"
    clock.heard(7_100, asked_ms=2_000, monotonic_ms=2_020, term=TERM)
    assert clock.estimate(2_020) == 7_120, "it was ahead"


def test_a_leader_that_knows_no_time_moves_nothing() -> None:
    clock = GroupClock()
    clock.observe(5_000, 0)
    clock.heard(0, asked_ms=990, monotonic_ms=1_010, term=TERM)
    assert clock.estimate(1_010) == 5_909


def test_no_answer_takes_time_back_before_an_applied_entry() -> None:
    clock = GroupClock()
    clock.observe(5_000, 0)
    clock.heard(4_000, asked_ms=10, monotonic_ms=20, term=TERM)
    assert clock.estimate(20) == 5_000


def test_a_new_leader_that_lags_is_believed_by_the_member_that_leads_after_it() -> None:
    """The members' estimates are ahead of a leader that was restarted and paused. Time must not leap to them."""
    clock = GroupClock()
    clock.heard(5_000, asked_ms=0, monotonic_ms=0, term=TERM)
    assert clock.estimate(10_000) == 14_000
    clock.observe(6_000, 10_000, TERM + 1)
    clock.observe(6_100, 10_090, TERM + 1)
    assert clock.now(10_200, [0], TERM + 2) == 6_100 + 99


def test_a_snapshot_of_a_new_leader_that_lags_is_believed_too() -> None:
    clock = GroupClock()
    clock.heard(5_000, asked_ms=0, monotonic_ms=0, term=TERM)
    clock.observe(6_000, term=TERM + 1)
    assert clock.now(10_000, [0], TERM + 2) == 6_000


def test_entries_of_earlier_terms_that_are_applied_late_take_nothing_back() -> None:
    clock = GroupClock()
    clock.heard(5_000, asked_ms=0, monotonic_ms=0, term=TERM)
    clock.observe(3_000, 1_000, TERM - 1)
    clock.observe(4_000, 1_000, TERM)
    assert clock.estimate(1_000) == 5_900


TTL_MS = 120_000


def lifetime(cluster: Cluster, group: int, queue: int, before_its_end: Callable[[], None]) -> int:
    """How long a message with a time to live is in its queue. before_its_end: happens 10 s before that."""
    observer = next(name for name in cluster.names if name != cluster.leader(group))
    session = Session(cluster, observer)
    reply = session.call(group, c.Enqueue(queue, 1, 1, 1, 1, TTL_MS), batch([b"x"]))
    assert isinstance(reply, Confirmed)
    born = cluster.now_ms
    cluster.run(TTL_MS - 10_000)
    before_its_end()

    def is_gone() -> bool:
        info = queries.info(cluster.members[observer].queue_machine(group), queue)
        return info is not None and info.total == 0

    cluster.until(is_gone, "it has expired", limit_ms=2 * TTL_MS)
    return cluster.now_ms - born


def test_a_quiet_group_keeps_its_time_when_its_leader_fails() -> None:
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")

    def fail() -> None:
        leader = cluster.leader(group)
        assert leader is not None
        cluster.crash(leader)

    assert TTL_MS <= lifetime(cluster, group, queue, fail) < TTL_MS + 1_000


def test_a_member_that_has_just_started_leads_by_the_old_leaders_time() -> None:
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")

    def restart_the_others_and_fail() -> None:
        leader = cluster.leader(group)
        assert leader is not None
        for name in cluster.names:
            if name != leader:
                cluster.crash(name, power=False)
                cluster.start(name)
                cluster.ready()
        cluster.crash(leader)

    assert TTL_MS <= lifetime(cluster, group, queue, restart_the_others_and_fail) < TTL_MS + 1_000


def test_a_paused_member_that_leads_next_has_invented_no_time() -> None:
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")

    def pause_the_others_and_fail() -> None:
        leader = cluster.leader(group)
        assert leader is not None
        others = [name for name in cluster.names if name != leader]
        cluster.paused |= {others[0]}
        cluster.run(5_000)
        cluster.paused.clear()
        cluster.crash(leader)

    assert TTL_MS <= lifetime(cluster, group, queue, pause_the_others_and_fail) < TTL_MS + 1_000


@given(
    st.lists(
        st.tuples(st.integers(0, 5_000), st.lists(st.integers(0, 1 << 45), min_size=1, max_size=3)),
        min_size=2,
    )
)
def test_time_never_goes_back_and_never_leaps(steps: list[tuple[int, list[int]]]) -> None:
    clock = GroupClock()
    clock.observe(1 << 40)
    monotonic = 0
    before = clock.now(monotonic, steps[0][1], TERM)
    for progress, walls in steps[1:]:
        monotonic += progress
        now = clock.now(monotonic, walls, TERM)
        assert before <= now <= before + progress + min(progress, MAX_SLEWED_MS) // SLEW_DIVISOR + 1
        before = now


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_a_message_expires_within_a_tenth_of_its_time_when_all_clocks_jump_and_the_leader_fails(
    jump_ms: int,
) -> None:
    cluster = Cluster(3)
    cluster.ready()
    group, queue = cluster.declare("orders")
    leader = cluster.leader(group)
    assert leader is not None
    cluster.wall_skew = dict.fromkeys(cluster.names, jump_ms)
    lived_ms = lifetime(cluster, group, queue, lambda: cluster.crash(leader))
    slowest, fastest = SLEW_DIVISOR - 1, SLEW_DIVISOR + 1
    assert TTL_MS * SLEW_DIVISOR // fastest <= lived_ms < TTL_MS * SLEW_DIVISOR // slowest + 1_000
