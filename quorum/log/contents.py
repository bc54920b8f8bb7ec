"""What all records of a log add up to: one table a group. Live appends and recovery fold records in here
alike."""

from __future__ import annotations

from quorum.log.record import RecordKind
from quorum.log.table import Body, GroupTable

MAX_GROUP = (1 << 32) - 1

_NO_TABLE = GroupTable()
"""What a MARK changes: nothing."""


def encode_vote(vote: str | None) -> bytes:
    """The body of a HARD_STATE record."""
    return b"\0" if vote is None else b"\1" + vote.encode()


def decode_vote(body: bytes) -> str | None:
    """The vote in the body of a HARD_STATE record."""
    return body[1:].decode() if body[:1] == b"\1" else None


def encode_keep_to(keep_to: int) -> bytes:
    """The body of a RESET record."""
    return keep_to.to_bytes(8, "little")


class Contents:
    """The tables of all groups. `check` first, then `fold`: a refused record leaves everything as it was."""

    def __init__(self) -> None:
        self.tables: dict[int, GroupTable] = {}

    def table(self, group: int) -> GroupTable:
        """The group's table, made when first asked for."""
        table = self.tables.get(group)
        if table is None:
            if not 0 <= group <= MAX_GROUP:
                raise ValueError(f"a group's number has 32 bits, {group} has not")
            table = self.tables[group] = GroupTable()
        return table

    def check(self, kind: int, group: int, term: int, index: int, body: bytes) -> GroupTable:
        """The group's table, or ValueError if this record would make no sense now."""
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
            table.check_compact(index, term)
        elif kind == RecordKind.RESET:
            table.check_reset(index, int.from_bytes(body, "little"))
        elif kind == RecordKind.COPY:
            table.check_copy(index, term, len(body))
        elif kind == RecordKind.PAGE:
            if term or index:
                raise ValueError("a page has neither term nor index")
        else:
            raise ValueError(f"there is no record kind {kind}")
        return table

    @staticmethod
    def fold(
        table: GroupTable, body: bytes, *, kind: int, lsn: int, term: int, index: int, place: int
    ) -> None:
        """Add one checked record. Records must come in the order of their LSN: the highest one wins."""
        if kind == RecordKind.ENTRY:
            table.add_entry(index, term, place, lsn, len(body))
        elif kind == RecordKind.TRUNCATE:
            table.truncate(index)
        elif kind == RecordKind.HARD_STATE:
            table.set_hard_state(term, decode_vote(body), lsn)
        elif kind == RecordKind.COMPACT:
            table.compact(index)
        elif kind == RecordKind.RESET:
            table.reset(index, term, int.from_bytes(body, "little"))
        elif kind == RecordKind.COPY:
            table.copies[index] = Body(lsn, place, len(body), term)
        elif kind == RecordKind.PAGE:
            table.pages[lsn] = Body(lsn, place, len(body), 0)
