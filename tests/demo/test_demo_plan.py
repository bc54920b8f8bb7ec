"""The demo's data and its bookkeeping."""

from __future__ import annotations

import gzip

import pytest

from quorum.catalog.arguments import effective_config
from quorum.demo.flights import EVERY, EXTRACT, TOTAL, DataError, Flight, carried, row_of
from quorum.demo.plan import ARGUMENTS, PORTIONS, Tally, tallies
from quorum_selectors import jms
from quorum_selectors.evaluate import evaluate
from quorum_selectors.expression import field_names
from quorum_selectors.known_fields import resolve_field_names


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    return carried()


def test_the_extract_is_small_and_has_every_seventeenth_flight(flights: list[Flight]) -> None:
    assert EXTRACT.stat().st_size < 500_000
    assert len(flights) == -(-TOTAL // EVERY)
    assert [flight.row for flight in flights[:3]] == [1, 18, 35]
    assert gzip.decompress(EXTRACT.read_bytes()).startswith(b"month,day,dep_time")
    cancelled = [flight for flight in flights if flight.is_cancelled]
    assert len(cancelled) == 490
    assert all(flight.dep_delay is None and "NA" in flight.line for flight in cancelled)


def test_a_body_leads_back_to_its_row(flights: list[Flight]) -> None:
    assert [row_of(flight.body) for flight in flights[:50]] == [flight.row for flight in flights[:50]]


def test_the_portions_part_the_data_and_none_is_empty(flights: list[Flight]) -> None:
    found = tallies(flights)
    assert sum(len(tally.expected) for tally in found) == len(flights)
    assert all(len(tally.expected) > 50 for tally in found)


def test_the_queue_keeps_what_the_selectors_name() -> None:
    kept = resolve_field_names(effective_config("flights", ARGUMENTS).filter_field_names)  # type: ignore[arg-type]
    for portion in PORTIONS:
        assert kept.first_not_kept(field_names(jms.parse(portion.selector))) is None


def test_selectors_and_their_python_agree(flights: list[Flight]) -> None:
    """The demo never asks the evaluator what is right; here both are asked."""
    parsed = [(jms.parse(portion.selector), portion) for portion in PORTIONS]
    for flight in flights[::40]:
        fields = {
            "application-properties." + name: value for name, value in flight.application_properties.items()
        }
        for expression, portion in parsed:
            assert (evaluate(expression, fields) is True) == portion.wants(flight), (flight, portion.selector)


def test_flights_that_nobody_wants_are_an_error() -> None:
    stray = Flight(1, "UA", "EWR", "IAH", 1, 1, 500, None, "")
    with pytest.raises(DataError, match="flight 1 is for 0"):
        tallies([stray])


def tally() -> Tally:
    return Tally(PORTIONS[0], frozenset({1, 2, 3}))


def test_a_tally_is_right_when_all_came_and_repeats_are_flagged() -> None:
    book = tally()
    assert not book.is_right
    assert [book.receive(1, False), book.receive(1, True), book.receive(2, True), book.receive(3, False)] == [
        True,
        False,
        True,
        True,
    ]
    assert (book.lost, book.duplicates, book.unflagged_duplicates, book.is_right) == (0, 1, 0, True)


def test_a_tally_tells_loss_silent_repeats_and_strangers() -> None:
    book = tally()
    book.receive(1, False)
    assert (book.lost, book.is_right) == (2, False)
    for row in (2, 3):
        book.receive(row, False)
    assert book.is_right
    book.receive(3, False)
    assert (book.unflagged_duplicates, book.is_right) == (1, False)
    book = tally()
    for row in (1, 2, 3):
        book.receive(row, False)
    assert not book.receive(9, True)
    assert (book.foreign, book.is_right) == (1, False)
