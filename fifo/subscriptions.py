"""Durable readers: named consumers of one queue that no session owns.

A reader takes messages by *reservations*, numbered 1, 2, 3, ... for each reader: these numbers are its *offsets*. A
reservation never changes: it can be read any number of times, from every member, by ordinals, until it is settled or
released as a whole. Reserve names the offset before, so whoever lost the answer asks again and gets the same.

What a reader holds lies by consecutive tags like what any consumer holds (`Consumer`, `Held`); a reservation is a
stretch of tags. A reader belongs to its selector's group, but never has credit: a checkout never serves it. Ordinary
consumers work beside it.

Offsets at or below `settled` are done with. Reservations that are released all at once are done with, too, though
their messages are requeued in steps (`finish`). Until then the reservations are kept, with a disposition. An entry
moves the messages of one reservation of a queue, or of several as far as its budget goes.

Where the reader was silent for its timeout, `on_expiry` happens to what is outstanding. The reader stays. It may have
reserved ahead, and take its oldest messages for its own still. So it gets no new reservation before it shows that it
knows: it is opened again, releases what it holds, or settles up to its last offset, to which the answer is that this
offset was released. In entries of version 1 it gets one at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from fifo.budgets import Entry, Left
from fifo.commands import (
    UNKNOWN,
    Address,
    DeleteReader,
    KeepReader,
    OpenReader,
    ReleaseReader,
    Reserve,
    SettleReserved,
)
from fifo.consumers.consumer import Consumer
from fifo.consumers.delivery import Delivery
from fifo.consumers.selector import refuse_selector
from fifo.consumers.selector_groups import SelectorGroups
from fifo.consumers.shared_front import TAIL
from fifo.effects import Ok, ReaderState, Refused, Reply, Reserved
from fifo.messages import bitsets
from fifo.messages.blocks import NEVER, Block
from fifo.messages.messages import Messages
from fifo.shares import Owned
from fifo.versions import SHARED_PLACES, TOLD_LOSSES

MAX_NAME_BYTES = 255
MIN_TIMEOUT_MS = 1_000
MAX_TIMEOUT_MS = 30 * 24 * 3600 * 1000

STARTS = ("earliest", "latest")
ON_EXPIRY = ("release", "discard", "keep")

ReaderCommand = OpenReader | Reserve | SettleReserved | KeepReader | ReleaseReader | DeleteReader


class Disposition(IntEnum):
    """What is done with the messages of a reservation."""

    OUTSTANDING = 0
    RETURNED = 1
    DISCARDED = 2


@dataclass(slots=True, eq=False)
class Reservation:
    """The messages that its reader holds by the tags first_tag .. first_tag+count-1, ascending by sequence."""

    offset: int
    first_tag: int
    count: int
    size_bytes: int  # estimated from the mean size in each block
    index: int  # of the Raft entry that made it
    time_ms: int
    is_complete: bool  # no budget ended the look
    opens: int = 0  # how often it was outstanding when the reader was opened
    disposition: Disposition = Disposition.OUTSTANDING


@dataclass(slots=True, eq=False)
class DurableReader:
    """One reader. reservations ascend by offset; those with a disposition come first."""

    consumer: Consumer
    generation: int
    start_sequence: int  # nothing before it is ever reserved
    timeout_ms: int = 0
    on_expiry: str = "keep"
    last_seen_ms: int = 0
    settled: int = 0
    last: int = 0
    reservations: list[Reservation] = field(default_factory=list)
    released: list[tuple[int, int]] = field(default_factory=list)  # offsets (first, last), ascending
    has_untold_loss: bool = False  # a silence took what it held, and it has not shown that it knows
    owner: int = UNKNOWN  # of the session that opened it last

    @property
    def name(self) -> str:
        return self.consumer.tag

    @property
    def selector(self) -> bytes:
        """Empty once it is deleted."""
        return b"" if self.consumer.group is None else self.consumer.group.selector

    @property
    def due_ms(self) -> int:
        """When it will have been silent for too long; NEVER if that means nothing."""
        if self.settled == self.last or self.on_expiry == "keep":
            return NEVER
        return self.last_seen_ms + self.timeout_ms

    def state(self) -> ReaderState:
        outstanding = sum([each.count for each in self.reservations if not each.disposition])
        return ReaderState(self.generation, self.settled, self.last, outstanding)

    def find(self, offset: int) -> Reservation | Refused:
        """The outstanding reservation with this offset, or why there is none."""
        if offset > self.last or offset < 1:
            return Refused(
                "not_given", f"offset {offset} of reader {self.name!r}; given out: up to {self.last}"
            )
        if offset > self.settled:
            return next(each for each in self.reservations if each.offset == offset)
        for first, last in self.released:
            if first <= offset <= last:
                return Refused(
                    "released",
                    f"reader {self.name!r}: the reservations {first}..{last} were released, after a silence of"
                    f" {self.timeout_ms} ms or by command",
                )
        return Refused(
            "settled", f"offset {offset} of reader {self.name!r}; everything is settled up to {self.settled}"
        )

    def release_all(self, disposition: Disposition, max_released: int) -> None:
        """Ends all outstanding reservations with this disposition."""
        if self.settled == self.last:
            return
        for each in self.reservations:
            each.disposition = each.disposition or disposition
        first, self.settled = self.settled + 1, self.last
        released = self.released
        if released and released[-1][1] + 1 == first:
            first = released.pop()[0]
        released.append((first, self.last))
        if len(released) > max_released:
            released[:2] = [(released[0][0], released[1][1])]


class ReservationBuilder(Delivery):
    """Gathers the messages of one Reserve, from a sequence on: at most `most_bytes` bytes, but always one message."""

    __slots__ = ("is_full", "rest_bytes", "size_bytes", "start")

    def __init__(self, reader: DurableReader, queue: int, most_bytes: int) -> None:
        super().__init__(reader.consumer, queue)
        self.start = reader.start_sequence
        self.is_full = False
        self.rest_bytes = most_bytes
        self.size_bytes = 0

    def choose(self, block: Block, members: int, wanted: int) -> int:
        if not members:
            return 0  # the block may even be empty: what was ready in it has expired
        size, placed = block.size_bytes, block.placed
        allowed = wanted + 1
        if size:
            allowed = max(self.rest_bytes * placed // size, 0 if self.count else 1)
        chosen = bitsets.lowest(members, min(wanted, allowed))
        count = chosen.bit_count()
        self.is_full = count == allowed
        self.rest_bytes -= size * count // placed
        self.size_bytes += size * count // placed
        return chosen

    def within(self, left: Left, block: Block, members: int, wanted: int) -> int:
        """All: what is reserved is not described, so it counts as messages only."""
        return members

    def take(self, messages: Messages, block: Block, members: int, count: int) -> int:
        messages.check_out(block, members, count)
        consumer = self.consumer
        for slot, width in bitsets.ranges(members):
            consumer.held.add(consumer.next_tag, block.base + slot, width)
            consumer.next_tag += width
        self.count += count
        return 0


class Readers:
    """The readers of one queue."""

    __slots__ = ("by_name", "deleted", "groups", "messages", "past_generation")

    def __init__(self, messages: Messages, groups: SelectorGroups) -> None:
        self.messages = messages
        self.groups = groups
        self.by_name: dict[str, DurableReader] = {}  # in the order of being made
        self.deleted: list[DurableReader] = []  # which hold something that has not come back yet
        self.past_generation = 0  # the highest of readers that are deleted: a new one begins above

    # ---- commands

    def answer(self, entry: Entry, command: ReaderCommand) -> Reply:
        if isinstance(command, OpenReader):
            return self._open(entry, command)
        reader = self.by_name.get(command.reader)
        is_deletion = isinstance(command, DeleteReader)
        if reader is None and is_deletion:
            return Ok()
        if reader is None:
            return Refused(
                "not_found", f"queue {self.messages.config.name!r} has no reader {command.reader!r}"
            )
        if command.generation not in (reader.generation, None):
            return Refused(
                "wrong_generation",
                f"reader {reader.name!r} was opened by somebody else: this is generation"
                f" {command.generation}, the present one is {reader.generation}",
            )
        if is_deletion:
            return self._delete(entry, reader)
        if isinstance(command, ReleaseReader) and command.last not in (reader.last, None):
            return _outdated(command, f"its newest offset is {reader.last}")
        if isinstance(command, Reserve):
            return self._reserve(entry, reader, command)
        if isinstance(command, SettleReserved):
            return self._settle(entry, reader, command.to)
        reader.last_seen_ms = entry.now_ms
        if isinstance(command, ReleaseReader):
            reader.release_all(Disposition.RETURNED, entry.limits.max_released)
            reader.has_untold_loss = False
        return reader.state()

    def _open(self, entry: Entry, command: OpenReader) -> Reply:
        messages, name = self.messages, command.reader
        refused = refuse_open(command) or refuse_selector(messages.config, command.selector)
        if refused is not None:
            return refused
        reader = self.by_name.get(name)
        present = 0 if reader is None else reader.generation
        if command.found not in (present, None):
            return _outdated(command, f"its generation is {present}")
        if reader is None:
            refused = self._refuse_more(entry, command.owner)
            if refused is not None:
                return refused
            consumer = Consumer(b"", name, Address(0, 0, 0), 0, None, entry.limits.max_held)
            start = messages.next_sequence if command.start == "latest" else 0
            reader = self.by_name[name] = DurableReader(consumer, self.past_generation, start)
        consumer = reader.consumer
        if consumer.group is not None and consumer.group.selector != command.selector:
            self.groups.leave(consumer)
        if consumer.group is None:
            self.groups.join(consumer, command.selector)
        reader.generation += 1
        reader.has_untold_loss = False
        reader.owner = command.owner if entry.version >= SHARED_PLACES else UNKNOWN
        reader.timeout_ms, reader.on_expiry = command.timeout_ms, command.on_expiry
        reader.last_seen_ms = entry.now_ms
        for each in reader.reservations:
            each.opens += not each.disposition
        return reader.state()

    def _refuse_more(self, entry: Entry, owner: int) -> Refused | None:
        """Why there is no room for one more reader."""
        owned = Owned([reader.owner for reader in (*self.by_name.values(), *self.deleted)])
        most = entry.limits.max_readers
        return owned.refuse_more(entry.version, owner, most, self.messages.config.name, "readers")

    def _reserve(self, entry: Entry, reader: DurableReader, command: Reserve) -> Reply:
        after = command.after
        if after < 0 or command.max_messages < 1 or command.max_bytes < 1:
            return Refused(
                "bad_argument",
                f"{command.max_messages} messages of {command.max_bytes} bytes after offset {after};"
                " allowed: offsets from 0 on, of the others 1 and more",
            )
        if after > reader.last:
            return reader.find(after)  # type: ignore[return-value]
        if after < reader.last:
            known = reader.find(after + 1)
            if isinstance(known, Refused):
                return known
            reader.last_seen_ms = entry.now_ms
            return _reserved(known)
        if reader.has_untold_loss:
            return reader.find(after)  # type: ignore[return-value]
        held, limits = reader.consumer.held.total, entry.limits
        if len(reader.reservations) >= limits.max_reservations or held >= limits.max_outstanding:
            return Refused(
                "limit",
                f"reader {reader.name!r} holds {len(reader.reservations)} reservations with {held} messages;"
                f" allowed: {limits.max_reservations} with {limits.max_outstanding}",
            )
        reader.last_seen_ms = entry.now_ms
        wanted = min(command.max_messages, limits.max_reserved, limits.max_outstanding - held)
        builder, is_complete = self._take(entry, reader, wanted, command.max_bytes)
        if not builder.count:
            return Reserved(after, entry.index, 0, 0, is_complete)
        reader.last += 1
        made = Reservation(
            reader.last,
            builder.first_tag,
            builder.count,
            builder.size_bytes,
            entry.index,
            entry.now_ms,
            is_complete,
        )
        reader.reservations.append(made)
        return _reserved(made)

    def _take(
        self, entry: Entry, reader: DurableReader, wanted: int, most_bytes: int
    ) -> tuple[ReservationBuilder, bool]:
        """Takes messages, and whether no budget ended that."""
        groups, group = self.groups, reader.consumer.group
        assert group is not None
        left = entry.budget(self.messages.queue).left
        builder = ReservationBuilder(reader, self.messages.queue, most_bytes)
        if not left.may_hand_out:
            return builder, False
        groups.shared.move(entry)
        groups.look_up_arrivals()
        taken, is_complete = groups.take(group, entry, builder, min(wanted, left.messages))
        if group.front == TAIL and groups.shared.behind is not None:
            is_complete = False
        groups.rest(group)
        if taken == left.messages < wanted:
            is_complete = False
        left.messages -= taken
        return builder, is_complete

    def _settle(self, entry: Entry, reader: DurableReader, to: int) -> Reply:
        if to > reader.last:
            return reader.find(to)  # type: ignore[return-value]
        reader.last_seen_ms = entry.now_ms
        if to == reader.last:
            reader.has_untold_loss = False
        for each in [each for each in reader.reservations if not each.disposition]:
            if each.offset > to or not self._may_move(entry, each):
                break
            self.messages.settle(self._give_up(reader, each))
            reader.settled = each.offset
        return reader.state()

    def _delete(self, entry: Entry, reader: DurableReader) -> Reply:
        outstanding = reader.state().outstanding
        reader.release_all(Disposition.RETURNED, entry.limits.max_released)
        self.groups.leave(reader.consumer)
        del self.by_name[reader.name]
        self.past_generation = max(self.past_generation, reader.generation)
        if reader.reservations:
            self.deleted.append(reader)
        return Ok(outstanding)

    # ---- the end of an entry

    def finish(self, entry: Entry) -> bool:
        """Ends silences, and moves what was let go; False if a budget has left some of it."""
        if not self.by_name and not self.deleted:
            return True
        for reader in self.by_name.values():
            if reader.due_ms <= entry.now_ms:
                disposition = Disposition.RETURNED if reader.on_expiry == "release" else Disposition.DISCARDED
                reader.release_all(disposition, entry.limits.max_released)
                reader.has_untold_loss = entry.version >= TOLD_LOSSES
        is_done = True
        for reader in (*self.by_name.values(), *self.deleted):
            while is_done and reader.reservations and reader.reservations[0].disposition:
                is_done = self._move(entry, reader, reader.reservations[0])
        if self.deleted:
            self.deleted = [reader for reader in self.deleted if reader.reservations]
        return is_done

    def _move(self, entry: Entry, reader: DurableReader, reservation: Reservation) -> bool:
        """Carries out the disposition of a reservation; False if the budget does not allow it."""
        if not self._may_move(entry, reservation):
            return False
        ranges = self._give_up(reader, reservation)
        if reservation.disposition == Disposition.RETURNED:
            self.messages.requeue(entry, ranges, failed=False)
        else:
            self.messages.settle(ranges, "rejected")
        return True

    def _may_move(self, entry: Entry, reservation: Reservation) -> bool:
        left = entry.budget(self.messages.queue).left
        if left.moved and left.moved + reservation.count > entry.limits.message_budget:
            return False
        left.moved += reservation.count
        return True

    def _give_up(self, reader: DurableReader, reservation: Reservation) -> list[tuple[int, int]]:
        reader.reservations.remove(reservation)
        first = reservation.first_tag
        return reader.consumer.held.take_out(first, first + reservation.count - 1)

    def next_due(self) -> int:
        """When a silence ends; NEVER if none does."""
        return min([reader.due_ms for reader in self.by_name.values()], default=NEVER)


def _outdated(command: OpenReader | ReleaseReader, now: str) -> Refused:
    return Refused("outdated", f"reader {command.reader!r} has changed: {now}")


def _reserved(reservation: Reservation) -> Reserved:
    return Reserved(
        reservation.offset,
        reservation.index,
        reservation.count,
        reservation.size_bytes,
        reservation.is_complete,
    )


def refuse_open(command: OpenReader) -> Refused | None:
    """What of a reader's name and settings is not allowed."""
    length = len(command.reader.encode("utf-8", "surrogatepass"))
    if not 0 < length <= MAX_NAME_BYTES:
        return Refused(
            "bad_argument", f"a reader's name has {length} bytes; allowed: 1 to {MAX_NAME_BYTES} of UTF-8"
        )
    if not MIN_TIMEOUT_MS <= command.timeout_ms <= MAX_TIMEOUT_MS:
        return Refused(
            "bad_argument",
            f"a timeout of {command.timeout_ms} ms; allowed: {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS}",
        )
    if command.start not in STARTS or command.on_expiry not in ON_EXPIRY:
        return Refused(
            "bad_argument",
            f"start {command.start!r} and on_expiry {command.on_expiry!r}; allowed: {', '.join(STARTS)}"
            f" and {', '.join(ON_EXPIRY)}",
        )
    return None
