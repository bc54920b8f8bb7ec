"""What is known in memory about one group's records: where its bodies lie, and its journal.

This is the state that the log's records fold into: the writer calls the same methods for a record it appends
as recovery does for a record it reads, so a reopened log has the state the closed one had.

An entry costs 20 bytes in parallel arrays (place 8, LSN 8, length 4); terms are runs, one a change
of term. Entries stand in *spans* without gaps. There is one span until a snapshot from another member is
installed; then a new span begins behind it, and what older spans still hold serves readers only. The journal
view is always a part of the last span: first_index .. last_index, and the entry before first_index is
remembered by its term.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

from quorum.log.errors import EntryMissing


class Body(NamedTuple):
    """Where one body lies."""

    lsn: int
    place: int
    length: int
    term: int
    """0 if it is not known, or of a page."""


class Span:
    """Entries first, first + 1, ... in parallel arrays."""

    __slots__ = ("first", "lengths", "lsns", "places")

    def __init__(self, first: int) -> None:
        self.first = first
        self.places = array("Q")
        self.lsns = array("Q")
        self.lengths = array("I")

    def __len__(self) -> int:
        return len(self.lsns)

    def add(self, place: int, lsn: int, length: int) -> None:
        """Put one entry behind the last."""
        self.places.append(place)
        self.lsns.append(lsn)
        self.lengths.append(length)

    def cut(self, count: int) -> None:
        """Keep only the first count entries."""
        if count >= len(self.lsns):
            return
        del self.places[count:]
        del self.lsns[count:]
        del self.lengths[count:]

    def memory_bytes(self) -> int:
        """What the arrays hold."""
        return sum(len(column) * column.itemsize for column in (self.places, self.lsns, self.lengths))


class GroupTable:
    """One group's spans, terms, journal bounds and hard state."""

    __slots__ = (
        "_run_starts",
        "_run_terms",
        "copies",
        "first_index",
        "hard_state_lsn",
        "hard_term",
        "last_index",
        "pages",
        "spans",
        "vote",
    )

    def __init__(self) -> None:
        self.spans = [Span(1)]
        self.copies: dict[int, Body] = {}
        self.pages: dict[int, Body] = {}
        self.first_index = 1
        self.last_index = 0
        self.hard_term = 0
        self.vote: str | None = None
        self.hard_state_lsn = 0
        self._run_starts = array("Q", [0])
        self._run_terms = array("Q", [0])

    # ---- questions

    def locate(self, index: int) -> Body | None:
        """The body that holds for an entry, None if there is none.

        In the last span a copy counts only for the very entry that the journal has there.
        """
        copy = self.copies.get(index) if self.copies else None
        for span in reversed(self.spans):
            at = index - span.first
            if at >= 0:
                if at < len(span.lsns):
                    term = self.term_in_span(index) if span is self.spans[-1] else 0
                    lsn = span.lsns[at]
                    if copy is None or copy.lsn < lsn or (term and copy.term != term):
                        return Body(lsn, span.places[at], span.lengths[at], term)
                break
        return copy

    def has_body(self, index: int, term: int) -> bool:
        """Whether a body of just this entry is known."""
        copy = self.copies.get(index)
        if copy is not None and copy.term == term:
            return True
        body = self.locate(index)
        return body is not None and body.term in {0, term}

    def view(self, index: int) -> tuple[Span, int]:
        """The same for an entry of the journal view."""
        if not self.first_index <= index <= self.last_index:
            raise EntryMissing(
                f"no entry {index} in the journal, it has {self.first_index}..{self.last_index}"
            )
        span = self.spans[-1]
        return span, index - span.first

    def term_at(self, index: int) -> int:
        """The term of an entry of the view, or of the one just before it."""
        if not self.first_index - 1 <= index <= self.last_index:
            raise EntryMissing(
                f"the term of entry {index} is not known, the journal has "
                f"{self.first_index}..{self.last_index}"
            )
        return self.term_in_span(index)

    def term_in_span(self, index: int) -> int:
        """The same for any entry of the last span, before the view too."""
        starts = self._run_starts
        if index >= starts[-1]:
            return self._run_terms[-1]
        return self._run_terms[bisect_right(starts, index) - 1]

    def indices_of_length(self, length: int) -> list[int]:
        """Entries of the view with bodies of this many bytes; one pass over an array, without Python per entry."""
        span = self.spans[-1]
        lengths, at = span.lengths, self.first_index - span.first
        found: list[int] = []
        while True:
            try:
                at = lengths.index(length, at)
            except ValueError:
                return found
            found.append(span.first + at)
            at += 1

    @property
    def is_empty(self) -> bool:
        """Whether no record ever said anything of this group."""
        return not (self.hard_state_lsn or self.last_index or self.first_index > 1)

    def memory_bytes(self) -> int:
        """What all arrays of this group hold."""
        return sum(span.memory_bytes() for span in self.spans) + 16 * len(self._run_starts)

    # ---- checks: ValueError if the record would make no sense here

    def check_entry(self, index: int, term: int) -> None:
        if index != self.last_index + 1:
            raise ValueError(f"the next entry is {self.last_index + 1}, not {index}")
        if term < self._run_terms[-1]:
            raise ValueError(f"entry {index} has term {term}, the one before it {self._run_terms[-1]}")

    def check_truncate(self, index: int) -> None:
        if not self.first_index <= index <= self.last_index:
            raise ValueError(
                f"cannot cut from {index}, the journal has {self.first_index}..{self.last_index}"
            )

    def check_compact(self, index: int, term: int) -> None:
        first = self.spans[-1].first
        if not first <= index <= self.last_index:
            raise ValueError(f"the journal cannot begin at {index}, it has {first}..{self.last_index}")
        if term != self.term_in_span(index):
            raise ValueError(f"entry {index} has term {self.term_in_span(index)}, not {term}")

    def check_copy(self, index: int, term: int, length: int) -> None:
        if index < 1 or term < 1:
            raise ValueError(f"a copy is of an entry, not of index {index}, term {term}")
        span = self.spans[-1]
        at = index - span.first
        if 0 <= at < len(span) and self.term_in_span(index) == term and span.lengths[at] != length:
            raise ValueError(f"entry {index} of term {term} has {span.lengths[at]} bytes, the copy {length}")

    def check_reset(self, index: int, keep_to: int) -> None:
        if index < 1:
            raise ValueError(f"a snapshot's index is at least 1, not {index}")
        if keep_to > index:
            raise ValueError(f"bodies up to {keep_to} cannot stay under a snapshot at {index}")

    # ---- changes, checked before

    def add_entry(self, index: int, term: int, place: int, lsn: int, length: int) -> None:
        """The entry behind the last."""
        if term != self._run_terms[-1]:
            self._run_starts.append(index)
            self._run_terms.append(term)
        self.spans[-1].add(place, lsn, length)
        self.last_index = index

    def truncate(self, index: int) -> None:
        """Entries from index on are gone."""
        span = self.spans[-1]
        span.cut(index - span.first)
        self.last_index = index - 1
        self._cut_runs(index)

    def compact(self, index: int) -> None:
        """The view begins at index; bodies before it stay. It may move back to entries still here."""
        self.first_index = index

    def bridge(self, index: int) -> int | None:
        """Where the view can begin so that the entries behind a snapshot at index follow it; None if some are
        gone."""
        first = self.spans[-1].first
        return max(first, index) if first <= index + 1 else None

    def reset(self, index: int, term: int, keep_to: int) -> None:
        """Everything up to index is in a snapshot that came from elsewhere; bodies up to keep_to stay
        readable."""
        for span in self.spans:
            span.cut(max(0, keep_to + 1 - span.first))
        self.spans = [span for span in self.spans if len(span)]
        self.spans.append(Span(index + 1))
        self.first_index = index + 1
        self.last_index = index
        self._run_starts = array("Q", [index])
        self._run_terms = array("Q", [term])

    def set_hard_state(self, term: int, vote: str | None, lsn: int) -> None:
        """The newest term and vote."""
        self.hard_term = term
        self.vote = vote
        self.hard_state_lsn = lsn

    def _cut_runs(self, index: int) -> None:
        starts = self._run_starts
        while len(starts) > 1 and starts[-1] >= index:
            starts.pop()
            self._run_terms.pop()
