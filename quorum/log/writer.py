"""The writing end of the log: give records their LSN and place, collect them, write and sync them together.

- `append` only collects. `sync` writes everything collected in one go and syncs it once, for all groups.
- A record knows its place when it is appended, so readers can be pointed at it before it is written.
- A failed write or sync is final, because it is unknown what reached the disk, and the kernel may forget what it could
  not write. Every later call raises the same LogFailed.
- If a segment has no room for a record, the next segment is made *first*. If neither the disk nor the reserve has room
  for it, LogFull is raised before any part of the append is taken. Segments are allocated at full length, so this is
  the only place that asks for disk space.
- The end of a segment is kept for *small* records: terms, votes, cuts, and the one-byte entry that begins a leader's
  term. A log without room for messages can still write those, so its groups continue to work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from quorum.log.errors import DiskFull, LogError, LogFailed, LogFull
from quorum.log.files import NO_ROOM, Files, write_fully
from quorum.log.record import HEADER_BYTES, WITH_BODY
from quorum.log.recovery import Recovered
from quorum.log.segment_files.index import write_index_if_room
from quorum.log.segment_files.manifest import Manifest, commit_manifest, prepare_manifest
from quorum.log.segment_files.reserve import Reserve
from quorum.log.segment_files.segments import HEADER_BLOCK, Listed, Segment, create_segment, segment_path
from quorum.log.table import GroupState

SEGMENT_RECORDS = 1 << 15
"""Maximum number of records in a segment, small ones excepted, because its index file (33 bytes a record) has to be
written on the log's thread in a few milliseconds."""
SMALL_TAIL_BYTES = 64 << 10
"""The end of a segment that only small records may use: some hundred elections."""
SMALL_TAIL_PART = 16
"""The small tail is at most this part (1/n) of a segment."""


@dataclass(slots=True)
class LogStats:
    """Counts of this log's work since it was opened."""

    syncs: int = 0
    rolls: int = 0


def is_small(kind: int, body: bytes) -> bool:
    """Whether a record may use the end of a segment."""
    return kind not in WITH_BODY or len(body) <= 1


def failure_of(error: OSError, doing: str) -> LogFailed:
    """The final failure that a disk error means."""
    kind = DiskFull if error.errno in NO_ROOM else LogFailed
    return kind(f"could not {doing}: {error}; the log refuses every later call")


