"""The state of a group of queues: what snapshots and checkpoints hold, and when the group has to be woken."""

from __future__ import annotations

from array import array

from sortedcontainers import SortedList

from fifo.block_store import BlockMemory
from fifo.fields import FieldSource
from fifo.limits import PRODUCTION, Limits
from fifo.machine import QueueMachine
from fifo.pages import MemoryPages, Pages
from fifo.sessions import Sessions


class GroupState:
    """Queues, sessions and group time. `field_source` gives columns again that were dropped; `pages` keeps blocks;
    `limits` are the same on all members."""

    def __init__(
        self, field_source: FieldSource, pages: Pages | None = None, limits: Limits = PRODUCTION
    ) -> None:
        self.field_source = field_source
        self.limits = limits
        self.memory = BlockMemory(MemoryPages() if pages is None else pages, limits)  # local
        self.touched: dict[
            int, None
        ] = {}  # local: queues that entries have touched since somebody cleared it
        self.queues: dict[int, QueueMachine] = {}
        self.deleted = array("Q")  # ids of deleted queues, ascending: they never come back
        self.configured = 0  # the catalog's revision that all queues here are configured by
        self.sessions = Sessions(limits)
        self.index = 0
        self.now_ms = 0
        self.version = 1
        self.running_hash = 0  # over (index, replies, effects) of all entries
        self.last_steps = 0  # local: of evaluation, in the last entry
        self.backlog: dict[int, None] = {}  # queues with unfinished work, the longest waiting first
        self._wakes: SortedList[tuple[int, int]] = SortedList()  # (time, queue): follows from the queues
        self._wake_of: dict[int, int] = {}

    def note_expiry(self, machine: QueueMachine) -> None:
        """Files the queue under the time of its next expiry."""
        self.set_wake(machine.queue, machine.next_expiry())

    def wake_of(self, queue: int) -> int | None:
        """The time a queue is filed under."""
        return self._wake_of.get(queue)

    def set_wake(self, queue: int, wake: int | None) -> None:
        """Files a queue under this time, or under none."""
        before = self._wake_of.get(queue)
        if wake != before:
            if before is not None:
                self._wakes.remove((before, queue))
                del self._wake_of[queue]
            if wake is not None:
                self._wakes.add((wake, queue))
                self._wake_of[queue] = wake

    def next_wake(self) -> int | None:
        """The group time at which the leader should propose Wake; at or before the present: now."""
        if self.backlog or self.sessions.departing:
            return self.now_ms
        return self._wakes[0][0] if self._wakes else None
