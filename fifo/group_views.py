"""What a group's queues look like: for those who ask, deciding nothing and changing nothing that is replicated."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from fifo import pin_views, reader_views, views
from fifo.commands import QueueConfig
from fifo.consumer import Consumer
from fifo.effects import Deliver, Refused, Run
from fifo.group_state import GroupState
from fifo.results import PinInfo, Portion, QueueInfo, ReaderInfo, Waiting
from fifo.staging import StagedInfo
from fifo.storage import Storage, storage


class GroupViews(GroupState):
    """A group's state with the questions that others ask of it."""

    def has_queue(self, queue: int) -> bool:
        return queue in self.queues

    def was_deleted(self, queue: int) -> bool:
        return is_deleted(self.deleted, queue)

    def config_of(self, queue: int) -> QueueConfig | None:
        """As the queue is configured here; None if there is none."""
        machine = self.queues.get(queue)
        return None if machine is None else machine.messages.config

    def queue_ids(self) -> list[int]:
        """Ascending."""
        return sorted(self.queues)

    def consumers(self, queue: int) -> list[Consumer]:
        """A queue's consumers in the order of attaching; to be looked at, not changed."""
        machine = self.queues.get(queue)
        return [] if machine is None else list(machine.consumers.values())

    def live_nodes(self) -> list[tuple[int, int]]:
        """(node, boot) of the processes that sessions here are at, ascending."""
        return sorted(
            {(p.address.node, p.address.boot) for p in self.sessions.producers.values() if p.ended_ms < 0}
        )

    def departed_boot(self, node: int) -> int:
        """Processes of this node up to this boot number were declared gone; -1 if none was."""
        return self.sessions.departed.get(node, -1)

    def taken(
        self, producer: bytes, epoch: int, first: int, last: int
    ) -> tuple[list[tuple[int, int]], int] | None:
        """Which of a producer's messages first..last this group has taken, as ranges, and the highest number of all
        that it has taken. None where the producer is not in this epoch here."""
        known = self.sessions.producers.get(producer)
        if known is None or known.epoch != epoch:
            return None
        return known.taken(first, last), known.highest

    def block_count(self, queue: int) -> int:
        """How many blocks the queue's messages take: what `info` costs."""
        machine = self.queues.get(queue)
        return 0 if machine is None else len(machine.messages.blocks)

    def info(self, queue: int) -> QueueInfo | None:
        machine = self.queues.get(queue)
        return None if machine is None else views.info(machine)

    def held_by(self, node: int, boot: int) -> tuple[Deliver, ...]:
        """Deliveries that rebuild what the consumers of this node's process hold, by queue and order of attaching."""
        found: list[Deliver] = []
        for queue in sorted(self.queues):
            machine = self.queues[queue]
            for consumer in machine.consumers.values():
                if consumer.address.node == node and consumer.address.boot == boot:
                    found += views.held_by(machine, consumer)
        return tuple(found)

    def waiting(
        self, queue: int, start_sequence: int, limit: int, selector: bytes = b""
    ) -> Waiting | Refused:
        """A page of the ready messages that match, from a sequence on; what consumers hold is not shown."""
        machine = self.queues.get(queue)
        return no_queue(queue) if machine is None else views.waiting(machine, start_sequence, limit, selector)

    def failed_deliveries(self, queue: int, runs: Sequence[Run]) -> tuple[tuple[int, int], ...]:
        """(number, failed deliveries) of messages that `waiting` or `pinned` has shown, where not zero."""
        machine = self.queues.get(queue)
        return () if machine is None else views.failed_deliveries(machine, runs)

    def staged(self, queue: int) -> tuple[StagedInfo, ...]:
        """The parts that wait for being published, that whose last chunk is oldest first."""
        machine = self.queues.get(queue)
        return () if machine is None else machine.staging.infos()

    def readers(self, queue: int) -> tuple[ReaderInfo, ...]:
        """A queue's durable readers in the order of being made; none if there is no such queue."""
        machine = self.queues.get(queue)
        return () if machine is None else reader_views.infos(machine)

    def reader(self, queue: int, name: str) -> ReaderInfo | None:
        """One of them."""
        machine = self.queues.get(queue)
        return None if machine is None else reader_views.info(machine, name)

    def reserved(
        self, queue: int, reader: str, offset: int, first_ordinal: int, count: int
    ) -> Portion | Refused:
        """A slice by ordinals of an outstanding reservation; shorter where the reservation ends, or it has_more."""
        machine = self.queues.get(queue)
        if machine is None:
            return no_queue(queue)
        return reader_views.reserved(machine, reader, offset, first_ordinal, count)

    def may_reserve(self, queue: int, reader: str) -> bool:
        """False only if a Reserve could certainly find nothing; cheap."""
        machine = self.queues.get(queue)
        return machine is None or reader_views.may_reserve(machine, reader)

    def pins(self, queue: int) -> tuple[PinInfo, ...]:
        """A queue's pins, the oldest first; none if there is no such queue."""
        machine = self.queues.get(queue)
        return () if machine is None else pin_views.infos(machine)

    def pinned(
        self,
        queue: int,
        pin: int,
        start_sequence: int,
        end_sequence: int,
        limit: int,
        selector: bytes = b"",
    ) -> Waiting | Refused:
        """A page of what was ready when the pin was made and matches, start_sequence <= sequence < end_sequence."""
        machine = self.queues.get(queue)
        if machine is None:
            return no_queue(queue)
        return pin_views.pinned(machine, pin, start_sequence, end_sequence, limit, selector)

    def storage(self, queue: int, recent_from: int) -> Storage | None:
        """Where a queue's messages are; recent_from: the first Raft index whose body the log has in memory."""
        machine = self.queues.get(queue)
        return None if machine is None else storage(machine, recent_from)


def no_queue(queue: int) -> Refused:
    return Refused("not_found", f"no queue {queue} in this group")


def is_deleted(deleted: array[int], queue: int) -> bool:
    """Whether an id is among those that ascend in `deleted`."""
    position = bisect_left(deleted, queue)
    return position < len(deleted) and deleted[position] == queue
