"""A node's log in memory, with the contract of quorum.log and a disk that forgets what was not synced.

Everything is kept as the list of records appended; a crash keeps those up to the synced LSN and a random number of
the ones after it (an unsynced write may have reached the disk), and folds them again. Snapshots are durable at once,
as the contract says.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quorum.log.record import crc32c


class HeldSnapshot:
    """A snapshot in memory."""

    def __init__(self, index: int, term: int, state: bytes) -> None:
        self.index, self.term, self.size, self.crc = index, term, len(state), crc32c(state)
        self._state = state

    def prepare(self) -> bool:
        return True

    def read(self, offset: int, length: int) -> bytes:
        return self._state[offset : offset + length]

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class ModelDisk:
    """What outlives a crash."""

    records: list[tuple[Any, ...]] = field(default_factory=list)
    snapshots: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    synced: ModelLog | None = None
    """What the records up to the last sync amount to: what this member has promised to keep."""

    def holds(self, group: int, index: int, term: int) -> bool:
        """Whether this entry is safe here, as itself or in a snapshot."""
        if index <= self.snapshots.get(group, (0, 0, b""))[0]:
            return True
        assert self.synced is not None
        journal = self.synced.journal(group)
        if index < journal.first_index:
            return True
        return index <= journal.last_index and journal.term_at(index) == term

    def hard_state(self, group: int) -> tuple[int, str | None]:
        """Term and vote as safely kept."""
        assert self.synced is not None
        return self.synced.journal(group).hard_state


class ModelReceived:
    """A snapshot that comes in pieces; a crash loses what there is of it."""

    def __init__(self, journal: ModelJournal, index: int, term: int, size: int, crc: int) -> None:
        self._journal = journal
        self._at = (index, term)
        self._size = size
        self._crc = crc
        self._data = bytearray()

    @property
    def received(self) -> int:
        return len(self._data)

    @property
    def is_whole(self) -> bool:
        return len(self._data) == self._size

    def check(self) -> bool:
        return True

    def add(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        if offset == len(self._data):
            self._data += data

    def finish(self) -> bool:
        return crc32c(bytes(self._data)) == self._crc

    def open(self) -> HeldSnapshot:
        return HeldSnapshot(*self._at, bytes(self._data))

    def keep(self) -> None:
        self._journal.save_snapshot(*self._at, bytes(self._data))

    def drop(self) -> None:
        self._data.clear()


class ModelJournal:
    """One group's journal."""

    def __init__(self, log: ModelLog, group: int) -> None:
        self._log = log
        self._group = group
        self.first_index = 1
        self.before_term = 0
        self.entries: list[tuple[int, bytes]] = []
        self.hard_state: tuple[int, str | None] = (0, None)
        self.hard_state_lsn = 0
        self.bodies: dict[int, bytes] = {}

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1

    def term_at(self, index: int) -> int:
        if index == self.first_index - 1:
            return self.before_term
        if not self.first_index <= index <= self.last_index:
            raise LookupError(f"no entry {index} in {self.first_index}..{self.last_index}")
        return self.entries[index - self.first_index][0]

    def length_at(self, index: int) -> int:
        if not self.first_index <= index <= self.last_index:
            raise LookupError(f"no entry {index} in {self.first_index}..{self.last_index}")
        return len(self.entries[index - self.first_index][1])

    def indices_of_length(self, length: int) -> list[int]:
        return [self.first_index + at for at, (_, body) in enumerate(self.entries) if len(body) == length]

    def append(self, parts: Sequence[bytes | memoryview], index: int, term: int) -> int:
        if index != self.last_index + 1:
            raise ValueError(f"the next entry is {self.last_index + 1}, not {index}")
        if self.last_index >= self.first_index - 1 and term < self.term_at(self.last_index):
            raise ValueError(f"term {term} goes back")
        return self._log.write(("entry", self._group, index, term, b"".join(parts)))

    def truncate_from(self, index: int) -> int:
        if not self.first_index <= index <= self.last_index:
            raise ValueError(f"cannot cut from {index}")
        return self._log.write(("truncate", self._group, index))

    def compact_to(self, index: int, term: int) -> int:
        if index <= self.first_index:
            return self._log.last_lsn
        if index > self.last_index or self.term_at(index) != term:
            raise ValueError(f"cannot begin at {index}, term {term}")
        return self._log.write(("compact", self._group, index))

    def reset_to_snapshot(self, index: int, term: int, *, keep_bodies_to: int = 0) -> int:
        return self._log.write(("reset", self._group, index, term))

    def set_hard_state(self, term: int, vote: str | None) -> int:
        if term < self.hard_state[0]:
            raise ValueError(f"term {term} goes back")
        return self._log.write(("hard", self._group, term, vote))

    def save_snapshot(self, index: int, term: int, state: bytes) -> None:
        if self.first_index <= index <= self.last_index:
            self._log.sync()
        self._log.disk.snapshots[self._group] = (index, term, state)

    def receive_snapshot(self, index: int, term: int, size: int, crc: int) -> ModelReceived:
        return ModelReceived(self, index, term, size, crc)

    def load_snapshot(self) -> tuple[int, int, bytes] | None:
        found = self._log.disk.snapshots.get(self._group)
        if found is not None:
            index, term, _ = found
            if index > self.last_index or index < self.first_index - 1 or self.term_at(index) != term:
                self.reset_to_snapshot(index, term)
                self._log.sync()
        return found

    def open_snapshot(self) -> HeldSnapshot | None:
        found = self._log.disk.snapshots.get(self._group)
        return None if found is None else HeldSnapshot(*found)

    def note_damaged_snapshot(self, index: int, term: int, reason: str) -> None:
        raise AssertionError(f"the snapshot at {index} in term {term}: {reason}")

    def fold(self, record: tuple[Any, ...], lsn: int) -> None:
        """Take one record into the state."""
        kind = record[0]
        if kind == "entry":
            self.entries.append((record[3], record[4]))
            self.bodies[record[2]] = record[4]
        elif kind == "truncate":
            for index in range(record[2], self.last_index + 1):
                del self.bodies[index]
            del self.entries[record[2] - self.first_index :]
        elif kind == "compact":
            cut = record[2] - self.first_index
            self.before_term = self.term_at(record[2] - 1)
            del self.entries[:cut]
            self.first_index = record[2]
        elif kind == "reset":
            self.entries.clear()
            self.first_index = record[2] + 1
            self.before_term = record[3]
        else:
            self.hard_state = (record[2], record[3])
            self.hard_state_lsn = lsn


