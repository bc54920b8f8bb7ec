"""The storage of a queue's messages: blocks of 16,384 sequences (`Limits.block_bits`), bit sets and runs.

A message has no record of its own. Its sequence names its block (sequence >> 14) and its slot in there (sequence &
16,383). The block has a bit each for ready, for checked out, for delayed, and for handed out before. In a queue with
priorities, it has a bit set for each priority of its messages (`levels`), in a queue with message groups the key of
each message's group (`group_keys`). A message that is neither ready nor checked out nor delayed is gone. The place of
its body is in the *run* it belongs to (runs.py). The due times of delayed messages are apart from the runs, because
those of requeued messages have nothing to do with their batches. A *dead* message waits for its dead-letter target
(dead_letters.py). The block has a bit set for each cause of which its dead messages have died (`deaths`).

All access to blocks is through a `BlockStore` (block_store.py), which keeps cold blocks in pages. The machine sees no
difference. Code that changes the replicated state of a block marks its page as outdated (`stored = None`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fifo.codec import Reader, Writer
from fifo.index_sets import Piece
from fifo.messages import bitsets
from fifo.messages.due_times import DueTimes
from fifo.messages.runs import MAX_SIZE, NEVER, Runs
from quorum_selectors.summaries import trusted


def mean(size_bytes: int, count: int) -> int:
    """The size of each message of a block that notes no sizes."""
    return size_bytes // count if count else 0


class Stored:
    """The record of a block in its page, immutable: a cold block's part in memory, and its record in a checkpoint.

    first_slot: the lowest slot with a message, 0 if there is none.
    ready_levels, earliest_due: as in Block.
    references: the Raft indexes of the messages' bodies. They take 11 bytes where messages arrive one entry after the
    other, and a fraction of a byte for each entry where many queues and producers alternate.
    summary: the values of the filter fields, by which a scan skips the block. Empty if there are no fields, if it is
    not known, or if an earlier build made the record.
    noted_bytes: of the ready messages; -1 if the block notes no sizes. noted_delayed_bytes: the same of the delayed
    ones.
    dead_bytes: of the dead messages, as a limit counts them.
    read_cost: local, counted by read_costs.py, and negative before. Only once it is counted are text_factor and
    long_texts those of the block.

    An instance takes some 500 bytes, or 0.03 for each message of a full block. Its summary takes at most 4 KiB more,
    and long texts 2 KiB.
    """

    __slots__ = (
        "checked_out_count",
        "crc",
        "dead_bytes",
        "dead_count",
        "delayed_count",
        "earliest",
        "earliest_due",
        "first_slot",
        "head",
        "long_texts",
        "noted_bytes",
        "noted_delayed_bytes",
        "number",
        "page",
        "placed",
        "read_cost",
        "ready_count",
        "ready_levels",
        "references",
        "size_bytes",
        "summary",
        "text_factor",
    )

    def __init__(self, record: bytes | memoryview) -> None:
        """Reads a record of a checkpoint. Raises ValueError if it ends too early."""
        reader = Reader(record)
        self.number = reader.number()
        self.page = reader.number()
        self.crc = reader.number()
        self.ready_count = reader.number()
        self.checked_out_count = reader.number()
        self.first_slot = reader.number()
        self.earliest = NEVER - reader.number()
        self.placed = reader.number()
        self.size_bytes = reader.number()
        self.head = bytes(reader.data[: reader.position])
        self.references = Piece(reader.blob())
        self.summary = b"" if reader.is_at_end() else trusted(reader.blob())
        self.noted_bytes = -1 if reader.is_at_end() else reader.number() - 1
        self.ready_levels: tuple[tuple[int, int], ...] = ()
        if not reader.is_at_end():
            self.ready_levels = tuple([(reader.number(), reader.number()) for _ in range(reader.number())])
        self.delayed_count, self.noted_delayed_bytes = 0, min(self.noted_bytes, 0)
        self.earliest_due: int | None = None
        if not reader.is_at_end():
            self.delayed_count, earliest_due = reader.number(), reader.number()
            self.earliest_due = earliest_due if self.delayed_count else None
            self.noted_delayed_bytes = reader.number() - 1
        self.dead_count = self.dead_bytes = 0
        if not reader.is_at_end():
            self.dead_count, self.dead_bytes = reader.number(), reader.number()
        self.read_cost = -1
        self.text_factor = self.long_texts = 0

    @property
    def live(self) -> int:
        return self.ready_count + self.checked_out_count + self.delayed_count

    @property
    def ready_bytes(self) -> int:
        """The bytes of the ready messages, as a limit counts them."""
        if self.noted_bytes >= 0:
            return self.noted_bytes
        return self.ready_count * mean(self.size_bytes, self.placed)

    @property
    def delayed_bytes(self) -> int:
        """The same of the delayed messages."""
        if self.noted_delayed_bytes >= 0:
            return self.noted_delayed_bytes
        return self.delayed_count * mean(self.size_bytes, self.placed)

    @property
    def delayed(self) -> tuple[int, int, int] | None:
        """The delayed messages, as `write_rest` has them."""
        if self.earliest_due is None:
            return None
        return self.delayed_count, self.earliest_due, self.noted_delayed_bytes

    @property
    def record(self) -> bytes:
        """The bytes of the record in a checkpoint."""
        out = Writer()
        out.data += self.head
        out.blob(self.references.packed)
        dead = self.dead_count, self.dead_bytes
        write_rest(out, self.summary, self.noted_bytes, self.ready_levels, self.delayed, dead)
        return bytes(out.data)

    def with_summary(self, summary: bytes) -> Stored:
        """The same record with another summary."""
        found = Stored(self.record)
        found.summary, found.read_cost = summary, self.read_cost
        found.text_factor, found.long_texts = self.text_factor, self.long_texts
        return found


def write_rest(
    out: Writer,
    summary: bytes,
    noted_bytes: int,
    ready_levels: Sequence[tuple[int, int]],
    delayed: tuple[int, int, int] | None,
    dead: tuple[int, int],
) -> None:
    """The end of a record, as far as there is anything to say. ready_levels: how many messages of which priorities are
    ready. delayed: the number of delayed messages, their earliest due time, and their bytes, -1 if the block notes no
    sizes; None if there are none. dead: the number of dead messages, and their bytes."""
    if delayed is None and dead[0]:
        delayed = 0, 0, min(noted_bytes, 0)
    has_delayed = delayed is not None
    has_levels = bool(ready_levels) or has_delayed
    has_bytes = noted_bytes >= 0 or has_levels
    if summary or has_bytes:
        out.blob(summary)
    if has_bytes:
        out.number(noted_bytes + 1)
    if has_levels:
        out.number(len(ready_levels))
        out.numbers([number for pair in ready_levels for number in pair])
    if delayed is not None:
        count, earliest_due, size_bytes = delayed
        out.numbers((count, earliest_due, size_bytes + 1))
    if dead[0]:
        out.numbers(dead)


class Block:
    """`size` neighbouring sequences. All but `columns`, `summary`, `stored`, `measured` and `read_cost` is replicated
    state."""

    __slots__ = (
        "base",
        "checked_out",
        "columns",
        "copies",
        "deaths",
        "delayed",
        "dues",
        "earliest",
        "failures",
        "group_keys",
        "levels",
        "live",
        "long_texts",
        "measured",
        "number",
        "placed",
        "read_cost",
        "ready",
        "redelivered",
        "runs",
        "size",
        "size_bytes",
        "stored",
        "summary",
        "text_factor",
    )

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.base = number * size  # the sequence of slot 0
        self.ready = 0
        self.checked_out = 0  # disjoint from ready
        self.delayed = 0  # disjoint from both
        self.dues: DueTimes | None = None  # of the delayed messages; None if there are none
        self.redelivered = 0  # part of `present`: handed out before
        self.copies: dict[
            int, int
        ] = {}  # by pin, ascending: the ready set of its time, if that has changed since
        self.deaths: dict[
            int, int
        ] = {}  # by cause (dead_letters.CAUSES): the dead messages, in no other place
        self.failures = bitsets.Counts()
        self.levels: dict[int, int] = {}  # by priority: which of `present` have it; empty without priorities
        self.group_keys: NDArray[np.uint64] | None = None
        """by slot, where a message is `present`; None until one with a group comes (message_groups.py)"""
        self.runs = Runs()
        self.live = 0  # members of `present`
        self.earliest = NEVER  # no ready message expires before this time; as in the queue's expiry tree
        self.placed = 0  # messages ever put here since the block was last empty, and their size in total
        self.size_bytes = 0
        self.text_factor = 0  # of the longest texts of a batch that came here, as read_costs.py counts them
        self.long_texts = 0  # the slots of the batches that have any, also where messages are gone
        self.columns: Any = None  # local: the filter fields of some messages, or None
        self.stored: Stored | None = None  # local: the valid page, None once the block was changed
        self.summary = (
            b""  # local: the summary of the fields' values (quorum_selectors.summaries), empty if unknown
        )
        self.read_cost: tuple[int, int, int] | None = (
            None  # local: placed, live and the cost that read_costs.py has counted
        )
        self.measured = 0  # local: bytes in memory at the last measurement

    @property
    def present(self) -> int:
        """The messages that are in the queue."""
        return self.ready | self.checked_out | self.delayed

    @property
    def first_slot(self) -> int:
        """The lowest slot with a message that is in the queue, 0 if there is none."""
        live = self.present
        return (live & -live).bit_length() - 1 if live else 0

    def within_runs(self, members: int, most: int) -> int:
        """The lowest of these messages, as many as at most `most` runs have."""
        if members.bit_count() <= most or bitsets.starts(members).bit_count() + len(self.runs) <= most:
            return members
        starts = bitsets.starts(members) | (members & self.runs.starts())
        beyond = starts ^ bitsets.lowest(starts, most)
        return members & ((beyond & -beyond) - 1) if beyond else members

    @property
    def pinned(self) -> int:
        """The messages of all pins' copies; some may be gone."""
        found = 0
        for copy in self.copies.values():
            found |= copy
        return found

    @property
    def dead(self) -> int:
        """The messages that wait for their dead-letter target."""
        found = 0
        for members in self.deaths.values():
            found |= members
        return found

    @property
    def selectable(self) -> int:
        """The messages that a selector may have to look at. Dead ones are none of them."""
        return self.present | self.pinned

    @property
    def kept(self) -> int:
        """The messages whose bodies are needed."""
        return self.selectable | self.dead

    @property
    def has_fields(self) -> bool:
        """Whether the fields of all selectable messages are in memory."""
        return self.columns is not None and not self.selectable & ~self.columns.filled

    @property
    def ready_count(self) -> int:
        return self.ready.bit_count()

    @property
    def checked_out_count(self) -> int:
        return self.checked_out.bit_count()

    @property
    def delayed_count(self) -> int:
        return self.delayed.bit_count()

    @property
    def earliest_due(self) -> int | None:
        """The earliest due time of a delayed message, None if there is none."""
        return None if self.dues is None else self.dues.earliest

    @property
    def dead_count(self) -> int:
        return self.dead.bit_count()

    # ---- bytes, as a limit counts them

    @property
    def ready_bytes(self) -> int:
        return self.bytes_of(self.ready)

    @property
    def delayed_bytes(self) -> int:
        return self.bytes_of(self.delayed)

    @property
    def noted_bytes(self) -> int:
        """The bytes of the ready messages; -1 if the block notes no sizes."""
        return -1 if self.runs.sizes is None else self.ready_bytes

    @property
    def noted_delayed_bytes(self) -> int:
        """The same of the delayed messages."""
        return -1 if self.runs.sizes is None else self.delayed_bytes

    @property
    def dead_bytes(self) -> int:
        return self.bytes_of(self.dead)

    def note_sizes(self) -> None:
        """From now on the block notes the size of each run. Those that are there count the mean of all that came."""
        if self.runs.sizes is None:
            size = min(mean(self.size_bytes, self.placed), MAX_SIZE)
            self.runs.sizes = array("I", [size]) * len(self.runs)

    def bytes_of(self, members: int) -> int:
        """The bytes of messages that are in the block."""
        if self.runs.sizes is None:
            return members.bit_count() * mean(self.size_bytes, self.placed)
        if not members:
            return 0
        size = self.runs.size_in_one(members)
        if size >= 0:
            return members.bit_count() * size
        counts, sizes = self.runs.counts_and_sizes(members)
        return int(counts @ sizes)

    def sizes_at(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of the message in each of these slots."""
        if self.runs.sizes is None:
            return np.full(len(slots), mean(self.size_bytes, self.placed), dtype=np.int64)
        places = np.searchsorted(np.frombuffer(self.runs.firsts, dtype=np.uint16), slots, side="right") - 1
        return np.frombuffer(self.runs.sizes, dtype=np.uint32)[places].astype(np.int64)

    def lowest_with(self, members: int, size_bytes: int) -> int:
        """How many of these messages, the lowest first, have at least so many bytes together; all if they have less."""
        if size_bytes <= 0:
            return 0
        count = members.bit_count()
        if self.runs.sizes is None:
            each = mean(self.size_bytes, self.placed)
            return -(-size_bytes // each) if each * count > size_bytes else count
        counts, sizes = self.runs.counts_and_sizes(members)
        sums = np.cumsum(counts * sizes)
        place = int(np.searchsorted(sums, size_bytes))
        if place == len(sums):
            return count
        rest = size_bytes - (int(sums[place - 1]) if place else 0)
        return int(counts[:place].sum()) - (-rest // int(sizes[place]))

    # ---- message groups

    def note_keys(self, slot: int, count: int, keys: bytes | memoryview) -> None:
        """Notes the keys of new messages: one for all of them, or one each and perhaps more."""
        found = np.frombuffer(keys, dtype="<u8", count=1 if len(keys) == 8 else count)
        if self.group_keys is None:
            if not found.any():
                return
            self.group_keys = np.zeros(self.size, dtype=np.uint64)
        self.group_keys[slot : slot + count] = found

    @property
    def live_keys(self) -> array[int] | None:
        """The keys of the messages that are `present`, by slot; None if they have no group."""
        if self.group_keys is None:
            return None
        live = bitsets.as_flags(self.present, self.size).astype(bool)
        keys = self.group_keys[live]
        return array("Q", keys.tobytes()) if keys.any() else None

    def set_live_keys(self, keys: array[int]) -> None:
        """The reverse of `live_keys`. The size of the block may be any (persistence/references.py)."""
        live = self.present
        width = max(self.size, live.bit_length())
        self.group_keys = np.zeros(width, dtype=np.uint64)
        self.group_keys[bitsets.as_flags(live, width).astype(bool)] = np.frombuffer(keys, dtype=np.uint64)

    # ----
    @property
    def ready_levels(self) -> tuple[tuple[int, int], ...]:
        """(priority, number of its ready messages) where there are any, ascending; empty without priorities."""
        if not self.levels:
            return ()
        counts = [(priority, (level & self.ready).bit_count()) for priority, level in self.levels.items()]
        return tuple(sorted([each for each in counts if each[1]]))

    def memory_bytes(self) -> int:
        """The bytes of runs, bit sets and columns, without the fixed size of the objects."""
        return self.stored_bytes() + (0 if self.columns is None else int(self.columns.nbytes))

    def stored_bytes(self) -> int:
        """The same without the columns, about the size of the block's page."""
        runs = self.runs
        each_run = (28 if runs.expiries is not None else 20) + 4 * (runs.sizes is not None)
        sets = (
            2
            + bool(self.delayed)
            + bool(self.redelivered)
            + bool(self.long_texts)
            + len(self.copies)
            + len(self.failures.planes)
            + len(self.levels)
            + len(self.deaths)
        )
        keys = 0 if self.group_keys is None else self.group_keys.nbytes
        dues = 0 if self.dues is None else 12 * len(self.dues)
        return len(runs.firsts) * each_run + sets * (self.size >> 3) + keys + dues

    def live_indexes(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """The Raft indexes of the bodies that are needed, ascending, each once."""
        indexes = np.frombuffer(self.runs.indexes, dtype=np.uint64)
        kept = self.kept
        if kept.bit_count() != sum(self.runs.counts):  # some are gone, and with them perhaps all of a run
            indexes = indexes[self.runs.touched(kept)]
        if len(indexes) < 2:
            return indexes.copy()
        if (indexes[1:] < indexes[:-1]).any():  # staged messages, published after others had come
            return np.unique(indexes)
        return indexes[np.concatenate(([True], indexes[1:] != indexes[:-1]))]

    def clear(self) -> None:
        """Empties a block without kept messages for the messages that will arrive next."""
        self.redelivered = 0
        self.failures = bitsets.Counts()
        self.group_keys = None
        self.runs.clear()
        self.columns = None
        self.summary = b""
        self.placed = self.size_bytes = 0
        self.read_cost = None

    def forget(self, gone: int) -> None:
        """Clears the flags, counts and priorities of messages that have left."""
        if self.redelivered & gone:
            self.redelivered &= ~gone
        if self.failures.planes:
            self.failures.clear(gone)
        if self.levels:
            left = {priority: level & ~gone for priority, level in self.levels.items()}
            self.levels = {priority: level for priority, level in left.items() if level}

    def compact(self, slack: int) -> None:
        """Drops runs once most of them are of messages that are gone.

        A few messages that no consumer selects must not keep the runs of all others. At four to one, the removals
        before have paid for the work.
        """
        if len(self.runs.firsts) <= 4 * self.live + slack:
            return
        kept = self.kept
        if len(self.runs.firsts) > 4 * kept.bit_count() + slack:
            self.runs.keep(kept)
