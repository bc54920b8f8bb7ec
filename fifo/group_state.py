"""The state of a group of queues, as snapshots and checkpoints hold it, and the time of the group's next wake."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from sortedcontainers import SortedList, SortedSet

from fifo.commands import QueueConfig
from fifo.consumers.consumer import Consumer
from fifo.consumers.filter_fields import FieldSource
from fifo.decisions import Decisions
from fifo.effects import Refused
from fifo.limits import PRODUCTION, Limits
from fifo.messages.block_store import BlockMemory
from fifo.messages.pages import MemoryPages, Pages
from fifo.producers import Sessions
from fifo.queue_machine import QueueMachine
from fifo.shares import Owned
from fifo.transactions import Transactions


class GroupState:
    """Queues, sessions and group time. `field_source` reads columns that were dropped, `pages` keeps blocks, and
    `limits` are the same on all members."""

    def __init__(
        self, field_source: FieldSource, pages: Pages | None = None, limits: Limits = PRODUCTION
    ) -> None:
        self.field_source = field_source
        self.limits = limits
        self.memory = BlockMemory(MemoryPages() if pages is None else pages, limits)  # local
        self.touched: dict[
            int, None
        ] = {}  # local: queues that entries have touched since the member cleared it
        self.died: dict[
            int, None
        ] = {}  # local: queues that have got their first dead message since the member cleared it
        self.with_dead: SortedSet[int] = SortedSet()  # queues with dead messages: follows from the queues
        self.queues: dict[int, QueueMachine] = {}
        self.selector_bytes = Owned()  # of attached consumers by their owners; follow from them
        self.dirty: dict[int, None] = {}  # queues that an entry has to finish
        self.transactions = Transactions(limits, self.queues, self.dirty)
        self.deleted = array("Q")  # ids of deleted queues, ascending: never used again
        self.expired: dict[int, None] = {}  # of these, expired queues that the catalog may still have
        self.configured = 0  # the catalog's revision at which all queues here are configured
        self.sessions = Sessions(limits)
        self.decisions = Decisions(self.transactions, self.sessions, self.queues, self.dirty)
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

    def note_dead(self, machine: QueueMachine) -> None:
        """Files the queue among those with dead messages, or not."""
        has_dead = machine.messages.dead.count > 0
        if has_dead != (machine.queue in self.with_dead):
            if has_dead:
                self.with_dead.add(machine.queue)
                self.died[machine.queue] = None
            else:
                self.with_dead.remove(machine.queue)

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

    @property
    def has_work_left(self) -> bool:
        """Whether a budget has ended work that a Wake continues at once."""
        return bool(self.backlog or self.sessions.departing)

    def next_wake(self) -> int | None:
        """The group time at which the leader should propose Wake; None for never. A past time means now."""
        if self.has_work_left:
            return self.now_ms
        wake = self._wakes[0][0] if self._wakes else None
        overdue = self.transactions.next_due()
        return wake if overdue is None else overdue if wake is None else min(wake, overdue)

    # ---- questions

    def has_queue(self, queue: int) -> bool:
        return queue in self.queues

    def was_deleted(self, queue: int) -> bool:
        return is_deleted(self.deleted, queue)

    def config_of(self, queue: int) -> QueueConfig | None:
        """The queue's configuration at this group; None if there is no such queue."""
        machine = self.queues.get(queue)
        return None if machine is None else machine.messages.config

    def queue_ids(self) -> list[int]:
        """The ids of all queues, ascending."""
        return sorted(self.queues)

    def consumers(self, queue: int) -> list[Consumer]:
        """A queue's consumers in the order of attaching, read-only."""
        machine = self.queues.get(queue)
        return [] if machine is None else list(machine.consumers.by_key.values())

    def live_nodes(self) -> list[tuple[int, int]]:
        """(node, boot) of the processes that have sessions here, ascending."""
        return sorted(self.sessions.live)

    def departed_boot(self, node: int) -> int:
        """The highest boot number of this node's processes that were declared gone; -1 if none was."""
        return self.sessions.departed.get(node, -1)

    def taken(
        self, producer: bytes, epoch: int, first: int, last: int
    ) -> tuple[list[tuple[int, int]], int] | None:
        """The ranges of a producer's messages first..last that this group accepted, and the highest number of all that
        it accepted. None where the producer is not in this epoch here."""
        known = self.sessions.producers.get(producer)
        if known is None or known.epoch != epoch:
            return None
        return known.taken(first, last), known.highest

    def block_count(self, queue: int) -> int:
        """The number of the queue's blocks: the cost of `info`."""
        machine = self.queues.get(queue)
        return 0 if machine is None else len(machine.messages.blocks)


def no_queue(queue: int) -> Refused:
    return Refused("not_found", f"no queue {queue} in this group")


def is_deleted(deleted: array[int], queue: int) -> bool:
    """Whether an id is in `deleted`, which ascends."""
    position = bisect_left(deleted, queue)
    return position < len(deleted) and deleted[position] == queue
