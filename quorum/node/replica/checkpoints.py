"""A group's checkpoints in the node's log: pages, references of the kept snapshots, and snapshots for followers.

A checkpoint's state (fifo/persistence/checkpoint.py) names pages of this node's log and means nothing elsewhere. So a
member that is too far behind receives the canonical snapshot, which is made from the checkpoint piece by piece while it
is being sent.

The log keeps the data that valid snapshots refer to, and calls the rest garbage. Valid snapshots are those that are
kept as files and not known to be damaged (quorum/log/snapshots/kept_snapshots.py decides which), and any that a
follower is being sent. The log is told after a snapshot is durable and before the next one is begun.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from fifo.index_sets import IndexSet
from fifo.messages.pages import Pages
from fifo.persistence import checkpoint, snapshot
from fifo.persistence.references import references
from quorum.log import EntryMissing, Log, LogDamaged, Retained, SnapshotFile
from quorum.log.record import crc32c, extend_crc32c
from quorum.node.errors import PageUnreadable
from quorum.replication.configuration import State, unwrap_state
from quorum.replication.group import Group
from quorum.replication.storage import SnapshotSource, SnapshotUnsendable

SLICE_BYTES = 1 << 20
"""Read of a snapshot that is being made ready for a follower before other work gets its turn: about a millisecond."""
SLICE_PIECES = 64
"""The same, counted in blocks and heads: each page is a read of its own."""


class LogPages:
    """A group's pages in the node's log."""

    def __init__(self, log: Log, group: int) -> None:
        self._log = log
        self._group = group
        self._unreadable: dict[int, str] = {}

    def write(self, queue: int, block: int, data: bytes) -> int:
        return self._log.write_page(self._group, [data])

    def read(self, page: int) -> bytes:
        """PageUnreadable if it is damaged, or not here."""
        try:
            return self._log.read_page(self._group, page)
        except (EntryMissing, LogDamaged) as error:
            self._unreadable[page] = str(error)
            raise PageUnreadable(self._group, page, str(error)) from error

    def take_unreadable(self) -> dict[int, str]:
        """Pages that could not be read since the last call, with the reason."""
        taken, self._unreadable = self._unreadable, {}
        return taken


def contents(state: bytes | memoryview | State) -> tuple[IndexSet, array[int]]:
    """(entries, pages) that a state refers to: a checkpoint of this node, a leader's snapshot, or the catalog's. A
    State is always a leader's."""
    if isinstance(state, State):
        is_of_queues = snapshot.is_snapshot(state.read(0, len(snapshot.MAGIC)))
    elif checkpoint.is_checkpoint(state):
        return checkpoint.contents(state)
    else:
        is_of_queues = snapshot.is_snapshot(state)
    return references(state) if is_of_queues else IndexSet(()), array("Q")


class ExportedSnapshot:
    """A snapshot file as a follower is sent it (a SnapshotSource): a checkpoint becomes the canonical snapshot, read
    from pages piece by piece; anything else is sent as it is.

    For its size and CRC everything has to be read once before the first piece leaves. `prepare` does that a slice at a
    time, so that the leader's thread does other work in between.
    """

    def __init__(self, file: SnapshotFile, pages: Pages, time_bytes: int) -> None:
        """Takes the file over. time_bytes: see Checkpoints."""
        self.index = file.index
        self.term = file.term
        self.size = self.crc = 0
        self._file = file
        self._pages = pages
        self._time_bytes = time_bytes
        self._is_canonical = False
        self._starts = array("Q", [0])
        self._head = b""
        self._export: checkpoint.Export | None = None
        self._piece: tuple[int, bytes] = (-1, b"")
        self._slices = self._all_slices()
        self._is_prepared = False

    def prepare(self) -> bool:
        """One slice; True once size and CRC are known. OSError, ValueError: the file is damaged. SnapshotUnsendable: a
        page is."""
        if not self._is_prepared:
            try:
                self._is_prepared = next(self._slices, True)
            except PageUnreadable as error:
                raise SnapshotUnsendable(str(error)) from error
        return self._is_prepared

    def _all_slices(self) -> Iterator[bool]:
        """False after each but the last."""
        data = bytearray(self._file.read(0, SLICE_BYTES))
        if not checkpoint.is_checkpoint(memoryview(unwrap_state(bytes(data))[1])[self._time_bytes :]):
            self._is_canonical = True
            self.size, self.crc = self._file.size, self._file.crc
            return
        while len(data) < self._file.size:
            yield False
            data += self._file.read(len(data), SLICE_BYTES)
        state = memoryview(unwrap_state(bytes(data))[1])[self._time_bytes :]
        self._head = bytes(data[: len(data) - len(state)])
        export = self._export = checkpoint.Export(state, self._pages)
        while not export.look_through(SLICE_PIECES):
            yield False
        yield from self._measure(export)

    def _measure(self, export: checkpoint.Export) -> Iterator[bool]:
        size, crc = len(self._head), crc32c(self._head)
        pieces = sliced = 0
        for number in range(len(export)):
            data = export.piece(number)
            self._starts.append(size)
            size += len(data)
            crc = extend_crc32c(crc, data)
            pieces, sliced = pieces + 1, sliced + len(data)
            if pieces >= SLICE_PIECES or sliced >= SLICE_BYTES:
                yield False
                pieces = sliced = 0
        self.size, self.crc = size, crc

    def read(self, offset: int, length: int) -> bytes:
        """A part of the snapshot; fewer bytes at its end, and where the part is spread over many pages. Raises as
        prepare."""
        if self._is_canonical:
            return self._file.read(offset, length)
        pieces: list[bytes] = []
        end = min(offset + length, self.size)
        while offset < end and len(pieces) < SLICE_PIECES:
            number = bisect_right(self._starts, offset) - 1
            if self._piece[0] != number:
                assert self._export is not None
                try:
                    self._piece = (number, self._export.piece(number - 1) if number else self._head)
                except PageUnreadable as error:
                    raise SnapshotUnsendable(str(error)) from error
            start = offset - self._starts[number]
            piece = self._piece[1][start : start + end - offset]
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Closes the file. It holds no pages: the log keeps them by the snapshot's index."""
        self._file.close()