class Final:
    """Context of a step of a writer that cannot be undone: after any error the log refuses everything."""

    __slots__ = ("_doing", "_writer")

    def __init__(self, writer: Writer, doing: str) -> None:
        self._writer = writer
        self._doing = doing

    def __enter__(self) -> None:
        """Nothing to do before the step."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, LogError):
            return
        if isinstance(error, OSError):
            self._writer.failure = failure_of(error, self._doing)
            raise self._writer.failure from error
        interrupted = LogFailed(f"interrupted: could not {self._doing}; the log refuses every later call")
        interrupted.__cause__ = error
        self._writer.failure = interrupted


class Writer:
    """Appends to the last segment and rolls to the next. One thread."""

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
        self._next_number = max(item.number for item in found.listed) + 1
        self.active = found.active
        self.last_lsn = self.written_lsn = self.synced_lsn = found.last_lsn
        self.stats = LogStats()
        self.failure: LogError | None = None
        self._position = found.position
        """Offset of the next record."""
        self._written = found.position
        """End of the written part of the file."""
        self._pending: list[bytes] = []
        self.extent = (found.active, found.position)
        """The active segment and the end of its written part: for any thread, replaced as a whole."""

    def check(self) -> None:
        """Raise the failure, if there was one, or LogClosed."""
        if self.failure is not None:
            raise self.failure

    @property
    def position(self) -> int:
        """Offset of the next record in the active segment."""
        return self._position

    def needs_roll(self, length: int, *, count: int = 1, is_small: bool = False) -> bool:
        """Whether `count` records, with bodies of `length` bytes together, need a new segment: the active one has too
        little room for them, or enough records."""
        end = self.active.header.allocated - (0 if is_small else self._tail)
        if self._position + count * HEADER_BYTES + length > end:
            return True
        return not is_small and self.last_lsn + count - self.active.header.first_lsn >= SEGMENT_RECORDS

    @property
    def small_room_is_short(self) -> bool:
        """Whether less than half of the room for small records is left."""
        return self._position > self.active.header.allocated - self._tail // 2

    def take_number(self) -> int:
        """A number that no segment has had in this process."""
        number = self._next_number
        self._next_number = number + 1
        return number

    def roll(self, length: int, states: Mapping[int, GroupState], *, count: int = 1) -> Listed:
        """Seal the active segment and continue in a new one, with room for `count` records with bodies of `length`
        bytes together; returns the sealed segment.

        states: the present state of all groups. LogFull if neither the disk nor the reserve has space: then nothing has
        changed.
        """
        number = self.take_number()
        allocated = max(self._segment_bytes, HEADER_BLOCK + count * HEADER_BYTES + length + self._tail)
        with self.final(f"roll to segment {number}"):
            segment = self._make_segment(number, allocated)
            self.sync()
            listed = self._listed_after_roll(segment)
            try:
                with self.refusing("write the manifest"):
                    prepare_manifest(self._files, self._directory, Manifest(listed, self.last_lsn, states))
            except LogFull:
                segment.file.close()
                self._files.unlink(segment.path)  # it would keep the space that is missing
                raise
            commit_manifest(self._files, self._directory)
            self.active.file.truncate(self._position)  # returns the unused end; the manifest knows the end
        self._listed = listed
        self.active = segment
        self._position = self._written = HEADER_BLOCK
        self.extent = (segment, HEADER_BLOCK)
        self.stats.rolls += 1
        return listed[-2]

    def replace(
        self, sources: Sequence[Listed], result: Listed | None, states: Mapping[int, GroupState]
    ) -> None:
        """List one sealed segment, or none, instead of some others, durably.

        LogFull if the disk has no space for the manifest: then nothing has changed.
        """
        self.sync()
        first = self._listed.index(sources[0])
        listed = [item for item in self._listed if item not in sources]
        if result is not None:
            listed.insert(first, result)
        with self.final("replace segments"):
            with self.refusing("write the manifest"):
                prepare_manifest(self._files, self._directory, Manifest(listed, self.last_lsn, states))
            commit_manifest(self._files, self._directory)
        self._listed = listed

    def write_manifest(self, states: Mapping[int, GroupState]) -> None:
        """Write the manifest again, durably. LogFull if the disk has no space for it: then nothing has changed."""
        self.sync()
        with self.final("write the manifest again"):
            with self.refusing("write the manifest"):
                prepare_manifest(self._files, self._directory, Manifest(self._listed, self.last_lsn, states))
            commit_manifest(self._files, self._directory)

    def write_index(self, segment: Path, pieces: list[bytes]) -> None:
        """Write the index file of a sealed segment. Without space for it there is none, because it can be made
        again."""
        with self.final(f"write the index of {segment}"):
            write_index_if_room(self._files, segment, pieces)

    def refused(self, error: OSError, doing: str) -> LogError:
        """The error to raise for a disk error in work that does not count yet: final, unless only space is missing."""
        if error.errno in NO_ROOM:
            return LogFull(f"no room on the disk to {doing}: {error}")
        self.failure = failure_of(error, doing)
        return self.failure

    def _make_segment(self, number: int, allocated: int) -> Segment:
        """Allocate a segment from the disk; if that has no space, from the reserve."""

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
            with self.refusing(doing):
                return create(is_reserved=False)
        except LogFull:
            path = segment_path(self._directory, number)
            if self._reserve is None or not self._reserve.take(path, allocated):
                raise
        with self.refusing(doing + " from the reserve"):
            return create(is_reserved=True)

    def _listed_after_roll(self, segment: Segment) -> list[Listed]:
        old = self._listed[-1]
        sealed = Listed(old.number, old.file_id, old.first_lsn, self.last_lsn, self._position)
        header = segment.header
        return [*self._listed[:-1], sealed, Listed(header.number, header.file_id, header.first_lsn)]

    def add(self, body: bytes, *, kind: int, group: int, term: int, index: int) -> tuple[int, int]:
        """Collect one record; returns its LSN and the offset of its header. The caller must have made room."""
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
        return lsn, offset

    def sync(self) -> int:
        """Write and sync everything collected; returns the synced LSN."""
        self.check()
        if self.synced_lsn == self.last_lsn:
            return self.synced_lsn
        buffers, self._pending = self._pending, []
        with self.final(f"write {self.active.path}"):
            written = write_fully(self.active.file, buffers, self._written)
            assert written == self._position
            self.active.file.sync_data()
        self.stats.syncs += 1
        self._written = written
        self.extent = (self.active, written)
        self.written_lsn = self.synced_lsn = self.last_lsn
        return self.synced_lsn

    @contextmanager
    def refusing(self, doing: str) -> Iterator[None]:
        """Context of a step that leaves nothing behind if it fails: a full disk raises LogFull, and does no harm."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise LogFull(f"no room on the disk to {doing}: {error}") from error

    def final(self, doing: str) -> Final:
        """See Final."""
        return Final(self, doing)
