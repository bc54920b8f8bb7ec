"""What a full queue does: with `drop_head` the oldest ready messages make room.

(`reject_publish` is decided where a batch arrives, in machine.py.) `x-max-length` counts ready messages. Where the
specifications are silent: the lowest sequence goes first, not the message that would be delivered next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fifo import bits
from fifo.state import Entry

if TYPE_CHECKING:
    from fifo.machine import QueueMachine


def drop_head(machine: QueueMachine, entry: Entry) -> bool:
    """Drops what is above `max_length`; False if the budget ended it."""
    limit = machine.config.max_length
    if limit < 0 or machine.config.overflow != "drop_head":
        return True
    left = entry.budget(machine.queue).left
    while machine.ready_count > limit:
        if not left.blocks:
            return False
        left.blocks -= 1
        block = machine.blocks.get(machine.index[0][1])
        machine.drop_ready(block, bits.lowest(block.ready, machine.ready_count - limit), "maxlen")
    return True