class ModelLog:
    """The log of one node, from one start to the next."""

    def __init__(self, disk: ModelDisk, *, is_shadow: bool = False) -> None:
        self.disk = disk
        self._records: list[tuple[Any, ...]] = []
        self._journals: dict[int, ModelJournal] = {}
        self.synced_lsn = 0
        self.has_room = True
        if not is_shadow:
            for record in disk.records:
                self.write(record)
            disk.synced = ModelLog(disk, is_shadow=True)
            self.sync()

    @property
    def last_lsn(self) -> int:
        return len(self._records)

    def journal(self, group: int) -> ModelJournal:
        if group not in self._journals:
            self._journals[group] = ModelJournal(self, group)
        return self._journals[group]

    def read(self, group: int, index: int) -> bytes:
        return self.journal(group).bodies[index]

    def write(self, record: tuple[Any, ...]) -> int:
        self._records.append(record)
        self.journal(record[1]).fold(record, len(self._records))
        return len(self._records)

    def make_room(self, length: int, count: int = 1) -> bool:
        return self.has_room

    def sync(self) -> int:
        shadow = self.disk.synced
        assert shadow is not None
        for record in self._records[shadow.last_lsn :]:
            shadow.write(record)
        self.synced_lsn = len(self._records)
        return self.synced_lsn

    def crash(self, chance: random.Random, *, keep_nothing: bool = False) -> None:
        """What the power leaves: everything synced, and some first part of the rest."""
        unsynced = len(self._records) - self.synced_lsn
        kept = chance.choice((0, 0, unsynced, chance.randint(0, unsynced)))
        self.disk.records = self._records[: self.synced_lsn + (0 if keep_nothing else kept)]
