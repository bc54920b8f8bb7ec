"""Messages whose time has come.

A queue's second sorted tree has one entry a block: no ready message in there expires before. It may be too early (the
message is gone since), never too late; a wake-up then only finds the next time. Held messages do not expire; they are
looked at when they come back. In its own entry no message expires before all consumers were asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fifo import bits
from fifo.blocks import Block
from fifo.state import Entry

if TYPE_CHECKING:
    from fifo.machine import QueueMachine


def due(machine: QueueMachine, entry: Entry, block: Block) -> int:
    """The slots of a block whose time has come, except those of messages that came with this entry."""
    found = block.runs.expired(entry.now_ms)
    arrived_from = entry.arrived_from.get(machine.queue)
    if found and arrived_from is not None:
        found &= bits.span(0, max(arrived_from - block.base, 0))
    return found


def expire_block(machine: QueueMachine, entry: Entry, block: Block, *, spares_new: bool) -> None:
    """Removes what has expired in a block, but for what came with this entry if that is spared. Costs one block of
    budget."""
    budget = entry.budget(machine.queue)
    budget.left.blocks -= 1
    budget.expired[block.number] = None
    gone = (due(machine, entry, block) if spares_new else block.runs.expired(entry.now_ms)) & block.ready
    machine.set_earliest(block, block.runs.earliest(block.ready ^ gone))
    if gone:
        machine.drop_ready(block, gone, "expired")


def remove_expired(machine: QueueMachine, entry: Entry) -> None:
    """Goes through the blocks that are due, the earliest first, as far as the budget goes."""
    expiries = machine.expiries
    left = entry.budget(machine.queue).left
    while expiries and expiries[0][0] <= entry.now_ms and left.blocks:
        expire_block(machine, entry, machine.blocks.get(expiries[0][1]), spares_new=False)
