"""Checkpoints: a group's state with its blocks named by their pages. The cost grows with what has changed.

A checkpoint is local, unlike a snapshot, because pages have other numbers on other members. Format 4 has
- a magic word and the format number;
- the group's head, as in a snapshot;
- a section for each queue, in the order of ids: the queue's head, as in a snapshot, and the record of each block
  (blocks.Stored), in the order of their numbers.

Sections of queues that no entry has touched since the last checkpoint are carried over. For other queues, changed
blocks are written to new pages, and the records of all blocks are joined.

Format 3 is read, too: its group's head ends earlier, as in snapshots.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from itertools import islice

from fifo.codec import Reader, Writer
from fifo.consumers.filter_fields import FieldSource
from fifo.frozen_dataclasses import dataclass
from fifo.group_machine import GroupMachine
from fifo.index_sets import IndexSet, Piece, pack
from fifo.limits import PRODUCTION, Limits
from fifo.messages.blocks import Block, Stored
from fifo.messages.pages import Pages, page_data
from fifo.persistence import snapshot
from fifo.queue_machine import QueueMachine
from fifo.staging import Staging

MAGIC = b"QPAGE"
FORMAT = 4
FORMATS = (3, 4)
"""The formats that are read."""
SECTION_COST_BYTES = 4 << 10
"""The cost of making a section beside its bytes, counted as bytes of written blocks: a step of 1 MiB covers at most 256
empty queues."""
FEW_SECTIONS = 256
"""The number of sections that one step may have to make when the checkpoint is taken."""
MOST_PASSES = 4
"""Passes over a group's queues before a checkpoint is taken. Entries touch queues meanwhile; if they have touched more
than a few, those are prepared again in the next pass. The step that takes the checkpoint does the rest."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """state: the bytes for `resume`. entries: the Raft indexes of the bodies that its messages refer to, including
    staged ones. pages: the pages that it names, ascending, each once."""

    state: bytes
    entries: IndexSet
    pages: array[int]


@dataclass(frozen=True, slots=True)
class Section:
    """A queue's part of a checkpoint. entries: the Raft indexes that its blocks and its staging refer to. pages: its
    blocks' pages. changes: the queue's `changes` when it was made."""

    data: bytes
    entries: tuple[Piece, ...]
    pages: array[int]
    changes: int


class Checkpointer:
    """Makes the checkpoints of one group. Sections are kept from one checkpoint to the next, until their queues
    change."""

    def __init__(self, group: GroupMachine) -> None:
        self.group = group
        self._sections: dict[int, Section] = {}
        self._place = (0, 0)
        """(queue, block): how far this pass has come"""
        self._passes = 0

    def take(self) -> Checkpoint:
        """Writes the blocks that were changed since their pages were written. Returns the whole checkpoint."""
        out = Writer()
        out.data += MAGIC
        out.number(FORMAT)
        out.blob(snapshot.group_head(self.group))
        queues = self.group.queues
        sections = {
            queue: self._known(queues[queue]) or self._make(queues[queue]) for queue in sorted(queues)
        }
        self._sections = sections  # without those of deleted queues
        for each in sections.values():
            out.blob(each.data)
        return Checkpoint(
            bytes(out.data),
            IndexSet(itertools.chain.from_iterable(each.entries for each in sections.values())),
            _sorted([each.pages for each in sections.values()]),
        )

    def write_ahead(self, most_bytes: int) -> bool:
        """Does part of the work of the next `take`: writes changed blocks and makes sections, about `most_bytes` of
        them. Returns False while a larger part of the work is left."""
        if not self._write_ahead(most_bytes):
            return False
        self._passes += 1
        if self._passes < MOST_PASSES and self._missing() > FEW_SECTIONS:
            return False
        self._passes = 0
        return True

    def check(self) -> None:
        """Raises AssertionError if a section that is kept differs from the one that would be made."""
        for machine in self.group.queues.values():
            known = self._known(machine)
            assert known is None or known.data == section(machine, self.group.version).data

    def _known(self, machine: QueueMachine) -> Section | None:
        """The queue's section if it is kept and still right."""
        found = self._sections.get(machine.queue)
        return found if found is not None and found.changes == machine.changes else None

    def _make(self, machine: QueueMachine) -> Section:
        made = self._sections[machine.queue] = section(machine, self.group.version)
        return made

    def _missing(self) -> int:
        """The number of sections that `take` would have to make now."""
        return sum(1 for machine in self.group.queues.values() if self._known(machine) is None)

    def _write_ahead(self, most_bytes: int) -> bool:
        """One step of a pass over the queues. Returns whether it was the last."""
        first, first_block = self._place
        for queue in sorted(queue for queue in self.group.queues if queue >= first):
            machine = self.group.queues[queue]
            if self._known(machine) is not None:
                continue
            blocks = machine.messages.blocks
            for number in blocks.numbers(first_block if queue == first else 0):
                if most_bytes <= 0:
                    self._place = queue, number
                    return False
                block = blocks.find_warm(number)
                if block is not None and block.stored is None:
                    most_bytes -= block.memory_bytes()
                    blocks.write(block)
            most_bytes -= len(self._make(machine).data) + SECTION_COST_BYTES
            if most_bytes <= 0:
                self._place = queue + 1, 0
                return False
        self._place = 0, 0
        return True


