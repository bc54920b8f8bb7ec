"""One group's journal in the node's log, in the form that PySyncObj expects of a journal.

The library expects a list of (command, index, term). No such list is kept: an entry is made on demand from the log's
index. Its body knows its length, and is read only when it is sent or applied.

The view is base .. last_index. Only the term of the entry at base is known: that entry is the one just before the log's
first_index, or entry 1, with which every group begins. A snapshot contains everything below base.

Durability is a position. `durable_index` is the last entry whose record the log has synced, together with every earlier
record of this group. `last_lsn` is what a message that promises anything about this group depends on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import overload

from quorum.log.errors import EntryMissing, LogDamaged
from quorum.replication.configuration import (
    CONFIGURATION,
    CONFIGURATION_BYTES,
    Configuration,
    Configurations,
    unwrap_state,
)
from quorum.replication.errors import ReplicationFailed, WireError
from quorum.replication.storage import NodeLog

QUARANTINED = ""
"""Stored in the place of a vote when this member's vote is lost (quarantine.py). No member has this name."""
KEPT_STEP_BYTES = 1 << 20
"""The accuracy of `KeptBytes`, in bytes."""


class LazyBody:
    """An entry's body that is still in the log."""

    __slots__ = ("_view", "index")

    def __init__(self, view: JournalView, index: int) -> None:
        self._view = view
        self.index = index

    def __len__(self) -> int:
        return self._view.length_at(self.index)

    def read(self) -> bytes:
        """The bytes, the type byte first."""
        return self._view.read(self.index)


ViewEntry = tuple[LazyBody, int, int]


class EntryRange(Sequence[ViewEntry]):
    """A slice of the view that reads entries only on access; it must not be used after the next change."""

    __slots__ = ("_range", "_view")

    def __init__(self, view: JournalView, indices: range) -> None:
        self._view = view
        self._range = indices

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, at: int) -> ViewEntry: ...
    @overload
    def __getitem__(self, at: slice) -> EntryRange: ...
    def __getitem__(self, at: int | slice) -> ViewEntry | EntryRange:
        if isinstance(at, slice):
            return EntryRange(self._view, self._range[at])
        return self._view.entry(self._range[at])

    def __iter__(self) -> Iterator[ViewEntry]:
        return map(self._view.entry, self._range)


