"""The checkers of the crash tests: each finds what it is there for, and none is content with nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support import checkers
from support.checkers import HandOut, History, Publish, Settle, Violation


def out(at: float, who: str, attach: int, n: int, *, sequence: int = 0, again: bool = False) -> HandOut:
    return HandOut(at, who, attach, sequence or n + 1, ("p", n), again)


def done(at: float, who: str, attach: int, n: int) -> Settle:
    return Settle(at, who, attach, n + 1, ("p", n))


def good() -> History:
    """c is handed two messages and settles one; its stream breaks; d is handed the other and settles it."""
    return History(
        publishes=[Publish("p", 0, 1, 0.0, 1.0), Publish("p", 2, 3, 2.0)],
        hand_outs=[out(1, "c", 7, 0), out(1, "c", 7, 1), out(9, "d", 8, 1, again=True)],
        settles=[done(2, "c", 7, 0), done(10, "d", 8, 1)],
    )


def test_a_good_history_passes_and_is_counted() -> None:
    said = checkers.check_all(good())
    assert "2 confirmed, 2 settled, 1 redelivered, 1 moved" in said
    assert checkers.nobody_is_handed_what_another_has(good(), must_repeat=True) == 1
    assert checkers.resumed_after(good(), 0.0) == 1.0


ALL: list[Callable[[History], object]] = [
    checkers.nothing_confirmed_is_lost,
    checkers.nothing_is_invented,
    checkers.nothing_is_published_twice,
    checkers.first_deliveries_are_in_order,
    checkers.settled_never_comes_back,
    checkers.nothing_is_settled_twice,
    checkers.repeats_are_flagged,
    checkers.nobody_is_handed_what_another_has,
    lambda history: checkers.resumed_after(history, 5.0),
]


@pytest.mark.parametrize("checker", ALL)
def test_an_empty_proof_is_none(checker: Callable[[History], object]) -> None:
    with pytest.raises(Violation, match="nothing to judge"):
        checker(History())


def test_nothing_moved_is_no_proof_where_something_must() -> None:
    history = good()
    del history.hand_outs[2]
    checkers.nobody_is_handed_what_another_has(history)
    with pytest.raises(Violation, match="nothing to judge"):
        checkers.nobody_is_handed_what_another_has(history, must_repeat=True)


def refused(history: History, checker: Callable[[History], object], text: str) -> None:
    with pytest.raises(Violation, match=text):
        checker(history)
    with pytest.raises(Violation):
        checkers.check_all(history)


def test_a_lost_message_is_found() -> None:
    history = good()
    history.publishes[1] = Publish("p", 2, 3, 2.0, 3.0)
    refused(history, checkers.nothing_confirmed_is_lost, "p:2; p:3")


def test_an_invented_message_is_found() -> None:
    history = good()
    history.hand_outs.append(out(11, "d", 8, 44))
    refused(history, checkers.nothing_is_invented, "p:44")


def test_a_message_at_two_places_is_found() -> None:
    history = good()
    history.hand_outs.append(out(11, "d", 8, 1, sequence=9))
    refused(history, checkers.nothing_is_published_twice, "twice")


def test_a_wrong_order_is_found() -> None:
    history = good()
    history.hand_outs[0], history.hand_outs[1] = history.hand_outs[1], history.hand_outs[0]
    refused(history, checkers.first_deliveries_are_in_order, "p:0 after p:1")


def test_a_settled_message_that_comes_back_is_found() -> None:
    history = good()
    history.hand_outs.append(out(11, "d", 8, 0, again=True))
    refused(history, checkers.settled_never_comes_back, "settled by c")


def test_two_settlements_are_found() -> None:
    history = good()
    history.settles.append(done(10.5, "c", 7, 1))
    refused(history, checkers.nothing_is_settled_twice, "sequence 2")
    refused(history, checkers.nobody_is_handed_what_another_has, "whose attachment was over")


def test_a_repeat_without_the_flag_is_found() -> None:
    history = good()
    history.hand_outs[2] = out(9, "d", 8, 1)
    refused(history, checkers.repeats_are_flagged, "again, to d")


def test_a_delivery_from_an_attachment_that_is_over_is_found() -> None:
    history = good()
    history.publishes[1] = Publish("p", 2, 3, 2.0)
    history.hand_outs.append(out(9.5, "c", 7, 2))
    refused(history, checkers.nobody_is_handed_what_another_has, "under attach 7")


def test_a_message_twice_under_one_attachment_is_found() -> None:
    history = good()
    history.hand_outs.insert(2, out(1.5, "c", 7, 1, again=True))
    refused(history, checkers.nobody_is_handed_what_another_has, "twice under attach 7")
