"""A machine without what it can make again: it must behave as before, and have the same state."""

from __future__ import annotations

from fifo.group_machine import GroupMachine
from fifo.messages.blocks import Block


def drop_columns(group: GroupMachine) -> None:
    """Drops all filter fields; they are read again where they are needed."""
    for machine in group.queues.values():
        machine.groups.fields.forget_laid()
        blocks = machine.messages.blocks
        for block in blocks.warm():
            block.columns = None
            blocks.measure(block)


def drop_summaries(group: GroupMachine) -> None:
    """Drops the summaries of all blocks; a cold block must be read to make its summary again."""
    for machine in group.queues.values():
        blocks = machine.messages.blocks._blocks
        for number, block in blocks.items():
            if type(block) is Block:
                block.summary = b""
                if block.stored is not None:
                    block.stored = block.stored.with_summary(b"")
            else:
                blocks[number] = block.with_summary(b"")
        machine.changes += 1


def drop_matches(group: GroupMachine) -> None:
    """Drops all match sets."""
    for machine in group.queues.values():
        for each in machine.groups.by_selector.values():
            machine.groups._forget(each)