class KeptBytes:
    """The index at which the newest `limit` bytes of applied entries begin, accurate to a megabyte; it costs no memory
    per entry."""

    def __init__(self, limit: int) -> None:
        self._marks: deque[int] = deque(maxlen=max(1, -(-limit // KEPT_STEP_BYTES)) + 1)
        self._since = 0

    def add(self, index: int, size: int) -> None:
        """Add an entry; entries come in their order. An entry that is added again counts again, which keeps less than
        the limit."""
        self._since += size
        if self._since >= KEPT_STEP_BYTES:
            self._since = 0
            self._marks.append(index)

    @property
    def first_index(self) -> int:
        """The first entry to be kept, 0 while it is not known."""
        return self._marks[0] if len(self._marks) == self._marks.maxlen else 0


class JournalView:
    """PySyncObj's Journal over a group's journal. Made once, when the group starts."""

    def __init__(self, log: NodeLog, group: int) -> None:
        self.log = log
        self.group = group
        self.journal = log.journal(group)
        self.base = self.last_index = self.last_term = 0
        """The first index whose term is known, and index and term of the last entry; each change of the journal sets
        them."""
        found = self._load_snapshot()
        self.snapshot_index, self.snapshot_term = (0, 0) if found is None else found[:2]
        self.snapshot_state: bytes | None = None if found is None else found[2]
        """The snapshot's state, until the group's first tick."""
        self.durable_index = self.last_index
        self.last_lsn = log.last_lsn
        self._founders = Configuration()
        self.configurations = Configurations(Configuration())
        """The configurations in the log; `begin` fills it."""
        self.unread: dict[int, str] = {}
        """Unreadable entries that may be configurations, with the reason: see `read_again`."""
        self._unsynced: deque[tuple[int, int]] = deque()
        self.is_quarantined = self.journal.hard_state[1] == QUARANTINED

    def begin(self, founders: Configuration) -> None:
        """Find the configurations in the journal, before anything is appended, and take the first one off the
        snapshot's state. founders: the configuration that the group began with. WireError if the state is invalid."""
        first = self._founders = founders
        if self.snapshot_state is not None:
            first, self.snapshot_state = unwrap_state(self.snapshot_state)
        self._find_configurations(first)

    def _find_configurations(self, first: Configuration) -> None:
        """first: the configuration in the snapshot, or the one that the group began with."""
        known = self.configurations
        self.configurations = Configurations(first, max(1, self.snapshot_index))
        self.unread = {}
        for index in self.journal.indices_of_length(CONFIGURATION_BYTES):
            if index <= self.snapshot_index:
                continue
            found = known.entry(index)
            if found is not None:
                self.configurations.appended(index, found)
            else:
                self._read_candidate(index)

    def read_again(self) -> None:
        """Read again the unreadable entries that may be configurations; they may have been repaired. Until then this
        member does not know the members of the group. It still votes and acknowledges, because neither needs them."""
        for index in list(self.unread):
            self._read_candidate(index)

    def _read_candidate(self, index: int) -> None:
        try:
            body = self.read(index)
        except (EntryMissing, LogDamaged) as error:
            self.unread[index] = str(error)
            return
        self.unread.pop(index, None)
        if body[0] == CONFIGURATION:
            self.configurations.insert(index, Configuration.decode(body[1:]))

    def _forget_unread(self, first: int, last: int) -> None:
        self.unread = {index: why for index, why in self.unread.items() if not first <= index <= last}

    # ---- for this package

    def look_at_journal(self) -> None:
        """Note where the journal begins and ends. To be called after each change of it but an append."""
        journal = self.journal
        self.base = max(1, journal.first_index - 1)
        self.last_index = journal.last_index
        self.last_term = journal.term_at(self.last_index)

    def term_at(self, index: int) -> int:
        """The term of an entry from base to last_index."""
        return self.last_term if index == self.last_index else self.journal.term_at(index)

    def entry(self, index: int) -> ViewEntry:
        """The entry at an index, from base to last_index."""
        return LazyBody(self, index), index, self.term_at(index)

    def length_at(self, index: int) -> int:
        """The length of an entry's body; 0 for the one just before the journal's first."""
        return self.journal.length_at(index) if index >= self.journal.first_index else 0

    def read(self, index: int) -> bytes:
        """The body of an entry, type byte included; also below base while the log has it."""
        return self.log.read(self.group, index)

    def note_synced(self) -> int:
        """Move durable_index to what the log has synced; returns the new value."""
        unsynced = self._unsynced
        if unsynced:
            synced = self.log.synced_lsn
            while unsynced and unsynced[0][1] <= synced:
                self.durable_index = unsynced.popleft()[0]
        return self.durable_index

    # ---- snapshots

    def _load_snapshot(self) -> tuple[int, int, bytes] | None:
        """Load the newest readable snapshot. The journal may begin and end elsewhere then, because it follows the
        snapshot."""
        found = self.journal.load_snapshot()
        self.look_at_journal()
        return found

    def load_again(self) -> bytes | None:
        """Load the newest readable snapshot, which may be older than the last one kept or installed. The view uses it
        from now on. Returns its state; None if there is no snapshot: everything is in the journal."""
        found = self._load_snapshot()
        self.snapshot_index, self.snapshot_term = (0, 0) if found is None else found[:2]
        first, state = self._founders, None
        if found is not None:
            try:
                first, state = unwrap_state(found[2])
            except WireError as error:
                raise ReplicationFailed(f"group {self.group} has an invalid snapshot: {error}") from error
        self._find_configurations(first)
        return state

    def save_snapshot(self, index: int, state: bytes) -> None:
        """Save the state at an applied index, durably. LogFull changes nothing."""
        term = self.term_at(index)
        self.journal.save_snapshot(index, term, state)
        self.snapshot_index, self.snapshot_term = index, term

    def compact(self, keep_from: int) -> None:
        """Remove entries below keep_from from the view, as far as the snapshot covers them."""
        keep_from = min(keep_from, self.snapshot_index, self.last_index)
        if keep_from > self.journal.first_index:
            self.last_lsn = self.journal.compact_to(keep_from, self.term_at(keep_from))
            self.look_at_journal()

    def install_snapshot(
        self,
        index: int,
        term: int,
        commit_index: int,
        configuration: Configuration,
        proven_index: int = 0,
    ) -> None:
        """Continue from a kept snapshot, durably. Later entries stay if they follow from it (Raft §7). Otherwise bodies
        stay readable up to proven_index, because they are known to be of its history, or up to commit_index."""
        self.snapshot_index, self.snapshot_term = index, term
        follows = self.base <= index <= self.last_index and self.term_at(index) == term
        self.configurations.begin_at(index, configuration, keeps_later=follows)
        self._forget_unread(0, index if follows else self.last_index)
        if not follows:
            self.last_lsn = self.journal.reset_to_snapshot(
                index, term, keep_bodies_to=min(index, max(commit_index, proven_index))
            )
            self.look_at_journal()
            self._unsynced.clear()
            self._unsynced.append((index, self.last_lsn))
            self.durable_index = min(self.durable_index, commit_index)

    # ---- quarantine

    def end_quarantine(self) -> None:
        """Store votes again; the mark is removed with the next one."""
        self.is_quarantined = False

    # ---- for the library

    def add(self, command: bytes | memoryview, idx: int, term: int) -> None:
        self.append([command], idx, term)
        if command[0] == CONFIGURATION:
            self.configurations.appended(idx, Configuration.decode(command[1:]))

    def append(self, parts: Sequence[bytes | memoryview], index: int, term: int) -> None:
        """Append an entry."""
        self.last_lsn = lsn = self.journal.append(parts, index, term)
        self.last_index, self.last_term = index, term
        self._unsynced.append((index, lsn))

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Cut entries; the library counts from the view's start."""
        index = self.base + entryFrom
        if index > self.last_index:
            return
        self.last_lsn = self.journal.truncate_from(index)
        self.look_at_journal()
        self.configurations.cut(index)
        self._forget_unread(index, max(self.unread, default=0))
        while self._unsynced and self._unsynced[-1][0] >= index:
            self._unsynced.pop()
        self.durable_index = min(self.durable_index, index - 1)

    def deleteEntriesTo(self, entryTo: int) -> None:
        raise ReplicationFailed("the library wanted to compact the journal: only Group.save_snapshot may")

    def clear(self) -> None:
        raise ReplicationFailed(
            "the library wanted to clear the journal: only the group may, with a snapshot"
        )

    @overload
    def __getitem__(self, at: int) -> ViewEntry: ...
    @overload
    def __getitem__(self, at: slice) -> EntryRange: ...
    def __getitem__(self, at: int | slice) -> ViewEntry | EntryRange:
        base = self.base
        indices = range(base, self.last_index + 1)
        if isinstance(at, slice):
            return EntryRange(self, indices[at])
        return self.entry(indices[at])

    def __len__(self) -> int:
        return max(0, self.last_index - self.base + 1)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Ignored: after a start the leader tells the commit index."""

    def getRaftCommitIndex(self) -> int:
        """The entries that are certainly committed: those in the snapshot, or the entry that every group begins
        with."""
        return max(1, self.snapshot_index)

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        vote = QUARANTINED if self.is_quarantined else votedForNodeId
        self.last_lsn = self.journal.set_hard_state(term, vote)

    def getCurrentTerm(self) -> int:
        return self.journal.hard_state[0]

    def getVotedForNodeId(self) -> str | None:
        return self.journal.hard_state[1]

    def onOneSecondTimer(self) -> None:
        """Does nothing: no work here waits for a second."""

    def _destroy(self) -> None:
        """Does nothing: the log belongs to the node."""
