"""The writing end of the log: give records their LSN and place, collect them, write and sync them together.

- `append` only collects. `sync` writes everything collected in one go and syncs it once, for all groups.
- A record knows its place when it is appended, so readers can be pointed at it before it is written.
- A failed write or sync is final: what reached the disk is unknown then, and the kernel may forget what it
  could not write. Everything afterwards raises the same LogFailed.
- When a segment has no room for a record, the next one is made *first*; if neither the disk nor the reserve
  has room for it, LogFull is raised before anything was taken. Segments are allocated whole, so this is the
  only place where room is asked for.
- The end of a segment is kept for *small* records: terms, votes, cuts, and the entry of one byte that a leader
  begins with. A log that has no room for messages can still say those, so its groups go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorum.log.errors import DiskFull, LogError, LogFailed, LogFull
from quorum.log.files import NO_ROOM, Files, write_fully
from quorum.log.record import HEADER_BYTES, RecordKind
from quorum.log.recovery import Recovered
from quorum.log.reserve import Reserve
from quorum.log.segments import (
    HEADER_BLOCK,
    Listed,
    Segment,
    commit_manifest,
    create_segment,
    prepare_manifest,
    segment_path,
)

SMALL_TAIL_BYTES = 64 << 10
"""The end of a segment that only small records may use: some hundred elections."""
SMALL_TAIL_PART = 16
"""At most this part of a segment is such an end."""


@dataclass(slots=True)
class LogStats:
    """What this log has done since it was opened."""

    appends: int = 0
    syncs: int = 0
    bytes_written: int = 0
    """Headers and bodies, written to segments."""
    rolls: int = 0
    reserve_uses: int = 0
    """Segments that came from the reserve."""


_LARGE_KINDS = frozenset({RecordKind.ENTRY, RecordKind.PAGE, RecordKind.COPY})


def is_small(kind: int, body: bytes) -> bool:
    """Whether a record may use the end of a segment."""
    return kind not in _LARGE_KINDS or len(body) <= 1


@dataclass(frozen=True, slots=True)
class LogUsage:
    """What the log takes on the disk, in bytes of segments up to their end."""

    total_bytes: int
    live_bytes: int
    garbage_bytes: int
    segments: int


def failure_of(error: OSError, doing: str) -> LogFailed:
    """The final failure that an error of the disk means."""
    kind = DiskFull if error.errno in NO_ROOM else LogFailed
    return kind(f"could not {doing}: {error}; the log takes nothing more")


class Writer:
    """Appends to the last segment and rolls. One thread."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        found: Recovered,
        *,
        segment_bytes: int,
        random_bytes: Callable[[int], bytes],
        reserve: Reserve | None = None,
    ) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._reserve = reserve
        self._tail = 0 if reserve is None else min(SMALL_TAIL_BYTES, segment_bytes // SMALL_TAIL_PART)
        self._random_bytes = random_bytes
        self._listed = found.listed
        self.active = found.segments[-1]
        self.last_lsn = self.written_lsn = self.synced_lsn = found.last_lsn
        self.stats = LogStats()
        self.failure: LogFailed | None = None
        self._position = found.position
        """Where the next record goes."""
        self._written = found.position
        """Up to where the file was written."""
        self._pending: list[bytes] = []

    def check(self) -> None:
        """Raise what once failed."""
        if self.failure is not None:
            raise self.failure

    @property
    def used_bytes(self) -> int:
        """The bytes of all segments up to their end."""
        return sum(item.end or 0 for item in self._listed) + self._position

    def needs_roll(self, length: int, *, count: int = 1, is_small: bool = False) -> bool:
        """Whether so many records, with bodies of this length together, have no room in the active segment."""
        end = self.active.header.allocated - (0 if is_small else self._tail)
        return self._position + count * HEADER_BYTES + length > end

    @property
    def small_room_is_short(self) -> bool:
        """Whether what is left for small records is less than half of what is kept for them."""
        return self._position > self.active.header.allocated - self._tail // 2

    def roll(self, length: int, *, count: int = 1) -> Segment:
        """Seal the active segment and go on in a new one with room for so many records, with bodies of this length
        together.

        LogFull if neither the disk nor the reserve has room for it: then nothing has changed.
        """
        number = self.active.number + 1
        allocated = max(self._segment_bytes, HEADER_BLOCK + count * HEADER_BYTES + length + self._tail)
        with self._final(f"roll to segment {number}"):
            segment = self._make_segment(number, allocated)
            self.sync()
            listed = self._listed_after_roll(segment)
            try:
                with self._refusing("write the manifest"):
                    prepare_manifest(self._files, self._directory, listed)
            except LogFull:
                segment.file.close()
                self._files.unlink(segment.path)  # it would keep the room that is missing
                raise
            commit_manifest(self._files, self._directory)
            self.active.file.truncate(self._position)  # gives the unused end back; the manifest knows the end
        self._listed = listed
        self.active = segment
        self._position = self._written = HEADER_BLOCK
        self.stats.rolls += 1
        return segment

    def _make_segment(self, number: int, allocated: int) -> Segment:
        """From the disk, or if that has no room, from the reserve."""

        def create(*, is_reserved: bool) -> Segment:
            return create_segment(
                self._files,
                self._directory,
                number,
                first_lsn=self.last_lsn + 1,
                allocated=allocated,
                random_bytes=self._random_bytes,
                is_reserved=is_reserved,
            )

        doing = f"allocate segment {number} ({allocated} bytes)"
        try:
            with self._refusing(doing):
                return create(is_reserved=False)
        except LogFull:
            path = segment_path(self._directory, number)
            if self._reserve is None or not self._reserve.take(path, allocated):
                raise
        with self._refusing(doing + " from the reserve"):
            segment = create(is_reserved=True)
        self.stats.reserve_uses += 1
        return segment

    def _listed_after_roll(self, segment: Segment) -> list[Listed]:
        old = self._listed[-1]
        sealed = Listed(old.number, old.file_id, old.first_lsn, self.last_lsn, self._position)
        header = segment.header
        return [*self._listed[:-1], sealed, Listed(header.number, header.file_id, header.first_lsn)]

    def add(self, body: bytes, *, kind: int, group: int, term: int, index: int) -> tuple[int, int]:
        """Collect one record; its LSN and the offset of its header. The room must be there."""
        lsn = self.last_lsn + 1
        offset = self._position
        header = self.active.stamp.encode(
            body, kind=kind, lsn=lsn, synced=self.synced_lsn, group=group, term=term, index=index
        )
        self._pending.append(header)
        if body:
            self._pending.append(body)
        self._position = offset + HEADER_BYTES + len(body)
        self.last_lsn = lsn
        self.stats.appends += 1
        return lsn, offset

    def sync(self) -> int:
        """Write and sync everything collected; the synced LSN."""
        self.check()
        if self.synced_lsn == self.last_lsn:
            return self.synced_lsn
        buffers, self._pending = self._pending, []
        with self._final(f"write {self.active.path}"):
            written = write_fully(self.active.file, buffers, self._written)
            assert written == self._position
            self.active.file.sync_data()
        self.stats.bytes_written += written - self._written
        self.stats.syncs += 1
        self._written = written
        self.written_lsn = self.synced_lsn = self.last_lsn
        return self.synced_lsn

    @contextmanager
    def _refusing(self, doing: str) -> Iterator[None]:
        """For a step that leaves nothing behind if it fails: a full disk there is LogFull, and no harm is
        done."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise LogFull(f"no room on the disk to {doing}: {error}") from error

    @contextmanager
    def _final(self, doing: str) -> Iterator[None]:
        """For a step that cannot be undone: whatever goes wrong, the log takes nothing more."""
        try:
            yield
        except LogError:
            raise
        except OSError as error:
            self.failure = failure_of(error, doing)
            raise self.failure from error
        except BaseException as error:
            self.failure = LogFailed(f"interrupted: could not {doing}; the log takes nothing more")
            self.failure.__cause__ = error
            raise
