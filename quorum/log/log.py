"""The node's log as other packages see it: append, sync, read, and a journal for each group.

Append, sync and the journals' changes belong to one thread (the Raft thread). `read` may be called from any
thread at any time (`store`), and a collection runs in any thread (`collector`).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from quorum.log.errors import Damage, LogClosed, LogError, LogFull, LogLocked
from quorum.log.files import NO_DESCRIPTORS, Files, Lock, RealFiles
from quorum.log.journal import Journal
from quorum.log.maintenance.collector import Collection, Collector
from quorum.log.maintenance.examining import Finding, Findings
from quorum.log.maintenance.repairing import Repairs
from quorum.log.maintenance.scrubber import Scrubber
from quorum.log.record import MAX_BODY_BYTES, WITH_BODY, RecordKind
from quorum.log.recovery import Recovered, recover
from quorum.log.references import Retained, Retention
from quorum.log.segment_files.index import CACHE_BYTES, Sealed, arrange, encode_index
from quorum.log.segment_files.reserve import Reserve
from quorum.log.segment_files.segments import HEADER_BLOCK, MAX_SEGMENT_BYTES
from quorum.log.snapshots.kept_snapshots import SnapshotStore
from quorum.log.store import Store
from quorum.log.table import PLACE_SHIFT
from quorum.log.writer import LogStats, Writer, failure_of, is_small

QUIET_MS = 10
"""A log that was quiet this long writes a record of what is synced, so that later damage is never taken for a torn
end."""

LOCK = "LOCK"

MOVES_BOUNDS = frozenset({RecordKind.TRUNCATE, RecordKind.COMPACT, RecordKind.RESET})
"""Records that may turn bodies into garbage."""


@dataclass(frozen=True, slots=True)
class Space:
    """Space for the log. free_bytes: of the disk without the reserve, or of the log's maximum if that is less. is_low:
    below the limit, or the reserve is not complete."""

    free_bytes: int
    limit_bytes: int
    reserve_bytes: int
    is_low: bool


class Log:
    """One append-only log for all groups of a node. `open` makes it. After `close`, calls that append, sync or read
    raise LogClosed."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        hold: Lock,
        reserve: Reserve | None,
        found: Recovered,
        *,
        segment_bytes: int,
        recent_bytes: int,
        free_limit_bytes: int,
        max_bytes: int,
        random_bytes: Callable[[int], bytes],
        retention: Callable[[int], Retention],
    ) -> None:
        """For `open` only. hold: of the directory; close() releases it. found: what is in the directory."""
        self.directory = directory
        self.files = files
        self._hold = hold
        self._reserve = reserve
        self._free_limit_bytes = free_limit_bytes
        self._max_bytes = max_bytes
        self._random_bytes = random_bytes
        self._marked_lsn = found.last_lsn
        self._quiet_lsn = found.last_lsn
        self._quiet_since_ms = 0
        self.block_damages = tuple(found.block_damages)
        """First blocks of sealed segments that were bad when the log was opened, and that opening has written again."""
        self._contents = found.contents
        self._writer = writer = Writer(
            files,
            directory,
            found,
            segment_bytes=segment_bytes,
            random_bytes=random_bytes,
            reserve=reserve,
        )
        self._store = Store(
            files,
            found.contents,
            [*(sealed.segment for sealed in found.history.sealed), found.active],
            recent_bytes=recent_bytes,
            check=writer.check,
            retention=retention,
            opened_lsn=found.last_lsn,
        )
        findings = Findings()
        self._collector = Collector(self._store, segment_bytes, findings)
        self._journals: dict[int, Journal] = {}
        self._scrubber = Scrubber(
            self._store,
            files,
            directory,
            findings,
            extent=lambda: writer.extent,
            check_snapshots=self._check_snapshots,
            refused=writer.refused,
        )
        self._repairs = Repairs(
            files,
            writer,
            found.contents,
            findings,
            roll=lambda: self._roll(0, 1),
            journal=self._journals.__getitem__,
        )
        for damage in found.damages:
            self._store.note_damage(damage)

    # ---- opening and closing

    @classmethod
    def open(
        cls,
        directory: Path,
        files: Files | None = None,
        *,
        segment_bytes: int = 64 << 20,
        recent_bytes: int = 16 << 20,
        reserve_segments: int = 0,
        free_limit_bytes: int = 0,
        max_bytes: int = 0,
        cache_bytes: int = CACHE_BYTES,
        random_bytes: Callable[[int], bytes] = os.urandom,
        retention: Callable[[int], Retention] = Retention,
    ) -> Self:
        """Recover the log in the directory, or begin one, and return it. Everything found counts as synced afterwards.

        reserve_segments: number of segments kept in reserve for a full disk; a member has RESERVE_SEGMENTS. max_bytes:
        size above which `space` is low, 0 for none; the log may still grow. Raises LogLocked, LogDamaged, LogUnknown,
        LogFailed; then the directory is not locked.
        """
        if not HEADER_BLOCK < segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(
                f"a segment has {HEADER_BLOCK + 1} to {MAX_SEGMENT_BYTES} bytes, not {segment_bytes}"
            )
        files = RealFiles() if files is None else files
        files.make_directory(directory)
        try:
            hold = files.lock(directory / LOCK)
        except BlockingIOError:
            raise LogLocked(
                f"another process uses {directory}: this member is running already, or another one has its data_dir"
            ) from None
        reserve = None
        if reserve_segments:
            reserve = Reserve(files, directory, segments=reserve_segments, segment_bytes=segment_bytes)
        try:
            found = recover(
                files,
                directory,
                segment_bytes=segment_bytes,
                cache_bytes=cache_bytes,
                random_bytes=random_bytes,
            )
            if reserve is not None:
                reserve.open()
        except BaseException as error:
            hold.release()
            if isinstance(error, OSError):
                raise failure_of(error, f"open the log in {directory}") from error
            raise
        log = cls(
            files,
            directory,
            hold,
            reserve,
            found,
            segment_bytes=segment_bytes,
            recent_bytes=recent_bytes,
            free_limit_bytes=free_limit_bytes,
            max_bytes=max_bytes,
            random_bytes=random_bytes,
            retention=retention,
        )
        if found.last_lsn:
            try:
                log._mark()
            except BaseException:
                log.close()
                raise
        return log

    def close(self) -> None:
        """Close the files. Unsynced records are lost, as in a crash."""
        with self._store.mutex:
            segments = self._store.close()
            if not segments:
                return  # closed before
            self._writer.failure = LogClosed(f"the log in {self.directory} is closed")
        for segment in segments:
            self._store.release(segment)
        self._hold.release()

    # ---- writing: the Raft thread

    def append(
        self, kind: RecordKind, group: int, term: int, index: int, parts: Sequence[bytes | memoryview] = ()
    ) -> int:
        """Collect one record and return its LSN. It is readable at once, and durable when synced_lsn has reached it.

        The parts are joined (one single bytes object is taken as it is). ValueError if the record does not follow from
        those before it, LogFull if there is no space: nothing has changed then. LogFailed is final.
        """
        writer, contents, store = self._writer, self._contents, self._store
        writer.check()
        body = parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)
        length = len(body)
        if length > MAX_BODY_BYTES:
            raise ValueError(f"a record's body has at most {MAX_BODY_BYTES} bytes, not {length}")
        table = contents.check(kind, group, term, index, body, length)
        if writer.needs_roll(length, is_small=is_small(kind, body)):
            self._roll(length, 1)
        with store.mutex:
            lsn, offset = writer.add(body, kind=kind, group=group, term=term, index=index)
            contents.fold(
                table,
                body,
                kind=kind,
                group=group,
                lsn=lsn,
                term=term,
                index=index,
                place=writer.active.number << PLACE_SHIFT | offset,
                length=length,
            )
            if kind in WITH_BODY:
                store.recent.add(lsn, body, writer.written_lsn)
                if kind == RecordKind.COPY:
                    store.note_healed(group, index, lsn)
                    self._collector.survey.changed()
            elif kind in MOVES_BOUNDS:
                if kind == RecordKind.TRUNCATE:
                    store.note_cut(group, index)
                self._collector.survey.changed()
        return lsn

    def write_page(self, group: int, parts: Sequence[bytes | memoryview]) -> int:
        """Append a piece of the group's state and return its name, which is its LSN. Errors as for `append`."""
        return self.append(RecordKind.PAGE, group, 0, 0, parts)

    def put_copy(self, group: int, index: int, term: int, parts: Sequence[bytes | memoryview]) -> int:
        """Store the body of a committed entry, as another member sent it, to replace the one here; returns its LSN.

        No journal changes. Errors as for `append`; ValueError too if the entry here has another length.
        """
        return self.append(RecordKind.COPY, group, term, index, parts)

    def retain(self, group: int, kept: Sequence[Retained]) -> None:
        """Replace the set of entries and pages that the group's valid snapshots refer to.

        Everything at or below the oldest of these snapshots becomes garbage if no snapshot refers to it and it is not
        in the journal's view. So the snapshots must be durable, and a snapshot is begun only after the one before it
        was told.
        """
        with self._store.mutex:
            self._store.retention(group).tell(kept, self._writer.last_lsn)
            self._collector.survey.changed()

    def sync(self) -> int:
        """Write and sync everything appended, of all groups, at once; returns the synced LSN. LogFailed is final."""
        if self._writer.last_lsn == self._writer.synced_lsn:
            self._writer.check()
            return self._writer.synced_lsn
        lsn = self._writer.sync()
        with self._store.mutex:
            self._store.recent.trim(self._writer.written_lsn)
        return lsn

    def mark_if_quiet(self, now_ms: int) -> bool:
        """Write and sync a record of what is synced, once, after 10 ms without appends. To be called regularly."""
        writer = self._writer
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
        return self._writer.last_lsn

    @property
    def synced_lsn(self) -> int:
        """Every record up to here survives a power cut."""
        return self._writer.synced_lsn

    @property
    def is_synced(self) -> bool:
        """Whether everything that was appended is synced."""
        writer = self._writer
        return writer.synced_lsn == writer.last_lsn

    @property
    def stats(self) -> LogStats:
        """Counts since the log was opened."""
        return self._writer.stats

    @property
    def failure(self) -> Exception | None:
        """The failure because of which the log refuses everything, LogClosed after close(); None if there is none."""
        return self._writer.failure

    def fail(self, error: OSError, doing: str) -> LogError:
        """Note that the disk has failed outside the segments: the log refuses everything. Returns the failure, to be
        raised."""
        writer = self._writer
        writer.failure = writer.failure or failure_of(error, doing)
        return writer.failure

    # ---- space

    def free_bytes(self) -> int:
        """Free bytes on the disk, beyond the space that the active segment and the reserve have allocated."""
        return self.files.free_bytes(self.directory)

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments up to their ends. O(segments)."""
        return self._writer.position + sum([found.end for found in self._store.history.sealed])

    def space(self) -> Space:
        """The free space, and whether it is low. LogFailed if the disk does not say."""
        try:
            free = self.free_bytes()
        except OSError as error:
            raise self.fail(error, "read the free space of the disk") from error
        if self._max_bytes:
            free = min(free, max(0, self._max_bytes - self.size_bytes))
        reserve = self._reserve
        is_low = free < self._free_limit_bytes or (reserve is not None and not reserve.is_whole)
        return Space(free, self._free_limit_bytes, 0 if reserve is None else reserve.size_bytes, is_low)

    def make_room(self, length: int, count: int = 1) -> bool:
        """Make room for `count` records whose bodies have `length` bytes together, in a new segment if needed. If it
        returns True, none of these records raises LogFull."""
        writer = self._writer
        writer.check()
        return not writer.needs_roll(length, count=count) or self._try_roll(length, count)

    def make_small_room(self) -> bool:
        """The same for the small records that a group needs to take part at all: terms, votes, cuts. Each segment keeps
        room for them; False means that it is nearly used up."""
        writer = self._writer
        writer.check()
        return not writer.small_room_is_short or self._try_roll(0, 1)

    def refill_reserve(self) -> bool:
        """Allocate a missing part of the reserve, if there is space again. True if it did. To be called regularly."""
        self._writer.check()
        try:
            return self._reserve is not None and self._reserve.refill()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                return False
            raise self.fail(error, "allocate the reserve") from error

    def release_reserve(self) -> bool:
        """Return a part of the reserve to the disk, for data other than records; False if nothing is left."""
        return self._reserve is not None and self._reserve.release()

    def _try_roll(self, length: int, count: int) -> bool:
        try:
            self._roll(length, count)
        except LogFull:
            return False
        return True

    # ---- groups

    def journal(self, group: int) -> Journal:
        """The group's journal, always the same object."""
        journal = self._journals.get(group)
        if journal is None:
            table = self._contents.table(group)
            snapshots = SnapshotStore(self.files, self.directory, group)
            journal = self._journals[group] = Journal(self, group, table, snapshots)
        return journal

    def groups(self) -> list[int]:
        """The groups that have records here, ascending."""
        return sorted(group for group, table in self._contents.tables.items() if not table.is_empty)

    def term_below_view(self, group: int, index: int) -> int | None:
        """The term of an entry that has left the view, if it and all later entries are still here; else None."""
        table = self._contents.table(group)
        if table.tail_from <= index <= table.last_index:
            return table.term_in_tail(index)
        rows = self._contents.between(group, table, index)
        return None if rows is None else int(rows.terms[0])

    # ---- garbage: plan and adopt in the Raft thread, survey and run in any

    def survey(self) -> None:
        """Update the count of live bytes of the sealed segments, where it may have changed. Any thread, one at a time,
        and not while `scrub` or `repair` runs. A segment that cannot be read waits for `repair` and stays as it is."""
        self._collector.survey.refresh()

    def plan_collection(self) -> Collection | None:
        """Plan the collection of segments that are worth replacing, as last surveyed. The collection is then run and
        adopted. None if no segment is worth it, or while a planned collection is in use. A collection that is dropped
        instead leaves at most a file that the next opening removes."""
        writer, collector = self._writer, self._collector
        writer.check()
        self._remove_replaced()
        sources = collector.choose()
        if not sources:
            return None
        collection = Collection(
            self.files,
            self._store,
            sources,
            number=writer.take_number(),
            file_id=self._random_bytes(16),
            reserve=self._reserve,
            expected_bytes=sum(collector.survey.live_bytes(source) for source in sources),
            refused=lambda error: writer.refused(error, "copy the live records of old segments"),
        )
        collector.planned(collection)
        return collection

    def adopt(self, collection: Collection) -> bool:
        """Replace a collection's sources with its copy, durably; returns whether it did.

        If the collection met damage (`damages` has it), or its sources were replaced meanwhile, its copy is removed
        instead. LogFull if there is no space for the manifest: then the copy is removed too.
        """
        writer, contents, store = self._writer, self._contents, self._store
        writer.check()
        if not collection.is_run:
            raise ValueError("a collection can be adopted only after it was run")
        survey = self._collector.survey
        sources, result = collection.sources, collection.result
        if result is not None and survey.has_died(result):  # while it was copied
            result = None
        sealed = store.history.sealed
        is_current = all(source in sealed for source in sources)
        if is_current and collection.damage is None:
            states = contents.states(writer.active.header.first_lsn)
            listed = None if result is None else result.listed
            try:
                writer.replace([source.listed for source in sources], listed, states)
            except LogFull:
                self._discard(collection)  # it uses the space that is missing
                self._collector.done()
                raise
            first = sealed.index(sources[0])
            rest = [found for found in sealed if found not in sources]
            with store.mutex:
                store.history.set([*rest[:first], *([] if result is None else [result]), *rest[first:]])
                if result is not None:
                    store.add_segment(result.segment)
                    collection.move(contents.tables)
                store.replace(list(sources))
            for source in sources:
                survey.forget(source)
                store.release(source.segment)
            if result is None:
                self._discard(collection)
            self._remove_replaced()
        else:
            for source in sources:
                survey.spoiled(source)
            self._discard(collection)
        self._collector.done()
        return is_current and collection.damage is None

    # ---- damage

    @property
    def damages(self) -> tuple[Damage, ...]:
        """Bad bodies and pages that no copy has replaced, by LSN. Any thread."""
        with self._store.mutex:
            return tuple(damage for _, damage in sorted(self._store.damages.items()))

    def scrub(self, budget_bytes: int) -> int:
        """Read and check about budget_bytes of the log's files; returns how many were checked, 0 at the end of a round.

        It continues where the last call ended, also after a restart. Afterwards `damages` has bad bodies and pages, and
        the journals have bad snapshots; everything else waits for `repair`. Any thread, one at a time.
        """
        self._writer.check()
        return self._scrubber.scrub(budget_bytes)

    def repair(self) -> list[Finding]:
        """Repair what scrubbing has found in the log's own files, and return the findings. The log's own thread, and
        not while `scrub` runs. A repair without space is tried again the next time."""
        self._writer.check()
        return self._repairs.repair()

    # ---- reading: any thread

    def read(self, group: int, index: int, *, waits: bool = True) -> bytes:
        """The body of an entry, checked: from the view, or below it while it is live. EntryMissing, LogDamaged; without
        `waits` NotCached if the disk has to read it."""
        return self._store.read(group, index, waits=waits)

    def read_entry(self, group: int, index: int) -> tuple[int, bytes]:
        """The term of an entry and its body, checked. EntryMissing, LogDamaged."""
        return self._store.read_entry(group, index)

    def in_memory(self, group: int, index: int) -> bool:
        """Whether this entry can be read now without the disk, because it is among the recent ones."""
        return self._store.in_memory(group, index)

    def read_page(self, group: int, page: int) -> bytes:
        """A page's bytes, checked. EntryMissing, LogDamaged."""
        return self._store.read_page(group, page)

    def missing(self, group: int, indexes: array[int], *, committed: int | None = None) -> array[int]:
        """The indexes without a good body here, of the given ascending ones (array of type Q); no body is read.

        Entries above `committed` may be of another history than the caller's: for them only copies count.
        """
        return self._store.missing(group, indexes, committed)

    # ---- inside

    def _mark(self) -> bool:
        """Write a record of what is synced. If a full disk has no space for it, nothing changes."""
        try:
            lsn = self.append(RecordKind.MARK, 0, 0, 0)
        except LogFull:
            self._marked_lsn = self._writer.last_lsn
            return False
        self.sync()
        self._marked_lsn = self._quiet_lsn = lsn
        return True

    def _roll(self, length: int, count: int) -> None:
        """Continue in a new segment, and write the index file of the old one."""
        writer, store, contents = self._writer, self._store, self._contents
        old = writer.active
        listed = writer.roll(length, contents.states(old.header.first_lsn), count=count)
        rows = {group: table.active_rows() for group, table in contents.tables.items()}
        parts, columns = arrange(
            [(group, bodies) for group, (bodies, _) in rows.items()],
            [(group, pages) for group, (_, pages) in rows.items()],
            old.number,
        )
        sealed = Sealed(old, listed, parts)
        store.history.cache.put(sealed, columns)
        with store.mutex:
            store.history.set([*store.history.sealed, sealed])
            store.add_segment(writer.active)
            for table in contents.tables.values():
                table.seal()
        writer.write_index(old.path, encode_index(listed, parts, columns))

    def _remove_replaced(self) -> None:
        with self._writer.final("remove replaced segments"):
            self._store.remove_replaced()

    def _discard(self, collection: Collection) -> None:
        with self._writer.final("remove an unused copy"):
            collection.discard()

    def _check_snapshots(self) -> tuple[int, list[Damage]]:
        found = [journal.check_snapshots() for journal in list(self._journals.values())]
        return sum(checked for checked, _ in found), [damage for _, damages in found for damage in damages]
