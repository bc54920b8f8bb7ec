"""A group's checkpoints in the node's log: pages, what the kept snapshots refer to, and what a follower is sent.

A checkpoint's state (fifo/checkpoint.py) names pages of this node's log and means nothing elsewhere, so a member that
is too far behind is sent the canonical snapshot, made from it piece by piece while it is being sent.

The log keeps what the snapshots that count refer to, and calls the rest garbage: the two that are kept as files, and
any that a follower is being sent. It is told after a snapshot is durable and before the next one is begun.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from fifo import checkpoint, snapshot
from fifo.index_sets import IndexSet
from fifo.references import references
from quorum.log import EntryMissing, Log, LogDamaged, Retained, SnapshotFile
from quorum.log.record import extend_crc32c
from quorum.node.healing import PageUnreadable
from quorum.replication.group import Group
from quorum.replication.membership import unwrap_state
from quorum.replication.transfer import SnapshotSource

KEPT = 2
"""Snapshots that stay as files (quorum/log/snapshots.py)."""


class LogPages:
    """A group's pages in the node's log."""

    def __init__(self, log: Log, group: int) -> None:
        self._log = log
        self._group = group

    def write(self, queue: int, block: int, data: bytes) -> int:
        return self._log.write_page(self._group, [data])

    def read(self, page: int) -> bytes:
        """PageUnreadable if it is damaged, or not here."""
        try:
            return self._log.read_page(self._group, page)
        except (EntryMissing, LogDamaged) as error:
            raise PageUnreadable(self._group, page, str(error)) from error


def contents(state: bytes | memoryview) -> tuple[IndexSet, array[int]]:
    """(entries, pages) that a state refers to: a checkpoint of this node, a leader's snapshot, or the catalog's."""
    if not is_of_queues(state):
        return IndexSet(()), array("Q")
    if checkpoint.is_checkpoint(state):
        return checkpoint.contents(state)
    return references(state), array("Q")


def is_of_queues(state: bytes | memoryview) -> bool:
    """Whether it is the state of a queue group, in either form."""
    return checkpoint.is_checkpoint(state) or snapshot.is_snapshot(state)


class ExportedSnapshot:
    """A checkpoint as the canonical snapshot, read from pages piece by piece (a SnapshotSource)."""

    def __init__(self, index: int, term: int, head: bytes, export: checkpoint.Export) -> None:
        """head: what stands before the snapshot. Reads everything once, for size and CRC."""
        self.index = index
        self.term = term
        self._head = head
        self._export = export
        self._starts = array("Q", [0])
        self._piece: tuple[int, bytes] = (0, head)
        size, crc = len(head), extend_crc32c(0, head)
        for number in range(len(export)):
            data = export.piece(number)
            self._starts.append(size)
            size += len(data)
            crc = extend_crc32c(crc, data)
        self.size = size
        self.crc = crc

    def read(self, offset: int, length: int) -> bytes:
        """Part of it, fewer bytes at its end."""
        pieces = []
        end = min(offset + length, self.size)
        while offset < end:
            number = bisect_right(self._starts, offset) - 1
            if self._piece[0] != number:
                self._piece = (number, self._export.piece(number - 1) if number else self._head)
            start = offset - self._starts[number]
            piece = self._piece[1][start : start + end - offset]
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Nothing is held; the group's retention is by index."""


class Checkpoints:
    """What the log has to keep for one group, and where its followers' snapshots come from."""

    def __init__(self, log: Log, group: int, raft: Group, time_bytes: int) -> None:
        """time_bytes: what stands before the machine's state in a snapshot."""
        self.pages = LogPages(log, group)
        self._log = log
        self._group = group
        self._raft = raft
        self._time_bytes = time_bytes
        self._kept: dict[int, Retained] = {}
        self._entries: dict[int, IndexSet] = {}
        """of those that are kept"""
        raft.send_snapshots_from(self.newest)

    def begin(self) -> None:
        """After a start: tells the log what the files refer to."""
        for index, _, data in self._log.journal(self._group).load_snapshots():
            self._keep(index, *contents(memoryview(unwrap_state(data)[1])[self._time_bytes :]))
        self._tell()

    def saved(self, index: int, entries: IndexSet, pages: array[int]) -> None:
        """A snapshot is in place, durably, and refers to these entries and pages."""
        self._keep(index, entries, pages)
        self._tell()

    def installed(self, index: int, state: bytes | memoryview) -> None:
        """A leader's snapshot is in place."""
        self.saved(index, *contents(state))

    def _keep(self, index: int, entries: IndexSet, pages: array[int]) -> None:
        self._entries[index] = entries
        self._kept[index] = Retained(index, entries, pages)

    def _tell(self) -> None:
        newest = sorted(self._kept)[-KEPT:]
        pinned = self._raft.pinned_snapshots()
        self._kept = {
            index: self._kept[index] for index in sorted(self._kept) if index in newest or index in pinned
        }
        self._entries = {index: self._entries[index] for index in self._kept}
        if self._kept:
            self._log.retain(self._group, list(self._kept.values()))

    def refer_to(self, index: int) -> bool:
        """Whether a snapshot that counts refers to this entry."""
        return any(index in entries for entries in self._entries.values())

    def refer_to_page(self, page: int) -> bool:
        """Whether a snapshot that counts refers to this page."""
        for retained in self._kept.values():
            at = bisect_left(retained.pages, page)
            if at < len(retained.pages) and retained.pages[at] == page:
                return True
        return False

    def newest_entries(self) -> IndexSet:
        """The entries that the newest snapshot refers to."""
        return self._entries[max(self._entries)] if self._entries else IndexSet(())

    @property
    def kept(self) -> Sequence[int]:
        """The indices of the snapshots that count."""
        return tuple(self._kept)

    def newest(self) -> SnapshotSource | None:
        """The newest snapshot as a follower has to be sent it."""
        file = self._log.journal(self._group).open_snapshot()
        return None if file is None else self._exported(file)

    def _exported(self, file: SnapshotFile) -> SnapshotSource | None:
        try:
            data = file.read(0, file.size)
            state = memoryview(unwrap_state(data)[1])[self._time_bytes :]
            if not checkpoint.is_checkpoint(state):
                return file
        except (OSError, ValueError) as error:
            file.close()
            self._log.journal(self._group).note_damaged_snapshot(file.index, file.term, str(error))
            return None
        file.close()
        head = data[: len(data) - len(state)]
        return ExportedSnapshot(file.index, file.term, head, checkpoint.Export(state, self.pages))
