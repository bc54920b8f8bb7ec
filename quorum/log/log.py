"""The node's log as others see it: append, sync, read, and a journal for each group.

Append, sync and the journals' changes belong to one thread (the Raft thread). `read` and `read_range` may be
called from any thread at any time: they look up under a lock that is held for moments, never during disk
work, and hold the segment they read from until they are done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock as ThreadLock

from quorum.log.contents import Contents
from quorum.log.errors import EntryMissing, LogClosed, LogFailed, LogFull, LogLocked
from quorum.log.files import Files, Lock, RealFiles
from quorum.log.journal import Journal
from quorum.log.reader import RecentBodies, read_body, read_slice
from quorum.log.record import MAX_BODY_BYTES, RecordKind
from quorum.log.recovery import PLACE_SHIFT, recover
from quorum.log.reserve import Reserve
from quorum.log.segments import HEADER_BLOCK, MAX_SEGMENT_BYTES, Segment
from quorum.log.table import Span
from quorum.log.writer import LogStats, Writer, failure_of, is_small

QUIET_MS = 10
"""A log that was quiet this long states what is synced, so that damage behind it is never taken for a torn
end."""

LOCK = "LOCK"

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
        self._journals: dict[int, Journal] = {}
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
        self._journals = {}
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
            if kind == RecordKind.ENTRY:
                self._recent.add(lsn, body, writer.written_lsn)
        return lsn

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
        span, at, lsn, length, body, segment, offset = self._find(group, index)
        if body is not None:
            return body
        assert segment is not None
        try:
            body = read_body(segment, offset, lsn=lsn, group=group, index=index, length=length)
        finally:
            self._let_go(segment)
        self._remember(span, at, lsn)
        return body

    def read_range(self, group: int, index: int, offset: int, length: int) -> bytes:
        """Part of an entry's body. ValueError beyond its end; EntryMissing, LogDamaged."""
        span, at, lsn, whole, body, segment, place = self._find(group, index)
        try:
            if offset < 0 or length < 0 or offset + length > whole:
                raise ValueError(f"entry {index} has {whole} bytes, not {offset}..{offset + length}")
            if body is None:
                assert segment is not None
                if span.is_verified(at):
                    return read_slice(segment, place, lsn, offset, length)
                body = read_body(segment, place, lsn=lsn, group=group, index=index, length=whole)
                self._remember(span, at, lsn)
        finally:
            if segment is not None:
                self._let_go(segment)
        return body[offset : offset + length]

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

    def _find(self, group: int, index: int) -> tuple[Span, int, int, int, bytes | None, Segment | None, int]:
        """Where an entry is: span, position, LSN, length, and its body from memory or a held segment and
        offset."""
        with self._mutex:
            writer = self._open_writer()
            writer.check()
            table = self._contents.tables.get(group)
            if table is None:
                raise EntryMissing(f"no entry of group {group} here")
            span, at = table.locate(index)
            lsn = span.lsns[at]
            length = span.lengths[at]
            body = self._recent.get(lsn)
            if body is not None:
                return span, at, lsn, length, body, None, 0
            place = span.places[at]
            segment = self._segments[place >> PLACE_SHIFT]
            segment.holders += 1
            return span, at, lsn, length, None, segment, place & _OFFSET_MASK

    def _remember(self, span: Span, at: int, lsn: int) -> None:
        with self._mutex:
            if at < len(span) and span.lsns[at] == lsn:
                span.set_verified(at)

    def _let_go(self, segment: Segment) -> None:
        with self._mutex:
            segment.holders -= 1
            last = segment.holders == 0
        if last:
            segment.file.close()