def section(machine: QueueMachine, version: int) -> Section:
    """A queue's section. Blocks without a valid page are written."""
    out = Writer()
    out.blob(snapshot.queue_head(machine, version))
    blocks = machine.messages.blocks
    records = [blocks.write(block) if isinstance(block, Block) else block for block in blocks.values()]
    for stored in records:
        out.blob(stored.record)
    return Section(bytes(out.data), *_contents(machine.staging, records), machine.changes)


def _contents(staging: Staging, records: list[Stored]) -> tuple[tuple[Piece, ...], array[int]]:
    pieces = [stored.references for stored in records]
    if staging.has_bodies:
        pieces.append(Piece(pack(staging.indexes())))
    return tuple(pieces), array("Q", [stored.page for stored in records])


def _sorted(parts: list[array[int]]) -> array[int]:
    """All pages, ascending. Each is named by one block only."""
    return array("Q", sorted(itertools.chain.from_iterable(parts)))


# ---- reading


def is_checkpoint(state: bytes | memoryview) -> bool:
    """Whether these bytes begin like a checkpoint's state. Those of a snapshot begin differently."""
    return bytes(state[: len(MAGIC)]) == MAGIC


def _begin(state: bytes | memoryview) -> Reader:
    reader = Reader(state)
    if not is_checkpoint(state):
        raise ValueError("reading a checkpoint of a group: it does not begin like one")
    reader.position = len(MAGIC)
    found = reader.number()
    if found not in FORMATS:
        raise ValueError(f"reading a checkpoint of a group: its format is {found}; known: {FORMATS}")
    return reader


def _records(part: Reader) -> Iterator[Stored]:
    while not part.is_at_end():
        yield Stored(part.blob())


def resume(
    state: bytes | memoryview, field_source: FieldSource, pages: Pages, limits: Limits = PRODUCTION
) -> GroupMachine:
    """The group of a checkpoint's state; all its blocks are cold. Raises ValueError if it is no checkpoint."""
    group = GroupMachine(field_source, pages, limits)
    reader = _begin(state)
    queue_count, version = snapshot.read_group_head(reader.blob(), group)
    for _ in range(queue_count):
        part = Reader(reader.blob())
        machine, block_count = snapshot.read_queue_head(part.blob(), group, version)
        group.queues[machine.queue] = machine
        for stored in _records(part):
            snapshot.add_block(machine, stored)
        if len(machine.messages.blocks) != block_count:
            raise ValueError(
                f"reading a checkpoint: queue {machine.queue} has {len(machine.messages.blocks)} blocks, "
                f"not {block_count}"
            )
        snapshot.complete(group, machine)
    group.transactions.restore()
    group.decisions.restore()
    if not reader.is_at_end():
        raise ValueError(f"reading a checkpoint: {len(state) - reader.position} bytes too many")
    return group


def contents(state: bytes | memoryview) -> tuple[IndexSet, array[int]]:
    """(entries, pages) of a checkpoint, as `Checkpoint` has them."""
    reader = _begin(state)
    version, _ = snapshot.beginning(reader.blob())
    found = []
    while not reader.is_at_end():
        part = Reader(reader.blob())
        _, staging = snapshot.staged_in(part.blob(), version)
        found.append(_contents(staging, list(_records(part))))
    return IndexSet(itertools.chain.from_iterable(entries for entries, _ in found)), _sorted(
        [pages for _, pages in found]
    )


class Export:
    """The canonical snapshot of a checkpoint's state, in pieces: heads and blocks. A block is read from its page when
    its piece is asked for. `look_through` finds the pieces. Raises ValueError."""

    def __init__(self, state: bytes | memoryview, pages: Pages) -> None:
        self._pages = pages
        self._pieces: list[bytes | Stored] = []
        self._looking = self._look(_begin(state))

    def _look(self, reader: Reader) -> Iterator[None]:
        begin = Writer()
        begin.data += snapshot.MAGIC
        begin.number(snapshot.FORMAT)
        begin.blob(reader.blob())
        self._pieces.append(bytes(begin.data))
        yield
        while not reader.is_at_end():
            part = Reader(reader.blob())
            self._pieces.append(_piece(part.blob()))
            yield
            for stored in _records(part):
                self._pieces.append(stored)
                yield

    def look_through(self, count: int | None = None) -> bool:
        """Finds `count` more pieces, or all. Returns whether all are known. Reads no page."""
        found = sum(1 for _ in islice(self._looking, count))
        return count is None or found < count

    def __len__(self) -> int:
        """The number of known pieces."""
        return len(self._pieces)

    def piece(self, number: int) -> bytes:
        found = self._pieces[number]
        return found if isinstance(found, bytes) else _piece(page_data(self._pages, found))


def _piece(data: bytes | memoryview) -> bytes:
    out = Writer()
    out.blob(data)
    return bytes(out.data)
