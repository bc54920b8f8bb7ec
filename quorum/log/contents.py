"""The state that all records of a log add up to: one table for each group. Live appends and recovery apply records to
it in the same way."""

from __future__ import annotations

from quorum.log.record import RecordKind
from quorum.log.segment_files.history import History
from quorum.log.table import Body, Cut, GroupState, GroupTable, Rows

MAX_GROUP = (1 << 32) - 1

_NO_TABLE = GroupTable()
"""The table that a MARK belongs to, because it changes no group."""


def encode_vote(vote: str | None) -> bytes:
    """The body of a HARD_STATE record."""
    return b"\0" if vote is None else b"\1" + vote.encode()


def decode_vote(body: bytes) -> str | None:
    """The vote in the body of a HARD_STATE record."""
    return body[1:].decode() if body[:1] == b"\1" else None


def encode_number(number: int) -> bytes:
    """The body of a RESET record (the index up to which bodies stay) or of a COMPACT that moves the view back (the term
    before it)."""
    return number.to_bytes(8, "little")


def decode_number(body: bytes) -> int:
    """The number in a body that `encode_number` made."""
    return int.from_bytes(body, "little")


class Contents:
    """The tables of all groups. Call `check` first, then `fold`: a refused record changes nothing."""

    def __init__(self, history: History) -> None:
        self.tables: dict[int, GroupTable] = {}
        self.history = history
        self._widening: Rows | None = None
        """The rows that the view gets if the record that was checked last moves it back."""

    def table(self, group: int) -> GroupTable:
        """The group's table, made on first use."""
        table = self.tables.get(group)
        if table is None:
            if not 0 <= group <= MAX_GROUP:
                raise ValueError(f"a group's number must fit into 32 bits, {group} does not")
            table = self.tables[group] = GroupTable()
        return table

    def states(self, active_first_lsn: int) -> dict[int, GroupState]:
        """The groups' states for the manifest. Cuts that no sealed segment can contain entries of are dropped."""
        for group, table in self.tables.items():
            if table.cuts:
                table.cuts = [
                    cut for cut in table.cuts if cut.lsn >= active_first_lsn or self._is_needed(group, cut)
                ]
        return {
            group: table.state() for group, table in self.tables.items() if not table.is_empty or table.cuts
        }

    def _is_needed(self, group: int, cut: Cut) -> bool:
        """Whether a sealed segment may have an entry that this cut removed."""
        return any(
            sealed.listed.first_lsn < cut.lsn
            for sealed in self.history.overlapping(group, cut.first, cut.last)
        )

    def between(self, group: int, table: GroupTable, first: int) -> Rows | None:
        """The rows of all entries from first to the tail; None if one is missing."""
        return self.history.gather(group, first, table.tail_from - 1, table.cuts, table.loose)

    def check(self, kind: int, group: int, term: int, index: int, body: bytes, length: int) -> GroupTable:
        """The group's table; ValueError if this record does not follow from the present state. Of a damaged body only
        the length is known. LogDamaged if the record moves the view back, and its entries cannot be found."""
        if kind == RecordKind.MARK:
            return _NO_TABLE
        table = self.table(group)
        if kind == RecordKind.ENTRY:
            table.check_entry(index, term)
        elif kind == RecordKind.TRUNCATE:
            table.check_truncate(index)
        elif kind == RecordKind.HARD_STATE:
            if term < table.hard_term:
                raise ValueError(f"the term is {table.hard_term}, it cannot go back to {term}")
            if body[:1] not in {b"\0", b"\1"}:
                raise ValueError("a vote's body begins with 0 or 1")
            decode_vote(body)
        elif kind == RecordKind.COMPACT:
            self._check_compact(group, table, index, term, body)
        elif kind == RecordKind.RESET:
            table.check_reset(index, decode_number(body))
        elif kind == RecordKind.COPY:
            table.check_copy(index, term, length)
        elif kind == RecordKind.PAGE:
            if term or index:
                raise ValueError("a page has neither term nor index")
        else:
            raise ValueError(f"there is no record kind {kind}")
        return table

    def fold(
        self,
        table: GroupTable,
        body: bytes,
        *,
        kind: int,
        group: int,
        lsn: int,
        term: int,
        index: int,
        place: int,
        length: int,
    ) -> None:
        """Apply one checked record. Records must come in the order of their LSN, because the highest one is valid."""
        if kind == RecordKind.ENTRY:
            table.add_entry(index, term, place, lsn, length)
        elif kind == RecordKind.TRUNCATE:
            table.truncate(index, lsn)
        elif kind == RecordKind.HARD_STATE:
            table.set_hard_state(term, decode_vote(body), lsn)
        elif kind == RecordKind.COMPACT:
            if body:
                rows, self._widening = self._widening, None
                assert rows is not None
                table.widen(index, decode_number(body), rows)
            else:
                table.compact(index)
        elif kind == RecordKind.RESET:
            table.reset(index, term, decode_number(body), lsn)
        elif kind == RecordKind.COPY:
            table.add_copy(index, Body(lsn, place, length, term, kind))
        elif kind == RecordKind.PAGE:
            table.pages[lsn] = Body(lsn, place, length, 0, kind)

    def _check_compact(self, group: int, table: GroupTable, index: int, term: int, body: bytes) -> None:
        if not body:
            table.check_compact(index, term)
            return
        if not 1 <= index < table.first_index:
            raise ValueError(f"the view begins at {table.first_index}, {index} is not before that")
        self._widening = rows = self.between(group, table, index)
        if rows is None:
            raise ValueError(f"entries from {index} to {table.tail_from - 1} are not all here")
        known = int(rows.terms[0]) if len(rows.terms) else table.term_in_tail(index)
        if known != term:
            raise ValueError(f"entry {index} has term {known}, not {term}")
