"""Pins: the messages of a queue that were ready at one moment, to be read later, even if they have left the queue.

Pins are copy-on-write. Making a pin notes only the end of the queue. The first time after that that the ready messages
of a block are about to change, the block gets a copy of its ready set for the pins that reach into it (`keep`). The
copy is a bit set of the block (`Block.copies`), so it is written to the block's page with the rest. A block without
such a copy has the same ready messages as when the pin was made, except for messages that came later.

The messages of a copy are *pinned*: their runs stay and their bodies are referred to, although the messages may be
neither ready nor checked out. A block is kept while it has pinned messages. Consumers never see them.

A pin knows no priorities: its messages are read by sequence.

A pin ends by Unpin, by its time, or because the copies take too much memory. Then its copies are removed, some blocks
an entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fifo.budgets import Entry
from fifo.commands import UNKNOWN, Pin, Unpin
from fifo.effects import Ok, Pinned, Refused, Reply
from fifo.messages.blocks import Block
from fifo.messages.messages import Messages
from fifo.messages.runs import NEVER
from fifo.shares import Owned
from fifo.versions import SHARED_PLACES

MIN_TTL_MS = 1_000
MAX_TTL_MS = 24 * 3600 * 1000

COPY_BYTES = 32
"""Bytes that a copy counts for beside its bits."""


@dataclass(slots=True, eq=False)
class QueuePin:
    """One pin. blocks: the numbers of the blocks that have a copy for it, in the order of copying."""

    number: int
    index: int  # of the Raft entry that made it
    made_ms: int
    expires_ms: int
    first_sequence: int
    end_sequence: int
    count: int
    copy_bytes: int = 0
    blocks: dict[int, None] = field(default_factory=dict)
    owner: int = UNKNOWN

    def shown(self, block: Block) -> int:
        """The messages of a block that were ready when the pin was made."""
        copy = block.copies.get(self.number)
        return block.ready & self.reach(block) if copy is None else copy

    def reach(self, block: Block) -> int:
        """The slots of a block below the pin's end."""
        return (1 << max(0, min(self.end_sequence - block.base, block.size))) - 1


class Pins:
    """The pins of one queue."""

    __slots__ = ("by_number", "ended", "messages", "next_pin")

    def __init__(self, messages: Messages) -> None:
        self.messages = messages
        self.next_pin = 1
        self.by_number: dict[int, QueuePin] = {}  # ascending
        self.ended: list[QueuePin] = []  # whose copies have not all been removed

    # ---- commands

    def pin(self, entry: Entry, command: Pin) -> Reply:
        messages = self.messages
        if not MIN_TTL_MS <= command.ttl_ms <= MAX_TTL_MS:
            return Refused(
                "bad_argument", f"a pin of {command.ttl_ms} ms; allowed: {MIN_TTL_MS} to {MAX_TTL_MS}"
            )
        owned = Owned([pin.owner for pin in (*self.by_number.values(), *self.ended)])
        most = messages.limits.max_pins
        refused = owned.refuse_more(entry.version, command.owner, most, messages.config.name, "pins")
        if refused is not None:
            return refused
        first = messages.next_sequence
        number = messages.order.by_sequence.first(0)
        if number is not None:
            lowest = messages.blocks.at(number)  # its first message may be a held one
            first = (lowest.number << messages.limits.block_bits) + lowest.first_slot
        made = QueuePin(
            self.next_pin,
            entry.index,
            entry.now_ms,
            entry.now_ms + command.ttl_ms,
            first,
            messages.next_sequence,
            messages.ready_count,
            owner=command.owner if entry.version >= SHARED_PLACES else UNKNOWN,
        )
        self.next_pin += 1
        self.by_number[made.number] = made
        self.watch()
        return Pinned(made.number, made.index, first, made.end_sequence, made.count)

    def unpin(self, command: Unpin) -> Reply:
        found = self.by_number.get(command.pin)
        if found is not None:
            self._end(found)
        return Ok()

    def find(self, pin: int) -> QueuePin | Refused:
        found = self.by_number.get(pin)
        if found is None:
            return Refused(
                "not_found",
                f"queue {self.messages.config.name!r} has no pin {pin}: it was ended, has expired, or was the oldest"
                f" while copies took more than {self.messages.limits.max_copy_bytes} bytes",
            )
        return found

    # ---- changes of ready messages

    def watch(self) -> None:
        """Registers for changes of ready messages while there is a pin."""
        self.messages.before_ready_changes = self.keep if self.by_number else None

    def keep(self, block: Block) -> None:
        """Copies the ready set of a block that is about to change, for the pins that reach into it."""
        is_grown = False
        for pin in self.by_number.values():
            if pin.end_sequence <= block.base or pin.number in block.copies:
                continue
            copy = block.ready & pin.reach(block)
            block.copies[pin.number] = copy
            pin.blocks[block.number] = None
            pin.copy_bytes += COPY_BYTES + (copy.bit_length() + 7) // 8
            is_grown = True
        most_bytes = self.messages.limits.max_copy_bytes
        while is_grown and sum([pin.copy_bytes for pin in self.by_number.values()]) > most_bytes:
            self._end(next(iter(self.by_number.values())))

    def reaches(self, number: int) -> bool:
        """Whether a block may have, or need, a copy."""
        base = number << self.messages.limits.block_bits
        return any(pin.end_sequence > base for pin in self.by_number.values()) or any(
            number in pin.blocks for pin in self.ended
        )

    def _end(self, pin: QueuePin) -> None:
        del self.by_number[pin.number]
        self.watch()
        if pin.blocks:
            self.ended.append(pin)

    # ---- the end of an entry

    def finish(self, entry: Entry) -> bool:
        """Ends pins whose time has come, and removes copies. False if copies of ended pins are left."""
        for pin in list(self.by_number.values()):
            if pin.expires_ms <= entry.now_ms:
                self._end(pin)
        if not self.ended:
            return True
        left = entry.budget(self.messages.queue).left
        while self.ended and left.copies < entry.limits.block_budget:
            pin = self.ended[0]
            number = next(iter(pin.blocks))
            del pin.blocks[number]
            if not pin.blocks:
                del self.ended[0]
            block = self.messages.blocks.find(number)
            if block is not None and pin.number in block.copies:
                left.copies += 1
                block.stored = None
                del block.copies[pin.number]
                self.messages.release_block(block)
        return not self.ended

    def next_due(self) -> int:
        """The group time at which the next pin ends; NEVER if there is none."""
        return min([pin.expires_ms for pin in self.by_number.values()], default=NEVER)
