"""Queries of a group of queues, by the queue's id.

A query changes no replicated state and decides nothing. Some queries read cold blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from fifo.commands import UNKNOWN
from fifo.effects import Refused, Run
from fifo.group_machine import GroupMachine
from fifo.group_state import no_queue
from fifo.queries import queues
from fifo.queries import storage as storage_queries
from fifo.queries import subscriptions as subscription_queries
from fifo.queries.storage import Storage
from fifo.results import BrowsePage, DeadWork, QueueInfo, ReservationPage, SubscriptionInfo
from fifo.staging import StagedInfo


def info(group: GroupMachine, queue: int) -> QueueInfo | None:
    """The counts of a queue; None if there is no such queue. The cost grows with `GroupMachine.block_count`."""
    machine = group.queues.get(queue)
    return None if machine is None else queues.info(machine)


def dead_work(group: GroupMachine, queue: int, most: int) -> DeadWork | None:
    """What a queue's dead-letter worker has to do; None if there is no such queue. most: as in queues.dead_work."""
    machine = group.queues.get(queue)
    return None if machine is None else queues.dead_work(machine, most)


def browse(
    group: GroupMachine,
    queue: int,
    start_sequence: int,
    limit: int,
    selector: bytes = b"",
    *,
    delayed: bool = False,
) -> BrowsePage | Refused:
    """A page of the ready messages that match, from a sequence on; or of the delayed ones. Checked-out messages are not
    shown."""
    machine = group.queues.get(queue)
    if machine is None:
        return no_queue(queue)
    look = queues.browse_delayed if delayed else queues.browse
    return look(machine, start_sequence, limit, selector)


def upcoming(group: GroupMachine, queue: int, limit: int) -> BrowsePage | Refused:
    """The messages that a Get of `limit` messages would take now, in their order."""
    machine = group.queues.get(queue)
    return no_queue(queue) if machine is None else queues.upcoming(machine, limit)


def failed_deliveries(group: GroupMachine, queue: int, runs: Sequence[Run]) -> tuple[tuple[int, int], ...]:
    """(number, failed deliveries) of messages that `browse` or `pinned` has returned, where not zero."""
    machine = group.queues.get(queue)
    return () if machine is None else queues.failed_deliveries(machine, runs)


def staged(group: GroupMachine, queue: int) -> tuple[StagedInfo, ...]:
    """The unpublished staged parts, ordered by the time of their last chunk, oldest first."""
    machine = group.queues.get(queue)
    return () if machine is None else machine.staging.infos()


def staged_owner(group: GroupMachine, queue: int, producer: str) -> int:
    """The owner of a producer of staged batches; UNKNOWN if the queue does not remember the producer."""
    machine = group.queues.get(queue)
    last = None if machine is None else machine.staging.last_batches.get(producer)
    return UNKNOWN if last is None else last.owner


def subscriptions(group: GroupMachine, queue: int) -> tuple[SubscriptionInfo, ...]:
    """A queue's durable subscriptions in the order of being made; none if there is no such queue."""
    machine = group.queues.get(queue)
    return () if machine is None else subscription_queries.infos(machine)


def subscription(group: GroupMachine, queue: int, name: str) -> SubscriptionInfo | None:
    """A durable subscription by its name; None if there is none."""
    machine = group.queues.get(queue)
    return None if machine is None else subscription_queries.info(machine, name)


def reserved(
    group: GroupMachine, queue: int, subscription: str, offset: int, first_ordinal: int, count: int
) -> ReservationPage | Refused:
    """A slice by ordinals of an outstanding reservation. It is shorter if the reservation ends, or if it has_more."""
    machine = group.queues.get(queue)
    if machine is None:
        return no_queue(queue)
    return subscription_queries.reserved(machine, subscription, offset, first_ordinal, count)


def may_reserve(group: GroupMachine, queue: int, subscription: str) -> bool:
    """False only if a Reserve could certainly find nothing; cheap."""
    machine = group.queues.get(queue)
    return machine is None or subscription_queries.may_reserve(machine, subscription)


def pinned(
    group: GroupMachine,
    queue: int,
    pin: int,
    start_sequence: int,
    end_sequence: int,
    limit: int,
    selector: bytes = b"",
) -> BrowsePage | Refused:
    """A page of the messages that were ready when the pin was made and match, start_sequence <= sequence <
    end_sequence."""
    machine = group.queues.get(queue)
    if machine is None:
        return no_queue(queue)
    return queues.pinned(machine, pin, start_sequence, end_sequence, limit, selector)


def storage(group: GroupMachine, queue: int, recent_from: int) -> Storage | None:
    """The places of a queue's messages. recent_from: the first Raft index whose body the log has in memory."""
    machine = group.queues.get(queue)
    return None if machine is None else storage_queries.storage(machine, recent_from)
