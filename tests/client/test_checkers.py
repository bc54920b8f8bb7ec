"""The checkers of the crash tests: each finds what it is there for, and none is content with nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from quorum.histories.records import Record
from support.histories import checkers
from support.histories.checkers import Violation

Checker = Callable[[Sequence[Record]], object]


def sent(first: int, at: int, told: int | None = None, *, count: int = 2) -> Record:
    record = {
        "op": "publish",
        "queue": "q",
        "producer": "p",
        "number": first,
        "count": count,
        "invoked_us": at,
    }
    return record | (
        {"outcome": "unknown"} if told is None else {"outcome": "confirmed", "returned_us": told}
    )


def out(at: int, who: str, n: int, *, sequence: int = 0, again: bool = False) -> Record:
    record = {"op": "deliver", "queue": "q", "consumer": who, "sequence": sequence or n + 1}
    record |= {"producer": "p", "number": n, "returned_us": at}
    return record | ({"redelivered": True} if again else {})


def done(at: int, who: str, n: int) -> Record:
    settle = {"op": "settle", "queue": "q", "consumer": who, "sequence": n + 1, "invoked_us": at - 1}
    return settle | {"returned_us": at, "outcome": "ok"}


def good() -> list[Record]:
    """c is handed two messages and settles one; its stream breaks; d is handed the other and settles it."""
    return [
        sent(0, 0, 10),
        sent(2, 20),
        out(10, "c/7", 0),
        out(10, "c/7", 1),
        done(20, "c/7", 0),
        out(90, "d/8", 1, again=True),
        done(100, "d/8", 1),
        {"op": "left", "queue": "q", "count": 0},
    ]


def test_a_good_history_passes_and_is_counted() -> None:
    said = checkers.check_all(good())
    assert "2 confirmed, 2 settled, 1 redelivered, 1 moved" in said
    assert checkers.nobody_is_handed_what_another_has(good(), must_repeat=True) == 1
    assert checkers.resumed_after(good(), 0) == 10e-6


ALL: list[Checker] = [
    checkers.judged,
    checkers.check_all,
    checkers.first_deliveries_are_in_order,
    checkers.repeats_are_flagged,
    checkers.nobody_is_handed_what_another_has,
    lambda records: checkers.resumed_after(records, 50),
]


@pytest.mark.parametrize("checker", ALL)
def test_an_empty_proof_is_none(checker: Checker) -> None:
    with pytest.raises(Violation, match="nothing to judge"):
        checker([])


def test_a_history_without_a_settlement_proves_nothing() -> None:
    records = [each for each in good() if each["op"] != "settle"]
    with pytest.raises(Violation, match="nothing to judge: no settlement"):
        checkers.judged(records)


def test_nothing_moved_is_no_proof_where_something_must() -> None:
    records = [each for each in good() if each.get("consumer") != "d/8"]
    checkers.nobody_is_handed_what_another_has(records)
    with pytest.raises(Violation, match="nothing to judge"):
        checkers.nobody_is_handed_what_another_has(records, must_repeat=True)


def refused(records: list[Record], checker: Checker, text: str) -> None:
    with pytest.raises(Violation, match=text):
        checker(records)
    with pytest.raises(Violation):
        checkers.check_all(records)


def test_a_lost_message_is_found() -> None:
    refused([*good(), sent(4, 20, 30)], checkers.judged, "2 lost: p:4 .* p:5 in 'q'")


def test_an_invented_message_is_found() -> None:
    refused([*good(), out(110, "d/8", 44)], checkers.judged, "1 phantom: p:44")


def test_a_message_at_two_places_is_found() -> None:
    refused([*good(), out(110, "d/8", 1, sequence=9)], checkers.judged, "1 duplicated: p:1")


def test_a_wrong_order_is_found() -> None:
    records = good()
    records[2], records[3] = records[3], records[2]
    refused(records, checkers.first_deliveries_are_in_order, "c got p:0 after p:1")
    again = [sent(0, 0, 10), out(10, "c/7", 1), out(20, "c/9", 0)]
    with pytest.raises(Violation, match="c got p:0 after p:1"):
        checkers.first_deliveries_are_in_order(again)
    with pytest.raises(Violation, match="nothing to judge"):
        checkers.first_deliveries_are_in_order(again, across_attachments=False)


def test_a_settled_message_that_comes_back_is_found() -> None:
    refused([*good(), out(110, "d/8", 0, again=True)], checkers.judged, "1 settled then delivered: p:0")


def test_two_settlements_are_found() -> None:
    records = [*good(), done(105, "c/7", 1)]
    refused(records, checkers.judged, "settled for certain 2 times")
    refused(records, checkers.nobody_is_handed_what_another_has, "whose attachment was over")


def test_a_repeat_without_the_flag_is_found() -> None:
    records = good()
    records[5] = out(90, "d/8", 1)
    refused(records, checkers.repeats_are_flagged, "p:1 again, to d/8")


def test_a_delivery_from_an_attachment_that_is_over_is_found() -> None:
    records = [*good(), out(95, "c/7", 2)]
    refused(
        records, checkers.nobody_is_handed_what_another_has, "p:2 to c/7, which was over when d/8 got p:1"
    )


def test_a_message_twice_under_one_attachment_is_found() -> None:
    records = good()
    records.insert(4, out(15, "c/7", 1, again=True))
    refused(records, checkers.nobody_is_handed_what_another_has, "p:1 twice under c/7")