class Checkpoints:
    """The data that the log has to keep for one group, and the source of its followers' snapshots."""

    def __init__(self, log: Log, group: int, raft: Group, time_bytes: int) -> None:
        """time_bytes: bytes before the machine's state in a snapshot."""
        self.pages = LogPages(log, group)
        self._log = log
        self._group = group
        self._raft = raft
        self._time_bytes = time_bytes
        self.is_sendable = True
        """The state is not known to be lost or wrong."""
        self._kept: dict[int, tuple[IndexSet, array[int]]] = {}
        """index of a valid snapshot -> the entries and the pages it refers to; ascending"""
        raft.send_snapshots_from(self.newest)

    def begin(self) -> None:
        """After a start, while the group still has the state that it restored: tells the log what the files refer
        to."""
        newest, state = self._raft.snapshot_index, self._raft.snapshot_state
        if state is not None:
            self._keep(newest, *contents(memoryview(state)[self._time_bytes :]))
            for index, _, data in self._log.journal(self._group).load_older_snapshots(newest):
                self._keep(index, *contents(memoryview(unwrap_state(data)[1])[self._time_bytes :]))
        self._tell()

    def rewound(self) -> None:
        """The group was reset to the newest snapshot that can be read; a snapshot above it is no longer valid."""
        self._tell()

    def saved(self, index: int, entries: IndexSet, pages: array[int]) -> None:
        """A snapshot is in place, durably, and refers to these entries and pages."""
        self._keep(index, entries, pages)
        self._tell()

    def installed(self, index: int, found: tuple[IndexSet, array[int]]) -> None:
        """A leader's snapshot is in place. found: its contents."""
        self.saved(index, *found)

    def _keep(self, index: int, entries: IndexSet, pages: array[int]) -> None:
        self._kept[index] = entries, pages

    def _tell(self) -> None:
        counting = {*self._log.journal(self._group).snapshot_indices(), *self._raft.pinned_snapshots()}
        was_told = bool(self._kept)
        self._kept = {index: self._kept[index] for index in sorted(self._kept) if index in counting}
        if was_told:  # with none left everything is to be applied again
            kept = [Retained(index, *what) for index, what in self._kept.items()]
            self._log.retain(self._group, kept or [Retained(0, array("Q"), array("Q"))])

    def refer_to(self, index: int) -> bool:
        """Whether a valid snapshot refers to this entry."""
        return any(index in entries for entries, _ in self._kept.values())

    def refer_to_page(self, page: int) -> bool:
        """Whether a valid snapshot refers to this page."""
        for _, pages in self._kept.values():
            at = bisect_left(pages, page)
            if at < len(pages) and pages[at] == page:
                return True
        return False

    def newest_entries(self) -> IndexSet:
        """The entries that the newest snapshot refers to."""
        return self._kept[max(self._kept)][0] if self._kept else IndexSet(())

    @property
    def kept(self) -> Sequence[int]:
        """The indices of the valid snapshots."""
        return tuple(self._kept)

    def newest(self) -> SnapshotSource | None:
        """The newest snapshot in the form that a follower is sent. None also where the state here is wrong, because the
        snapshots may be wrong too."""
        if not self.is_sendable:
            return None
        file = self._log.journal(self._group).open_snapshot()
        return None if file is None else ExportedSnapshot(file, self.pages, self._time_bytes)
