"""Group time never goes back and never leaps (quorum/node/group_time.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorum.node.group_time import MAX_CREDIT_MS, SLEW_DIVISOR, GroupClock


def test_a_new_group_begins_at_the_median_of_the_wall_clocks() -> None:
    assert GroupClock().now(50, [1_000, 9_000_000, 1_010]) == 1_010


def test_time_goes_on_from_the_log_by_the_leaders_own_progress() -> None:
    clock = GroupClock()
    clock.observe(5_000)
    assert clock.now(100, [5_000]) == 5_000
    assert clock.now(300, [5_200]) == 5_200


def test_a_wall_clock_an_hour_ahead_is_approached_by_a_tenth() -> None:
    clock = GroupClock()
    clock.observe(5_000)
    clock.now(0, [3_600_000])
    assert clock.now(1_000, [3_600_000]) == 6_100


def test_a_wall_clock_that_went_back_slows_time_by_a_tenth() -> None:
    clock = GroupClock()
    clock.observe(3_600_000)
    clock.now(0, [0])
    assert clock.now(1_000, [0]) == 3_600_900


def test_many_small_steps_slew_as_much_as_one() -> None:
    clock = GroupClock()
    clock.observe(5_000)
    clock.now(0, [3_600_000])
    for at in range(1, 1_001):
        last = clock.now(at, [3_600_000])
    assert last == 6_100


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
    before = clock.now(monotonic, steps[0][1])
    for progress, walls in steps[1:]:
        monotonic += progress
        now = clock.now(monotonic, walls)
        assert before <= now <= before + progress + MAX_CREDIT_MS // SLEW_DIVISOR
        before = now
