"""A number by which members compare their states of a group: CRC-32 over the group's head and its queues.

It covers what a snapshot covers. Equal states have the same number, on every member. The numbers of single queues are
kept while they are made, a few queues at a time, so that no step takes long. Entries may be applied meanwhile: the
queues that they touch are done again.
"""

from __future__ import annotations

import zlib

from fifo.codec import Writer
from fifo.group_machine import GroupMachine
from fifo.persistence import snapshot
from fifo.queue_machine import QueueMachine

QUEUE_COST_BYTES = 4 << 10
"""The cost of a queue beside the bytes of its state, counted as such bytes."""
FEW_QUEUES = 256
"""The number of queues that the last step may have to do."""
MOST_PASSES = 4
"""Passes over the queues, while entries touch more than a few between them. The last step then does the rest."""


class StateCrc:
    """The number of one state. Call `prepare` until it returns True, then `take`, with no entry in between."""

    def __init__(self, group: GroupMachine) -> None:
        self.group = group
        self._known: dict[int, tuple[int, int]] = {}
        """queue -> (its `changes`, its number)"""
        self._waiting: list[int] = []
        """the queues of this pass that are to be done, the next one last"""
        self._passes = 0

    def prepare(self, most_bytes: int) -> bool:
        """Does part of the work, about `most_bytes` of it. Returns whether little is left."""
        if not self._waiting:
            self._waiting = self._missing()
            if len(self._waiting) <= FEW_QUEUES or self._passes == MOST_PASSES:
                return True
            self._passes += 1
        while self._waiting and most_bytes > 0:
            machine = self.group.queues.get(self._waiting.pop())
            if machine is not None:
                most_bytes -= QUEUE_COST_BYTES + self._do(machine)
        return False

    def take(self) -> int:
        """The number of the state as it is now."""
        out = Writer()
        queues = self.group.queues
        for queue in self._missing():
            self._do(queues[queue])
        for queue in sorted(queues):
            out.number(self._known[queue][1])
        return zlib.crc32(out.data, zlib.crc32(snapshot.group_head(self.group)))

    def _missing(self) -> list[int]:
        """The queues without a number that is still right, in falling order."""
        queues, known = self.group.queues, self._known
        return [
            queue
            for queue in sorted(queues, reverse=True)
            if queue not in known or known[queue][0] != queues[queue].changes
        ]

    def _do(self, machine: QueueMachine) -> int:
        """Makes a queue's number. Returns the bytes that it covers."""
        size = crc = 0
        for section in snapshot.queue_sections(self.group, machine):
            size += len(section)
            crc = zlib.crc32(section, crc)
        self._known[machine.queue] = machine.changes, crc
        return size
