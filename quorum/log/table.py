"""The state in memory of one group's records: its journal, and where the newest bodies are stored.

This is the state that the log's records add up to. The writer calls the same methods for a record that it appends as
recovery does for a record that it reads, so a reopened log has the state that the closed one had.

- The *tail* holds each entry of the journal's view, or of the active segment, at 20 bytes in parallel arrays (place 8,
  LSN 8, length 4); terms are runs, one for each change of term. It has no gaps.
- Entries below the tail are looked up in the index files of the sealed segments. So memory grows with the view and with
  one segment, not with the history.
- Records of the active segment that are in no tail are kept in `loose` and in `pages`. `loose` has copies of bodies,
  and entries that an installed snapshot has removed from the view.
- A *cut* says that entries first..last with a lower LSN than its own are gone. TRUNCATE and RESET make cuts. An index
  is written twice only if the first entry was cut. So the known cuts decide for each entry found in a segment whether
  it is the valid one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quorum.log.errors import EntryMissing
from quorum.log.record import RecordKind

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PLACE_SHIFT = 32
"""A place is segment number << 32 | offset of the record's header."""
OFFSET_MASK = (1 << PLACE_SHIFT) - 1


UNASKED = -1


class Body(NamedTuple):
    """Where one body is stored."""

    lsn: int
    place: int
    length: int
    term: int
    """0 for a page, UNASKED if it was not looked up."""
    kind: int


class Cut(NamedTuple):
    """Entries first..last with an LSN below this one are gone."""

    lsn: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a group's journal after its records up to some LSN, without the places of bodies."""

    first_index: int
    last_index: int
    hard_term: int
    vote: str | None
    hard_state_lsn: int
    runs: tuple[tuple[int, int], ...]
    """(index, term) from which on the term is valid; the first is of the entry just before first_index."""
    cuts: tuple[Cut, ...]


class Rows(NamedTuple):
    """Bodies in columns of equal length; key is an entry's index or a page's LSN."""

    keys: Ints
    lsns: Ints
    terms: Ints
    places: Ints
    lengths: Ints
    kinds: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, bodies: Iterable[tuple[int, Body]]) -> Rows:
        """The columns of some (key, body)."""
        found = [(key, *body) for key, body in bodies]
        columns = np.array(found, np.int64).reshape(-1, 6).T
        keys, lsns, places, lengths, terms, kinds = columns
        return cls(keys, lsns, terms, places, lengths, kinds.astype(np.uint8))

    @classmethod
    def zeros(cls, count: int) -> Rows:
        """Empty rows: LSN 0."""
        first, second, third, fourth, fifth = np.zeros((5, count), np.int64)
        return cls(first, second, third, fourth, fifth, np.zeros(count, np.uint8))

    def take(self, chosen: npt.NDArray[np.generic] | slice) -> Rows:
        """Some of the rows, by a mask, positions, or a slice."""
        return Rows(
            self.keys[chosen],
            self.lsns[chosen],
            self.terms[chosen],
            self.places[chosen],
            self.lengths[chosen],
            self.kinds[chosen],
        )

    def joined(self, other: Rows) -> Rows:
        """These and the other rows, by key and LSN."""
        keys = np.concatenate((self.keys, other.keys))
        lsns = np.concatenate((self.lsns, other.lsns))
        whole = Rows(
            keys,
            lsns,
            np.concatenate((self.terms, other.terms)),
            np.concatenate((self.places, other.places)),
            np.concatenate((self.lengths, other.lengths)),
            np.concatenate((self.kinds, other.kinds)),
        )
        return whole.take(np.lexsort((lsns, keys)))


def not_cut(cuts: Iterable[Cut], rows: Rows) -> Mask:
    """Which rows are of entries that no cut removed, or of copies."""
    gone = np.zeros(len(rows.keys), np.bool_)
    for cut in cuts:
        gone |= (rows.keys >= cut.first) & (rows.keys <= cut.last) & (rows.lsns < cut.lsn)
    gone &= rows.kinds != RecordKind.COPY
    return ~gone


