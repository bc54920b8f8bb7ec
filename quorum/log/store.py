"""The log as its readers see it: bodies and pages by name, from any thread.

This module has everything that readers share with the log's own thread. One lock protects it; the lock is held for
moments and never during disk work. A reader holds the segment it reads from. A segment that a collection has replaced
is closed and removed when its last reader has released it. A lookup of an entry's newest body begins in the group's
table (the journal's view and the active segment), and continues in the sealed segments, newest first.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

import numpy as np

from quorum.log.contents import Contents
from quorum.log.errors import Damage, EntryMissing, LogDamaged
from quorum.log.files import Files
from quorum.log.reader import RecentBodies, read_body
from quorum.log.record import RecordKind
from quorum.log.references import Liveness, Retention
from quorum.log.segment_files.history import History, find_body, find_page, is_here
from quorum.log.segment_files.index import Sealed, index_path
from quorum.log.segment_files.segments import Segment
from quorum.log.table import OFFSET_MASK, PLACE_SHIFT, UNASKED, Body, Ints, Rows


class Store:
    """The bodies, pages and segments of one open log."""

    def __init__(
        self,
        files: Files,
        contents: Contents,
        segments: list[Segment],
        *,
        recent_bytes: int,
        check: Callable[[], None],
        retention: Callable[[int], Retention],
        opened_lsn: int,
    ) -> None:
        self.mutex = Lock()
        self.contents = contents
        self.history: History = contents.history
        self.recent = RecentBodies(recent_bytes)
        self.damages: dict[int, Damage] = {}
        """By LSN: bodies and pages that are known to be bad and that no copy has replaced."""
        self.retentions: dict[int, Retention] = {}
        self._files = files
        self._check = check
        self._retention = retention
        self._opened_lsn = opened_lsn
        self._segments = {segment.number: segment for segment in segments}
        self._doomed: list[Segment] = []

    # ---- reading: any thread

    def read(self, group: int, index: int, *, waits: bool = True) -> bytes:
        """The body of an entry, checked. EntryMissing, LogDamaged; without `waits` NotCached if the disk has to read
        it."""
        with self.mutex:
            self._check()
            table = self.contents.tables.get(group)
            if table is not None and table.tail_from <= index <= table.last_index:
                recent = self.recent.get(table.lsns[index - table.base])
                if recent is not None:
                    return recent  # most reads by far: the shortest way possible
        found, body, segment = self._find(group, index)
        if segment is None:
            return body
        return self._read_whole(segment, found, group, index, waits=waits)

    def read_entry(self, group: int, index: int) -> tuple[int, bytes]:
        """The term of an entry and its body, checked. EntryMissing, LogDamaged."""
        found, body, segment = self._find(group, index)
        term = found.term
        if term == UNASKED:
            with self.mutex:
                term = self.contents.tables[group].term_in_tail(index)
        return term, body if segment is None else self._read_whole(segment, found, group, index)

    def in_memory(self, group: int, index: int) -> bool:
        """Whether this entry can be read now without the disk."""
        with self.mutex:
            table = self.contents.tables.get(group)
            found = None if table is None else table.locate(index)
            return found is not None and self.recent.get(found.lsn) is not None

    def read_page(self, group: int, page: int) -> bytes:
        """A page's bytes, checked. EntryMissing, LogDamaged."""
        found, body, segment = self._find(group, page, is_page=True)
        if segment is None:
            return body
        return self._read_whole(segment, found, group, 0)

    def missing(self, group: int, indexes: array[int], committed: int | None) -> array[int]:
        """The indexes without a good body here, of the given ascending ones."""
        if not indexes:
            return indexes[:]
        wanted = np.array(indexes, np.int64)
        here = np.zeros(len(wanted), np.bool_)

        def note(keys: Ints) -> None:
            here[np.isin(wanted, keys)] = True

        with self.mutex:
            self._check()
            table = self.contents.tables.get(group)
            if table is None:
                return indexes[:]
            trusted = table.last_index if committed is None else committed
            cuts = tuple(table.cuts)
            here |= (wanted >= table.tail_from) & (wanted <= min(table.last_index, trusted))
            loose = Rows.of(sorted(table.loose.items()))
            bad = {lsn: damage.known[2] for lsn, damage in self._damages_of(group) if damage.known}
            held = self._hold(self.history.overlapping(group, int(wanted[0]), int(wanted[-1])))
        try:
            note(is_here(loose, cuts, trusted))
            for sealed in held:
                part = sealed.parts[False, group]
                try:
                    rows = self.history.columns(sealed).rows(part, int(wanted[0]), int(wanted[-1]))
                except LogDamaged:
                    continue  # nothing in it can be read
                note(is_here(rows, cuts, trusted))
        finally:
            self._let_all_go(held)
        if bad:
            here[np.isin(wanted, np.array(sorted(bad.values()), np.int64))] = False
        return array("Q", wanted[~here].tobytes())

    # ---- damage: any thread

    def note_damage(self, damage: Damage) -> None:
        """Remember a bad body or page, unless another one has replaced it."""
        if damage.lsn is None or damage.known is None:
            return
        group, _, index = damage.known
        is_page = damage.kind == RecordKind.PAGE.name
        try:
            found, held = self.look_up(group, damage.lsn if is_page else index, is_page=is_page)
        except LogDamaged:
            is_valid = True  # a copy in a segment that cannot be read is of no use
        else:
            if held is not None:
                self.release(held)
            is_valid = found is not None and found.lsn == damage.lsn
        if is_valid:
            with self.mutex:
                self.damages[damage.lsn] = damage

    def note_healed(self, group: int, index: int, lsn: int) -> None:
        """Note that another body is valid for an entry now. The mutex must be held."""
        if not self.damages:
            return
        for damaged, damage in self._damages_of(group):
            if damage.known is not None and damage.known[2] == index and damaged < lsn:
                del self.damages[damaged]

    def note_cut(self, group: int, first: int) -> None:
        """Note that the entries from first on are cut: their bodies are not needed. The mutex must be held."""
        for damaged, damage in self._damages_of(group):
            if damage.known is not None and damage.known[2] >= first:
                del self.damages[damaged]

    # ---- segments

    def look_up(self, group: int, key: int, *, is_page: bool = False) -> tuple[Body | None, Segment | None]:
        """The place of the valid body, with its segment, held; None if there is none."""
        with self.mutex:
            self._check()
            table = self.contents.tables.get(group)
            if table is None:
                return None, None
            found = table.pages.get(key) if is_page else table.locate(key)
            if found is not None:
                segment = self._segments[found.place >> PLACE_SHIFT]
                segment.holders += 1
                return found, segment
            cuts = tuple(table.cuts)
            if is_page:
                owner = self.history.page_owner(group, key)
                held = self._hold([] if owner is None else [owner])
            else:
                held = self._hold(self.history.overlapping(group, key, key))
        try:
            while held:
                sealed = held[-1]
                columns = self.history.columns(sealed)
                if is_page:
                    found = find_page(columns, sealed, group, key)
                else:
                    found = find_body(columns, sealed, group, key, cuts)
                held.pop()
                if found is not None:
                    return found, sealed.segment
                self.release(sealed.segment)
        finally:
            self._let_all_go(held)
        return None, None

    def is_dead(self, sealed: Sealed) -> bool:
        """Whether certainly nothing of this segment is live; cheap. The mutex must be held."""
        return all(
            self.liveness(part.group).guess(part, sealed.listed.first_lsn) == 0
            for part in sealed.parts.values()
        )

    def liveness(self, group: int) -> Liveness:
        """The needed bodies and pages of a group at this moment. The mutex must be held."""
        table = self.contents.table(group)
        return Liveness(self.retentions.get(group), table.first_index, tuple(table.cuts))

    def retention(self, group: int) -> Retention:
        """The group's retention, made on first use. The mutex must be held."""
        found = self.retentions.get(group)
        if found is None:
            found = self.retentions[group] = self._retention(self._opened_lsn)
        return found

    def add_segment(self, segment: Segment) -> None:
        """Add a segment, so that places may point to it. The mutex must be held."""
        self._segments[segment.number] = segment

    def has(self, sealed: Sealed) -> bool:
        """Whether a segment is part of the log. The mutex must be held."""
        return sealed.number in self._segments

    def hold(self, sealed: Sealed) -> None:
        """Keep a segment open. The mutex must be held."""
        sealed.segment.holders += 1

    def hold_active(self, segment: Segment) -> bool:
        """Keep the active segment open; False if it is not one of the log's segments yet, or no longer."""
        with self.mutex:
            if self._segments.get(segment.number) is not segment:
                return False
            segment.holders += 1
            return True

    def release(self, segment: Segment) -> None:
        """Release a hold; the last release closes the file."""
        with self.mutex:
            segment.holders -= 1
            last = segment.holders == 0
        if last:
            segment.file.close()
            if segment.is_replaced:
                self._doomed.append(segment)

    def replace(self, sources: list[Sealed]) -> None:
        """Remove these segments from the log. The mutex must be held; `release` must follow for each."""
        for sealed in sources:
            sealed.segment.is_replaced = True
            del self._segments[sealed.number]
            self.history.cache.drop(sealed)

    def remove_replaced(self) -> None:
        """Remove the files of replaced segments that no reader holds any more. The log's thread."""
        while self._doomed:
            path = self._doomed.pop().path
            with suppress(FileNotFoundError):  # the file may have been lost before
                self._files.unlink(path)
            if index_path(path).name in self._files.list_directory(path.parent):
                self._files.unlink(index_path(path))

    def close(self) -> list[Segment]:
        """Make all lookups fail, and return the segments to be released. The mutex must be held."""
        segments = list(self._segments.values())
        self._segments = {}
        return segments

    # ---- inside

    def _find(self, group: int, key: int, *, is_page: bool = False) -> tuple[Body, bytes, Segment | None]:
        """A body's place, with the body itself if it is in memory (then no segment), or with its segment, held."""
        with self.mutex:
            self._check()
            table = self.contents.tables.get(group)
            found = None
            if table is not None:
                found = table.pages.get(key) if is_page else table.locate(key)
            if found is not None:
                body = self.recent.get(found.lsn)
                if body is not None:
                    return found, body, None
                segment = self._segments[found.place >> PLACE_SHIFT]
                segment.holders += 1
                return found, b"", segment
        found, held = self.look_up(group, key, is_page=is_page)
        if found is None:
            what = "page" if is_page else "entry with index"
            raise EntryMissing(f"no {what} {key} of group {group} here")
        with self.mutex:
            body = self.recent.get(found.lsn)
        if body is not None:  # it was appended between the two lookups, and may not be written yet
            if held is not None:
                self.release(held)
            return found, body, None
        return found, b"", held

    def _read_whole(
        self, segment: Segment, found: Body, group: int, index: int, *, waits: bool = True
    ) -> bytes:
        """Read a body and check it; releases the segment."""
        try:
            offset, lsn, length = found.place & OFFSET_MASK, found.lsn, found.length
            body = read_body(segment, offset, lsn=lsn, group=group, index=index, length=length, waits=waits)
        except LogDamaged as error:
            self._found_bad(error.damages[0], found, group, index)
            raise
        finally:
            self.release(segment)
        with self.mutex:
            self.damages.pop(found.lsn, None)  # it was unreadable for a while
        return body

    def _found_bad(self, damage: Damage, found: Body, group: int, index: int) -> None:
        with self.mutex:
            term = found.term
            if term == UNASKED:
                term = self.contents.tables[group].term_in_tail(index)
        kind = RecordKind(found.kind).name
        known = (group, term, index)
        self.note_damage(Damage(damage.path, damage.offset, found.lsn, damage.reason, known, kind))

    def _damages_of(self, group: int) -> list[tuple[int, Damage]]:
        """Bad bodies of a group by LSN; pages are not included."""
        page = RecordKind.PAGE.name
        return [
            (lsn, damage)
            for lsn, damage in self.damages.items()
            if damage.known is not None and damage.known[0] == group and damage.kind != page
        ]

    def _hold(self, found: list[Sealed]) -> list[Sealed]:
        for sealed in found:
            sealed.segment.holders += 1
        return list(found)

    def _let_all_go(self, held: list[Sealed]) -> None:
        for sealed in held:
            self.release(sealed.segment)
