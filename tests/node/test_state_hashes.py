"""Members compare what they have made of the same entries (quorum/node/replica/state_hashes.py)."""

from __future__ import annotations

import pytest

from quorum.node.errors import Diverged, PeerFrameError
from quorum.node.replica.state_hashes import EVERY, KEPT, StateHashes, decode_claim


def test_only_every_thousandth_entry_is_claimed() -> None:
    state_hashes = StateHashes(3)
    assert state_hashes.applied(EVERY + 1, 5) is None
    claim = state_hashes.applied(2 * EVERY, 5)
    assert claim is not None
    assert decode_claim(claim) == (3, 2 * EVERY, 5)


ALL = ("n1", "n2", "n3")


def test_equal_hashes_agree_in_either_order() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n1", EVERY, 5)
    state_hashes.claim("n1", 2 * EVERY, 6)
    state_hashes.applied(2 * EVERY, 6)
    assert not state_hashes.judge("n2", ALL)
    assert state_hashes.settled_to == 2 * EVERY, "both were compared"


def test_a_member_that_differs_stops_when_it_hears_the_leaders_hash() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n3", EVERY, 6)
    state_hashes.claim("n1", EVERY, 6)
    with pytest.raises(Diverged, match="group 3, entry 1000: hash 00000005 here, 00000006 at most voters"):
        state_hashes.judge("n2", ALL)


def test_a_member_that_lags_stops_when_it_gets_there() -> None:
    state_hashes = StateHashes(3)
    state_hashes.claim("n1", EVERY, 6)
    state_hashes.claim("n3", EVERY, 6)
    assert not state_hashes.judge("n2", ALL)
    state_hashes.applied(EVERY, 5)
    with pytest.raises(Diverged):
        state_hashes.judge("n2", ALL)


def test_one_that_differs_is_wrong_when_most_voters_agree_with_this_member() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n1", EVERY, 6)
    assert state_hashes.judge("n2", ALL), "nobody knows yet"
    state_hashes.claim("n3", EVERY, 5)
    assert not state_hashes.judge("n2", ALL)


def test_without_a_majority_of_equal_hashes_nobody_is_right() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n1", EVERY, 6)
    assert "no majority of the 2 voters has the same state: n1 00000006, n2 00000005" in state_hashes.judge(
        "n2", ("n1", "n2")
    )
    state_hashes.claim("n3", EVERY, 7)
    assert state_hashes.judge("n2", ALL)
    assert not state_hashes.judge("n2", ("n2",)), "the others have been removed"


def test_what_a_majority_has_agreed_on_stays_settled_when_the_voters_change() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n1", EVERY, 5)
    state_hashes.claim("n3", EVERY, 6)
    assert not state_hashes.judge("n2", ALL)
    assert not state_hashes.judge("n2", ("n1", "n2", "n3", "n4"))
    assert not state_hashes.judge("n2", ("n2", "n3"))


def test_agreement_at_a_later_entry_settles_the_ones_before() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n1", EVERY, 6)
    assert state_hashes.judge("n2", ALL)
    state_hashes.applied(2 * EVERY, 7)
    state_hashes.claim("n3", 2 * EVERY, 7)
    assert not state_hashes.judge("n2", ALL)


def test_an_entry_that_is_applied_again_is_judged_again() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n1", EVERY, 5)
    state_hashes.claim("n3", EVERY, 5)
    assert not state_hashes.judge("n2", ALL)
    state_hashes.applied(EVERY, 6)
    with pytest.raises(Diverged):
        state_hashes.judge("n2", ALL)


def test_a_minority_that_was_heard_first_decides_nothing() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n1", EVERY, 6)
    state_hashes.claim("n3", EVERY, 6)
    assert state_hashes.judge("n2", ("n1", "n2", "n3", "n4", "n5")), "two of five"


def test_claims_of_a_member_that_has_given_up_its_state_are_dropped() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n1", EVERY, 6)
    assert state_hashes.judge("n2", ALL)
    state_hashes.forget("n1")
    assert not state_hashes.judge("n2", ALL)


def test_hashes_of_members_that_do_not_vote_count_for_nothing() -> None:
    state_hashes = StateHashes(3)
    state_hashes.applied(EVERY, 5)
    state_hashes.claim("n4", EVERY, 6)
    state_hashes.claim("n5", EVERY, 6)
    assert not state_hashes.judge("n1", ALL)


def test_what_is_remembered_is_bounded() -> None:
    state_hashes = StateHashes(3)
    for number in range(1, 100):
        state_hashes.claim("n1", number * EVERY, 1)
        state_hashes.applied((100 + number) * EVERY, 1)
    assert len(state_hashes.own) == len(state_hashes.claimed) == KEPT


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_claim_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(PeerFrameError):
        decode_claim(bytes(size))
