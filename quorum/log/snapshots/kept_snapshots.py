"""The snapshots that a log keeps of one group: the last two, so that one damaged file is not fatal.

A file is written under a temporary name, synced and renamed, and its directory is synced. The file of a snapshot that
another member sends is written as it arrives (received.py). snapshot_files.py describes the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from quorum.log.errors import Damage
from quorum.log.files import Files, commit_file, prepare_file, read_file
from quorum.log.record import extend_crc32c
from quorum.log.segment_files.segments import SNAPSHOTS
from quorum.log.snapshots.received import ReceivedSnapshot, Write, parse_received_name, received_name
from quorum.log.snapshots.snapshot_files import (
    CHUNK_BYTES,
    SnapshotDamaged,
    SnapshotFile,
    decode_snapshot,
    encode_header,
    encode_snapshot,
    parse_name,
    snapshot_name,
)

KEPT = 2


class SnapshotStore:
    """The snapshot files of one group."""

    def __init__(self, files: Files, directory: Path, group: int) -> None:
        self.directory = directory / SNAPSHOTS
        self._files = files
        self._group = group
        self._damaged: dict[str, str] = {}
        self._receiving = ""
        """the name of the file that is being received now, or was last"""
        self._good: frozenset[str] = frozenset()
        """The kept files that were saved or loaded in this process; replaced as a whole, for any thread."""

    @property
    def damaged(self) -> tuple[str, ...]:
        """Names of files that could not be used, with the reason."""
        return tuple(f"{name}: {reason}" for name, reason in self._damaged.items())

    def save(self, index: int, term: int, state: bytes) -> None:
        """Save a snapshot durably, and remove all but the two newest good ones."""
        self._files.make_directory(self.directory)
        path = self.directory / snapshot_name(self._group, index, term)
        prepare_file(self._files, path, encode_snapshot(self._group, index, term, state))
        commit_file(self._files, path)
        self._saved(path.name)

    def receive(
        self,
        index: int,
        term: int,
        size: int,
        crc: int,
        write: Write,
        keep: Callable[[ReceivedSnapshot], None],
    ) -> ReceivedSnapshot:
        """Open the file for a snapshot that arrives in pieces, with the pieces already there. Other unfinished files
        are removed."""
        name = received_name(self._group, index, term, size, crc)
        self._receiving = name

        def begin() -> None:
            self._files.make_directory(self.directory)
            self._remove_begun()

        write(begin)
        return ReceivedSnapshot(
            self._files,
            self.directory / name,
            index,
            term,
            size,
            crc,
            encode_header(self._group, index, term, size),
            write,
            lambda path: SnapshotFile(self._files, path, self._group),
            keep,
        )

    def keep(self, received: ReceivedSnapshot) -> None:
        """Put a complete received snapshot in place, as `save` does."""
        path = self.directory / snapshot_name(self._group, received.index, received.term)
        received.move(path)
        self._saved(path.name)

    def _remove_begun(self, to_index: int | None = None) -> None:
        """Remove unfinished files of snapshots up to this index."""
        for name in self._listed():
            found = parse_received_name(name)
            if found is None or found[0] != self._group or name == self._receiving:
                continue
            if to_index is None or found[1] <= to_index:
                self._files.unlink(self.directory / name)

    def _saved(self, name: str) -> None:
        self._damaged.pop(name, None)
        self._remove_begun(_index(name))
        names = self._names()
        kept = self._staying(names)
        self._good = frozenset(kept)
        for found in names:
            if found not in kept:
                self._files.unlink(self.directory / found)
                self._damaged.pop(found, None)

    def load(self) -> tuple[int, int, bytes] | None:
        """The newest complete snapshot, or None."""
        names = self._names()
        if names:  # the last process may have died between renaming a file and syncing that name
            self._files.sync_directory(self.directory)
        return next(self._whole(names), None)

    def load_older(self, than: int) -> list[tuple[int, int, bytes]]:
        """All complete snapshots below this index, newest first."""
        return list(self._whole([name for name in self._names() if _index(name) < than]))

    def _whole(self, names: list[str]) -> Iterator[tuple[int, int, bytes]]:
        """The complete ones of these files, read one by one."""
        for name in names:
            try:
                found = decode_snapshot(read_file(self._files, self.directory / name), self._group)
            except (SnapshotDamaged, OSError) as error:
                self._damaged[name] = str(error)
            else:
                self._good |= {name}
                yield found

    def indices(self) -> list[int]:
        """Indexes of the kept snapshots: the two newest not known to be damaged, newest first."""
        return [_index(name) for name in self._staying(self._names())]

    def check(self) -> tuple[int, list[Damage]]:
        """Read the good files completely; returns the bytes read, and the ones that are damaged. Any thread."""
        checked, damages = 0, []
        for name in sorted(self._good):
            try:
                checked += self._check(name)
            except (SnapshotDamaged, OSError) as error:
                if name in self._good:  # else another one has replaced it meanwhile
                    damages.append(Damage(str(self.directory / name), 0, None, str(error)))
        return checked, damages

    def _check(self, name: str) -> int:
        file = SnapshotFile(self._files, self.directory / name, self._group)
        try:
            crc = 0
            for offset in range(0, file.size, CHUNK_BYTES):
                crc = extend_crc32c(crc, file.read(offset, CHUNK_BYTES))
            if crc != file.crc:
                raise SnapshotDamaged("the footer is wrong")
            return file.size
        finally:
            file.close()

    def open(self) -> SnapshotFile | None:
        """The newest snapshot not known to be damaged, to be read piece by piece, or None."""
        for name in self._staying(self._names()):
            try:
                return SnapshotFile(self._files, self.directory / name, self._group)
            except (SnapshotDamaged, OSError) as error:
                self._damaged[name] = str(error)
        return None

    def discard(self, reason: str) -> None:
        """Mark all snapshots here as unusable; the next saved snapshot replaces them."""
        for name in self._names():
            self._damaged[name] = reason
        self._good = frozenset()

    def remove_before(self, index: int) -> None:
        """Remove the snapshots below this index, because their states are wrong."""
        for name in self._names():
            if _index(name) < index:
                self._files.unlink(self.directory / name)
                self._damaged.pop(name, None)
                self._good -= {name}
        self._files.sync_directory(self.directory)

    def note_damaged(self, index: int, term: int, reason: str) -> None:
        """Note that a snapshot could not be read to its end."""
        name = snapshot_name(self._group, index, term)
        self._damaged[name] = reason
        self._good -= {name}

    def _staying(self, names: list[str]) -> list[str]:
        """The kept ones of these names, newest first: a power cut may have restored older ones."""
        return [name for name in names if name not in self._damaged][:KEPT]

    def _names(self) -> list[str]:
        """This group's files, newest first."""
        found = [
            (index, term, name)
            for name in self._listed()
            for group, index, term in filter(None, [parse_name(name)])
            if group == self._group
        ]
        return [name for _, _, name in sorted(found, reverse=True)]

    def _listed(self) -> list[str]:
        try:
            return self._files.list_directory(self.directory)
        except FileNotFoundError:
            return []


def _index(name: str) -> int:
    found = parse_name(name)
    assert found is not None
    return found[1]
