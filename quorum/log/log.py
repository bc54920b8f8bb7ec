"""The node's log as others see it: append, sync, read, and a journal for each group.

Append, sync and the journals' changes belong to one thread (the Raft thread). `read` and `read_range` may be
called from any thread at any time: they look up under a lock that is held for moments, never during disk
work, and hold the segment they read from until they are done.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock as ThreadLock

from quorum.log.contents import Contents
from quorum.log.errors import EntryMissing, LogClosed, LogFailed, LogFull, LogLocked
from quorum.log.files import Files, Lock, RealFiles
from quorum.log.journal import Journal
from quorum.log.reader import RecentBodies, VerifiedPlaces, read_body, read_slice, read_term
from quorum.log.record import MAX_BODY_BYTES, RecordKind
from quorum.log.recovery import PLACE_SHIFT, recover
from quorum.log.references import Retained, Retention
from quorum.log.reserve import Reserve
from quorum.log.segments import HEADER_BLOCK, MAX_SEGMENT_BYTES, Segment
from quorum.log.table import Body
from quorum.log.writer import LogStats, LogUsage, Writer, failure_of, is_small

QUIET_MS = 10
"""A log that was quiet this long states what is synced, so that damage behind it is never taken for a torn
end."""

LOCK = "LOCK"

_WITH_BODY = frozenset({RecordKind.ENTRY, RecordKind.PAGE, RecordKind.COPY})
_OFFSET_MASK = (1 << PLACE_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Space:
    """Room on the disk. free_bytes is beside the reserve; is_low: below the limit, or the reserve is not whole."""

    free_bytes: int
    limit_bytes: int
    reserve_bytes: int
    is_low: bool


class Log:
    """One append-only log for all groups of a node."""

    def __init__(
        self,
        directory: Path,
        files: Files | None = None,
        *,
        segment_bytes: int = 64 << 20,
        recent_bytes: int = 16 << 20,
        reserve_segments: int = 0,
        free_limit_bytes: int = 0,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """reserve_segments: how many segments are put by for a full disk; a member has RESERVE_SEGMENTS."""
        if not HEADER_BLOCK < segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(
                f"a segment has {HEADER_BLOCK + 1} to {MAX_SEGMENT_BYTES} bytes, not {segment_bytes}"
            )
        self.directory = directory
        self.files: Files = RealFiles() if files is None else files
        self._segment_bytes = segment_bytes
        self._recent_bytes = recent_bytes
        self._free_limit_bytes = free_limit_bytes
        self._random_bytes = random_bytes
        self._reserve: Reserve | None = None
        if reserve_segments:
            self._reserve = Reserve(
                self.files, directory, segments=reserve_segments, segment_bytes=segment_bytes
            )
        self._mutex = ThreadLock()
        self._hold: Lock | None = None
        self._writer: Writer | None = None
        self._segments: dict[int, Segment] = {}
        self._contents = Contents()
        self._recent = RecentBodies(recent_bytes)
        self._verified = VerifiedPlaces()
        self._journals: dict[int, Journal] = {}
        self._retentions: dict[int, Retention] = {}
        self._opened_lsn = 0
        self._marked_lsn = 0
        self._quiet_lsn = 0
        self._quiet_since_ms = 0
        self.cut_records = 0
        """Whole unsynced records that the last open() cut."""

    # ---- life

    def open(self) -> None:
        """Recover what is there, or begin. Everything found counts as synced afterwards.

        Raises LogLocked, LogDamaged, LogUnknown, LogFailed.
        """
        if self._writer is not None:
            raise ValueError("the log is open already")
        self.files.make_directory(self.directory)
        try:
            self._hold = self.files.lock(self.directory / LOCK)
        except BlockingIOError:
            raise LogLocked(f"another process uses {self.directory}") from None
        try:
            found = recover(self.files, self.directory, self._segment_bytes, self._random_bytes)
            if self._reserve is not None:
                self._reserve.open()
        except BaseException as error:
            self._hold.release()
            self._hold = None
            if isinstance(error, OSError):
                raise failure_of(error, f"open the log in {self.directory}") from error
            raise
        self._contents = found.contents
        self._segments = {segment.number: segment for segment in found.segments}
        self._recent = RecentBodies(self._recent_bytes)
        self._verified = VerifiedPlaces()
        self._journals = {}
        self._retentions = {}
        self._opened_lsn = found.last_lsn
        self.cut_records = found.cut_records
        self._writer = Writer(
            self.files,
            self.directory,
            found,
            segment_bytes=self._segment_bytes,
            random_bytes=self._random_bytes,
            reserve=self._reserve,
        )
        self._marked_lsn = self._quiet_lsn = found.last_lsn
        if found.last_lsn:
            try:
                self._mark()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the files. What was appended and not synced is lost, as in a crash."""
        if self._writer is None:
            return
        with self._mutex:
            self._writer = None
            segments = list(self._segments.values())
            self._segments = {}
        for segment in segments:
            self._let_go(segment)
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    # ---- writing: the Raft thread

    def append(
        self, kind: RecordKind, group: int, term: int, index: int, parts: Sequence[bytes | memoryview] = ()
    ) -> int:
        """Collect one record; its LSN. It is readable at once and durable when synced_lsn has reached it.

        The parts are joined (one single bytes object is taken as it is). ValueError if the record does not
        follow from those before it, LogFull if no room can be had: nothing has changed then. LogFailed is
        final.
        """
        writer = self._open_writer()
        writer.check()
        body = parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"a record's body has at most {MAX_BODY_BYTES} bytes, not {len(body)}")
        table = self._contents.check(kind, group, term, index, body)
        if writer.needs_roll(len(body), is_small=is_small(kind, body)):
            self._add_segment(writer.roll(len(body)))
        with self._mutex:
            lsn, offset = writer.add(body, kind=kind, group=group, term=term, index=index)
            place = writer.active.number << PLACE_SHIFT | offset
            self._contents.fold(table, body, kind=kind, lsn=lsn, term=term, index=index, place=place)
            if kind in _WITH_BODY:
                self._recent.add(lsn, body, writer.written_lsn)
        return lsn

    def write_page(self, group: int, parts: Sequence[bytes | memoryview]) -> int:
        """Put a piece of the group's state into the log; its name, which is its LSN. As `append`."""
        return self.append(RecordKind.PAGE, group, 0, 0, parts)

    def put_copy(self, group: int, index: int, term: int, parts: Sequence[bytes | memoryview]) -> int:
        """Put the body of a committed entry, as another member sent it, in the place of the one here; its LSN.

        No journal changes by that. As `append`; ValueError too if the entry here has another length.
        """
        return self.append(RecordKind.COPY, group, term, index, parts)

    def retain(self, group: int, kept: Sequence[Retained]) -> None:
        """Say what the group's snapshots that count refer to: it replaces what was told before.

        Everything at or below the oldest of them that none refers to, and the journal's view has not, is garbage
        from here on. So the snapshots must be durable, and one is begun only after the one before it was told.
        """
        last = self._open_writer().last_lsn
        with self._mutex:
            retention = self._retentions.get(group)
            if retention is None:
                retention = self._retentions[group] = Retention(self._opened_lsn)
            retention.tell(kept, last)

    def usage(self) -> LogUsage:
        """What the log takes on the disk."""
        writer = self._open_writer()
        with self._mutex:
            return LogUsage(writer.used_bytes, writer.used_bytes, 0, len(self._segments))

    def sync(self) -> int:
        """Write and sync everything appended, of all groups, at once; the synced LSN. LogFailed is final."""
        writer = self._open_writer()
        lsn = writer.sync()
        with self._mutex:
            self._recent.trim(writer.written_lsn)
        return lsn

    def mark_if_quiet(self, now_ms: int) -> bool:
        """To be called now and then: after 10 ms without appends, write and sync once what is known to be
        synced."""
        writer = self._open_writer()
        writer.check()
        last = writer.last_lsn
        if last == self._marked_lsn:
            return False
        if last != self._quiet_lsn or last != writer.synced_lsn:
            self._quiet_lsn = last
            self._quiet_since_ms = now_ms
            return False
        if now_ms - self._quiet_since_ms < QUIET_MS:
            return False
        return self._mark()

    @property
    def last_lsn(self) -> int:
        """The LSN of the newest record, 0 if there is none."""
        return self._open_writer().last_lsn

    @property
    def synced_lsn(self) -> int:
        """Every record up to here survives a power cut."""
        return self._open_writer().synced_lsn

    @property
    def stats(self) -> LogStats:
        """Counts since open()."""
        return self._open_writer().stats

    @property
    def failure(self) -> Exception | None:
        """What made the log refuse everything, if anything did."""
        return self._open_writer().failure

    def fail(self, error: OSError, doing: str) -> LogFailed:
        """Note that the disk has failed beside the segments: the log takes nothing more. The failure, to be raised."""
        writer = self._open_writer()
        writer.failure = writer.failure or failure_of(error, doing)
        return writer.failure

    # ---- room

    def free_bytes(self) -> int:
        """Room left on the disk, beyond what the active segment and the reserve have allocated."""
        return self.files.free_bytes(self.directory)

    def space(self) -> Space:
        """Room left, and whether that is little. LogFailed if the disk does not say."""
        try:
            free = self.free_bytes()
        except OSError as error:
            raise self.fail(error, "ask for the room on the disk") from error
        reserve = self._reserve
        is_low = free < self._free_limit_bytes or (reserve is not None and not reserve.is_whole)
        return Space(free, self._free_limit_bytes, 0 if reserve is None else reserve.size_bytes, is_low)

    def make_room(self, length: int, count: int = 1) -> bool:
        """Whether so many records, with bodies of this length together, will find room, so that none of them raises
        LogFull. Goes on in a new segment if that is needed."""
        writer = self._open_writer()
        writer.check()
        return not writer.needs_roll(length, count=count) or self._roll(length, count)

    def make_small_room(self) -> bool:
        """The same for what a group has to write to take part at all: terms, votes, cuts. It is kept in each segment;
        False means that it is nearly used up."""
        writer = self._open_writer()
        writer.check()
        return not writer.small_room_is_short or self._roll(0, 1)

    def refill_reserve(self) -> bool:
        """Put by a part of what was used of the reserve, if there is room again. To be called now and then; True if
        it did."""
        self._open_writer().check()
        try:
            return self._reserve is not None and self._reserve.refill()
        except OSError as error:
            raise self.fail(error, "put by a reserve") from error

    def release_reserve(self) -> bool:
        """Give a part of the reserve back to the disk, for what is no record; False if nothing is left."""
        return self._reserve is not None and self._reserve.release()

    def _roll(self, length: int, count: int) -> bool:
        try:
            self._add_segment(self._open_writer().roll(length, count=count))
        except LogFull:
            return False
        return True

    # ---- groups

    def journal(self, group: int) -> Journal:
        """The group's journal; the same object every time."""
        journal = self._journals.get(group)
        if journal is None:
            self._open_writer()
            journal = self._journals[group] = Journal(self, group, self._contents.table(group))
        return journal

    def groups(self) -> list[int]:
        """The groups that have records here, ascending."""
        self._open_writer()
        return sorted(group for group, table in self._contents.tables.items() if not table.is_empty)

    # ---- reading: any thread

    def read(self, group: int, index: int) -> bytes:
        """The body of an entry, checked. EntryMissing, LogDamaged."""
        found, body, segment = self._find(group, index)
        if segment is None:
            return body
        return self._read_whole(segment, found, group, index)

    def read_entry(self, group: int, index: int) -> tuple[int, bytes]:
        """The term of an entry and its body, checked. EntryMissing, LogDamaged."""
        found, body, segment = self._find(group, index)
        if segment is not None:
            if found.term:
                return found.term, self._read_whole(segment, found, group, index)
            try:
                term = read_term(segment, found.place & _OFFSET_MASK, found.lsn)
            except BaseException:
                self._let_go(segment)
                raise
            return term, self._read_whole(segment, found, group, index)
        return found.term or self._term_on_disk(found), body

    def read_range(self, group: int, index: int, offset: int, length: int) -> bytes:
        """Part of an entry's body. ValueError beyond its end; EntryMissing, LogDamaged."""
        found, body, segment = self._find(group, index)
        if offset < 0 or length < 0 or offset + length > found.length:
            if segment is not None:
                self._let_go(segment)
            raise ValueError(f"entry {index} has {found.length} bytes, not {offset}..{offset + length}")
        if segment is None:
            return body[offset : offset + length]
        with self._mutex:
            is_verified = found.place in self._verified
        if not is_verified:
            return self._read_whole(segment, found, group, index)[offset : offset + length]
        try:
            return read_slice(segment, found.place & _OFFSET_MASK, found.lsn, offset, length)
        finally:
            self._let_go(segment)

    def read_page(self, group: int, page: int) -> bytes:
        """A page's bytes, checked. EntryMissing, LogDamaged."""
        found, body, segment = self._find(group, page, is_page=True)
        if segment is None:
            return body
        return self._read_whole(segment, found, group, 0)

    def in_memory(self, group: int, index: int) -> bool:
        """Whether reading this entry now needs no disk: it is among the recent ones."""
        with self._mutex:
            table = self._contents.tables.get(group)
            found = None if table is None else table.locate(index)
            return found is not None and self._recent.get(found.lsn) is not None

    def has_body(self, group: int, index: int, term: int) -> bool:
        """Whether a body of just this entry is indexed here; nothing is read."""
        with self._mutex:
            table = self._contents.tables.get(group)
            return table is not None and table.has_body(index, term)

    def missing(self, group: int, indexes: array[int], *, committed: int | None = None) -> array[int]:
        """Those of the ascending indexes (array of type Q) that have no body here.

        Entries above `committed` may be of another history than the asker's: there only copies count.
        """
        with self._mutex:
            table = self._contents.tables.get(group)
            if table is None:
                return indexes[:]
            trusted = table.last_index if committed is None else committed
            return array(
                "Q",
                [
                    index
                    for index in indexes
                    if index not in table.copies and (index > trusted or table.locate(index) is None)
                ],
            )

    # ---- inside

    def _open_writer(self) -> Writer:
        writer = self._writer
        if writer is None:
            raise LogClosed(f"the log in {self.directory} is not open")
        return writer

    def _mark(self) -> bool:
        """State what is synced; a full disk may have no room for that, then the end stays as it is."""
        try:
            lsn = self.append(RecordKind.MARK, 0, 0, 0)
        except LogFull:
            self._marked_lsn = self._open_writer().last_lsn
            return False
        self.sync()
        self._marked_lsn = self._quiet_lsn = lsn
        return True

    def _add_segment(self, segment: Segment) -> None:
        with self._mutex:
            self._segments[segment.number] = segment

    def _find(self, group: int, key: int, *, is_page: bool = False) -> tuple[Body, bytes, Segment | None]:
        """Where a body is, and itself from memory (then no segment), or the segment, held."""
        with self._mutex:
            writer = self._open_writer()
            writer.check()
            table = self._contents.tables.get(group)
            found = None
            if table is not None:
                found = table.pages.get(key) if is_page else table.locate(key)
            if found is None:
                what = "page" if is_page else "entry with index"
                raise EntryMissing(f"no {what} {key} of group {group} here")
            body = self._recent.get(found.lsn)
            if body is not None:
                return found, body, None
            segment = self._segments[found.place >> PLACE_SHIFT]
            segment.holders += 1
            return found, b"", segment

    def _term_on_disk(self, found: Body) -> int:
        """The term of a body that is in memory, and of a history that the journal no longer has."""
        with self._mutex:
            segment = self._segments[found.place >> PLACE_SHIFT]
            segment.holders += 1
        try:
            return read_term(segment, found.place & _OFFSET_MASK, found.lsn)
        finally:
            self._let_go(segment)

    def _read_whole(self, segment: Segment, found: Body, group: int, index: int) -> bytes:
        """Read a body and check it; lets the segment go."""
        try:
            offset = found.place & _OFFSET_MASK
            body = read_body(segment, offset, lsn=found.lsn, group=group, index=index, length=found.length)
        finally:
            self._let_go(segment)
        with self._mutex:
            self._verified.add(found.place)
        return body

    def _let_go(self, segment: Segment) -> None:
        with self._mutex:
            segment.holders -= 1
            last = segment.holders == 0
        if last:
            segment.file.close()
