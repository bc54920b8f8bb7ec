"""One group's part of the log as a Raft journal: entries, terms, hard state, snapshots.

The journal holds no bodies: entries are read back through the log. Every change is a record in the log, and counts once
the log's synced LSN has reached it. Only the log's thread may call it.

The view is first_index .. last_index; it is empty if last_index is first_index - 1. The term of the entry just before
first_index is known too, so that an append after it can be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quorum.log.contents import encode_number, encode_vote
from quorum.log.errors import Damage, LogDamaged, LogError, LogFull
from quorum.log.files import NO_DESCRIPTORS, NO_ROOM
from quorum.log.record import RecordKind
from quorum.log.snapshots.kept_snapshots import SnapshotStore
from quorum.log.snapshots.received import ReceivedSnapshot
from quorum.log.snapshots.snapshot_files import SnapshotFile
from quorum.log.table import GroupTable


class Appender(Protocol):
    """The part of the log that journals use. `Log` describes its methods."""

    @property
    def last_lsn(self) -> int: ...

    @property
    def synced_lsn(self) -> int: ...

    def append(
        self, kind: RecordKind, group: int, term: int, index: int, parts: Sequence[bytes | memoryview] = ()
    ) -> int: ...

    def sync(self) -> int: ...

    def read(self, group: int, index: int) -> bytes: ...

    def term_below_view(self, group: int, index: int) -> int | None: ...

    def fail(self, error: OSError, doing: str) -> LogError: ...

    def release_reserve(self) -> bool: ...


class Journal:
    """The Raft journal of one group."""

    def __init__(self, log: Appender, group: int, table: GroupTable, snapshots: SnapshotStore) -> None:
        self._log = log
        self.group = group
        self._table = table
        self._snapshots = snapshots

    # ---- entries

    @property
    def first_index(self) -> int:
        """The first entry of the view."""
        return self._table.first_index

    @property
    def last_index(self) -> int:
        """The last entry; first_index - 1 if there is none."""
        return self._table.last_index

    def term_at(self, index: int) -> int:
        """The term of an entry from first_index - 1 to last_index; EntryMissing elsewhere."""
        return self._table.term_at(index)

    def length_at(self, index: int) -> int:
        """The length in bytes of the body of an entry of the view."""
        table = self._table
        return table.lengths[table.at(index)]

    def indices_of_length(self, length: int) -> list[int]:
        """Entries of the view whose body has exactly this many bytes, in order."""
        return self._table.indices_of_length(length)

    def lsn_at(self, index: int) -> int:
        """The LSN of an entry of the view. The entry is durable once synced_lsn has reached it."""
        table = self._table
        return table.lsns[table.at(index)]

    def read(self, index: int) -> bytes:
        """The body of an entry."""
        return self._log.read(self.group, index)

    def append(self, parts: Sequence[bytes | memoryview], index: int, term: int) -> int:
        """Append an entry and return its LSN. index must be last_index + 1, and term must not decrease."""
        return self._log.append(RecordKind.ENTRY, self.group, term, index, parts)

    def truncate_from(self, index: int) -> int:
        """Cut the entries from index on, and return the LSN of the record that says so. index must be in the view."""
        return self._log.append(RecordKind.TRUNCATE, self.group, 0, index)

    def compact_to(self, index: int, term: int) -> int:
        """Remove the entries below index from the view, because a durable snapshot covers them. Their bodies stay
        readable as long as they are retained.

        Entry index itself stays, so its term is known; term is compared with it. If there is no entry below index,
        nothing is written and the newest LSN is returned.
        """
        if index <= self._table.first_index:
            return self._log.last_lsn
        return self._log.append(RecordKind.COMPACT, self.group, term, index)

    def reset_to_snapshot(self, index: int, term: int, *, keep_bodies_to: int = 0) -> int:
        """Replace the whole view with an installed snapshot at (index, term): the next entry is index + 1.

        Bodies of entries above keep_bodies_to can no longer be read; up to there (at most the commit index that this
        member had) they still can.
        """
        return self._log.append(RecordKind.RESET, self.group, term, index, [encode_number(keep_bodies_to)])

    def memory_bytes(self) -> int:
        """Bytes of memory that the index of this group's entries uses."""
        return self._table.memory_bytes()

    # ---- hard state

    @property
    def hard_state(self) -> tuple[int, str | None]:
        """Term and vote as last set; (0, None) in a new group."""
        return self._table.hard_term, self._table.vote

    @property
    def hard_state_lsn(self) -> int:
        """The LSN of the record that set the hard state, 0 if none did."""
        return self._table.hard_state_lsn

    def set_hard_state(self, term: int, vote: str | None) -> int:
        """Set term and vote, and return the LSN at which they are durable. The term must not decrease."""
        return self._log.append(RecordKind.HARD_STATE, self.group, term, 0, [encode_vote(vote)])

    # ---- snapshots

    def save_snapshot(self, index: int, term: int, state: bytes) -> None:
        """Save a snapshot durably; the last two are kept.

        The entries it covers, as far as this log has them, are synced first, so that a snapshot never knows more of
        this member's own log than the log itself does. LogFull if neither the disk nor the reserve has space: the
        earlier snapshots are then unchanged.
        """
        self._sync_to(index)
        self._write(lambda: self._snapshots.save(index, term, state), f"at {index}")

    def receive_snapshot(self, index: int, term: int, size: int, crc: int) -> ReceivedSnapshot:
        """Open a file for another member's snapshot, which arrives in pieces. Pieces of the same snapshot that an
        earlier process received are still there.

        size, crc: of the snapshot's state. LogFull, here and from the file's methods: nothing has changed.
        """

        def write(do: Callable[[], None]) -> None:
            self._write(do, f"at {index} from another member")

        def keep(received: ReceivedSnapshot) -> None:
            self._sync_to(index)
            write(lambda: self._snapshots.keep(received))

        return self._snapshots.receive(index, term, size, crc, write, keep)

    def _sync_to(self, index: int) -> None:
        table = self._table
        if table.first_index <= index <= table.last_index and self.lsn_at(index) > self._log.synced_lsn:
            self._log.sync()

    def _write(self, do: Callable[[], None], which: str) -> None:
        """Call do(), which writes to snapshot files. It may be called again if there was no space."""
        doing = f"save a snapshot of group {self.group} {which}"
        while True:
            try:
                return do()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise self._log.fail(error, doing) from error
                if error.errno in NO_DESCRIPTORS or not self._log.release_reserve():
                    raise LogFull(f"no room on the disk to {doing}: {error}") from error

    def load_snapshot(self) -> tuple[int, int, bytes] | None:
        """The newest good snapshot as (index, term, state), or None if there is none; the view follows it.

        If the newest is damaged, the one before it is taken, and the view begins earlier, so that no entry between is
        missed; LogDamaged if those entries are not here. If the snapshot is of another history than the entries, or
        ahead of them, an installation was interrupted. It is then finished, and the view becomes empty after it.
        """
        found = self._snapshots.load()
        index, term = (0, 0) if found is None else (found[0], found[1])
        table = self._table
        if index + 1 < table.first_index:
            self._widen(index, term)
        elif index > table.last_index or table.term_at(index) != term:
            # The entries that an earlier snapshot covered were committed; for later bodies here that is unknown.
            committed = table.first_index - 1
            self.reset_to_snapshot(index, term, keep_bodies_to=min(index, committed))
            self._log.sync()
        return found

    def load_older_snapshots(self, than: int) -> list[tuple[int, int, bytes]]:
        """All good snapshots that are kept below this index, newest first, as (index, term, state). Changes nothing."""
        return self._snapshots.load_older(than)

    def snapshot_indices(self) -> list[int]:
        """Indexes of the kept snapshots that are not known to be damaged, newest first. What they refer to must be
        kept."""
        return self._snapshots.indices()

    def open_snapshot(self) -> SnapshotFile | None:
        """The newest snapshot, to be read piece by piece; the caller closes it. Changes nothing."""
        return self._snapshots.open()

    def discard_snapshots(self, reason: str) -> None:
        """Mark all snapshots here as unusable; the next saved snapshot replaces them."""
        self._snapshots.discard(reason)

    def remove_snapshots_before(self, index: int) -> None:
        """Remove the snapshots below this index, durably, because their states are wrong."""
        try:
            self._snapshots.remove_before(index)
        except OSError as error:
            raise self._log.fail(error, f"remove snapshots of group {self.group}") from error

    def note_damaged_snapshot(self, index: int, term: int, reason: str) -> None:
        """Note that this snapshot could not be read to its end: it is not offered again."""
        self._snapshots.note_damaged(index, term, reason)

    def check_snapshots(self) -> tuple[int, list[Damage]]:
        """Read and check the kept snapshots; returns the bytes checked and the damages. Any thread."""
        return self._snapshots.check()

    def _widen(self, index: int, term: int) -> None:
        """Begin the view early enough to follow a snapshot at (index, term); LogDamaged if entries are missing."""
        first_term = self._log.term_below_view(self.group, index + 1)
        if first_term is None:
            needed = self._table.first_index - 1
            reason = f"group {self.group} needs a snapshot at {needed} or later, the best here is at {index}"
            path = str(self._snapshots.directory)
            raise LogDamaged(Damage(path, 0, None, reason, groups=(self.group,)))
        self._log.append(RecordKind.COMPACT, self.group, first_term, index + 1, [encode_number(term)])
        self._log.sync()

    @property
    def damaged_snapshots(self) -> tuple[str, ...]:
        """Snapshot files that cannot be used, with the reason; they are removed when the next one is saved."""
        return self._snapshots.damaged
