"""The simulated disk (support/log/disk.py) as a node of the simulation sees it: slow at times, and able to say what
it is doing when a fault strikes."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from quorum.log.errors import LogDamaged, LogError, LogFailed, LogFull
from quorum.log.record import HEADER_BYTES
from quorum.log.segment_files.segments import SNAPSHOTS
from quorum.log.store import Store
from quorum.log.table import PLACE_SHIFT
from support.log.disk import SECTOR, Do, Inode, SimDisk, SimFile

if TYPE_CHECKING:
    from simulator.machines.node import Node

SYNC_MS = (0, 0, 1, 1, 2)
SLOW_FOR_MS = 2_500
"""A slow disk is slow for so long. No time passes within a step, so a step with many syncs counts its own delay."""


class FaultyDisk(SimDisk):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.node: Node | None = None
        self.slow_ms = 0
        """how long a sync takes, beside the usual"""
        self.is_full = False
        self.refused = self._is_found_full
        self.is_rotten = False
        """a bit of what it had synced has turned"""
        self.has_failed = False
        """an operation of this process has failed"""
        self.is_saving_snapshot = False
        self.has_saved_snapshot = False
        """in this step"""
        self.drops_all = False
        """of what is not synced, the next power cut leaves nothing"""
        self._undo: list[tuple[Inode, int, dict[int, bytes], dict[int, list[bytes]], list[int]]] = []
        """what the last sync of this step has made durable, which it does only when it is done"""

    def begin_step(self) -> None:
        self._undo.clear()
        self.has_saved_snapshot = False

    def power_cut(self, seed: int) -> None:
        """In the middle of a sync, what it was about to make durable is as unsure as before."""
        node = self.node
        if node is not None and node.is_syncing:
            for inode, length, sectors, versions, lengths in reversed(self._undo):
                for number, data in sectors.items():
                    inode.durable[number * SECTOR : number * SECTOR + len(data)] = data
                inode.set_durable_length(length)
                for number, before in versions.items():
                    inode.versions[number] = before + inode.versions.get(number, [])
                inode.lengths[:0] = lengths
        self._undo.clear()
        if self.drops_all:
            self.drops_all = False
            self.name_changes.clear()
            for kept in self.durable_names.values():
                kept.forget()
        super().power_cut(seed)

    def change(self, what: str, do: Do, instead: Do | None = None) -> None:
        node = self.node
        number = len(self.operations)
        if node is None:
            super().change(what, do, instead)
            return
        self._undo.clear()  # whatever comes after a sync was waiting for it
        if what == "sync":
            slow_ms = self.slow_ms if node.delay_ms < SLOW_FOR_MS else 0
            node.delay_ms += self.chance.choice(SYNC_MS) + slow_ms
            if self.slow_ms:
                node.world.faults.land_once("disk slow", node)
            self._remember(do)
        if number in self.fail_at:
            self.has_failed = True
            node.world.faults.land("disk error", node)
        elif number == self.crash_at:
            node.world.faults.land("power cut in a write", node)
        super().change(what, do, instead)

    def _remember(self, do: Do) -> None:
        inode = do.__self__  # type: ignore[attr-defined]
        assert isinstance(inode, Inode)
        durable, dirty = inode.durable, inode.versions
        sectors = {number: bytes(durable[number * SECTOR : (number + 1) * SECTOR]) for number in dirty}
        self._undo.append((inode, len(durable), sectors, dict(dirty), list(inode.lengths)))

    def create(self, path: Path) -> SimFile:
        self.is_saving_snapshot = SNAPSHOTS in path.parts
        return super().create(path)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.has_saved_snapshot |= self.is_saving_snapshot
        self.is_saving_snapshot = False

    def restart(self) -> None:
        super().restart()
        self.is_saving_snapshot = self.has_failed = False

    def fill(self, is_full: bool) -> None:
        self.is_full = is_full
        self.room = 0 if is_full else 1 << 40

    def _is_found_full(self) -> None:
        if self.node is not None:
            self.node.world.faults.land_once("disk full", self.node)

    def explains(self, error: Exception) -> bool:
        """Whether a fault of this disk is the reason for what stopped its node."""
        if self.is_full and isinstance(error, LogFull):
            return True
        if self.is_rotten and isinstance(error, LogDamaged):
            return True
        return self.has_failed and isinstance(error, LogError | OSError)

    def arm(self, after: int, error: bool) -> None:
        """The n-th changing operation from now fails, or is the last."""
        at = len(self.operations) + after
        if error:
            self.fail_at = {at: errno.EIO}
        else:
            self.crash_at = at

    def disarm(self) -> None:
        self.crash_at, self.fail_at, self.slow_ms = None, {}, 0
        self.fill(False)

    def damage_entry(self, store: Store, group: int, index: int) -> Path | None:
        """Turns one bit of this entry's body, where it is in a sealed segment and synced; where, or None."""
        try:
            found, segment = store.look_up(group, index)
        except LogFailed:
            return None  # the disk has failed, and the member has made no step since
        if segment is None:
            return None
        store.release(segment)
        newest = max(
            path for path in self.names if path.parent == segment.path.parent and path.suffix == ".log"
        )
        if found is None or not found.length or segment.path not in self.names or segment.path == newest:
            return None
        first = ((found.place & (1 << PLACE_SHIFT) - 1) + HEADER_BYTES) * 8
        if first // 8 + found.length > len(self.names[segment.path].durable):
            return None
        self.flip(segment.path, first + self.chance.randrange(found.length * 8))
        return segment.path

    def rot(self) -> tuple[Path, int] | None:
        """Turns one bit of what has certainly been synced: of a segment's first half, or of the manifest."""
        found = []
        for path in sorted(self.names):
            data = self.names[path].durable
            used = len(data.rstrip(b"\0"))
            if used > 256 and path.name != "LOCK":
                found.append((path, used // 2))
        if not found:
            return None
        path, length = self.chance.choice(found)
        bit = self.chance.randrange(length * 8)
        self.flip(path, bit)
        self.is_rotten = True
        return path, bit
