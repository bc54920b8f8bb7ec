"""The demo's consumers, their expected flights, and the check of the result.

Every flight matches exactly one selector, so each consumer's share is known beforehand. The share is computed from the
data by the plain Python beside each selector, never by our evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from quorum.demo.flights import DataError, Flight

QUEUE = "flights"
ARGUMENTS: dict[str, object] = {
    "x-filter-enabled": True,
    "x-filter-field-names": "carrier,origin,dest,month,distance,dep_time,dep_delay,cancelled",
}


@dataclass(frozen=True, slots=True)
class Portion:
    """A selector, the same condition in Python, and the number of consumers that share it."""

    title: str
    selector: str
    wants: Callable[[Flight], bool]
    consumers: int = 1


def _is_on_time(flight: Flight) -> bool:
    return flight.dep_delay is not None and flight.dep_delay < 60


def _is_newark_big_two(flight: Flight) -> bool:
    return flight.origin == "EWR" and flight.carrier in ("UA", "EV")


def _is_kennedy_far(flight: Flight) -> bool:
    return flight.origin == "JFK" and flight.distance >= 2000


def _is_summer_to_s(flight: Flight) -> bool:
    return flight.dest.startswith("S") and 6 <= flight.month <= 8


PORTIONS = (
    Portion("cancelled", "dep_time IS NULL AND cancelled = TRUE", lambda flight: flight.dep_time is None),
    Portion(
        "an hour late or more",
        "dep_delay >= 60",
        lambda flight: flight.dep_delay is not None and flight.dep_delay >= 60,
    ),
    Portion(
        "Newark, United/ExpressJet",
        "dep_delay < 60 AND origin = 'EWR' AND carrier IN ('UA', 'EV')",
        lambda flight: _is_on_time(flight) and _is_newark_big_two(flight),
        consumers=2,
    ),
    Portion(
        "Kennedy, far",
        "dep_delay < 60 AND origin = 'JFK' AND distance >= 2000",
        lambda flight: _is_on_time(flight) and _is_kennedy_far(flight),
    ),
    Portion(
        "to S... in summer",
        "dep_delay < 60 AND dest LIKE 'S%' AND month BETWEEN 6 AND 8"
        " AND NOT (origin = 'EWR' AND carrier IN ('UA', 'EV')) AND NOT (origin = 'JFK' AND distance >= 2000)",
        lambda flight: (
            _is_on_time(flight)
            and _is_summer_to_s(flight)
            and not _is_newark_big_two(flight)
            and not _is_kennedy_far(flight)
        ),
    ),
    Portion(
        "all others",
        "dep_delay < 60 AND NOT (dest LIKE 'S%' AND month BETWEEN 6 AND 8)"
        " AND NOT (origin = 'EWR' AND carrier IN ('UA', 'EV')) AND NOT (origin = 'JFK' AND distance >= 2000)",
        lambda flight: (
            _is_on_time(flight)
            and not _is_summer_to_s(flight)
            and not _is_newark_big_two(flight)
            and not _is_kennedy_far(flight)
        ),
        consumers=2,
    ),
)


@dataclass(slots=True)
class Tally:
    """The received and the expected flights of one portion's consumers."""

    portion: Portion
    expected: frozenset[int]
    received: set[int] = field(default_factory=set)
    duplicates: int = 0
    """Repeated receipts of a row for which all deliveries but the first were flagged as redelivered."""
    unflagged: set[int] = field(default_factory=set)
    unflagged_duplicates: int = 0
    """Repeated receipts of a row without the flag: the service delivered it twice without marking it."""
    foreign: int = 0
    """Receipts of a row that the selector does not match."""

    def receive(self, row: int, redelivered: bool) -> bool:
        """Record a receipt; True if the row is new here."""
        if row not in self.expected:
            self.foreign += 1
            return False
        if row in self.received:
            if redelivered or row not in self.unflagged:
                self.duplicates += 1
            else:
                self.unflagged_duplicates += 1
        if not redelivered:
            self.unflagged.add(row)
        is_new = row not in self.received
        self.received.add(row)
        return is_new

    @property
    def lost(self) -> int:
        return len(self.expected) - len(self.received)

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.unflagged_duplicates or self.foreign)


def tallies(flights: Iterable[Flight]) -> list[Tally]:
    """One tally for each portion. DataError if a flight matches no portion or several."""
    rows: list[set[int]] = [set() for _ in PORTIONS]
    for flight in flights:
        takers = [number for number, portion in enumerate(PORTIONS) if portion.wants(flight)]
        if len(takers) != 1:
            raise DataError(f"flight {flight.row} is for {len(takers)} of the demo's selectors, not for one")
        rows[takers[0]].add(flight.row)
    return [Tally(portion, frozenset(each)) for portion, each in zip(PORTIONS, rows, strict=True)]