class GroupTable:
    """One group's tail, terms, journal bounds, hard state, and its other records in the active segment."""

    __slots__ = (
        "_run_starts",
        "_run_terms",
        "active_from",
        "base",
        "cuts",
        "first_index",
        "hard_state_lsn",
        "hard_term",
        "last_index",
        "lengths",
        "loose",
        "lsns",
        "pages",
        "places",
        "tail_from",
        "vote",
    )

    def __init__(self) -> None:
        self.places = array("Q")
        self.lsns = array("Q")
        self.lengths = array("I")
        self.base = 1
        self.first_index = 1
        self.last_index = 0
        self.active_from = 1
        """Entries from here on are in the active segment."""
        self.tail_from = 1
        """Entries from here on are looked up in the tail: min(first_index, active_from)."""
        self.loose: dict[int, Body] = {}
        self.pages: dict[int, Body] = {}
        self.cuts: list[Cut] = []
        self.hard_term = 0
        self.vote: str | None = None
        self.hard_state_lsn = 0
        self._run_starts = array("Q", [0])
        self._run_terms = array("Q", [0])

    # ---- questions

    def at(self, index: int) -> int:
        """The position of an entry of the view in the tail's arrays."""
        if not self.first_index <= index <= self.last_index:
            raise EntryMissing(
                f"no entry {index} in the journal, it has {self.first_index}..{self.last_index}"
            )
        return index - self.base

    def locate(self, index: int) -> Body | None:
        """The body of an entry as far as this table knows; None does not exclude a body in the sealed segments."""
        if self.tail_from <= index <= self.last_index:
            at = index - self.base
            return Body(self.lsns[at], self.places[at], self.lengths[at], UNASKED, RecordKind.ENTRY)
        return self.loose.get(index)

    def term_at(self, index: int) -> int:
        """The term of an entry of the view, or of the one just before it."""
        if not self.first_index - 1 <= index <= self.last_index:
            raise EntryMissing(
                f"the term of entry {index} is not known, the journal has "
                f"{self.first_index}..{self.last_index}"
            )
        return self.term_in_tail(index)

    def term_in_tail(self, index: int) -> int:
        """The term of any entry of the tail, also before the view."""
        starts = self._run_starts
        if index >= starts[-1]:
            return self._run_terms[-1]
        return self._run_terms[bisect_right(starts, index) - 1]

    def terms_in_tail(self, indexes: Ints) -> Ints:
        """The terms of many entries of the tail."""
        runs = np.searchsorted(np.array(self._run_starts, np.int64), indexes, "right") - 1
        return np.array(self._run_terms, np.int64)[runs]

    def indices_of_length(self, length: int) -> list[int]:
        """Entries of the view with bodies of this many bytes; one pass over an array, without Python per entry."""
        lengths, at = self.lengths, self.first_index - self.base
        found: list[int] = []
        while True:
            try:
                at = lengths.index(length, at)
            except ValueError:
                return found
            found.append(self.base + at)
            at += 1

    @property
    def is_empty(self) -> bool:
        """Whether no record ever changed this group's journal."""
        return not (self.hard_state_lsn or self.last_index or self.first_index > 1)

    def memory_bytes(self) -> int:
        """Bytes that all arrays of this group use."""
        return 20 * len(self.lsns) + 16 * len(self._run_starts)

    def state(self) -> GroupState:
        """The state after all records so far."""
        start = bisect_right(self._run_starts, self.first_index - 1) - 1
        starts = [self.first_index - 1, *self._run_starts[start + 1 :]]
        runs = tuple(zip(starts, self._run_terms[start:], strict=True))
        bounds = self.first_index, self.last_index
        return GroupState(*bounds, self.hard_term, self.vote, self.hard_state_lsn, runs, tuple(self.cuts))

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
        if not self.first_index <= index <= self.last_index:
            raise ValueError(
                f"the journal cannot begin at {index}, it has {self.first_index}..{self.last_index}"
            )
        if term != self.term_in_tail(index):
            raise ValueError(f"entry {index} has term {self.term_in_tail(index)}, not {term}")

    def check_copy(self, index: int, term: int, length: int) -> None:
        if index < 1:
            raise ValueError(f"a copy is of an entry, not of index {index}")
        if self._is_entry(index, term) and self.lengths[index - self.base] != length:
            known = self.lengths[index - self.base]
            raise ValueError(f"entry {index} of term {term} has {known} bytes, the copy {length}")

    def check_reset(self, index: int, keep_to: int) -> None:
        if index < 1:
            raise ValueError(f"a snapshot's index is at least 1, not {index}")
        if keep_to > index:
            raise ValueError(f"bodies up to {keep_to} cannot stay under a snapshot at {index}")

    # ---- changes, checked before

    def add_entry(self, index: int, term: int, place: int, lsn: int, length: int) -> None:
        """Append an entry."""
        if term != self._run_terms[-1]:
            self._run_starts.append(index)
            self._run_terms.append(term)
        self.places.append(place)
        self.lsns.append(lsn)
        self.lengths.append(length)
        self.last_index = index

    def add_copy(self, index: int, body: Body) -> None:
        """Note a body from another member: it is valid for the entry of this term."""
        self.loose[index] = body
        if self._is_entry(index, body.term):
            self.places[index - self.base] = body.place
            self.lsns[index - self.base] = body.lsn

    def truncate(self, index: int, lsn: int) -> None:
        """Remove the entries from index on."""
        self.cuts.append(Cut(lsn, index, self.last_index))
        self._cut_tail(index)
        self.last_index = index - 1
        self.active_from = min(self.active_from, index)
        self._set_tail_from()
        starts = self._run_starts
        while len(starts) > 1 and starts[-1] >= index:
            starts.pop()
            self._run_terms.pop()

    def compact(self, index: int) -> None:
        """Begin the view at index."""
        self.first_index = index
        self._set_tail_from()

    def widen(self, index: int, before_term: int, rows: Rows) -> None:
        """Begin the view earlier, at index; rows are the entries from there to the tail."""
        if index >= self.tail_from:
            self.compact(index)
            return
        self._forget_below(self.tail_from)
        for column, more in ((self.places, rows.places), (self.lsns, rows.lsns)):
            column[:0] = array("Q", more.tolist())
        self.lengths[:0] = array("I", rows.lengths.tolist())
        starts, terms = array("Q", [index - 1]), array("Q", [before_term])
        known = zip(self._run_starts[1:], self._run_terms[1:], strict=True)
        joint = (
            (self.tail_from, self.term_in_tail(self.tail_from)) if self.tail_from <= self.last_index else ()
        )
        changed = np.flatnonzero(np.diff(rows.terms, prepend=before_term)).tolist()
        found = [(index + at, int(rows.terms[at])) for at in changed]
        for start, term in [*found, *([joint] if joint else ()), *known]:
            if term != terms[-1]:
                starts.append(start)
                terms.append(term)
        self._run_starts, self._run_terms = starts, terms
        self.base = self.first_index = index
        self._set_tail_from()

    def reset(self, index: int, term: int, keep_to: int, lsn: int) -> None:
        """Replace everything up to index with a snapshot from another member; bodies up to keep_to stay readable."""
        for at in [at for at, body in self.loose.items() if at > keep_to and body.kind == RecordKind.ENTRY]:
            del self.loose[at]
        for at in range(self.active_from, min(keep_to, self.last_index) + 1):
            held = self.loose.get(at)
            position = at - self.base
            if held is None or held.lsn < self.lsns[position]:
                self.loose[at] = Body(
                    self.lsns[position],
                    self.places[position],
                    self.lengths[position],
                    self.term_in_tail(at),
                    RecordKind.ENTRY,
                )
        if keep_to < self.last_index:
            self.cuts.append(Cut(lsn, keep_to + 1, self.last_index))
        self._cut_tail(self.base)
        self.base = self.first_index = self.active_from = index + 1
        self.last_index = index
        self._set_tail_from()
        self._run_starts = array("Q", [index])
        self._run_terms = array("Q", [term])

    def set_hard_state(self, term: int, vote: str | None, lsn: int) -> None:
        """Set the newest term and vote."""
        self.hard_term = term
        self.vote = vote
        self.hard_state_lsn = lsn

    # ---- segments

    def restore(self, state: GroupState) -> None:
        """Begin with the state in the manifest; `fill` must follow."""
        self.first_index, self.last_index = state.first_index, state.last_index
        self.set_hard_state(state.hard_term, state.vote, state.hard_state_lsn)
        self.cuts = list(state.cuts)
        self._run_starts = array("Q", [start for start, _ in state.runs])
        self._run_terms = array("Q", [term for _, term in state.runs])
        self.base = self.first_index
        self.active_from = self.last_index + 1
        self._set_tail_from()

    def fill(self, rows: Rows, active_number: int) -> None:
        """Fill the whole tail, after `restore`, with the entries of the view."""
        self.places = array("Q", rows.places.tobytes())
        self.lsns = array("Q", rows.lsns.tobytes())
        self.lengths = array("I", rows.lengths.astype(np.uint32).tobytes())
        own = (rows.places >> PLACE_SHIFT == active_number) & (rows.kinds == RecordKind.ENTRY)
        if own.any():
            self.active_from = int(rows.keys[own.argmax()])
            self._set_tail_from()

    def active_rows(self) -> tuple[Rows, Rows]:
        """The rows of this group in the active segment: bodies by index, then pages by LSN."""
        first, last = self.active_from, self.last_index
        keys = np.arange(first, last + 1, dtype=np.int64)
        begin = first - self.base
        entries = Rows(
            keys,
            np.array(self.lsns[begin:], np.int64),
            self.terms_in_tail(keys),
            np.array(self.places[begin:], np.int64),
            np.array(self.lengths[begin:], np.int64),
            np.full(len(keys), RecordKind.ENTRY, np.uint8),
        )
        pages = Rows.of(sorted(self.pages.items()))
        if not self.loose:
            return entries, pages
        loose = Rows.of(sorted(self.loose.items()))
        entries = entries.take(~np.isin(entries.lsns, loose.lsns))
        return entries.joined(loose), pages

    def seal(self) -> None:
        """Forget the rows of the active segment, which is sealed now; the caller has already taken them."""
        self.loose = {}
        self.pages = {}
        self.active_from = self.last_index + 1
        self._set_tail_from()

    def move(self, rows: Rows) -> None:
        """Note the new places of these bodies."""
        mine = (rows.keys >= self.tail_from) & (rows.keys <= self.last_index)
        if not mine.any():
            return
        rows = rows.take(mine)
        at = rows.keys - self.base
        same = np.frombuffer(self.lsns, np.int64)[at] == rows.lsns
        np.frombuffer(self.places, np.int64)[at[same]] = rows.places[same]

    # ---- inside

    def _is_entry(self, index: int, term: int) -> bool:
        """Whether the tail has exactly this entry."""
        return self.tail_from <= index <= self.last_index and self.term_in_tail(index) == term

    def _set_tail_from(self) -> None:
        """Update tail_from after a change of bounds; the arrays are trimmed when a quarter of them is unused."""
        self.tail_from = min(self.first_index, self.active_from)
        if self.tail_from - self.base > len(self.lsns) >> 2:
            self._forget_below(self.tail_from)

    def _forget_below(self, index: int) -> None:
        count = index - self.base
        if count <= 0:
            return
        del self.places[:count]
        del self.lsns[:count]
        del self.lengths[:count]
        run = bisect_right(self._run_starts, index - 1) - 1
        self._run_starts = self._run_starts[run:]
        self._run_terms = self._run_terms[run:]
        self._run_starts[0] = index - 1
        self.base = index

    def _cut_tail(self, index: int) -> None:
        count = index - self.base
        del self.places[count:]
        del self.lsns[count:]
        del self.lengths[count:]
